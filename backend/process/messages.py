"""What the HTTP process and the engine process say to each other.

Frames on a socket pair: four bytes of length, big-endian, then one msgpack message. The pair is inherited, not
listened for, so no other process of the host can join in; and either side sees the other's death as end of file.
Tokens cross, never text.
"""

import asyncio
import socket
import struct
import threading
from typing import TypeVar

import msgspec

from backend.engine.apart.frame import Frame, Further
from backend.engine.apart.statement import CacheLayout
from backend.engine.cache.window_handle import WindowHandle
from backend.engine.core.progress import Progress, Stage, Stats
from backend.engine.core.sampling import SamplingParams
from backend.engine.loaded_adapter import LoadedAdapter
from backend.engine_config import EngineConfig

T = TypeVar("T")

LENGTH = struct.Struct(">I")
MAX_FRAME = 1 << 28


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """One that crosses a socket pair: an array that begins with the name of its class."""


class AddSequence(Message, frozen=True):
    """See `Engine.add`."""

    id: int
    prompt: list[int]
    params: SamplingParams
    priority: int = 0
    leader: int | None = None
    cache_root: bytes = b""
    project: bytes = b""
    adapter: str = ""
    exports: int | None = None
    fetches: bool = False
    window: bytes = b""
    adapter_digest: str = ""


class TakeBlocks(Message, frozen=True):
    """The next frames of a sequence that exports, of about so many bytes; answered with `BlocksTaken` once there are
    any. One at a time for each sequence."""

    id: int
    most_bytes: int


class WriteBlocks(Message, frozen=True):
    """A frame for a sequence that fetches; answered with `BlocksWritten`."""

    id: int
    frame: Frame


class FreeSlot(Message, frozen=True):
    """The other backend has read this slot of the window that a sequence is exported through."""

    id: int
    slot: int


class MakeWindow(Message, frozen=True):
    """The window to the backend with the URI ``peer``, made if there is none yet; answered by `WindowMade`."""

    number: int
    peer: str


class OpenWindow(Message, frozen=True):
    """Map another backend's window; answered by `WindowOpened`."""

    number: int
    handle: WindowHandle


class EndFetch(Message, frozen=True):
    """No frame follows; answered with `Fetched`. Unless ``whole``, the sequence computes its prompt itself."""

    id: int
    whole: bool


class AbortSequences(Message, frozen=True):
    ids: list[int]


class Scrub(Message, frozen=True):
    """Forget and zero every free KV block; answered with `Scrubbed`."""

    number: int


class Ping(Message, frozen=True):
    number: int


class Start(Message, frozen=True):
    """First message to an engine process."""

    config: EngineConfig


class Sleep(Message, frozen=True):
    """See `Engine.sleep`. Answered, after any number of `Loading`, by `LifecycleChanged` or `LifecycleRefused` with the
    same number."""

    number: int


class Wake(Message, frozen=True):
    """See `Engine.wake`; answered like `Sleep`."""

    number: int


class LoadAdapter(Message, frozen=True):
    """See `Engine.load_adapter`; answered by `AdapterChanged` or `LifecycleRefused`."""

    number: int
    name: str
    path: str
    project: str = ""
    digest: str = ""


class UnloadAdapter(Message, frozen=True):
    """See `Engine.unload_adapter`; answered likewise."""

    number: int
    name: str
    project: str = ""


class AdapterChanged(Message, frozen=True):
    """It is loaded; None: it is not any more."""

    number: int
    adapter: LoadedAdapter | None


class Loading(Message, frozen=True):
    """How far a stage is; any number of these come before `Ready`, and while an engine falls asleep or wakes."""

    stage: Stage
    done: int
    total: int


class Ready(Message, frozen=True):
    """The engine answers. ``vocab_size``: token ids below it are accepted. ``vector_size``: of the vectors it makes;
    0 of an engine that makes none. ``layout``: of blocks that can travel; None: they cannot. ``hidden_size``: of the
    states that tokens are drawn from."""

    max_model_len: int
    vocab_size: int
    stats: Stats
    vector_size: int = 0
    layout: CacheLayout | None = None
    hidden_size: int = 0


class Failed(Message, frozen=True):
    """The engine could not be built; ``kind`` is the name of a class in `backend.errors`."""

    kind: str
    message: str


class LifecycleChanged(Message, frozen=True):
    """The engine sleeps, or is awake. released: bytes."""

    number: int
    released: int
    stats: Stats


