"""A complete answer of a backend: read, checked, filtered and serialised. Pure functions over bytes.

A short answer is processed in the event loop, a long one in another process (`gateway.content.inspection`): an answer
may have 64 MB, and each step holds the interpreter lock until it ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.wire import ACTIVATIONS_FIELD, Usage
from gateway.api_format import Translation
from gateway.content.choice_texts import choice_texts_of
from gateway.errors import BackendFailed
from gateway.openai.answer import FilterFactory, count_characters, count_tool_calls, rewrite_choices
from gateway.openai.answer_formats import AnswerFormat, Generated, ReadAnswer
from gateway.openai.finish import recorded, take_activations, watermark_of
from gateway.openai.finite_json import NotFinite, write
from gateway.openai.shape import position_of
from policy.errors import RedactionError


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """Properties of an answer for metering and the record. `characters`: of text, before the output filter.
    `activations`: commitments to them, with the choices' indices."""

    usage: Usage | None = None
    fingerprint: str | None = None
    characters: int = 0
    tool_calls: int = 0
    finish_reasons: tuple[str, ...] = ()
    watermarks: tuple[str, ...] = ()
    activations: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """One answer of a backend in the form that the client may receive.

    `texts`: by choice (`gateway.content.choice_texts`), None if they are not retained. `refusal`: why the answer may
    not be sent; the call is charged nevertheless, because the backend has answered.
    """

    summary: AnswerSummary
    raw: bytes = b""
    texts: Mapping[int, dict[str, Any]] | None = None
    refusal: RedactionError | None = None

    def passed(self) -> bytes:
        """Return the body for the client. Raises the refusal."""
        if self.refusal is not None:
            raise self.refusal
        return self.raw


@dataclass(frozen=True, slots=True)
class Handling:
    """How an answer is processed.

    `format`: the endpoint's answer format. `keeps`: whether its texts are retained. `translation`: to the client's API;
    None for OpenAI's chats.
    """

    format: AnswerFormat = field(default_factory=Generated)
    keeps: bool = False
    translation: Translation | None = None


def whole_answer(raw: bytes, handling: Handling, make_filter: FilterFactory | None) -> WholeAnswer:
    """Filter every text of `raw`. Without `make_filter` the answer is unchanged.

    An implausible `usage` is removed in either case, because a client must not bill by it. Raises BackendFailed if
    `raw` is not an answer of that format.
    """
    answer = handling.format.read(raw)
    body, choices = answer.body, answer.choices
    translation = handling.translation
    if not handling.format.is_generated:
        return WholeAnswer(AnswerSummary(answer.usage), _written(body, translation, answer.usage))
    summary, committed = _summary(answer)
    if make_filter is not None:
        try:
            rewrite_choices(body, choices, summary.usage, make_filter)
        except RedactionError as error:
            return WholeAnswer(summary, refusal=error)
    texts = choice_texts_of(body) if handling.keeps else None
    has_no_usage = summary.usage is None and bool(body.pop("usage", None))
    if translation is not None or make_filter is not None or has_no_usage or committed:
        raw = _written(body, translation, summary.usage)
    return WholeAnswer(summary, raw, texts)


def _summary(answer: ReadAnswer) -> tuple[AnswerSummary, bool]:
    """Also whether something was removed that is not for the client."""
    characters, tool_calls, removed = 0, 0, False
    reasons, watermarks, activations = [], [], []
    for place, choice in enumerate(answer.choices):
        if ACTIVATIONS_FIELD in choice:
            removed = True
            if committed := take_activations(choice):
                activations.append((position_of(choice, place), committed))
        said = choice.get("message")
        characters += count_characters(choice if said is None else said)
        tool_calls += count_tool_calls(said)
        if word := recorded(choice.get("finish_reason")):
            reasons.append(word)
        if said_of_mark := watermark_of(choice):
            watermarks.append(said_of_mark)
    summary = AnswerSummary(
        answer.usage, answer.fingerprint, characters, tool_calls, tuple(reasons), tuple(watermarks), tuple(activations)
    )
    return summary, removed


def _written(answer: dict[str, Any], translation: Translation | None, usage: Usage | None) -> bytes:
    try:
        return write(answer) if translation is None else translation.answer(answer, usage)
    except NotFinite:
        raise BackendFailed("The backend's answer contains a number that JSON cannot represent") from None
