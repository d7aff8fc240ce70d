"""Whether this gateway should get requests: a round trip through every part that an answer needs.

Alive is not ready: a process whose log cannot be written or whose engines hang still answers ``/healthz``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Literal

from pydantic import BaseModel, ConfigDict

CACHE_S = 2.0  # probes of several balancers do not add up

Check = Callable[[], Awaitable[None]]
"""Raises when its part is not ready; the message may be shown."""


class ComponentHealth(BaseModel):
    model_config = ConfigDict(frozen=True)

    status: Literal["ready", "failed"]
    because: str | None = None


class HealthReport(BaseModel):
    """`ready` needs every part of the gateway itself, and one backend that answers (if any is registered)."""

    model_config = ConfigDict(frozen=True)

    ready: bool
    parts: Mapping[str, ComponentHealth]
    backends: Mapping[str, ComponentHealth]


class Health:
    def __init__(self, parts: Mapping[str, Check], backends: Callable[[], Mapping[str, Check]]) -> None:
        self._parts = parts
        self._backends = backends
        self._asking = asyncio.Lock()
        self._report: tuple[float, HealthReport] | None = None
        self._stopping = False

    def stop(self) -> None:
        """Not ready any more: balancers are to send their calls elsewhere."""
        self._stopping, self._report = True, None

    async def report(self) -> HealthReport:
        async with self._asking:
            if self._report is None or monotonic() - self._report[0] > CACHE_S:
                parts, backends = await asyncio.gather(_all(self._parts), _all(self._backends()))
                if self._stopping:
                    parts["gateway"] = ComponentHealth(status="failed", because="it is being stopped")
                ready = all(part.status == "ready" for part in parts.values()) and (
                    not backends or any(part.status == "ready" for part in backends.values())
                )
                self._report = (monotonic(), HealthReport(ready=ready, parts=parts, backends=backends))
            return self._report[1]


async def _all(checks: Mapping[str, Check]) -> dict[str, ComponentHealth]:
    return dict(zip(checks, await asyncio.gather(*(_one(check) for check in checks.values())), strict=True))


async def _one(check: Check) -> ComponentHealth:
    try:
        await check()
    except Exception as error:  # of any kind: that part is not ready
        return ComponentHealth(status="failed", because=str(error) or type(error).__name__)
    return ComponentHealth(status="ready")