class LifecycleRefused(Message, frozen=True):
    """It did not sleep, wake, scrub, load or unload; ``kind`` is the name of a class in `backend.errors`."""

    number: int
    kind: str
    message: str


class Refused(Message, frozen=True):
    """One sequence was not taken; ``kind`` is the name of a class in `backend.errors`."""

    id: int
    kind: str
    message: str
    param: str | None


class Lost(Message, frozen=True):
    """The last message of an engine on several ranks, one of which has died or hangs."""

    message: str


class StepDone(Message, frozen=True):
    progress: list[Progress]
    stats: Stats


class RoomMade(Message, frozen=True):
    """There is room for the blocks `first` to `end` of a sequence that fetches. None if both are equal: then it is held
    no longer, and no `EndFetch` is expected."""

    id: int
    first: int
    end: int


class BlocksWritten(Message, frozen=True):
    """``why``: it was not taken; "" if it was."""

    id: int
    why: str


class Fetched(Message, frozen=True):
    """``whole``: all blocks came, and the sequence continues from them."""

    id: int
    whole: bool


class BlocksTaken(Message, frozen=True):
    id: int
    frames: list[Frame]
    further: Further


class WindowMade(Message, frozen=True):
    """``handle``: None if there is none; blocks then travel in frames."""

    number: int
    handle: WindowHandle | None


class WindowOpened(Message, frozen=True):
    """``why``: it could not be mapped; "" if it could."""

    number: int
    why: str


class Scrubbed(Message, frozen=True):
    """``blocks`` were zeroed; read back, ``residue`` bytes of them are not zero."""

    number: int
    blocks: int
    residue: int


class Pong(Message, frozen=True):
    number: int
    stats: Stats


OfTransfer = RoomMade | BlocksWritten | Fetched | BlocksTaken
ToEngine = (
    Start
    | AddSequence
    | AbortSequences
    | Scrub
    | Ping
    | Sleep
    | Wake
    | LoadAdapter
    | UnloadAdapter
    | TakeBlocks
    | WriteBlocks
    | EndFetch
    | FreeSlot
    | MakeWindow
    | OpenWindow
)
FromEngine = (
    Loading
    | Ready
    | Failed
    | Lost
    | Refused
    | StepDone
    | Scrubbed
    | Pong
    | LifecycleChanged
    | LifecycleRefused
    | AdapterChanged
    | RoomMade
    | BlocksWritten
    | Fetched
    | BlocksTaken
    | WindowMade
    | WindowOpened
)

_encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(ToEngine)
from_engine = msgspec.msgpack.Decoder(FromEngine)


class ChannelClosed(Exception):
    """The other process is gone."""


def frame(message: Message) -> bytes:
    """Return a message as its length and its body."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


async def read(reader: asyncio.StreamReader, decoder: "msgspec.msgpack.Decoder[T]") -> T:
    """Return the next message. Raises IncompleteReadError once the other end is gone."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return decoder.decode(await reader.readexactly(length))


class EngineChannel:
    """The engine's end: blocking sends, and receives that wait only as long as they are asked to."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._sending = threading.Lock()

    def send(self, message: FromEngine) -> None:
        """Raises ChannelClosed."""
        with self._sending:
            self._send(message)

    def send_last(self, message: FromEngine, wait_s: float) -> None:
        """From another thread than the one that sends else, which may hang: waits so long for it to have sent what it
        was sending."""
        if self._sending.acquire(timeout=wait_s):
            self._send(message)

    def _send(self, message: FromEngine) -> None:
        self._socket.setblocking(True)
        try:
            self._socket.sendall(frame(message))
        except OSError:
            raise ChannelClosed from None

    def receive(self, *, wait_s: float | None) -> list[ToEngine]:
        """Every whole message there is; without one, waits so many seconds for more bytes, or with None until there is
        one. Raises ChannelClosed."""
        messages = self._take()
        while True:
            self._socket.settimeout(0 if messages else wait_s)
            try:
                chunk = self._socket.recv(1 << 16)
            except (BlockingIOError, TimeoutError):
                return messages
            except OSError:
                raise ChannelClosed from None
            if not chunk:
                raise ChannelClosed
            self._buffer += chunk
            messages += self._take()

    def _take(self) -> list[ToEngine]:
        messages: list[ToEngine] = []
        at = 0
        while len(self._buffer) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, at)
            if length > MAX_FRAME:
                raise ChannelClosed
            end = at + LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(to_engine.decode(memoryview(self._buffer)[at + LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return messages
