"""The backend that answers: it fetches the blocks of a prompt from the one that the gateway chose to compute it.

Whatever goes wrong there costs one attempt: the blocks are dropped, and the prompt is computed here.
"""

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from backend.apart.source import Counted
from backend.apart.wire import (
    MEMORY,
    OVERHEAD,
    TCP,
    VERSION,
    Agreed,
    Ask,
    Denied,
    Ended,
    Freed,
    Piece,
    Way,
    WireError,
    closed,
    encoded,
    most_of_piece,
    of_source,
    received,
)
from backend.engine.apart.frame import Frame, PlacedFrame
from backend.engine.apart.statement import Statement
from backend.engine.cache.window_handle import WindowHandle, host_identity
from backend.errors import BackendError, ConfigError
from backend.process.call import Call
from backend.process.messages import AddSequence, BlocksWritten, EndFetch, Fetched, RoomMade, WriteBlocks

log = logging.getLogger(__name__)

CONNECT_S = 3.0
WINDOW_S = 5.0  # for a window to be mapped
WRITES = 8
"""Frames that may be on their way to the engine: what it has not written is not read from the network."""
LEAST_BLOCKS = 2
"""Least blocks of a prompt, below which it is computed here: a connection costs more."""
M = TypeVar("M", RoomMade, BlocksWritten, Fetched)


@dataclass(frozen=True, slots=True)
class PrefillGrant:
    """What the gateway decided for one call: which backend computes the prompt, where it listens for this, what its
    certificate has to say, and the token that it wants to see."""

    backend: str
    uri: str
    host: str
    port: int
    token: bytes = field(repr=False)


class EngineFailed(Exception):
    """The call has ended: its response says why."""


class Opening(Protocol):
    """What maps windows: the one engine of a backend."""

    async def open_window(self, handle: WindowHandle, timeout_s: float) -> str: ...


@dataclass(frozen=True, slots=True)
class Fetcher:
    """context: TLS as client of the one backend with this URI. silence_s: how long no byte may come. windows: None:
    all blocks come in frames."""

    context: Callable[[str], ssl.SSLContext]
    statement: Callable[[], Statement | None]
    metrics: Counted
    silence_s: float
    windows: Opening | None = None
    _framed: set[str] = field(default_factory=set)  # URIs of backends whose windows are of no use here

    def takes(self, sequences: list[AddSequence], made: int) -> bool:
        """Return whether blocks of this request are fetched. made: answers of each prompt. Several prompts, those with
        log probabilities of their own and short ones are computed here."""
        statement, first = self.statement(), sequences[0]
        return (
            statement is not None
            and len(sequences) == made
            and first.params.prompt_logprobs is None
            and (not first.adapter or bool(first.adapter_digest))
            and len(first.prompt) > LEAST_BLOCKS * statement.layout.block_size
        )

    async def run(self, call: Call, sequence: AddSequence, grant: PrefillGrant) -> None:
        """Bring the blocks of the call's first sequence, or let the engine compute them. Cancel it with the call."""
        id = call.ids[0]
        brought: _Brought | None = None
        try:
            room = await _told(call, RoomMade)
            call.prefill = "here"
            if room.first == room.end:
                return
            begin, brought = time.monotonic(), _Brought(call, id)
            why = await self._why_not(brought, sequence, room, grant)
            why = await brought.settle() or why
            call.tell(EndFetch(id, not why))
            whole = (await _told(call, Fetched)).whole
            call.prefill = "elsewhere" if whole else "here"
            if not whole:
                log.warning(
                    "the blocks of a prompt did not come from %s: %s; it is computed here",
                    grant.backend,
                    why or "some are missing",
                )
            self.metrics.count_transfer(
                "received",
                "completed" if whole else "failed",
                brought.size,
                time.monotonic() - begin,
                MEMORY if brought.window else TCP,
            )
        except EngineFailed:  # its response says why
            return
        except Exception:
            call.tell(EndFetch(id, False))
            raise
        finally:
            if brought is not None:
                brought.close()

    async def _why_not(self, brought: "_Brought", sequence: AddSequence, room: RoomMade, grant: PrefillGrant) -> str:
        """Bring all blocks; what went wrong, or ""."""
        ours = self.statement()
        if ours is None:
            return "the weights are not known"
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    grant.host, grant.port, ssl=self.context(grant.uri), limit=1 << 20
                )
        except ConfigError as error:
            return str(error)
        except (OSError, TimeoutError) as error:
            return f"no connection ({type(error).__name__})"
        try:
            ask = Ask(
                VERSION,
                grant.token,
                ours,
                sequence.prompt,
                room.first,
                sequence.cache_root,
                sequence.priority,
                "" if self.windows is None or grant.uri in self._framed else host_identity(),
                sequence.adapter,
                sequence.adapter_digest,
            )
            writer.write(encoded(ask))
            brought.freed = lambda slot: writer.write(encoded(Freed(slot)))
            why = await self._receive(reader, writer, ours, brought, grant.uri)
            return await brought.settle() or why  # before the connection ends, with which its window's slots are freed
        except TimeoutError:
            return f"nothing came for {self.silence_s:g} s"
        except (OSError, WireError) as error:
            return str(error) or type(error).__name__
        finally:
            brought.freed = lambda slot: None
            closed(writer)

    async def _receive(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ours: Statement, brought: "_Brought", uri: str
    ) -> str:
        agreed, most = False, most_of_piece(ours)
        while True:
            async with asyncio.timeout(self.silence_s):
                message = await received(reader, of_source, most if agreed else OVERHEAD)
            match message:
                case Denied(why):
                    return f"it refused: {why[:200]}"
                case Agreed(theirs, offered) if not agreed:
                    if difference := ours.differs_from(theirs):
                        return difference
                    agreed = True
                    await self._choose_way(offered, writer, brought, uri)
                case Piece(frame) if agreed and brought.window == _window_of(frame):
                    if why := await brought.write(WriteBlocks(brought.id, frame)):
                        self._framed.update([uri] if brought.window else [])
                        return why
                    brought.size += frame.size
                case Ended(whole) if agreed:
                    return "" if whole else "it could not compute the prompt"
                case _:
                    return "a message out of turn"

    async def _choose_way(
        self, offered: WindowHandle | None, writer: asyncio.StreamWriter, brought: "_Brought", uri: str
    ) -> None:
        """Say whether the window that is offered, if any, is mapped."""
        if offered is None:
            return
        if await self._mapped(offered, uri):
            brought.window = offered.id
        writer.write(encoded(Way(bool(brought.window))))

    async def _mapped(self, handle: WindowHandle, uri: str) -> bool:
        """Whether blocks can come through it; if not, this source is asked for frames from now on."""
        if self.windows is None:
            return False
        try:
            why = await self.windows.open_window(handle, WINDOW_S)
        except BackendError as error:
            why = str(error)
        if why:
            self._framed.add(uri)
            log.warning("%s: %s; its blocks come in frames, and nothing has to be done", uri, why.partition("; ")[0])
        return not why


