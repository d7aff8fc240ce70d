"""The seam for other APIs: a route of another API is a translation at the edge of the chat pipeline.

The translation turns the body of such a route into a chat body, and the chat answer, whole or streamed, into an answer
of that API. Every step between sees the chat body alone: inspection, redaction, policy, limits, record, backend and
restoration are the same on every route. The translations are in `gateway.apis`; `docs/extending.md` shows how to add
one.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from backend.wire import Usage, sse_data
from gateway.errors import GatewayError

Place = tuple[str | int, ...]
"""Where something is in a body: names of members and positions in lists."""


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


class Translation(Protocol):
    """How one call of another API is answered. Picklable: long answers are translated in another process."""

    def place(self, place: Place) -> Place:
        """The place in the client's body of what stands at `place` of the chat body."""
        ...

    def answer(self, body: dict[str, Any], usage: Usage | None) -> bytes:
        """The whole answer that says what the chat answer `body` says. `usage`: checked, None where unknown. Raises
        NotFinite (`gateway.openai.finite_json`)."""
        ...

    def events(self) -> EventWriter: ...


class ApiFormat(Protocol):
    """The format of one API. `key_header`: where its clients send the key, if not as a bearer token.
    `request_id_header`: where they look for the id of their call, if not in ``x-request-id`` alone. `keeps_state`: its
    answers hold state that is sealed to the caller (`Principal.state_secret`). `streams_events`: its streams are
    server-sent events, in which comments may stand; else lines of JSON.
    """

    @property
    def key_header(self) -> str | None: ...

    @property
    def request_id_header(self) -> bytes | None: ...

    @property
    def keeps_state(self) -> bool: ...

    @property
    def streams_events(self) -> bool: ...

    def chat(self, body: Any, secret: bytes | None) -> tuple[Any, Translation | None]:
        """The chat body that asks for the same as `body`, and how the call is answered; None: as a chat is.

        `secret`: what the caller's state is sealed with. Raises InvalidRequest that names the field for what is
        malformed and for what a chat cannot express. Every string of `body` is then part of the chat body, was compared
        with a list of known words, has the form of an identifier, or is one that docs/api.md lists as not passed on.
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

    def chat(self, body: Any, secret: bytes | None) -> tuple[Any, Translation | None]:
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
