"""The states of a backend over HTTP: ready or not, and for its owner, to sleep and to wake.

    GET  /readyz   200 {"status": "ready"} after a round trip through the engine loop; otherwise 503, and how far it is
    POST /sleep    {"grace_s": 30}: refuse new requests (503 `backend_asleep`), let running ones end for so long, abort
                   the rest, forget every key, value and prefix, and give the card's memory back; 200 once it is done
    POST /wake     take it again; 200 once requests are welcome

Both are idempotent and take their turns: a wake that comes while the backend falls asleep follows at once. They are
answered on the same port as requests, over the same mutual TLS: the one peer that may ask for answers may do this, too.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backend.errors import Asleep, BackendError, CannotWake, InvalidRequest, ModelError
from backend.process.messages import Sleep, Wake
from backend.process.replicas import Engines
from backend.wire import PING_PATH, SLEEP_PATH, WAKE_PATH, Readiness, SleepRequest, Slept, Woken

PING_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 1024


class LifecycleState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FALLING_ASLEEP = "falling_asleep"
    ASLEEP = "asleep"
    WAKING = "waking"
    DEAD = "dead"


class Lifecycle:
    """error_response: how an error becomes an answer."""

    def __init__(self, engine: Engines, error_response: Callable[[Exception], Response]) -> None:
        self._engine = engine
        self._error_response = error_response
        self._state = LifecycleState.READY
        self._turn = asyncio.Lock()

    @property
    def state(self) -> LifecycleState:
        if self._engine.dead:
            return LifecycleState.DEAD
        if self._engine.leaving:
            return LifecycleState.DRAINING
        return self._state if self._engine.alive else LifecycleState.LOADING

    def routes(self) -> list[Route]:
        return [
            Route(PING_PATH, self._answered(self.readyz)),
            Route(SLEEP_PATH, self._answered(self.sleep), methods=["POST"]),
            Route(WAKE_PATH, self._answered(self.wake), methods=["POST"]),
        ]

    async def readyz(self, _: Request) -> Response:
        state = self.state
        if state in (LifecycleState.READY, LifecycleState.DEAD):
            await self._engine.ping(PING_TIMEOUT_S)
            return _json(Readiness(status=LifecycleState.READY))
        loading = self._engine.loading
        if loading is None or state is LifecycleState.ASLEEP:
            return _json(Readiness(status=state), 503)
        return _json(Readiness(status=state, stage=loading.stage, done=loading.done, total=loading.total), 503)

    async def sleep(self, request: Request) -> Response:
        asked = await _read(request)
        began = time.monotonic()
        async with self._turn:
            self._engine.require_alive()
            released = 0
            if self._state is LifecycleState.READY:
                self._state, self._engine.resting = LifecycleState.DRAINING, True
                try:
                    await self._engine.drain(asked.grace_s, Asleep("the backend fell asleep"))
                    self._state = LifecycleState.FALLING_ASLEEP
                    released = await self._engine.change_state(Sleep)
                except BaseException:
                    self._state, self._engine.resting = LifecycleState.READY, False
                    raise
                self._state = LifecycleState.ASLEEP
        return _json(
            Slept(status=LifecycleState.ASLEEP, seconds=round(time.monotonic() - began, 3), released_bytes=released)
        )

    async def wake(self, _: Request) -> Response:
        began = time.monotonic()
        async with self._turn:
            self._engine.require_alive()
            if self._state is LifecycleState.ASLEEP:
                self._state = LifecycleState.WAKING
                try:
                    await self._engine.change_state(Wake)
                except ModelError as error:
                    self._state = LifecycleState.ASLEEP
                    raise CannotWake(str(error)) from None
                except BaseException:
                    self._state = LifecycleState.ASLEEP
                    raise
                self._state, self._engine.resting = LifecycleState.READY, False
        return _json(Woken(status=LifecycleState.READY, seconds=round(time.monotonic() - began, 3)))

    def _answered(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            try:
                return await endpoint(request)
            except BackendError as error:
                return self._error_response(error)

        return answered


async def _read(request: Request) -> SleepRequest:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise InvalidRequest(f"the body is larger than {MAX_BODY_BYTES} bytes; send a smaller body")
    try:
        return SleepRequest.model_validate_json(bytes(body) or b"{}")
    except ValidationError:
        raise InvalidRequest(
            'the body is not one that this call takes; send {"grace_s": seconds from 0 to 3600}, or no body',
            param="grace_s",
        ) from None


def _json(answer: Readiness | Slept | Woken, status: int = 200) -> Response:
    return Response(answer.model_dump_json(exclude_none=True), status, media_type="application/json")
