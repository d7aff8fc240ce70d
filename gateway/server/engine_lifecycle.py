"""What the fleet asks of an engine besides answers: to sleep, to wake, and to wipe its cache before it ends.

Our engine does it over ``POST /sleep`` and ``POST /wake``: asleep, its weights are in the host's memory, its cache is
zeroed and given back. One that does not know how, or does not answer any more, loses its cache with its process, and
the record says that instead.
"""

import asyncio
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.wire import SLEEP_PATH, WAKE_PATH, WEIGHTS_PATH, SleepRequest, WeightsReport
from gateway.errors import GatewayError
from gateway.request.routes import Routes
from gateway.upstream.client import Upstream
from gateway.upstream.http1 import ConnectionLost, ProtocolError
from regions.fleet.fleet import Backend

GRACE_S = 30.0
"""What answers that still run get before they are cut."""
ASKED = SleepRequest(grace_s=GRACE_S).model_dump_json().encode()
TIMEOUT_S = 60.0
MEASURED_S = 600.0
"""By then our engine has hashed its weights, which it does beside their load."""
LOOK_S = 0.2
MEASURING = 503
WITH_PROCESS: Mapping[str, str] = {"cache": "ended_with_process"}


class LifecycleAnswer(BaseModel):
    """What the engine answers."""

    model_config = ConfigDict(frozen=True)

    status: str
    released_bytes: int | None = Field(None, ge=0)


class EngineLifecycle:
    """A `regions.fleet.ports.LifecycleClient`."""

    def __init__(self, upstream: Upstream, routes: Routes) -> None:
        self._upstream = upstream
        self._routes = routes

    async def release(self, backend: Backend) -> Mapping[str, str]:
        return await self.sleep(backend) or WITH_PROCESS

    async def sleep(self, backend: Backend) -> Mapping[str, str] | None:
        said = await self._ask(backend, SLEEP_PATH, ASKED)
        if said is None or said.status != "asleep" or said.released_bytes is None:
            return None
        return {"cache": "zeroed", "released_bytes": str(said.released_bytes)}

    async def wake(self, backend: Backend) -> bool:
        said = await self._ask(backend, WAKE_PATH, b"")
        return said is not None and said.status == "ready"

    async def weights(self, backend: Backend) -> str | None:
        target, loop = self._routes.target(backend), asyncio.get_running_loop()
        until = loop.time() + MEASURED_S
        while True:
            try:
                status, said = await self._upstream.ask(target, WEIGHTS_PATH, TIMEOUT_S)
            except (GatewayError, ConnectionLost, ProtocolError, TimeoutError):
                return None
            if status != MEASURING or loop.time() >= until:
                break
            await asyncio.sleep(LOOK_S)
        try:
            return WeightsReport.model_validate_json(said or b"").sha256 if status == 200 else None
        except ValidationError:
            return None

    async def _ask(self, backend: Backend, path: str, body: bytes) -> LifecycleAnswer | None:
        try:
            said = await self._upstream.fetch(self._routes.target(backend), path, TIMEOUT_S, body)
            return LifecycleAnswer.model_validate_json(said or b"")
        except (GatewayError, ValidationError):
            return None
