"""The backend that computes prompts for others: it listens for backends of its tenant, and sends them blocks."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from backend.apart.wire import (
    MOST_OF_ASK,
    VERSION,
    Agreed,
    Ask,
    Denied,
    Ended,
    FromSource,
    Piece,
    WireError,
    closed,
    encoded,
    of_asker,
    received,
)
from backend.engine.apart.frame import FRAME_BYTES, Further, blocks_of
from backend.engine.apart.statement import Statement
from backend.engine.core.sampling import SamplingParams
from backend.errors import BackendError
from backend.process.call import Call
from backend.process.messages import AddSequence, BlocksTaken, TakeBlocks

log = logging.getLogger(__name__)

ASK_S = 5.0  # for the whole question, from the handshake on
CONNECTIONS = 256
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


class Refused(Exception):
    """The asker may not have what it asks for; the text goes to it."""


class Submitting(Protocol):
    """What an engine, or several, are here."""

    def submit(self, sequences: list[AddSequence]) -> Call: ...


class Counted(Protocol):
    """What is counted of a transfer: see `backend.process.metrics`."""

    def count_transfer(self, direction: str, outcome: str, size: int, seconds: float) -> None: ...


Admit = Callable[[bytes, str], str]
"""Takes the token and the URI in the peer's certificate; returns the project that the token is for, or raises
Refused."""


@dataclass
class Source:
    """silence_s: how long an asker may take no byte."""

    engine: Submitting
    statement: Callable[[], Statement | None]
    admit: Admit
    metrics: Counted
    silence_s: float
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
            self.metrics.count_transfer("sent", outcome, sent.size, time.monotonic() - begin)
            closed(writer)

    async def _answer(self, reader: asyncio.StreamReader, sent: "_Sent") -> str:
        """How it went: completed, refused or failed."""
        async with asyncio.timeout(ASK_S):
            ask = await received(reader, of_asker, MOST_OF_ASK)
        try:
            call = self._queued(ask, sent.peer)
        except (Refused, BackendError) as refused:
            await sent.say(Denied(str(refused)))
            await sent.end()
            return "refused"
        leaving = asyncio.create_task(reader.read(1))  # an asker says nothing more: it has left, or is no asker
        sending = asyncio.create_task(self._send(call, ask, sent))
        try:
            await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise WireError("the peer closed the connection; read its log")
            return sending.result()
        finally:
            call.release()
            for task in (leaving, sending):
                task.cancel()
            await asyncio.gather(leaving, sending, return_exceptions=True)

    def _queued(self, ask: Ask, peer: str) -> Call:
        """Raises Refused, or what the engine raises for a sequence that it does not take."""
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
        sequence = AddSequence(
            0, ask.prompt, ONE_TOKEN, priority=ask.priority, cache_root=ask.cache_root, project=project.encode(),
            exports=ask.first,
        )  # fmt: skip
        return self.engine.submit([sequence])

    async def _send(self, call: Call, ask: Ask, sent: "_Sent") -> str:
        ours = self.statement()
        assert ours is not None  # noqa: S101 -- else it was refused
        await sent.say(Agreed(ours))
        while True:
            call.tell(TakeBlocks(call.ids[0], FRAME_BYTES))
            told = await call.told.get()
            if isinstance(told, Exception):
                await sent.say(Ended(False))
                await sent.end()
                return "failed"
            assert isinstance(told, BlocksTaken)  # noqa: S101 -- nothing else is asked for
            for frame in told.frames:
                await sent.say(Piece(frame))
                sent.size += frame.size
            if told.further is not Further.MORE:
                whole = told.further is Further.NOTHING
                await sent.say(Ended(whole))
                await sent.end()
                return "completed" if whole else "failed"


@dataclass
class _Sent:
    """The way back to the asker. size: bytes of keys and values that were sent."""

    writer: asyncio.StreamWriter
    silence_s: float
    size: int = 0

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

    async def end(self) -> None:
        """All is handed over before the connection is closed."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self.silence_s):
                self.writer.close()
                await self.writer.wait_closed()


def _word(error: Exception) -> str:
    return str(error) or type(error).__name__
