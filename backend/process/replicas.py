"""Data parallelism: several engines behind one server, each with the whole model on cards of its own.

A request goes to the engine that has computed the beginning of its prompt, unless that is much busier than another.
Sleep, wake, scrub and the drain speak for all engines; requests are taken as long as one runs, and others come back.
"""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, Protocol

import msgspec

from backend.engine.core.progress import Stats
from backend.engine.loaded_adapter import LoadedAdapter
from backend.engine_config import EngineConfig
from backend.errors import BackendError, ConfigError, EngineDead, Overloaded, ProjectBusy
from backend.process.call import Call
from backend.process.engine_client import EngineClient
from backend.process.messages import AddSequence, Loading, Ready, Scrubbed, Sleep, Wake

PREFIX_TOKENS = 64  # of a prompt, by which its engine is remembered
PREFIXES = 4096  # that are remembered
BUSIER = 4  # sequences by which the engine that has a prompt's beginning may be ahead of the least busy one


class Engines(Protocol):
    """What a server asks of its engine, or of several: see `EngineClient`."""

    resting: bool
    leaving: bool

    @property
    def config(self) -> EngineConfig: ...
    @property
    def capacity(self) -> int: ...
    @property
    def ready(self) -> Ready | None: ...
    @property
    def loading(self) -> Loading | None: ...
    @property
    def stats(self) -> Stats | None: ...
    @property
    def alive(self) -> bool: ...
    @property
    def dead(self) -> bool: ...
    def submit(self, sequences: Sequence[AddSequence]) -> Call: ...
    async def ping(self, timeout_s: float) -> None: ...
    async def scrub(self, timeout_s: float) -> Scrubbed: ...
    @property
    def adapters(self) -> list[LoadedAdapter]: ...
    async def load_adapter(
        self, name: str, path: str, project: str = "", digest: str = "", *, timeout_s: float
    ) -> LoadedAdapter: ...
    async def unload_adapter(self, name: str, project: str = "", *, timeout_s: float) -> None: ...
    async def drain(self, grace_s: float, error: Exception) -> None: ...
    async def change_state(self, to: type[Sleep] | type[Wake]) -> int: ...
    async def start(self, on_loading: Callable[[Loading], None] | None = None) -> Ready: ...
    async def stop(self) -> None: ...
    def leave(self) -> None: ...
    def require_alive(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Fleet:
    """engines: what a server asks. clients: the engines, each to be supervised."""

    engines: Engines
    clients: tuple[EngineClient, ...]


def engines_of(config: EngineConfig, size: int) -> Fleet:
    """Raises ConfigError if CUDA_VISIBLE_DEVICES names fewer cards than so many engines take."""
    if size == 1:
        client = EngineClient(config)
        return Fleet(client, (client,))
    clients = tuple(
        EngineClient(config, f"engine {number} of {size}", _cards(config, number, size)) for number in range(size)
    )
    return Fleet(Replicas(clients), clients)


def _cards(config: EngineConfig, number: int, size: int) -> dict[str, str]:
    """What the environment of an engine says of its cards."""
    if not config.device.startswith("cuda"):
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(card) for card in range(size * config.ranks)]
    if len(names) < size * config.ranks:
        raise ConfigError(
            f"{size} engines on {config.ranks} cards each need {size * config.ranks}, and CUDA_VISIBLE_DEVICES names "
            f"{len(names)}; lower --data-parallel-size, or name more"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[number * config.ranks : (number + 1) * config.ranks])}


