"""Token usage as a server reports it.

A count goes into bills, limits, metrics and spans, so one that cannot be true is not used: the call is then estimated,
as where a server says nothing.
"""

import logging
from typing import Any, Final

from pydantic import ValidationError

from backend.wire import Usage
from gateway.errors import BackendFailed

logger = logging.getLogger("domicile.gateway")

MAX_TOKENS: Final = 1 << 24
"""Tokens that a prompt or an answer may have: ten times the longest context of 2026."""
MAX_COUNT: Final = 1e12
"""Bound of any other number in usage; energy is bounded by the wire model."""
_INT: Final = {int}
_COUNTS: Final = {"prompt_tokens", "completion_tokens", "total_tokens"}
_WHOLE: Final = {*_COUNTS, "cached_tokens"}
MAX_DIGITS: Final = 40
"""Most digits of a count that is written as text."""


def usage_of(said: Any) -> Usage | None:
    """The usage that a server reported; None where it reported none, zeros, or what cannot be true.

    Some servers write counts as text or with a decimal point, or leave out the total; it is the sum then.

    Raises BackendFailed if it is not a usage object.
    """
    if said is None or said == {}:
        return None
    try:
        told = Usage.model_validate(_without_nulls(said))
    except (ValidationError, TypeError):
        raise BackendFailed("The backend sent usage that is not usage") from None
    if not told.total_tokens and told.prompt_tokens and told.completion_tokens:
        told = told.model_copy(update={"total_tokens": told.prompt_tokens + told.completion_tokens})
    details = told.prompt_tokens_details
    counts = (told.prompt_tokens, told.completion_tokens, told.total_tokens, details.cached_tokens if details else 0)
    if min(counts) < 0 or max(counts) > MAX_TOKENS:
        logger.warning("a backend reported usage that cannot be true; the call is estimated")
        return None
    if not any(counts):
        return None
    if said.keys() <= _COUNTS:
        return told
    dumped = told.model_dump(exclude_none=True)
    numbers = _numbers(dumped)
    return told if numbers == dumped else Usage.model_validate(numbers)


def _without_nulls(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict):
        raise TypeError
    if set(map(type, said.values())) <= _INT:  # as most servers say it
        return said
    inner = {name: value for name, value in said.items() if value is not None}
    return {
        name: _without_nulls(value) if isinstance(value, dict) else _count(value) if name in _WHOLE else value
        for name, value in inner.items()
    }


def _count(value: Any) -> Any:
    """A count that was written as text or with a decimal point, as a whole number; anything else as it is."""
    if type(value) is float and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) <= MAX_DIGITS and value.isascii() and value.isdigit():
        return int(value)
    return value


def _numbers(said: dict[str, Any]) -> dict[str, Any]:
    """Only counts, at the top and one level below: other members may be text."""
    kept: dict[str, Any] = {}
    for name, value in said.items():
        if isinstance(value, dict):
            kept[name] = {inner: number for inner, number in value.items() if _is_count(number)}
        elif _is_count(value):
            kept[name] = value
    return kept


def _is_count(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_COUNT
