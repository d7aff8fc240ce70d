"""How often texts that carry no mark would be said to carry one: measured over a tenant's own traffic.

A key is right to use for decisions only if the rate of false alarms that the detector states holds for the texts that a
tenant really has: forms, tables, languages and quotations repeat tokens more than prose does. Each text is tested as
`mark detect` tests one, by the tenant's keys, and by random keys, which cannot have marked it.
"""

import json
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, fsum, lgamma, log, log1p
from typing import Any, Literal

from backend.wire import MAX_MARKED_TEXT, MarksFound, MarksRequest
from gateway.marks.detection import ALPHA, LEAST_PAIRS, PERIODS_AT_ONCE

LEVELS = (0.05, 0.01, ALPHA)
RANDOM_KEYS = 8
ENOUGH = 1000
"""Texts from which a rate of one in a thousand can be seen at all."""
UNLIKELY = 1e-3
"""A number of alarms that is less probable than this at the stated rate says that the rate does not hold."""

Test = Callable[[bytes], bytes]
"""Answers the body of POST /marks of a backend."""
Verdict = Literal["holds", "too_many", "too_few_texts"]


@dataclass(frozen=True, slots=True)
class Level:
    """Alarms of random keys at one rate: `tests` tries, `expected` at most, `probability` of as many or more."""

    rate: float
    tests: int
    alarms: int
    expected: float
    probability: float


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Result of a measurement.

    Attributes:
        verdict: ``too_many`` if the stated rate does not hold, ``too_few_texts`` if there are fewer than ENOUGH.
        texts: texts that are long enough to be tested. short: those that are not.
        marked: texts that the tenant's own keys would have said to be marked, at the rate of a decision. A person may
            have pasted an answer, so each is to be looked at.
        keys: the tenant's keys.
        levels: alarms of random keys.
    """

    verdict: Verdict
    texts: int
    short: int
    marked: int
    keys: int
    levels: tuple[Level, ...]


def measured(texts: Iterable[str], keys: list[bytes], test: Test) -> FalseAlarms:
    """Return the rates of false alarms over texts without marks. keys: the tenant's, the newest first."""
    asked = [b64encode(key).decode() for key in keys[:PERIODS_AT_ONCE]]
    count = short = marked = 0
    alarms = dict.fromkeys(LEVELS, 0)
    for text in texts:
        random = [b64encode(secrets.token_bytes(32)).decode() for _ in range(RANDOM_KEYS)]
        body = MarksRequest(text=text[:MAX_MARKED_TEXT], keys=[*asked, *random]).model_dump_json().encode()
        found = MarksFound.model_validate_json(test(body))
        if found.pairs < LEAST_PAIRS:
            short += 1
            continue
        count += 1
        own, others = found.p_values[: len(asked)], found.p_values[len(asked) :]
        marked += bool(own) and min(own) * len(own) <= ALPHA
        for rate in LEVELS:
            alarms[rate] += sum(p <= rate for p in others)
    tests = count * RANDOM_KEYS
    levels = tuple(
        Level(rate, tests, alarms[rate], rate * tests, as_many(tests, rate, alarms[rate])) for rate in LEVELS
    )
    return FalseAlarms(_verdict(count, levels), count, short, marked, len(asked), levels)


def _verdict(texts: int, levels: tuple[Level, ...]) -> Verdict:
    if any(level.probability < UNLIKELY for level in levels):
        return "too_many"
    return "holds" if texts >= ENOUGH else "too_few_texts"


def as_many(tests: int, rate: float, count: int) -> float:
    """Return the probability of `count` or more of so many independent tests, each with that rate."""
    logs = (
        lgamma(tests + 1) - lgamma(k + 1) - lgamma(tests - k + 1) + k * log(rate) + (tests - k) * log1p(-rate)
        for k in range(count)
    )
    return max(0.0, 1 - fsum(map(exp, logs)))


def texts_of(field: str, value: Any) -> Iterator[str]:
    """Yield what people wrote in a kept prompt (field ``input``, the body as JSON), and the answers of a kept outcome
    (``output``)."""
    if field == "input":
        try:
            body = json.loads(value)
        except (TypeError, ValueError):
            return
        yield from _asked(body)
    elif field == "output" and isinstance(value, list):
        yield from (one["content"] for one in value if isinstance(one, dict) and isinstance(one.get("content"), str))
        yield from (one["text"] for one in value if isinstance(one, dict) and isinstance(one.get("text"), str))


def _asked(body: Any) -> Iterator[str]:
    if not isinstance(body, Mapping):
        return
    for message in body.get("messages") or ():
        if isinstance(message, Mapping) and message.get("role") == "user":
            yield from _parts(message.get("content"))
    prompt = body.get("prompt")
    yield from (each for each in (prompt if isinstance(prompt, list) else [prompt]) if isinstance(each, str))


def _parts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (one["text"] for one in content if isinstance(one, Mapping) and isinstance(one.get("text"), str))
