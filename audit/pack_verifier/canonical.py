"""Canonical JSON (RFC 8785), as far as records need it."""

from __future__ import annotations

import json
from typing import Any

from audit.pack_verifier.fault import Broken


def no_float(text: str) -> Any:
    raise ValueError("a record holds whole numbers only, not " + text)


DECODE = json.JSONDecoder(parse_float=no_float, parse_constant=no_float).decode
CANONICAL = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode


def load_json(data: str | bytes) -> Any:
    """The value of `data`. Raises ValueError if it is not JSON, or is nested deeper than Python follows."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def canonical(data: bytes) -> Any:
    """The value of `data`, which must be in canonical form (names in ASCII, whole numbers only)."""
    try:
        value = DECODE(data.decode())
        again = CANONICAL(value).encode()
    except (ValueError, RecursionError):
        raise Broken("it is not JSON of this format") from None
    if again != data:
        raise Broken("it is not in canonical form")
    return value
