"""Text inside base64 (RFC 4648 §4 and §5; lines as in RFC 2045 §6.8): an attachment's body, a header, a token of a log.

What decodes to text and holds a finding is a finding as a whole: nothing inside can be replaced without changing the
rest. What decodes to anything else (an image, a hash, a word of prose) is left alone.
"""

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Sequence

from policy.redact.detectors.detectors import Detector, Span, find_spans
from policy.redact.text.json_text import as_read

# At least 16 signs: an address of 12 characters. Lines of a body are of one length.
_BASE64 = re.compile(
    r"(?<![A-Za-z0-9+/_=-])(?:[A-Za-z0-9+/]{60,76}\r?\n)*[A-Za-z0-9+/_-]{16,}={0,2}(?![A-Za-z0-9+/_=-])"
)
_CONTROL = re.compile("[^\t\n\r\x20-\U0010ffff]|[\x7f-\x9f]")
_PROVEN = frozenset({"secret", "email", "iban", "card", "national_id"})
_URL_SAFE = str.maketrans("+/", "-_", "\r\n")


class Encoded(Span):
    """A span whose text is an encoding: every sign of it counts, whatever the spelling rules of its label."""

    __slots__ = ()


def find_encoded(text: str, detectors: Sequence[Detector]) -> Iterator[Encoded]:
    """Every base64 text in which a detector finds something that its own shape or check proves, under that label."""
    for match in _BASE64.finditer(text):
        plain = _decoded(match[0])
        if plain is None:
            continue
        found = [span for span in find_spans(as_read(plain).text, 0, detectors) if _is_proven(span)]
        yield from (Encoded(match.start(), match.end(), span.label) for span in found)


def _is_proven(span: Span) -> bool:
    return span.label.partition(".")[0] in _PROVEN or span.label.startswith("custom.")


def _decoded(written: str) -> str | None:
    """The text that `written` spells; None where it spells none."""
    signs = written.translate(_URL_SAFE).rstrip("=")
    try:
        text = urlsafe_b64decode(signs + "=" * (-len(signs) % 4)).decode()
    except ValueError:  # no base64, or no UTF-8
        return None
    return None if _CONTROL.search(text) else text
