"""``POST /challenge``: an answer's activations, computed again by the engine that runs.

No token is generated: for each token of the answer, a sequence of prompt and the tokens before it is prefilled, and the
state behind it is what its one draw reports; the draw is dropped. The first of them is the longest, so that all others
find their blocks in the prefix cache, under a root that no other call has. They share the engine with the calls that
are running, a few at a time and one challenge after the other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from backend.activations.largest_activations import Words, row_of
from backend.answer.challenge import Challenge, read_challenge
from backend.answer.error_bodies import JSON, ModelFailed
from backend.answer.weights import Weights
from backend.engine.core.sampling import SamplingParams
from backend.errors import Asleep, ContextLengthExceeded, InvalidRequest, Leaving, Overloaded
from backend.models.checkpoints.tokenizer import TextModel
from backend.process.call import Call
from backend.process.messages import AddSequence, Ready
from backend.process.replicas import Engines
from backend.wire import ChallengeRequest

AT_ONCE = 16
"""Sequences of a challenge in the engine. None of them computes more than a block of tokens."""
LAST = 2
"""Priority, behind that of every call: the gateway gives -1, 0 or 1, and lower runs first."""
TRIES, TRY_AGAIN_S = 100, 0.1
"""How often, and after how long, a full queue is tried again."""


ReadBody = Callable[[Request, type[ChallengeRequest]], Awaitable[ChallengeRequest]]


class Challenges:
    """The endpoint. read: a request's body, checked. ready: what the engine said of itself. weights: that it serves."""

    def __init__(
        self,
        read: ReadBody,
        engine: Engines,
        text_model: TextModel,
        ready: Callable[[], Ready],
        weights: Callable[[], Weights],
    ) -> None:
        self._read = read
        self._engine = engine
        self._text_model = text_model
        self._ready = ready
        self._weights = weights
        self._one = asyncio.Lock()

    async def challenge(self, request: Request) -> Response:
        """Answers a `Challenged`. Text, prompt and commitment go into no log."""
        asked = await self._read(request, ChallengeRequest)
        weights = (await self._weights().report()).sha256
        if weights is None:
            raise InvalidRequest(
                "the digest of the weights is not known, so nothing can be said of them; see GET /weights"
            )
        ready = self._ready()
        challenge = await asyncio.to_thread(read_challenge, self._text_model, asked)
        self._require_room(challenge, ready)
        width, rows = ready.hidden_size, list[Words]()
        if challenge.rows and width == challenge.commitment.width:
            async with self._one:
                rows = await self._rows(challenge, request)
        dtype = "float32" if self._engine.config.dtype == "float32" else "bfloat16"
        found = await asyncio.to_thread(challenge.found, rows, width=width, dtype=dtype, weights_sha256=weights)
        return Response(found.model_dump_json(), media_type=JSON)

    def _require_room(self, challenge: Challenge, ready: Ready) -> None:
        longest = len(challenge.prompt) + max(challenge.rows, 1)
        if longest > ready.max_model_len:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {ready.max_model_len} tokens; prompt and answer have {longest}"
            )
        if challenge.rows and max((*challenge.prompt, *challenge.tokens)) >= ready.vocab_size:
            raise InvalidRequest(f"a token id is outside the vocabulary; send ids from 0 to {ready.vocab_size - 1}")

    async def _rows(self, challenge: Challenge, request: Request) -> list[Words]:
        """Raises what `Engines.submit` does, ModelFailed, and ClientDisconnect if the client has left."""
        root = token_bytes(16)

        def behind(at: int) -> AddSequence:
            return AddSequence(
                id=0,
                prompt=[*challenge.prompt, *challenge.tokens[:at]],
                params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, commits=True),
                priority=LAST,
                cache_root=root,
            )

        longest = await self._states([behind(challenge.rows - 1)])
        rows, at_once = list[Words](), min(AT_ONCE, self._engine.capacity)
        for start in range(0, challenge.rows - 1, at_once):
            if await request.is_disconnected():
                raise ClientDisconnect
            rows += await self._states([behind(at) for at in range(start, min(start + at_once, challenge.rows - 1))])
        return rows + longest

    async def _states(self, sequences: Sequence[AddSequence]) -> list[Words]:
        found: dict[int, Words] = {}
        call = await self._submitted(sequences)
        try:
            while not call.done:
                index, progress = await call.next_event()
                if progress.activations is None:
                    raise ModelFailed("the model gave values that are not numbers; try again, or restart the backend")
                found[index] = row_of(progress.activations)
        finally:
            call.close()
        return [found[index] for index in range(len(sequences))]

    async def _submitted(self, sequences: Sequence[AddSequence]) -> Call:
        """Waits while the queue is full of calls, which come first; raises Overloaded if it stays so."""
        for _ in range(TRIES):
            try:
                return self._engine.submit(sequences)
            except Overloaded as full:
                if isinstance(full, Asleep | Leaving):
                    raise
                await asyncio.sleep(TRY_AGAIN_S)
        return self._engine.submit(sequences)
