"""Key formats as published by their vendors, from `secret_rules/*.toml`: one file per vendor.

A key is recognised by its prefix (``[[prefix]]``: the pattern that follows it, and whether that always contains a
digit) or by a substring (``[[inside]]``: a pattern searched from up to ``before`` characters in front of the substring;
if it has a group ``secret``, only that is the key). Keys without such a mark (Hetzner, OVH, older Heroku and Cloudflare
ones) need a word next to them: see `secrets`. A new key needs one entry and one test.
"""

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

# The part after a prefix must contain a digit, because hyphenated prose does not. Where one key in seventy has none,
# mixed upper and lower case is accepted instead.
_HAS_DIGIT = {
    "always": r"(?=[A-Za-z_./+$-]{0,64}[0-9])",
    "or_mixed_cases": r"(?=[A-Za-z_./+$-]{0,64}[0-9]|[A-Z_-]{0,16}[a-z_-]{1,16}[A-Z]{1,16}[a-z])",
    "never": "",
}


class Inside(NamedTuple):
    """A key recognised by the substring `sign`, searched from up to ``before`` characters in front of it."""

    sign: str
    before: int
    pattern: re.Pattern[str]


def _read() -> tuple[dict[str, re.Pattern[str]], tuple[Inside, ...]]:
    """Read the entries of every file. Raises ValueError with the name of a file that has an invalid entry."""
    prefixed: dict[str, re.Pattern[str]] = {}
    inside: list[Inside] = []
    for file in sorted(files("policy.redact.detectors").joinpath("secret_rules").iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".toml"):
            continue
        try:
            rules = tomllib.loads(file.read_text(encoding="utf-8"))
            prefixed |= {entry["prefix"]: _prefixed(entry) for entry in rules.get("prefix", ())}
            inside += (
                Inside(entry["sign"], int(entry["before"]), re.compile(entry["pattern"]))
                for entry in rules.get("inside", ())
            )
        except (KeyError, ValueError, TypeError, re.error) as error:
            raise ValueError(f"secret_rules/{file.name}: {error}; correct the entry") from None
    return prefixed, tuple(inside)


def _prefixed(entry: Mapping[str, Any]) -> re.Pattern[str]:
    return re.compile(re.escape(entry["prefix"]) + _HAS_DIGIT[entry.get("has_digit", "always")] + entry["follows"])


PREFIXED, INSIDE = _read()
