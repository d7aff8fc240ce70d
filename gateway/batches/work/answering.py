"""One line of a batch through the pipeline, as a call of its own, with retries until its answer is final.

A line waits where an interactive client would have to retry: for its turn behind interactive calls, for limits,
for a backend. What a server did wrong is tried again a few times; what the line itself did wrong is its result.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import time

from pydantic_core import from_json

from gateway.batches.content.lines import BadLine, parse_line
from gateway.batches.work.line_client import Collected, line_client
from gateway.batches.work.results import ApiAnswer, LineResult, answered, erased, failed
from gateway.directory.directory import DirectoryStale
from gateway.errors import GatewayError, PolicyDenied
from gateway.identity.keys import KeyRefused
from gateway.openai.asgi_client import BatchLine, Client, Header
from gateway.openai.endpoints import Endpoint
from gateway.records.batches import BatchRecord
from gateway.request.pipeline import Pipeline

MAX_FAILURES = 4
"""Attempts that may fail in a server before that is the line's result."""
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 30.0
ROOM_EVERY_S = 0.02
RESERVE = 0.25
"""Share of a limit that is left to interactive calls."""
RESERVE_WAIT_S = 1.0


@dataclass(slots=True)
class Pace:
    """What all lines of a tenant wait for. `slots`: lines at one time."""

    slots: asyncio.Semaphore
    paused_until: float = 0.0

    async def free(self) -> None:
        """Once limits have something left beside what is interactive calls'."""
        left = self.paused_until - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    def note(self, headers: dict[str, str]) -> None:
        """The limits, as an answer reports them."""
        for kind in ("requests", "tokens"):
            limit, left = (headers.get(f"x-ratelimit-{what}-{kind}", "") for what in ("limit", "remaining"))
            if limit.isdigit() and left.isdigit() and int(left) < RESERVE * int(limit):
                self.paused_until = asyncio.get_running_loop().time() + RESERVE_WAIT_S


class TimeIsOver(Exception):
    """The time in which a call had to be answered ended before its turn came."""


@dataclass(slots=True)
class PatientCall:
    """A call behind interactive ones, repeated until it has a final answer. `endpoint`: what it asks.
    `expires_at`: when it is given up, in seconds since 1970. `stopped`: set once no attempt may begin any more.
    `retried`: called at each attempt that is repeated."""

    tenant: str
    endpoint: Endpoint
    pipeline: Pipeline
    pace: Pace
    stopped: asyncio.Event
    expires_at: float
    retried: Callable[[], None] = lambda: None
    now: Callable[[], float] = time
    client: Client | None = None  # of the attempt that runs

    async def answered(self, body: bytes, line: BatchLine, headers: Sequence[Header] = ()) -> Collected | None:
        """The answer; None where the work was stopped before there was one. Raises TimeIsOver."""
        model = await self._target(_model_of(body), line.key_id)
        failures, wait_s = 0, FIRST_WAIT_S
        while True:
            if self.now() >= self.expires_at:
                raise TimeIsOver
            if not await self._room(model):
                return None
            self.client, collected = line_client(self.endpoint, body, line, headers)
            if (refused := await self._not_kept(self.client)) is not None:
                return Collected(refused.http_status, {}, bytearray(refused.body()))
            await self.pipeline.answer(self.endpoint, self.client)
            if collected.status == 0 or (self.stopped.is_set() and collected.status >= 500):
                return None  # the work was cut in the middle of the call, which is on record as such
            self.pace.note(collected.headers)
            failures += collected.status in (500, 502, 504)
            if not _is_worth_another(collected, failures):
                return collected
            self.retried()
            asked = collected.headers.get("retry-after", "")
            await self._wait(max(wait_s, min(float(asked), LONGEST_WAIT_S) if asked.isdigit() else 0.0))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _not_kept(self, client: Client) -> PolicyDenied | None:
        """Why the answer may not be kept, where the policy says so by now. Other refusals are made by the pipeline."""
        with suppress(GatewayError):
            principal = await self.pipeline.authenticator.principal_of(client)
            try:
                self.pipeline.enforcement.content_days(principal)
            except PolicyDenied as denied:
                if any(reason.rule == "retention.content" for reason in denied.reasons):
                    return denied
        return None

    async def _target(self, model: str, key_id: str) -> str:
        """The model that is asked first by the name `model`, which the call waits for."""
        with suppress(KeyRefused, DirectoryStale):  # which the call itself finds
            names = (await self.pipeline.authenticator.stored(key_id)).names
            if model in names:
                return names[model].targets[0]
        return model

    async def _room(self, model: str) -> bool:
        """Wait until interactive calls leave room; whether the work continues."""
        await self.pace.free()
        while not self.stopped.is_set():
            if self.pipeline.routes.has_room(self.tenant, model):
                return True
            await self._wait(ROOM_EVERY_S)
        return False

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopped.wait()


@dataclass(slots=True)
class LineAnswerer:
    """Answers the lines of one batch. `stopped`: set once no attempt may begin any more. `retried`: called at each
    attempt that is repeated."""

    batch: BatchRecord
    endpoint: Endpoint
    pipeline: Pipeline
    pace: Pace
    stopped: asyncio.Event
    retried: Callable[[], None] = lambda: None
    now: Callable[[], float] = time

    async def answer(self, number: int, raw: bytes | None, key_id: str) -> LineResult | None:
        """The line's result; None where the work was stopped before there was one. `raw` None: it was erased."""
        batch = self.batch
        if raw is None:
            return erased(batch.id, number, key_id)
        try:
            request = parse_line(number, raw, self.endpoint.path)
        except BadLine as bad:
            return failed(batch.id, number, bad.custom_id, bad.code, bad.message, key_id)
        line = BatchLine(batch.id, number, request.custom_id, batch.key_id)
        call = PatientCall(
            batch.owner.tenant,
            self.endpoint,
            self.pipeline,
            self.pace,
            self.stopped,
            batch.expires_at,
            self.retried,
            self.now,
        )
        try:
            got = await call.answered(request.body, line)
        except TimeIsOver:
            return expired(batch.id, number, request.custom_id, key_id)
        if got is None:
            return None
        answer = ApiAnswer(got.status, got.headers, bytes(got.body))
        return answered(batch.id, number, request.custom_id, answer, key_id)


def expired(batch: str, line: int, custom_id: str | None, key_id: str) -> LineResult:
    sentence = "The batch was not over within its completion window; send this request in another one"
    return failed(batch, line, custom_id, "batch_expired", sentence, key_id)


def _is_worth_another(collected: Collected, failures: int) -> bool:
    if collected.headers.get("x-should-retry") == "false":
        return False
    match collected.status:
        case 429 | 503:
            return True
        case 500 | 502 | 504:
            return failures < MAX_FAILURES
    return False


def _model_of(body: bytes) -> str:
    named = from_json(body).get("model")
    return named if isinstance(named, str) else ""
