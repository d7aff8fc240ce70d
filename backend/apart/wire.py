"""Messages between two backends, one connection a prompt, inside mutual TLS 1.3.

Frames as between the processes of a backend: four bytes of length, big-endian, then one msgpack message. The one that
answers the request asks (`Ask`); the other agrees or refuses before it computes anything, sends pieces in the order of
chunks and layers, and ends with `Ended`. Without a good end nothing of it is used. Tokens cross, never text.

Where both are of one host, the source may offer a window (`engine.cache.windows`); the asker then says whether it has
mapped it (`Way`) before anything is computed. Pieces say where in the window the bytes are, and the asker says which
slots it has read (`Freed`). It closes the connection when it has read all.
"""

import asyncio
from typing import Any, TypeVar

import msgspec

from backend.engine.apart.frame import FRAME_BYTES, Frame
from backend.engine.apart.statement import Statement
from backend.engine.cache.window_handle import WindowHandle
from backend.process.messages import LENGTH

VERSION = 2
TCP, MEMORY = "tcp", "memory"
"""Ways of keys and values."""
T = TypeVar("T")
MOST_OF_ASK = 32 << 20
OVERHEAD = 4096
"""Bytes of a message beside keys and values, at most."""


class Ask(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Compute this prompt and send its blocks from `first` on. ``token``: the gateway's for this one transfer.
    ``statement``: of the backend that asks. ``host``: its `host_identity`, if it takes windows; else "".
    ``adapter``: a loaded one, by name; "" for none. ``adapter_digest``: of what the asker has by that name."""

    version: int
    token: bytes
    statement: Statement
    prompt: list[int]
    first: int
    cache_root: bytes
    priority: int
    host: str = ""
    adapter: str = ""
    adapter_digest: str = ""


class Way(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """``window``: the one that was offered is mapped; else the blocks are to come in frames."""

    window: bool


class Freed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """This slot of the window was read."""

    slot: int


class Agreed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The prompt is queued, or will be behind the asker's `Way`. ``statement``: of the backend that computes it.
    ``window``: that blocks could come through, if the asker is on this host."""

    statement: Statement
    window: WindowHandle | None = None


class Denied(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Nothing will be sent. ``why``: never anything of the prompt."""

    why: str


class Piece(msgspec.Struct, frozen=True, tag=True, array_like=True):
    frame: Frame


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Nothing follows. ``whole``: what was sent is all, and valid."""

    whole: bool


LaterFromAsker = Way | Freed
FromSource = Agreed | Denied | Piece | Ended

_encoder = msgspec.msgpack.Encoder()
of_asker = msgspec.msgpack.Decoder(Ask)
later_of_asker: msgspec.msgpack.Decoder[LaterFromAsker] = msgspec.msgpack.Decoder(LaterFromAsker)
of_source: msgspec.msgpack.Decoder[FromSource] = msgspec.msgpack.Decoder(FromSource)


class WireError(Exception):
    """The peer broke the protocol, or refused; the text holds nothing of a prompt."""


def most_of_piece(statement: Statement) -> int:
    """Bytes of the longest message of a source of such a cache."""
    return max(FRAME_BYTES, statement.layout.key_bytes + statement.layout.value_bytes) + OVERHEAD


def encoded(message: Ask | LaterFromAsker | FromSource) -> bytes:
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


async def received(reader: asyncio.StreamReader, decoder: "msgspec.msgpack.Decoder[T]", most: int) -> T:
    """Raises WireError for a message that is longer than `most` bytes or malformed, and where the peer has left."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > most:
            raise WireError(
                f"a message of {length} bytes, where {most} are the most; run the same release on both backends"
            )
        return decoder.decode(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise WireError("the peer closed the connection; read its log") from None
    except msgspec.MsgspecError:
        raise WireError("a message of the peer is malformed; run the same release on both backends") from None


def closed(writer: Any) -> None:
    """Close the connection without waiting for the peer."""
    transport = writer.transport
    transport.abort()
