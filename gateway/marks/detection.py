"""Detection of the watermarks of all months of a tenant in a text.

Only an engine has the tokenizer of its model. For each marked model, the text and the keys are therefore sent to a
backend of the tenant that the policy of the given project allows, and the backend returns p-values. They are corrected
for the number of keys and models tried (Bonferroni) and reported in coarse steps, so that repeated tests do not help to
remove a mark.
"""

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from backend.wire import MarksFound, MarksRequest
from gateway.store.marks import PeriodKey

ALPHA = 1e-3
"""Largest corrected p-value of a marked text: one in a thousand unmarked texts is reported as marked."""
STEPS = (1e-12, 1e-9, 1e-6, ALPHA)
LEAST_PAIRS = 40
"""Least number of (context, token) pairs for which a text can be reported as unmarked."""
PERIODS_AT_ONCE = 120
"""Ten years of keys of one model. Models with older keys only are reported as untested."""

BEFORE_DECIDING = (
    "That rate is of prose. Before you decide anything by it, measure it over this tenant's own texts:"
    " domicile mark measure {tenant} --weights FOLDER"
)

Verdict = Literal["marked", "not_found", "too_short", "untested"]
Ask = Callable[[str, bytes], Awaitable[bytes | None]]
"""Sends a body to POST /marks of a model's backend and returns the response; None if no allowed backend is running."""


@dataclass(frozen=True, slots=True)
class Detected:
    """Result of a test.

    Attributes:
        verdict: ``untested`` if no model could be tried.
        period: month of the best matching key, None unless the text is marked.
        p_below: step that the corrected p-value is below.
        tests: number of (key, model) pairs tried.
        tokens: tokens of the text.
        models, untested_models: models that were tried, and that could not be tried.
        warning: what to do before anything is decided by a mark that was found.
    """

    verdict: Verdict
    period: str | None
    p_below: float | None
    tests: int
    tokens: int
    models: tuple[str, ...]
    untested_models: tuple[str, ...]
    warning: str | None = None


async def detected(keys: list[PeriodKey], text: str, ask: Ask) -> Detected:
    """Return the result for a text. keys: the keys of all periods of the tenant."""
    by_model: dict[str, list[PeriodKey]] = {}
    marked = {model for key in keys for model in key.models}
    for key in keys[:PERIODS_AT_ONCE]:
        for model in key.models:
            by_model.setdefault(model, []).append(key)
    found: dict[str, MarksFound] = {}
    for model, of_model in by_model.items():
        body = MarksRequest(text=text, keys=[b64encode(key.key).decode() for key in of_model])
        answer = await ask(model, body.model_dump_json().encode())
        if answer is not None and (read := _read(answer, len(of_model))) is not None:
            found[model] = read
    untested = tuple(sorted(marked - {*found}))
    return _told(found, by_model, untested)


def _read(answer: bytes, keys: int) -> MarksFound | None:
    try:
        found = MarksFound.model_validate_json(answer)
    except ValidationError:
        return None
    return found if len(found.p_values) == keys and all(0 <= p <= 1 for p in found.p_values) else None


def _told(
    found: Mapping[str, MarksFound], by_model: Mapping[str, list[PeriodKey]], untested: tuple[str, ...]
) -> Detected:
    tests = sum(len(one.p_values) for one in found.values())
    tokens = max((one.tokens for one in found.values()), default=0)
    models = tuple(sorted(found))
    if not found:
        return Detected("untested", None, None, 0, 0, models, untested)
    smallest, period = min(
        (p, key.period) for model, one in found.items() for p, key in zip(one.p_values, by_model[model], strict=True)
    )
    corrected = min(1.0, smallest * tests)
    if corrected <= ALPHA:
        step = next(step for step in STEPS if corrected <= step)
        return Detected("marked", period, step, tests, tokens, models, untested)
    enough = max(one.pairs for one in found.values()) >= LEAST_PAIRS
    verdict: Verdict = "not_found" if enough else "too_short"
    return Detected(verdict, None, None, tests, tokens, models, untested)
