"""A whole answer of a backend: read, checked, filtered and written again. Pure functions over bytes.

A short one is treated in the event loop, a long one in another process (`gateway.content.inspection`): an answer may
hold 64 MB, and each step over that holds the interpreter to its end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.wire import Usage
from gateway.api_format import Translation
from gateway.content.choice_texts import choice_texts_of
from gateway.errors import BackendFailed
from gateway.openai.answer import FilterFactory, count_characters, count_tool_calls, rewrite_choices
from gateway.openai.answer_formats import AnswerFormat, Generated, ReadAnswer
from gateway.openai.finish import recorded, watermark_of
from gateway.openai.finite_json import NotFinite, write
from policy.errors import RedactionError


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """What the meter and the record need to know of an answer. `characters`: of text, before the output filter."""

    usage: Usage | None = None
    fingerprint: str | None = None
    characters: int = 0
    tool_calls: int = 0
    finish_reasons: tuple[str, ...] = ()
    watermarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """One answer of a backend, as the client may have it.

    `texts`: by choice (`gateway.content.choice_texts`), None where they are not retained. `refusal`: why it may not be
    sent; the backend has answered all the same, and the call is paid for.
    """

    summary: AnswerSummary
    raw: bytes = b""
    texts: Mapping[int, dict[str, Any]] | None = None
    refusal: RedactionError | None = None

    def passed(self) -> bytes:
        """The body for the client. Raises the refusal."""
        if self.refusal is not None:
            raise self.refusal
        return self.raw


@dataclass(frozen=True, slots=True)
class Handling:
    """`format`: how the endpoint's answers are read. `keeps`: its texts are kept. `translation`: to the API that the
    client speaks; None where that is OpenAI's chats."""

    format: AnswerFormat = field(default_factory=Generated)
    keeps: bool = False
    translation: Translation | None = None


def whole_answer(raw: bytes, handling: Handling, make_filter: FilterFactory | None) -> WholeAnswer:
    """`raw` with every text through a filter of `make_filter`; without one it passes as it came, but for a `usage` that
    cannot be true: the client must not bill by it either.

    Raises BackendFailed where it is no such answer.
    """
    answer = handling.format.read(raw)
    body, choices = answer.body, answer.choices
    translation = handling.translation
    if not handling.format.is_generated:
        return WholeAnswer(AnswerSummary(answer.usage), _written(body, translation, answer.usage))
    summary = _summary(answer)
    if make_filter is not None:
        try:
            rewrite_choices(body, choices, summary.usage, make_filter)
        except RedactionError as error:
            return WholeAnswer(summary, refusal=error)
    texts = choice_texts_of(body) if handling.keeps else None
    has_no_usage = summary.usage is None and bool(body.pop("usage", None))
    if translation is not None or make_filter is not None or has_no_usage:
        raw = _written(body, translation, summary.usage)
    return WholeAnswer(summary, raw, texts)


def _summary(answer: ReadAnswer) -> AnswerSummary:
    characters = tool_calls = 0
    reasons, watermarks = [], []
    for choice in answer.choices:
        said = choice.get("message")
        characters += count_characters(choice if said is None else said)
        tool_calls += count_tool_calls(said)
        if word := recorded(choice.get("finish_reason")):
            reasons.append(word)
        if said_of_mark := watermark_of(choice):
            watermarks.append(said_of_mark)
    return AnswerSummary(answer.usage, answer.fingerprint, characters, tool_calls, tuple(reasons), tuple(watermarks))


def _written(answer: dict[str, Any], translation: Translation | None, usage: Usage | None) -> bytes:
    try:
        return write(answer) if translation is None else translation.answer(answer, usage)
    except NotFinite:
        raise BackendFailed("The backend's answer holds a number that JSON does not have") from None
