"""JSON without the numbers that JSON does not have (RFC 8259 §6).

pydantic-core reads ``1e400`` as infinity even where it refuses ``Infinity``, and writes infinity as a bare word.
"""

from math import isfinite
from typing import Any

from pydantic_core import from_json, to_json


class NotFinite(ValueError):
    """A number is infinite or NaN. `place`: where, as a path of fields and positions."""

    def __init__(self, place: tuple[str | int, ...]) -> None:
        super().__init__("a number is not finite")
        self.place = place


def read(raw: bytes) -> Any:
    """Parse. Raises ValueError for what is not JSON, also for ``NaN`` and ``Infinity``."""
    return from_json(raw, allow_inf_nan=False)


def read_large(raw: bytes) -> Any:
    """As `read`, of a text that may have very many different strings: keeping them for a second use takes longer than
    all the rest."""
    return from_json(raw, allow_inf_nan=False, cache_strings="none")


def write(value: Any) -> bytes:
    """Serialise. Raises NotFinite rather than write what no strict reader accepts."""
    raw = to_json(value)
    if (b"Infinity" in raw or b"NaN" in raw) and (place := _not_finite(value)) is not None:  # mostly words in a text
        raise NotFinite(place)
    return raw


def _not_finite(value: Any) -> tuple[str | int, ...] | None:
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, float) and not isfinite(each):
            return place
        if isinstance(each, dict):
            waiting += (((*place, name), inner) for name, inner in each.items())
        elif isinstance(each, list):
            waiting += (((*place, at), inner) for at, inner in enumerate(each))
    return None
