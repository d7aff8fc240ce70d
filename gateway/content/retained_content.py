"""Content of one call, held only if its policy retains content, and stored only in the value store.

Retained are the body sent to the backend (`input`, byte for byte), the answer that the client received (`output`, by
choice, with tokens and log probabilities if requested), a digest of the client's body before redaction
(`input_original`), the application's name of a batch line (`client_request_id`), and the person that the call is about
(`subject`). If the policy retains no content, none of these is held, not even a commitment.
"""

import time
import unicodedata
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Protocol

from pydantic_core import from_json

from audit.events.private_value import Private
from backend.wire import Usage
from gateway.api_format import EventWriter
from gateway.content.choice_texts import ChoiceTexts, add_choice
from gateway.errors import GatewayError, InvalidRequest
from gateway.openai.asgi_client import BatchLine
from gateway.openai.sse import DONE, EventSplitter

SUBJECT_HEADER = "x-domicile-subject"
SUBJECT_FIELDS = ("safety_identifier", "user")
"""Body fields that name the person if no header does. They are never sent to a backend."""
MAX_SUBJECT = 512

_DAY_MS = 86_400_000


def subject_of(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """Return the person that the call is about, as named by the application; None if it names none.

    Raises InvalidRequest for a name that is too long or not text, because it could not be searched for.
    """
    sent = headers.get(SUBJECT_HEADER)
    if sent is not None:
        try:
            return _name(sent.encode("latin-1").decode("utf-8"), SUBJECT_HEADER)
        except UnicodeDecodeError:
            raise _refused(SUBJECT_HEADER) from None
    for field in SUBJECT_FIELDS:
        if body.get(field) is not None:
            return _name(body[field], field)
    return None


def _name(value: object, place: str) -> str | None:
    if not isinstance(value, str) or len(value) > MAX_SUBJECT:
        raise _refused(place)
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in value):  # control characters and lone surrogates
        raise _refused(place)
    return value.strip() or None


def _refused(place: str) -> InvalidRequest:
    return InvalidRequest(
        f"{place} must name a person in at most {MAX_SUBJECT} characters of text", param=place, code="invalid_subject"
    )


class RetainedContent:
    """Content of one call, retained for `days` from now and filed under `subject` if known."""

    __slots__ = ("_batch", "_days", "_expires", "_raw", "_sent", "_splitter", "_subject", "_texts")

    def __init__(self, raw: bytes, sent: bytes, subject: str | None, days: int, batch: BatchLine | None = None) -> None:
        """Hold the content of one call.

        `raw`: the body from the client. `sent`: the body for the backend. `batch`: the line of a batch, if the call is
        one.
        """
        self._batch = batch
        self._raw = raw
        self._sent = sent
        self._subject = subject
        self._days = days
        self._expires = int(time.time() * 1000) + days * _DAY_MS
        self._splitter = EventSplitter()
        self._texts: ChoiceTexts = {}

    def leaves(self, sent: bytes) -> None:
        """Replace the body that was prepared by the one for the backend that is called now."""
        self._sent = sent

    def asked(self) -> Private:
        """Return the private value of the intent."""
        original = {"bytes": len(self._raw), "sha256": sha256(self._raw).hexdigest()}
        kept: dict[Any, Any] = {"input": self._sent.decode(errors="replace"), "input_original": original}
        if self._batch is not None:
            kept["client_request_id"] = self._batch.custom_id
        return self._private(kept)

    def answered(self) -> Private:
        """Return the private value of the outcome: the answer so far; only the subject if there is none."""
        return self._private({"output": [self._texts[index] for index in sorted(self._texts)]} if self._texts else {})

    def add_answer(self, texts: Mapping[int, dict[str, Any]]) -> None:
        """Add a complete answer as the client receives it (`gateway.content.choice_texts`)."""
        self._texts.update(texts)

    def add_piece(self, frames: bytes) -> None:
        """Add events of a streamed answer as the client receives them."""
        for payload in self._splitter.feed(frames):
            if payload != DONE:
                for choice in from_json(payload).get("choices") or ():
                    add_choice(self._texts, choice, choice.get("delta"))

    def add_chunk(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk of a streamed answer that the client receives in another format."""
        for choice in chunk.get("choices") or ():
            add_choice(self._texts, choice, choice.get("delta"))

    def add_text(self, field: str, text: str) -> None:
        """Add a chunk of one text of the first choice."""
        add_choice(self._texts, {"index": 0}, {field: text})

    def _private(self, values: dict[Any, Any]) -> Private:
        return Private(values, self._subject, f"content_{self._days}d", self._expires)


class HoldsChunks(Protocol):
    """What gets the chunks and texts of a streamed answer in the format of a chat."""

    def add_chunk(self, chunk: Mapping[str, Any]) -> None: ...
    def add_text(self, field: str, text: str) -> None: ...


class KeptEvents:
    """An EventWriter that also hands what it writes to `content`, in the format of a chat."""

    __slots__ = ("_content", "_events")

    def __init__(self, events: EventWriter, content: HoldsChunks) -> None:
        self._events = events
        self._content = content

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        self._content.add_chunk(chunk)
        return self._events.chunk(chunk)

    def text(self, field: str, text: str) -> bytes:
        self._content.add_text(field, text)
        return self._events.text(field, text)

    def end(self, usage: Usage | None) -> bytes:
        return self._events.end(usage)

    def failed(self, error: GatewayError) -> bytes:
        return self._events.failed(error)

    def whole(self) -> bytes:
        return self._events.whole()
