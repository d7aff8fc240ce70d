"""Web encodings: percent-encoding in URLs (RFC 3986 §2.1) and character references in HTML (WHATWG §13.5).

Both can hide an address: ``alice%40example.org``, ``alice&#64;example.org``. So can the ``@`` of an address in
quoted-printable mail (RFC 2045 §6.7): ``alice=40example.org``.
"""

import re
from html import unescape

from policy.redact.text.normalise import View

_HIDDEN = re.compile(
    r"(?:%[0-9A-Fa-f]{2})+|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});"
    r"|=40(?<=[A-Za-z0-9]=40)(?=[A-Za-z0-9-]{1,60}(?:\.|=2E)[A-Za-z])"
)
# In form data a plus is a space (WHATWG URL §5.1), except the plus that begins a phone number or is in an address that
# is not encoded (`a+b@example.org`).
_FIELD = re.compile(
    r"(?<=[?&])[\w%.+~\[\]-]{1,80}=[^\s&\"'<>@]{0,300}+(?!@)|(?<![\w%.+~@&-])[\w%.+~-]{1,80}=[^\s&\"'<>@]{1,300}+(?=&[\w%.+~-]{1,80}=)"
)
_BYTES_PER_CHARACTER = 3  # characters of text per encoded byte: `%C3`


def revealed(text: str) -> View:
    """Decode `text` as a browser would. Invalid escapes are left unchanged."""
    if "+" in text and "=" in text and "&" in text:
        text = _FIELD.sub(_spaced, text)
    if ("%" not in text and "&" not in text and "=40" not in text) or not _HIDDEN.search(text):
        return View(text)
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for match in _HIDDEN.finditer(text):
        start, end = match.span()
        spelled = _characters(match[0])
        if spelled is None:
            continue
        pieces.append(text[at:start])
        starts.extend(range(at, start))
        ends.extend(range(at + 1, start + 1))
        for character, width in spelled:
            pieces.append(character)
            starts.append(start)
            ends.append(start + width)
            start += width
        at = end
    pieces.append(text[at:])
    starts.extend(range(at, len(text)))
    ends.extend(range(at + 1, len(text) + 1))
    return View("".join(pieces), starts, ends)


def _spaced(field: re.Match[str]) -> str:
    written = field[0]
    if "+" not in written or "%40" in written:
        return written
    name, sign, value = written.partition("=")
    return f"{name.replace('+', ' ')}{sign}{value[:1]}{value[1:].replace('+', ' ')}"


def _characters(hidden: str) -> list[tuple[str, int]] | None:
    """Return the characters that `hidden` encodes, each with the width of its encoding; None if it is invalid."""
    if hidden[0] == "=":
        return [("@", len(hidden))]
    if hidden[0] == "&":
        plain = unescape(hidden)
        return [(plain, len(hidden))] if len(plain) == 1 else None
    try:
        plain = bytes.fromhex(hidden.replace("%", "")).decode()
    except UnicodeDecodeError:
        return None
    return [(character, _BYTES_PER_CHARACTER * len(character.encode())) for character in plain]
