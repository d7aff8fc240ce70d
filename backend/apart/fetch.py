"""The backend that answers: it fetches the blocks of a prompt from the one that the gateway chose to compute it.

Whatever goes wrong there costs one attempt: the blocks are dropped, and the prompt is computed here.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from backend.apart.source import Counted
from backend.apart.wire import (
    OVERHEAD,
    VERSION,
    Agreed,
    Ask,
    Denied,
    Ended,
    Piece,
    WireError,
    closed,
    encoded,
    most_of_piece,
    of_source,
    received,
)
from backend.engine.apart.statement import Statement
from backend.errors import ConfigError
from backend.process.call import Call
from backend.process.messages import AddSequence, BlocksWritten, EndFetch, Fetched, RoomMade, WriteBlocks

log = logging.getLogger(__name__)

CONNECT_S = 3.0
WRITES = 8
"""Frames that may be on their way to the engine: what it has not written is not read from the network."""
LEAST_BLOCKS = 2
"""Of a prompt, below which it is computed here: a connection costs more."""
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


@dataclass(frozen=True, slots=True)
class Fetcher:
    """context: TLS as client of the one backend with this URI. silence_s: how long no byte may come."""

    context: Callable[[str], ssl.SSLContext]
    statement: Callable[[], Statement | None]
    metrics: Counted
    silence_s: float

    def takes(self, sequences: list[AddSequence], made: int) -> bool:
        """Whether blocks of this request are to be fetched. made: answers of each prompt. Several prompts, those with
        log probabilities of their own, short ones and those with an adapter are computed here."""
        statement, first = self.statement(), sequences[0]
        return (
            statement is not None
            and len(sequences) == made
            and first.params.prompt_logprobs is None
            and not first.adapter
            and len(first.prompt) > LEAST_BLOCKS * statement.layout.block_size
        )

    async def run(self, call: Call, sequence: AddSequence, grant: PrefillGrant) -> None:
        """Bring the blocks of the call's first sequence, or let the engine compute them. Cancel it with the call."""
        id = call.ids[0]
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
                    grant.backend, why or "some are missing",
                )  # fmt: skip
            self.metrics.count_transfer(
                "received", "completed" if whole else "failed", brought.size, time.monotonic() - begin
            )
        except EngineFailed:  # its response says why
            return
        except Exception:
            call.tell(EndFetch(id, False))
            raise

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
            ask = Ask(VERSION, grant.token, ours, sequence.prompt, room.first, sequence.cache_root, sequence.priority)
            writer.write(encoded(ask))
            return await self._receive(reader, ours, brought)
        except (OSError, WireError) as error:
            return str(error) or type(error).__name__
        except TimeoutError:
            return f"nothing came for {self.silence_s:g} s"
        finally:
            closed(writer)

    async def _receive(self, reader: asyncio.StreamReader, ours: Statement, brought: "_Brought") -> str:
        agreed, most = False, most_of_piece(ours)
        while True:
            async with asyncio.timeout(self.silence_s):
                message = await received(reader, of_source, most if agreed else OVERHEAD)
            match message:
                case Denied(why):
                    return f"it refused: {why[:200]}"
                case Agreed(theirs) if not agreed:
                    if difference := ours.differs_from(theirs):
                        return difference
                    agreed = True
                case Piece(frame) if agreed:
                    if why := await brought.write(WriteBlocks(brought.id, frame)):
                        return why
                    brought.size += frame.size
                case Ended(whole) if agreed:
                    return "" if whole else "it could not compute the prompt"
                case _:
                    return "a message out of turn"


@dataclass(slots=True)
class _Brought:
    """Frames on their way to the engine. size: bytes of keys and values that came."""

    call: Call
    id: int
    size: int = 0
    _writing: int = 0
    _why: str = ""

    async def write(self, message: WriteBlocks) -> str:
        """Why the engine did not take an earlier one; "" as long as all is well."""
        self.call.tell(message)
        self._writing += 1
        while self._writing >= WRITES:
            await self._next()
        return self._why

    async def settle(self) -> str:
        """Wait for all that were sent; the same."""
        while self._writing:
            await self._next()
        return self._why

    async def _next(self) -> None:
        why = (await _told(self.call, BlocksWritten)).why
        self._why = self._why or why
        self._writing -= 1


async def _told(call: Call, kind: type[M]) -> M:
    """The engine's next answer. Raises EngineFailed."""
    told = await call.told.get()
    if isinstance(told, Exception):
        raise EngineFailed
    if not isinstance(told, kind):
        raise TypeError(f"the engine said {type(told).__name__} where {kind.__name__} was due; report it")
    return told
