"""What one call says, held only where its policy keeps content: from here it goes into the side store, nowhere else.

Kept are what left for the backend (`input`, byte for byte), what the client received (`output`, by choice, with its
tokens and their log probabilities if it asked for these), of what the client had sent before redaction only a digest
(`input_original`), the application's name for a line of a batch (`client_request_id`), and the person the call is about
(`subject`). Where the policy keeps no content, none of these is
held, not even a commitment to it.
"""

import time
import unicodedata
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

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
"""The fields of a body that name the person, where no header does; they stay in the gateway either way."""
MAX_SUBJECT = 512

_DAY_MS = 86_400_000


def subject_of(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """Whom the call is about, as the application names them; None if it does not.

    Raises InvalidRequest for a name that nobody could be found under again: too long, or not text.
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
    """One call's content, to be kept for `days` from now, filed under `subject` if one is known."""

    __slots__ = ("_batch", "_days", "_expires", "_raw", "_sent", "_splitter", "_subject", "_texts")

    def __init__(self, raw: bytes, sent: bytes, subject: str | None, days: int, batch: BatchLine | None = None) -> None:
        """`raw`: the body as the client sent it; `sent`: as it leaves for a backend. `batch`: the line that it is."""
        self._batch = batch
        self._raw = raw
        self._sent = sent
        self._subject = subject
        self._days = days
        self._expires = int(time.time() * 1000) + days * _DAY_MS
        self._splitter = EventSplitter()
        self._texts: ChoiceTexts = {}

    def leaves(self, sent: bytes) -> None:
        """A body other than the one that was prepared: as the backend that is called now takes it."""
        self._sent = sent

    def asked(self) -> Private:
        """What goes with the intent."""
        original = {"bytes": len(self._raw), "sha256": sha256(self._raw).hexdigest()}
        kept: dict[Any, Any] = {"input": self._sent.decode(errors="replace"), "input_original": original}
        if self._batch is not None:
            kept["client_request_id"] = self._batch.custom_id
        return self._private(kept)

    def answered(self) -> Private:
        """What goes with the outcome: all that was said so far, nothing but the person if nothing was."""
        return self._private({"output": [self._texts[index] for index in sorted(self._texts)]} if self._texts else {})

    def add_answer(self, texts: Mapping[int, dict[str, Any]]) -> None:
        """What a whole answer says (`gateway.content.choice_texts`), as the client gets it."""
        self._texts.update(texts)

    def add_piece(self, frames: bytes) -> None:
        """Events of a streamed answer, as the client gets them."""
        for payload in self._splitter.feed(frames):
            if payload != DONE:
                for choice in from_json(payload).get("choices") or ():
                    add_choice(self._texts, choice, choice.get("delta"))

    def add_chunk(self, chunk: Mapping[str, Any]) -> None:
        """A chunk of a streamed answer whose client gets it in other words."""
        for choice in chunk.get("choices") or ():
            add_choice(self._texts, choice, choice.get("delta"))

    def add_text(self, field: str, text: str) -> None:
        """A piece of one text of the first choice."""
        add_choice(self._texts, {"index": 0}, {field: text})

    def _private(self, values: dict[Any, Any]) -> Private:
        return Private(values, self._subject, f"content_{self._days}d", self._expires)


class KeptEvents:
    """An EventWriter that keeps what it says as a chat's answer is kept."""

    __slots__ = ("_content", "_events")

    def __init__(self, events: EventWriter, content: RetainedContent) -> None:
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
