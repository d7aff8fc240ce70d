"""The answer of one call for embeddings: its texts through the engine, part by part, and their vectors as OpenAI gives
them."""

import asyncio
import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from backend.answer.error_bodies import JSON, ModelFailed, error_response
from backend.errors import Asleep, DeadlineExceeded, Leaving, Overloaded, RequestError
from backend.process.call import Call, ClientGone
from backend.process.messages import AddSequence
from backend.process.metrics import Metrics
from backend.process.replicas import Engines
from backend.wire import REQUEST_ID_HEADER

PART = 64  # texts in the engine's queue at once, of one call
RETRY_S = 0.05  # a later part waits so long for a place


@dataclass(frozen=True, slots=True)
class Form:
    """How vectors are given. dimensions: the first so many (Kusupati et al. 2022, Matryoshka); None: all. normalised:
    to length 1, after the cut."""

    dimensions: int | None
    normalised: bool
    in_base64: bool

    def of(self, vector: bytes) -> str | list[float]:
        """vector: float32, little-endian; so is what base64 encodes."""
        values = np.frombuffer(vector, "<f4")[: self.dimensions]
        if self.normalised:
            length = np.linalg.norm(values.astype(np.float64))
            values = (values / (length or 1.0)).astype("<f4")
        if self.in_base64:
            return base64.b64encode(values.tobytes()).decode()
        given: list[float] = values.tolist()
        return given


class EmbeddingResponse(Response):
    """Sends the vectors of one call, while watching for the client's leaving.

    ``sequences`` are its texts. The first part may be refused for want of a place; later ones wait for theirs, unless
    the backend falls asleep or stops: nothing was sent yet, so another may answer all of it.
    """

    def __init__(
        self,
        metrics: Metrics,
        engine: Engines,
        sequences: list[AddSequence],
        form: Form,
        *,
        model: str,
        id: str,
        arrived: float,
        deadline_s: float | None,
    ) -> None:
        self.background = None
        self._metrics = metrics
        self._engine = engine
        self._sequences = sequences
        self._form = form
        self._model = model
        self._id = id
        self._arrived = arrived
        self._deadline_s = deadline_s
        self._call: Call | None = None
        self._ended: Exception | None = None  # why no client waits for it any more
        self._started: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        alarm = self._set_alarm()
        outcome = "failed"
        try:
            vectors = await self._vectors()
            body = await asyncio.to_thread(self._body, vectors)
            headers = [(b"content-type", JSON.encode()), (REQUEST_ID_HEADER.encode(), self._id.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body, "more_body": False})
            outcome = "completed"
        except ClientGone:
            outcome = "aborted"
        except Exception as error:
            outcome = "refused" if isinstance(error, RequestError) else "failed"
            await error_response(error)(scope, receive, send)
        finally:
            watch.cancel()
            if alarm is not None:
                alarm.cancel()
            if self._call is not None:
                self._call.close()
            self._account(outcome)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._ended = ClientGone()
        if self._call is not None:
            self._call.leave()

    def _set_alarm(self) -> asyncio.TimerHandle | None:
        if self._deadline_s is None:
            return None
        left = self._deadline_s - (time.monotonic() - self._arrived)
        return asyncio.get_running_loop().call_later(left, self._expire)

    def _expire(self) -> None:
        self._ended = DeadlineExceeded("the request's deadline has passed")
        if self._call is not None:
            self._call.expire()

    async def _vectors(self) -> list[bytes]:
        """Vectors of all texts, in order. Raises EngineDead, RequestError, ModelFailed or ClientGone."""
        vectors: list[bytes] = []
        size = min(PART, self._engine.capacity, self._engine.config.max_per_project or PART)
        for first in range(0, len(self._sequences), size):
            part = self._sequences[first : first + size]
            self._call = call = await self._submitted(part, patient=first > 0)
            found = [b""] * len(part)
            while not call.done:
                for index, progress in await call.next_events():
                    if progress.vector is None:
                        raise ModelFailed("the model's output is not a number; this request cannot be answered")
                    found[index] = progress.vector
                    self._started = self._started or progress.started
            vectors += found
        return vectors

    async def _submitted(self, part: list[AddSequence], *, patient: bool) -> Call:
        while True:
            if self._ended is not None:
                raise self._ended
            try:
                return self._engine.submit(part)
            except Overloaded as busy:
                if not patient or isinstance(busy, Asleep | Leaving):
                    raise
            await asyncio.sleep(RETRY_S)

    def _body(self, vectors: list[bytes]) -> bytes:
        """The answer."""
        data = [{"object": "embedding", "index": i, "embedding": self._form.of(v)} for i, v in enumerate(vectors)]
        tokens = self._tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        body: dict[str, Any] = {"object": "list", "data": data, "model": self._model, "usage": usage}
        return msgspec.json.encode(body)

    @property
    def _tokens(self) -> int:
        return sum(len(sequence.prompt) for sequence in self._sequences)

    def _account(self, outcome: str) -> None:
        now = time.monotonic()
        self._metrics.count_request(outcome)
        self._metrics.request_duration.observe(now - self._arrived)
        if self._started is not None:
            self._metrics.input_tokens.inc(self._tokens)
            self._metrics.count_run(self._arrived, self._started, now, len(self._sequences))


class ScoringResponse(EmbeddingResponse):
    """The same of pairs of texts, each of which has one number. `write`: makes the body of scores and tokens."""

    def __init__(
        self,
        metrics: Metrics,
        engine: Engines,
        sequences: list[AddSequence],
        write: Callable[[list[float], int], dict[str, Any]],
        *,
        squashed: bool,
        id: str,
        arrived: float,
        deadline_s: float | None,
    ) -> None:
        form = Form(None, normalised=False, in_base64=False)
        super().__init__(metrics, engine, sequences, form, model="", id=id, arrived=arrived, deadline_s=deadline_s)
        self._write = write
        self._squashed = squashed

    def _body(self, vectors: list[bytes]) -> bytes:
        numbers = np.array([np.frombuffer(vector, "<f4")[0] for vector in vectors], np.float64)
        scores = 1 / (1 + np.exp(-numbers)) if self._squashed else numbers
        return msgspec.json.encode(self._write(scores.tolist(), self._tokens))
