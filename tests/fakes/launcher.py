"""A launcher of in-process backends (`tests.fakes.backend`): starts in no time, crashes and stalls on demand."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from regions.errors import LaunchError
from regions.fleet.fleet import Backend
from regions.fleet.launcher import RunningBackend, silent
from tests.fakes.backend import FakeBackend, running


class FakeLauncher:
    """`takes_s`: a start. `fails`: how many starts to come do."""

    outlives = False
    metrics = None  # what its backends tell at /metrics

    async def adopt(self):
        pass

    def __init__(self, *, takes_s=0.0, fails=0, on_change=lambda replica, running: None):
        self.takes_s, self.fails = takes_s, fails
        self.on_change = on_change
        self.specs, self.fakes, self.stopped = [], {}, []
        self._running, self._stacks = {}, {}

    @property
    def running(self):
        return dict(self._running)

    async def start(self, spec, *, progress=silent):
        self.specs.append(spec)
        await asyncio.sleep(self.takes_s)
        if self.fails:
            self.fails -= 1
            raise LaunchError("backend did not start: no memory")
        identity = spec.identity
        fake = self.fakes[identity.backend] = FakeBackend(model=spec.served_name, metrics=type(self).metrics)
        stack = self._stacks[identity.backend] = AsyncExitStack()
        await stack.enter_async_context(running(fake))
        backend = Backend(
            id=identity.backend,
            tenant=identity.tenant,
            region=identity.region,
            url=fake.url,
            uri=identity.uri,
            models=(spec.served_name,),
            role=spec.role,
            transfer="127.0.0.1:9" if spec.role == "prefill" else None,
        )
        self._running[identity.backend] = RunningBackend(backend, 0, Path("log"))
        return self._running[identity.backend]

    async def stop(self, backend_id):
        if self._running.pop(backend_id, None) is not None:
            self.stopped.append(backend_id)
            await self._stacks.pop(backend_id).aclose()

    async def crash(self, backend_id):
        del self._running[backend_id]
        await self._stacks.pop(backend_id).aclose()
        self.on_change(backend_id, None)

    async def close(self):
        for backend_id in list(self._running):
            await self.stop(backend_id)
