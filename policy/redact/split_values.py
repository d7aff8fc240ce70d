"""Values that are split over the text parts of one message, or over messages of one role.

A detector sees one text at a time, but a model reads them all. If the end of one text and the start of the following
ones form a value that its own check confirms, and neither side contains a value there by itself, the rest is moved to
where the value begins. It is then found, replaced and restored like any other value. Other texts are not changed.
"""

import re
from collections.abc import Sequence
from operator import is_not
from typing import Any

from policy.redact.detectors.detectors import Detector, Span, find_spans
from policy.redact.detectors.secrets import begins_a_key
from policy.redact.text.normalise import normalise

_PROVEN = frozenset({"email", "iban", "card", "national_id", "secret"})
_SPEAKERS = frozenset({"user", "system", "developer"})
_REACH = 96  # characters on each side of a split; an IBAN in groups of one has 67
_REACH_OF_KEY = 400
_MOST_TEXTS = 8  # texts over which one value may be split
_SEPARATORS = ("", " ")
_CUT_NUMBER = re.compile(r"[0-9][A-Za-z]{0,4}[ ./-]{0,3}\Z|[A-Z]{2}\Z")
_REST_OF_NUMBER = re.compile(r"[ ./-]{0,3}[A-Za-z]{0,4}[0-9]")
_CUT_KEY, _REST_OF_KEY = re.compile(r"[\w.+/=$:-]{1,120}\Z", re.ASCII), re.compile(r"[\w.+/=$:-]{4,}", re.ASCII)
_CUT_ADDRESS = re.compile(r"[\w.+@-]\Z")
_REST_OF_ADDRESS = re.compile(r"[\w.+-]{0,64}@|[\w-]{0,62}\.?[A-Za-z]")


def with_whole_values(body: dict[str, Any], detectors: Sequence[Detector]) -> dict[str, Any]:
    """Return a chat `body` with every value in one text; the same object if no value was split."""
    messages = body.get("messages")
    if not isinstance(messages, list) or _is_one_text(messages):
        return body
    made = [_with_whole_parts(message, detectors) for message in messages]
    by_speaker: dict[str, list[int]] = {}
    for i, message in enumerate(made):
        if isinstance(message, dict) and isinstance(message.get("content"), str):
            speaker = message.get("role")
            if isinstance(speaker, str) and speaker in _SPEAKERS:
                by_speaker.setdefault(speaker, []).append(i)
    for places in by_speaker.values():
        if len(places) < 2:
            continue
        texts = [made[i]["content"] for i in places]
        for i, before, after in zip(places, texts, rejoined(texts, detectors), strict=True):
            if after != before:
                made[i] = {**made[i], "content": after}
    return {**body, "messages": made} if any(map(is_not, made, messages)) else body


def _is_one_text(messages: list[Any]) -> bool:
    return len(messages) == 1 and isinstance(messages[0], dict) and isinstance(messages[0].get("content"), str)


def _with_whole_parts(message: Any, detectors: Sequence[Detector]) -> Any:
    parts = message.get("content") if isinstance(message, dict) else None
    if not isinstance(parts, list) or len(parts) < 2:
        return message
    places = [i for i, part in enumerate(parts) if isinstance(part, dict) and isinstance(part.get("text"), str)]
    texts = [parts[i]["text"] for i in places]
    whole = rejoined(texts, detectors)
    if whole == texts:
        return message
    made = list(parts)
    for i, text in zip(places, whole, strict=True):
        made[i] = {**parts[i], "text": text}
    return {**message, "content": made}


def rejoined(texts: Sequence[str], detectors: Sequence[Detector]) -> list[str]:
    """Return `texts` with the rest of every split value moved behind its beginning."""
    whole = list(texts)
    for i in range(len(whole) - 1):
        is_key = _may_be_cut_key(whole[i], whole[i + 1])
        if not (is_key or _may_be_cut(whole[i], whole[i + 1])):
            continue
        for separator in _SEPARATORS:
            reach = _REACH_OF_KEY if is_key else _REACH
            if (rest := _rest(whole, i, separator, detectors, reach)) is not None:
                _move(whole, i, separator, rest)
                break
    return whole


def _may_be_cut(first: str, second: str) -> bool:
    end, begin = first[-_REACH:], second[:_REACH]
    if _CUT_NUMBER.search(end) and _REST_OF_NUMBER.match(begin):
        return True
    return ("@" in end or "@" in begin) and bool(_CUT_ADDRESS.search(end) and _REST_OF_ADDRESS.match(begin))


def _may_be_cut_key(first: str, second: str) -> bool:
    """Return whether the end of one text and the start of the next form a key with a vendor's prefix."""
    end, begin = _CUT_KEY.search(first), _REST_OF_KEY.match(second)
    return end is not None and begin is not None and begins_a_key(end[0] + begin[0], len(end[0]))


def _rest(texts: Sequence[str], i: int, separator: str, detectors: Sequence[Detector], reach: int) -> int | None:
    """Return the number of characters after the split, separators included, of a value that begins in text `i`.

    None if no value crosses the split. ``reach``: characters that are examined on each side.
    """
    first = texts[i][-reach:]
    following = [text[:reach] for text in texts[i + 1 : i + _MOST_TEXTS]]
    view = normalise(
        first + separator.join(["", *following])[:reach] if separator else first + "".join(following)[:reach]
    )
    for span in _proven(view.text, detectors):
        start, end = view.span(span.start, span.end)
        if start < len(first) < end - len(separator):
            alone = (_proven(normalise(first).text, detectors), _proven(normalise(following[0]).text, detectors))
            whole_before = any(normalise(first).span(each.start, each.end)[1] > start for each in alone[0])
            whole_behind = any(
                normalise(following[0]).span(each.start, each.end)[0] < end - len(first) for each in alone[1]
            )
            return None if whole_before or whole_behind else end - len(first)
    return None


def _proven(text: str, detectors: Sequence[Detector]) -> list[Span]:
    return [span for span in find_spans(text, 0, detectors) if span.label.partition(".")[0] in _PROVEN]


def _move(texts: list[str], i: int, separator: str, rest: int) -> None:
    for j in range(i + 1, len(texts)):
        if rest <= 0:
            return
        taken = texts[j][: max(0, rest - len(separator))]
        texts[i] += separator + taken
        texts[j] = texts[j][len(taken) :]
        rest -= len(separator) + len(taken)
