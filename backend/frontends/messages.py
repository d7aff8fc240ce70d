"""What a process that serves HTTP and the hub say to each other: frames as in `backend.process.messages`, over a socket
pair that the process inherits. Requests cross as token ids and answers as tokens; text crosses in the bodies of calls
that the main process answers, and nowhere else."""

from typing import Any

import msgspec

from backend.engine.core.progress import Progress, Stats
from backend.engine.loaded_adapter import LoadedAdapter
from backend.engine_config import EngineConfig
from backend.process.messages import AddSequence, Loading, Message, Ready
from backend.process.metrics import AnsweredRequest


class Submit(Message, frozen=True):
    """A request; `id` and `leader` of its sequences count from 0. Answered by `Delivered` and `CallFailed`."""

    call: int
    sequences: list[AddSequence]


class Drop(Message, frozen=True):
    """Choices of a call whose text is complete, or wanted no longer."""

    call: int
    choices: list[int]


class TakeToken(Message, frozen=True):
    """The id of a request token; answered by `TokenTaken`."""

    number: int
    id: str
    expires: float


class Forward(Message, frozen=True):
    """A call that the main process answers, with `Answered`."""

    number: int
    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class CountRequest(Message, frozen=True):
    outcome: str


class CountAnswer(Message, frozen=True):
    answer: AnsweredRequest


class Seen(Message, frozen=True):
    """`State` of that number is in force here. The first says that this process listens."""

    number: int


class Setup(Message, frozen=True):
    """First message to a process. told: what it needs of the server's options, as JSON's kinds of values."""

    config: EngineConfig
    told: dict[str, Any]


class State(Message, frozen=True):
    """State of the engine, whenever it changes: see `Engines`. fingerprint: of the weights, once it is known."""

    number: int
    ready: Ready | None
    loading: Loading | None
    alive: bool
    dead: bool
    resting: bool
    leaving: bool
    adapters: list[LoadedAdapter]
    fingerprint: str | None


class Delivered(Message, frozen=True):
    """What a step brought: call, choice, progress (whose id is the engine's)."""

    events: list[tuple[int, int, Progress]]
    stats: Stats | None


class CallFailed(Message, frozen=True):
    """``kind`` is the name of a class in `backend.errors`."""

    call: int
    kind: str
    message: str
    param: str | None


class TokenTaken(Message, frozen=True):
    """``why``: it was refused; "" if it was taken."""

    number: int
    why: str


class Answered(Message, frozen=True):
    number: int
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Stop(Message, frozen=True):
    """Take no connection any more, let answers end, and end."""


ToHub = Submit | Drop | TakeToken | Forward | CountRequest | CountAnswer | Seen
FromHub = Setup | State | Delivered | CallFailed | TokenTaken | Answered | Stop

to_hub = msgspec.msgpack.Decoder(ToHub)
from_hub = msgspec.msgpack.Decoder(FromHub)