def _window_of(frame: Frame) -> bytes:
    """Its id; b"" of a frame that brings its own bytes."""
    return frame.window if isinstance(frame, PlacedFrame) else b""


@dataclass(slots=True)
class _Brought:
    """Frames on their way to the engine. size: bytes of keys and values that came. freed: called with each slot of a
    window that the engine has read. window: id of the one that they come through; none: they come in frames."""

    call: Call
    id: int
    size: int = 0
    window: bytes = b""
    freed: Callable[[int], None] = lambda slot: None
    _writing: deque[int | None] = field(default_factory=deque)  # the slot of each, None of one that is in no window
    _why: str = ""
    _took: asyncio.Event = field(default_factory=asyncio.Event)
    _listener: asyncio.Task[None] | None = None

    async def write(self, message: WriteBlocks) -> str:
        """Why the engine did not take an earlier one; "" as long as all is well."""
        self.call.tell(message)
        self._writing.append(message.frame.slot if isinstance(message.frame, PlacedFrame) else None)
        if self._listener is None or self._listener.done():
            await self.settle()
            self._listener = asyncio.create_task(self._listen())
        while len(self._writing) >= WRITES and not self._listener.done():
            self._took.clear()
            await self._took.wait()
        return self._why

    async def settle(self) -> str:
        """Wait for all that were sent; the same. Raises EngineFailed."""
        if self._listener is not None:
            await self._listener
        return self._why

    def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()

    async def _listen(self) -> None:
        """At once, for a slot that is not freed keeps other prompts waiting."""
        try:
            while self._writing:
                why = (await _told(self.call, BlocksWritten)).why
                self._why = self._why or why
                slot = self._writing.popleft()
                if slot is not None:
                    self.freed(slot)
                self._took.set()
        finally:
            self._took.set()


async def _told(call: Call, kind: type[M]) -> M:
    """The engine's next answer. Raises EngineFailed."""
    told = await call.told.get()
    if isinstance(told, Exception):
        raise EngineFailed
    if not isinstance(told, kind):
        raise TypeError(f"the engine said {type(told).__name__} where {kind.__name__} was due; report it")
    return told
