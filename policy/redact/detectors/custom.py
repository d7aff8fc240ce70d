"""A tenant's own detector: words (projects, code names) and patterns (customer numbers).

Patterns run in RE2 (Cox 2007): time is linear in the text for every pattern, and memory is bounded, so one tenant's
pattern cannot slow down another tenant. RE2 has no lookarounds and no backreferences.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import re2  # type: ignore[import-untyped]

from policy.errors import RedactionError
from policy.redact.detectors.detectors import Detector

CUSTOM = "custom"
LONGEST_PATTERN = 500
MOST_WORDS = 20_000
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
CUSTOM_LABEL = re.compile(rf"{CUSTOM}\.{NAME.pattern}")
_MEMORY = 8 << 20  # bytes for one compiled expression


def check_pattern(pattern: str) -> str:
    """Return `pattern` if RE2 accepts it and it cannot match the empty text.

    Raises ValueError with the reason if not.
    """
    if not 0 < len(pattern) <= LONGEST_PATTERN:
        raise ValueError(
            f"the pattern is empty or longer than {LONGEST_PATTERN} characters; give 1 to {LONGEST_PATTERN}"
        )
    try:
        compiled = _compile(pattern)
    except re2.error as error:
        raise ValueError(f"RE2 does not accept this pattern: {_reason(error)}; use RE2 syntax") from None
    if compiled.match(""):
        raise ValueError("the pattern matches the empty text, and so everything; let it match at least one character")
    return pattern


def custom_detector(words: Mapping[str, Sequence[str]], patterns: Mapping[str, str]) -> Detector:
    """Return a detector for whole words of the lists, in any case, and for matches of the patterns.

    The kind of a finding is the name of its list or pattern. Raises RedactionError for a pattern that RE2 does not
    accept.
    """
    try:
        # Longest first, so that `Falke Nord` takes precedence over `Falke`.
        listed = {
            name: _compile("(?i)(?:" + "|".join(re2.escape(word) for word in sorted(many, key=len, reverse=True)) + ")")
            for name, many in words.items()
            if many
        }
        shaped = {name: _compile(pattern) for name, pattern in patterns.items()}
    except re2.error:
        raise RedactionError("a tenant's word or pattern is too large for RE2; shorten it") from None

    def find(text: str, start: int) -> Iterator[tuple[int, int, str]]:
        for name, expression in listed.items():
            for match in expression.finditer(text, start):
                if _is_whole(text, *match.span()):
                    yield *match.span(), name
        for name, expression in shaped.items():
            for match in expression.finditer(text, start):
                if match.end() > match.start():
                    yield *match.span(), name

    return Detector(CUSTOM, find)


def _compile(pattern: str) -> "re2._Regexp[str]":
    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    return re2.compile(pattern, options)


def _is_whole(text: str, start: int, end: int) -> bool:
    """Return whether the match is not inside a longer word, as `Adler` is in `Adlerauge`."""
    return not (start and text[start - 1].isalnum() and text[start].isalnum()) and not (
        end < len(text) and text[end].isalnum() and text[end - 1].isalnum()
    )


def _reason(error: Exception) -> str:
    message = error.args[0] if error.args else ""
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
