"""The shapes of keys as their vendors publish them, from `secret_rules/*.toml`: one file a vendor.

A key is known by the prefix it begins with (``[[prefix]]``: what follows it, and whether a digit is always among that)
or by a sign inside (``[[inside]]``: an expression searched from up to ``before`` characters in front of the sign; a
group ``secret`` is what counts). Keys without a mark of their own (Hetzner, OVH, older Heroku and Cloudflare ones)
count next to a word: `secrets`. A new key is one entry and one test.
"""

import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, NamedTuple

# Of what follows a prefix some sign is a digit: prose with hyphens has none. Where one key in seventy has none,
# capitals and small letters are mixed instead.
_HAS_DIGIT = {
    "always": r"(?=[A-Za-z_./+$-]{0,64}[0-9])",
    "or_mixed_cases": r"(?=[A-Za-z_./+$-]{0,64}[0-9]|[A-Z_-]{0,16}[a-z_-]{1,16}[A-Z]{1,16}[a-z])",
    "never": "",
}


class Inside(NamedTuple):
    """A key known by `sign` inside it: searched from up to ``before`` characters in front of that."""

    sign: str
    before: int
    pattern: re.Pattern[str]


def _read() -> tuple[dict[str, re.Pattern[str]], tuple[Inside, ...]]:
    """The entries of every file. Raises ValueError naming the file with one that is none."""
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
            raise ValueError(f"secret_rules/{file.name}: {error}; mend the entry") from None
    return prefixed, tuple(inside)


def _prefixed(entry: Mapping[str, Any]) -> re.Pattern[str]:
    return re.compile(re.escape(entry["prefix"]) + _HAS_DIGIT[entry.get("has_digit", "always")] + entry["follows"])


PREFIXED, INSIDE = _read()
