"""The backend that computes prompts for others: it listens for backends of its tenant, and sends them blocks."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from backend.apart.wire import (
    MEMORY,
    MOST_OF_ASK,
    OVERHEAD,
    TCP,
    VERSION,
    Agreed,
    Ask,
    Denied,
    Ended,
    Freed,
    FromSource,
    Piece,
    Way,
    WireError,
    closed,
    encoded,
    later_of_asker,
    of_asker,
    received,
)
from backend.engine.apart.frame import FRAME_BYTES, Further, PlacedFrame, blocks_of
from backend.engine.apart.statement import Statement
from backend.engine.cache.window_handle import WindowHandle, host_identity
from backend.engine.core.sampling import SamplingParams
from backend.engine.loaded_adapter import LoadedAdapter, resolved
from backend.errors import BackendError
from backend.process.call import Call
from backend.process.messages import AddSequence, BlocksTaken, FreeSlot, TakeBlocks

log = logging.getLogger(__name__)
T = TypeVar("T")

ASK_S = 5.0  # for the whole question, from the handshake on
CONNECTIONS = 256
WINDOW_S = 5.0  # for a window to be made
FROM_WINDOW = 1 << 30
"""Bytes that are asked for at once of a prompt that goes through a window: all that is there."""
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


class Refused(Exception):
    """The asker may not have what it asks for; the text goes to it."""


class Submitting(Protocol):
    """What an engine, or several, are here."""

    @property
    def adapters(self) -> list[LoadedAdapter]: ...

    def submit(self, sequences: list[AddSequence]) -> Call: ...


class Windowing(Protocol):
    """Makes windows: the single engine of a backend."""

    async def make_window(self, peer: str, timeout_s: float) -> WindowHandle | None: ...


class Counted(Protocol):
    """What is counted of a transfer: see `backend.process.metrics`."""

    def count_transfer(self, direction: str, outcome: str, size: int, seconds: float, way: str) -> None: ...


Admit = Callable[[bytes, str], str]
"""Takes the token and the URI in the peer's certificate; returns the project that the token is for, or raises
Refused."""


@dataclass
class Source:
    """silence_s: how long an asker may take no byte. windows: None: all blocks go in frames."""

    engine: Submitting
    statement: Callable[[], Statement | None]
    admit: Admit
    metrics: Counted
    silence_s: float
    windows: Windowing | None = None
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, listener: socket.socket, context: ssl.SSLContext) -> None:
        """Until it is cancelled."""
        server = await asyncio.start_server(
            self._accept, sock=listener, ssl=context, limit=FRAME_BYTES, ssl_handshake_timeout=ASK_S
        )
        try:
            await server.serve_forever()
        finally:
            server.close()
            for task in list(self._running):
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        if len(self._running) >= CONNECTIONS:
            closed(writer)
            return
        self._running.add(task)
        begin, sent, outcome = time.monotonic(), _Sent(writer, self.silence_s), "failed"
        try:
            outcome = await self._answer(reader, sent)
        except (WireError, OSError, TimeoutError) as error:
            log.warning("a prompt's blocks were not sent: %s; the backend that asked computes it itself", _word(error))
        except BackendError as error:
            log.warning("a prompt's blocks were not sent: %s; the backend that asked computes it itself", error)
        finally:
            self._running.discard(task)
            self.metrics.count_transfer("sent", outcome, sent.size, time.monotonic() - begin, sent.way)
            closed(writer)

    async def _answer(self, reader: asyncio.StreamReader, sent: "_Sent") -> str:
        """How it went: completed, refused or failed."""
        async with asyncio.timeout(ASK_S):
            ask = await received(reader, of_asker, MOST_OF_ASK)
        try:
            sequence = self._sequence(ask, sent.peer)
            window = await self._agreed_window(ask, reader, sent)
            call = self.engine.submit([msgspec.structs.replace(sequence, window=window)])
        except (Refused, BackendError) as refused:
            await sent.say(Denied(str(refused)))
            await sent.end()
            return "refused"
        hearing = asyncio.create_task(_hear(reader, call, sent))
        sending = asyncio.create_task(self._send(call, sent, window))
        try:
            await asyncio.wait({hearing, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() and not sent.over:
                raise WireError("the peer closed the connection; read its log")
            outcome = await sending
            if window:
                await asyncio.wait({hearing}, timeout=self.silence_s)  # until it has read the last slots
            return outcome
        finally:
            call.release()
            for task in (hearing, sending):
                task.cancel()
            await asyncio.gather(hearing, sending, return_exceptions=True)

    async def _agreed_window(self, ask: Ask, reader: asyncio.StreamReader, sent: "_Sent") -> bytes:
        """Accept the transfer. Return the id of the window that the asker has mapped, b"" if there is none."""
        ours, handle = self.statement(), None
        assert ours is not None  # noqa: S101 -- else it was refused
        if self.windows is not None and ask.host and ask.host == host_identity():
            handle = await self.windows.make_window(sent.peer, WINDOW_S)
        await sent.say(Agreed(ours, handle))
        if handle is None:
            return b""
        async with asyncio.timeout(ASK_S):
            way = await received(reader, later_of_asker, OVERHEAD)
        if not (isinstance(way, Way) and way.window):
            return b""
        sent.way = MEMORY
        return handle.id

    def _sequence(self, ask: Ask, peer: str) -> AddSequence:
        """What is to be computed. Raises Refused."""
        project = self.admit(ask.token, peer)
        ours = self.statement()
        if ask.version != VERSION:
            raise Refused(f"version {VERSION} of this protocol is spoken here; run the same release on both backends")
        if ours is None:
            raise Refused("the weights of this backend are not measured yet; try again when GET /weights answers 200")
        if difference := ours.differs_from(ask.statement):
            raise Refused(difference)
        if not (ask.cache_root == b"" and not project) and not ask.cache_root.startswith(f"{project}\0".encode()):
            raise Refused("the root of the prompt's blocks is not that of the token's project; ask for your own call")
        if not 0 <= ask.first < blocks_of(len(ask.prompt), ours.layout.block_size):
            raise Refused("the prompt has no such block to send; ask for blocks before its last token")
        if ask.adapter:
            found = resolved(self.engine.adapters, ask.adapter, project)
            if found is None or found.digest != ask.adapter_digest:
                raise Refused("the adapter is not loaded here, or another one by this name; load it on both backends")
        return AddSequence(
            0,
            ask.prompt,
            ONE_TOKEN,
            priority=ask.priority,
            cache_root=ask.cache_root,
            project=project.encode(),
            exports=ask.first,
            adapter=ask.adapter,
            adapter_digest=ask.adapter_digest,
        )

    async def _send(self, call: Call, sent: "_Sent", window: bytes) -> str:
        while True:
            call.tell(TakeBlocks(call.ids[0], FROM_WINDOW if window else FRAME_BYTES))
            told = await sent.while_read(call.told.get())
            if isinstance(told, Exception):
                sent.over = True
                await sent.say(Ended(False))
                if not window:
                    await sent.end()
                return "failed"
            assert isinstance(told, BlocksTaken)  # noqa: S101 -- nothing else is asked for
            for frame in told.frames:
                await sent.say(Piece(frame))
                sent.size += frame.size
                sent.unread += isinstance(frame, PlacedFrame)
            if told.further is not Further.MORE:
                whole = told.further is Further.NOTHING
                sent.over = True
                await sent.say(Ended(whole))
                if not window:
                    await sent.end()
                return "completed" if whole else "failed"


async def _hear(reader: asyncio.StreamReader, call: Call, sent: "_Sent") -> None:
    """Take note of slots that were read, until the asker leaves or says anything else."""
    while True:
        try:
            later = await received(reader, later_of_asker, OVERHEAD)
        except (WireError, OSError):
            return
        if not isinstance(later, Freed):
            return
        sent.read()
        call.tell(FreeSlot(call.ids[0], later.slot))


@dataclass
class _Sent:
    """The way back to the asker. size: bytes of keys and values that were sent. unread: slots of a window that the
    asker has still to read. over: the end was said, behind which the asker may leave at any time."""

    writer: asyncio.StreamWriter
    silence_s: float
    size: int = 0
    unread: int = 0
    way: str = TCP
    over: bool = False
    _read_at: float = field(default_factory=time.monotonic)

    @property
    def peer(self) -> str:
        """The one URI in its certificate, which the handshake has checked; "" without one."""
        shown = self.writer.get_extra_info("peercert") or {}
        names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "URI"]
        return names[0] if len(names) == 1 else ""

    async def say(self, message: FromSource) -> None:
        """Raises OSError, and TimeoutError if the asker takes nothing."""
        self.writer.write(encoded(message))
        async with asyncio.timeout(self.silence_s):
            await self.writer.drain()

    def read(self) -> None:
        """The asker has read a slot."""
        self.unread -= 1
        self._read_at = time.monotonic()

    async def while_read(self, wanted: Coroutine[Any, Any, T]) -> T:
        """What is waited for. Raises TimeoutError once the asker has slots to read and reads none for so long."""
        task = asyncio.ensure_future(wanted)
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=self.silence_s)
                if done:
                    return task.result()
                if self.unread > 0 and time.monotonic() - self._read_at >= self.silence_s:
                    raise TimeoutError
        finally:
            task.cancel()

    async def end(self) -> None:
        """All is handed over before the connection is closed."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self.silence_s):
                self.writer.close()
                await self.writer.wait_closed()


def _word(error: Exception) -> str:
    return str(error) or type(error).__name__