class Replicas:
    """An `Engines`."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self._clients = list(clients)
        self.config: Final = clients[0].config
        self.capacity: Final = clients[0].capacity
        self._started = False
        self._prefixes: OrderedDict[bytes, EngineClient] = OrderedDict()

    # As one engine

    @property
    def ready(self) -> Ready | None:
        """Once each has started; then of one that runs."""
        if not self._started:
            return None
        return next((client.ready for client in self._clients if client.ready is not None), None)

    @property
    def loading(self) -> Loading | None:
        """Progress of the engine that has loaded least."""
        found = [client.loading for client in self._clients if client.loading is not None]
        return min(found, key=lambda loading: loading.done / max(1, loading.total), default=None)

    @property
    def stats(self) -> Stats | None:
        """Sum of the statistics of all together; None before any has started."""
        found = [client.stats for client in self._clients if client.stats is not None]
        return total_of(found) if found else None

    @property
    def alive(self) -> bool:
        return any(client.alive for client in self._clients)

    @property
    def dead(self) -> bool:
        return all(client.dead for client in self._clients)

    @property
    def resting(self) -> bool:
        return any(client.resting for client in self._clients)

    @resting.setter
    def resting(self, value: bool) -> None:
        for client in self._clients:
            client.resting = value

    @property
    def leaving(self) -> bool:
        return any(client.leaving for client in self._clients)

    @leaving.setter
    def leaving(self, value: bool) -> None:
        for client in self._clients:
            client.leaving = value

    def require_alive(self) -> None:
        """Raises EngineDead if any engine is not running: what is asked then has to be of all."""
        for client in self._clients:
            client.require_alive()

    # Requests

    def submit(self, sequences: Sequence[AddSequence]) -> Call:
        """To one engine. Raises what `EngineClient.submit` does."""
        alive = [client for client in self._clients if client.alive]
        if not alive:
            self.require_alive()
        self._check_share(sequences)
        prefix = _prefix_of(sequences)
        for client in self._in_order(alive, prefix):
            try:
                call = client.submit(sequences)
            except Overloaded:
                continue
            self._remember(prefix, client)
            return call
        raise Overloaded("the queues of all engines are full; try again")

    def _in_order(self, alive: list[EngineClient], prefix: bytes) -> list[EngineClient]:
        """The one that is best first."""
        by_load = sorted(alive, key=lambda client: client.load)
        known = self._prefixes.get(prefix)
        if known in by_load and known is not None and known.load <= by_load[0].load + BUSIER:
            by_load.remove(known)
            by_load.insert(0, known)
        return by_load

    def _remember(self, prefix: bytes, client: EngineClient) -> None:
        self._prefixes[prefix] = client
        self._prefixes.move_to_end(prefix)
        while len(self._prefixes) > PREFIXES:
            self._prefixes.popitem(last=False)

    def _check_share(self, sequences: Sequence[AddSequence]) -> None:
        """Raises ProjectBusy if the project would hold more than its share of all engines together."""
        most = self.config.max_per_project
        if most is None or not sequences:
            return
        held = sum(client.load_of(sequences[0].project) for client in self._clients)
        if held + len(sequences) > most:
            raise ProjectBusy(f"this project has {most} sequences here already, or would; try again")

    # Of all engines

    async def start(self, on_loading: Callable[[Loading], None] | None = None) -> Ready:
        """Raises what the first of them raises that does not start; the others are ended then."""
        try:
            found = await asyncio.gather(*(client.start(on_loading) for client in self._clients))
        except BaseException:
            await self.stop()
            raise
        self._started = True
        return msgspec.structs.replace(found[0], stats=total_of([ready.stats for ready in found]))

    async def stop(self) -> None:
        await asyncio.gather(*(client.stop() for client in self._clients))

    async def ping(self, timeout_s: float) -> None:
        """Through each engine that runs. Raises EngineDead if there is none, or one does not answer."""
        alive = [client for client in self._clients if client.alive]
        if not alive:
            self._clients[0].require_alive()
            raise EngineDead("no engine of this backend is running; restart the backend")
        await asyncio.gather(*(client.ping(timeout_s) for client in alive))

    async def scrub(self, timeout_s: float) -> Scrubbed:
        """Raises EngineDead if any engine is not there to be scrubbed."""
        self.require_alive()
        done = await asyncio.gather(*(client.scrub(timeout_s) for client in self._clients))
        blocks, residue = sum(each.blocks for each in done), sum(each.residue for each in done)
        return msgspec.structs.replace(done[0], blocks=blocks, residue=residue)

    @property
    def adapters(self) -> list[LoadedAdapter]:
        """That all engines have; one that is being replaced gets its own again."""
        return sorted(set.intersection(*(set(client.adapters) for client in self._clients)))

    async def load_adapter(
        self, name: str, path: str, project: str = "", digest: str = "", *, timeout_s: float
    ) -> LoadedAdapter:
        """Into all or none. Raises what the first raises that refuses it, EngineDead if any is not there."""
        self.require_alive()
        fresh: list[EngineClient] = []
        for client in self._clients:
            had = _has(client, name, project)
            try:
                found = await client.load_adapter(name, path, project, digest, timeout_s=timeout_s)
            except BackendError:
                for other in fresh:
                    await other.unload_adapter(name, project, timeout_s=timeout_s)
                raise
            digest = found.digest  # the same in all, whatever becomes of the file meanwhile
            fresh += [] if had else [client]
        return found

    async def unload_adapter(self, name: str, project: str = "", *, timeout_s: float) -> None:
        """From all. Raises what the first raises that refuses it; it stays in that one and those behind it."""
        self.require_alive()
        holders = [client for client in self._clients if _has(client, name, project)]
        for client in holders or self._clients:
            await client.unload_adapter(name, project, timeout_s=timeout_s)

    async def drain(self, grace_s: float, error: Exception) -> None:
        await asyncio.gather(*(client.drain(grace_s, error) for client in self._clients))

    def leave(self) -> None:
        for client in self._clients:
            client.leave()

    async def change_state(self, to: type[Sleep] | type[Wake]) -> int:
        """Bytes that all gave back. Either all do it or none: raises what the first raises that does not."""
        self.require_alive()
        done = await asyncio.gather(*(client.change_state(to) for client in self._clients), return_exceptions=True)
        failed = [each for each in done if isinstance(each, BaseException)]
        if not failed:
            return sum(each for each in done if isinstance(each, int))
        back: type[Sleep] | type[Wake] = Wake if to is Sleep else Sleep
        changed = [client for client, each in zip(self._clients, done, strict=True) if isinstance(each, int)]
        # What fails on the way back has been said by its engine.
        await asyncio.gather(*(client.change_state(back) for client in changed), return_exceptions=True)
        raise failed[0]


def _has(client: EngineClient, name: str, project: str) -> bool:
    return any((adapter.name, adapter.project) == (name, project) for adapter in client.adapters)


def _prefix_of(sequences: Sequence[AddSequence]) -> bytes:
    """By which a prompt's beginning is known, and the cache that it may share; it cannot be turned back into tokens
    that are not known."""
    if not sequences:
        return b""
    words = ",".join(map(str, sequences[0].prompt[:PREFIX_TOKENS]))
    return hashlib.blake2b(words.encode(), key=sequences[0].cache_root[:64], digest_size=16).digest()


def total_of(stats: Sequence[Stats]) -> Stats:
    """Sums of all figures. stats: at least one."""
    names = [name for name in Stats.__struct_fields__ if name not in ("expert_pairs", "draft_places")]
    sums = {name: sum(getattr(each, name) for each in stats) for name in names}
    pairs = [each.expert_pairs for each in stats if each.expert_pairs]
    places = zip_longest(*(each.draft_places for each in stats), fillvalue=(0, 0))
    return Stats(
        **sums,
        expert_pairs=[sum(ranks) for ranks in zip(*pairs, strict=True)],
        draft_places=[(sum(guessed), sum(right)) for guessed, right in (zip(*place, strict=True) for place in places)],
    )
