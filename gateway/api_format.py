"""The seam for other APIs: a route of another API is a translation at the edge of the chat pipeline.

The translation turns the body of such a route into a chat body, and the chat answer, whole or streamed, into an answer
of that API. Every step between sees the chat body alone: inspection, redaction, policy, limits, record, backend and
restoration are the same on every route. The translations are in `gateway.apis`; `docs/extending.md` shows how to add
one.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from backend.wire import Usage, sse_data
from gateway.errors import GatewayError

Place = tuple[str | int, ...]
"""Where something is in a body: names of members and positions in lists."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a body has in place of the names of kept items (`GoesOn`): `items` at the beginning of its ``input`` are of
    the turns before, up to the response `response`. `was_text`: the client's own input, behind them, was a text."""

    response: str | None
    items: int
    was_text: bool

    def place(self, place: Place) -> Place:
        """The place in the body that the client sent."""
        if place[:1] != ("input",) or len(place) < 2 or not isinstance(place[1], int):
            return place
        if place[1] < self.items:
            return ("previous_response_id",)
        return ("input",) if self.was_text else ("input", place[1] - self.items, *place[2:])


@dataclass(frozen=True, slots=True)
class CallState:
    """What the gateway knows of a call beside its body. `secret`: seals state to the caller; None where the API has
    none, or no policy is in force. `earlier`: the turns that its body begins with. `response`: the id of the queued
    response that the call answers; None where it makes a new one."""

    secret: bytes | None = None
    earlier: Earlier | None = None
    response: str | None = None


NO_STATE: Final = CallState()


class GoesOn(Exception):
    """The body names items that the gateway keeps. Their content has to be put in their place, and the body read again
    with what that was (`CallState.earlier`), so that all of it is inspected."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What a call asks to be kept of it, so that its answer can be asked for again by the id `response`.

    `wanted`: None where the policy decides. `earlier`: what of it was kept before; None where all of it is the
    client's. `background`: its answer is made later, from a queue.
    """

    response: str
    wanted: bool | None = None
    earlier: Earlier | None = None
    background: bool = False


class EventWriter(Protocol):
    """Writes one streamed answer in the events of another API, from chat chunks that were filtered.

    One for each attempt. What it returns is ready to be sent, and empty where there is nothing to send.
    """

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        """The events of a chat chunk of the shape that `gateway.openai.shape.choices_of` checks."""
        ...

    def text(self, field: str, text: str) -> bytes:
        """The events of a chunk that says `text` at `field` of its delta, and nothing else."""
        ...

    def end(self, usage: Usage | None) -> bytes:
        """The last events of a whole answer."""
        ...

    def failed(self, error: GatewayError) -> bytes:
        """The last events of an answer that broke off."""
        ...

    def whole(self) -> bytes:
        """After `end`: the answer as it is when it is not streamed; empty where nothing is to be kept of it."""
        ...


class Translation(Protocol):
    """How one call of another API is answered. Picklable: long answers are translated in another process. `storage`:
    None where its API keeps no answers."""

    @property
    def storage(self) -> Storage | None: ...

    def kept(self) -> "Translation":
        """The same for an answer that is kept, and says so."""
        ...

    def waiting(self) -> bytes:
        """What is answered to a call whose answer is made later."""
        ...

    def place(self, place: Place) -> Place:
        """The place in the client's body that corresponds to `place` of the chat body."""
        ...

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        """The whole answer that says what the chat answer `body` says. `usage`: checked, None where unknown. Raises
        NotFinite (`gateway.openai.finite_json`)."""
        ...

    def events(self) -> EventWriter: ...


class NotKept:
    """Storage of a translation whose API keeps no answers: its clients send the whole conversation."""

    __slots__ = ()

    @property
    def storage(self) -> None:
        return None

    def kept(self) -> Self:
        return self

    def waiting(self) -> bytes:
        return b""


class ApiFormat(Protocol):
    """The format of one API. `key_header`: where its clients send the key, if not as a bearer token.
    `request_id_header`: where they look for the id of their call, if not in ``x-request-id`` alone. `keeps_state`: its
    answers hold state that is sealed to the caller (`Principal.state_secret`), or can be kept here. `streams_events`:
    its streams are server-sent events, in which comments are allowed; else lines of JSON.
    """

    @property
    def key_header(self) -> str | None: ...

    @property
    def request_id_header(self) -> bytes | None: ...

    @property
    def keeps_state(self) -> bool: ...

    @property
    def streams_events(self) -> bool: ...

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        """The chat body that asks for the same as `body`, and how the call is answered; None: as a chat is.

        Raises InvalidRequest that names the field for what is malformed and for what a chat cannot express, and GoesOn.
        Every string of `body` is then part of the chat body, was compared with a list of known words, has the form of
        an identifier, or is one that docs/api.md lists as not passed on.
        """
        ...

    def error(self, error: GatewayError) -> bytes:
        """The body of an error's answer."""
        ...

    def stream_error(self, error: GatewayError) -> bytes:
        """The event of an error in a stream whose call has no translation."""
        ...


class OpenAiFormat:
    """Chats, completions and embeddings themselves."""

    key_header = None
    request_id_header = None
    keeps_state = False
    streams_events = True

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return body, None

    def error(self, error: GatewayError) -> bytes:
        return error.body()

    def stream_error(self, error: GatewayError) -> bytes:
        return sse_data(error.body())


OPENAI: Final = OpenAiFormat()

_STEP: Final = re.compile(r"[.\[\]]+")


def rename(error: GatewayError, place: Callable[[Place], Place]) -> None:
    """Name in `error` the fields of the client's body in place of those of the chat body."""
    findings = error.details.get("findings")
    for finding in findings if isinstance(findings, list) else ():
        old = finding.get("position")
        if isinstance(old, str) and (new := _bracketed(place(_steps(old)))) != old:
            finding["position"] = new
            error.message = error.message.replace(f"(at {old})", f"(at {new})")
    if error.param is not None and (new := ".".join(map(str, place(_steps(error.param))))) != error.param:
        if error.message.startswith(error.param):
            error.message = new + error.message[len(error.param) :]
        error.param = new


def _steps(written: str) -> Place:
    return tuple(int(step) if step.isdecimal() else step for step in _STEP.split(written) if step)


def _bracketed(place: Place) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def moved(place: Place, places: Mapping[Place, Place]) -> Place:
    """`place` where `places` says by its longest known beginning that it came from; unchanged without one."""
    for size in range(len(place), 0, -1):
        if (found := places.get(place[:size])) is not None:
            return (*found, *place[size:])
    return place
