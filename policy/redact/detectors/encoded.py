"""Findings inside base64 (RFC 4648 §4 and §5; lines as in RFC 2045 §6.8): attachments, headers, tokens in logs.

An encoded text that contains a finding is a finding as a whole, because no part of it can be replaced without changing
the rest. Data that does not decode to text (an image, a hash, an ordinary word) is ignored.
"""

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Sequence

from policy.redact.detectors.detectors import Detector, Span, find_spans
from policy.redact.text.json_text import as_read

# At least 16 characters, which encode 12: a short e-mail address. The lines of a body have equal length.
_BASE64 = re.compile(
    r"(?<![A-Za-z0-9+/_=-])(?:[A-Za-z0-9+/]{60,76}\r?\n)*[A-Za-z0-9+/_-]{16,}={0,2}(?![A-Za-z0-9+/_=-])"
)
_CONTROL = re.compile("[^\t\n\r\x20-\U0010ffff]|[\x7f-\x9f]")
_PROVEN = frozenset({"secret", "email", "iban", "card", "national_id"})
_URL_SAFE = str.maketrans("+/", "-_", "\r\n")


class Encoded(Span):
    """A span of encoded text. Every character counts for its identity, regardless of the label's rules."""

    __slots__ = ()


def find_encoded(text: str, detectors: Sequence[Detector]) -> Iterator[Encoded]:
    """Yield base64 spans that contain a finding verified by its own format or check, with the label of that finding."""
    for match in _BASE64.finditer(text):
        plain = _decoded(match[0])
        if plain is None:
            continue
        found = [span for span in find_spans(as_read(plain).text, 0, detectors) if _is_proven(span)]
        yield from (Encoded(match.start(), match.end(), span.label) for span in found)


def _is_proven(span: Span) -> bool:
    return span.label.partition(".")[0] in _PROVEN or span.label.startswith("custom.")


def _decoded(written: str) -> str | None:
    """Return the text that `written` encodes; None if it is not encoded text."""
    signs = written.translate(_URL_SAFE).rstrip("=")
    try:
        text = urlsafe_b64decode(signs + "=" * (-len(signs) % 4)).decode()
    except ValueError:  # not base64, or not UTF-8
        return None
    return None if _CONTROL.search(text) else text
