"""A worker's side: what it shares with the others through its supervisor."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from gateway.workers.limits import SupervisedLimitStore
from gateway.workers.peer import Peer, PeerGone
from gateway.workers.worker_names import left_behind


class Membership:
    """Join before the gateway opens. `gone` is set when the supervisor has ended: then a worker ends too."""

    def __init__(self, node: str, place: int, generation: str, places: int) -> None:
        self._named = node, place, generation, places
        self._peer: Peer | None = None
        self._exposition: Callable[[], bytes] = lambda: b""
        self._hand_over: Callable[[], None] = lambda: None

    @classmethod
    async def join(cls, end: socket.socket, node: str, place: int, generation: str, places: int) -> Self:
        """`end`: this worker's of the pair of sockets. The rest as for `gateway.workers.supervisor.left_behind`."""
        self = cls(node, place, generation, places)
        self._peer = await Peer.over(end, {"metrics": self._own_metrics, "replaced": self._replaced})
        return self

    @property
    def gone(self) -> asyncio.Event:
        return self._supervisor.gone

    @property
    def is_first(self) -> bool:
        """Whether it is the one to say what one of them is to say; a replacement of it says it again."""
        return self._named[1] == 1

    def left_behind(self, folder: Path) -> list[str]:
        """Names of workers that were killed, whose open calls this one is to close on record."""
        return left_behind(folder, *self._named)

    def limit_store(self, spent: Mapping[str, float]) -> SupervisedLimitStore:
        """Limits that hold for all workers together. `spent`: as for `gateway.limits.memory_store.MemoryLimitStore`."""
        return SupervisedLimitStore(self._supervisor, spent)

    async def ready(self, exposition: Callable[[], bytes], hand_over: Callable[[], None]) -> None:
        """It takes calls from now on. `exposition`: its own metrics, in Prometheus' text format. `hand_over`: called
        when another takes calls in its place, some seconds before it is stopped."""
        self._exposition, self._hand_over = exposition, hand_over
        await self._supervisor.ask("ready")

    async def metrics(self) -> bytes:
        """Those of all workers, of which each may be up to `gateway.workers.supervisor.PATIENCE_S` old."""
        try:
            text: str = await self._supervisor.ask("metrics")
        except PeerGone:
            return self._exposition()
        return text.encode()

    async def leave(self) -> None:
        """Says its last metrics, which count on."""
        with suppress(PeerGone):
            await self._supervisor.ask("ended", self._exposition().decode())
        await self._supervisor.close()

    async def _replaced(self, _: Any) -> None:
        self._hand_over()

    async def _own_metrics(self, _: Any) -> str:
        return self._exposition().decode()

    @property
    def _supervisor(self) -> Peer:
        if self._peer is None:
            raise RuntimeError("join first")
        return self._peer
