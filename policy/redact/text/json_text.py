"""Text inside JSON text (RFC 8259), for example the JSON string in a tool call's arguments, whose escapes hide
characters.

`unescape` decodes the escapes and maps offsets back to them. `map_values` rewrites every string and every long number
of a JSON text and leaves everything else, including whitespace, unchanged.
"""

import json
import re
from collections.abc import Callable

from policy.redact.text.layout import without_layout
from policy.redact.text.normalise import View, normalise
from policy.redact.text.web_text import revealed

_SHORT = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([\"\\/bfnrt]))"
)
# Either an escape cut off at the end of the text (a high surrogate waits for its low one), or a backslash with the next
# character.
_CUT_OR_PAIR = re.compile(
    r"(?P<cut>\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?\Z)|\\.", re.DOTALL
)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*', re.DOTALL)
_ESCAPED_AGAIN = re.compile(r"\\(?:u[0-9a-fA-F]{4}|\")|\"[^\"]{0,400}\\n")
_MOST_ESCAPES = 3  # JSON nested in JSON, three levels
_MOST_EXACT = 1e22  # a float represents integers below this exactly
_LONG_NUMBER = 7  # digits; shorter numbers identify no person


def cut_escape(text: str) -> int:
    """Return the index at which an unfinished escape begins at the end of `text`, or ``len(text)`` if there is none."""
    if "\\" in text[-12:]:
        for match in _CUT_OR_PAIR.finditer(text):
            if match["cut"]:
                return match.start()
    return len(text)


def unescape(text: str) -> View:
    """Decode JSON escapes as a JSON parser would. Quotes and invalid escapes are left unchanged."""
    if "\\" not in text:
        return View(text)
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        start, end = match.span()
        pieces.append(text[at:start])
        starts.extend(range(at, start))
        ends.extend(range(at + 1, start + 1))
        high, low, code, short = match.groups()
        if high:
            pieces.append(chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + (int(low, 16) - 0xDC00)))
        else:
            pieces.append(chr(int(code, 16)) if code else _SHORT[short])
        starts.append(start)
        ends.append(end)
        at = end
    pieces.append(text[at:])
    starts.extend(range(at, len(text)))
    ends.extend(range(at + 1, len(text) + 1))
    return View("".join(pieces), starts, ends)


def compose(outer: View, inner: View) -> View:
    """Combine two views: `inner` is a view of ``outer.text``; the result maps it to the text that `outer` views."""
    if outer.starts is None or outer.ends is None:
        return inner
    if inner.starts is None or inner.ends is None:
        return View(inner.text, outer.starts, outer.ends)
    return View(inner.text, [outer.starts[i] for i in inner.starts], [outer.ends[i - 1] for i in inner.ends])


def as_read(text: str) -> View:
    """Return `text` as detectors read it.

    Decodes JSON escapes (up to three levels of JSON in JSON), then URL and HTML escapes, then applies `normalise` and
    `without_layout`.
    """
    if "\\" not in text and "%" not in text and "&" not in text and "=40" not in text:
        return _laid_out(normalise(text))
    view = unescape(text) if "\\" in text else View(text)
    for _ in range(_MOST_ESCAPES - 1):
        if "\\" not in view.text or not _ESCAPED_AGAIN.search(view.text):
            break
        view = compose(view, unescape(view.text))
    view = compose(view, revealed(view.text))
    return compose(view, _laid_out(normalise(view.text)))


def _laid_out(view: View) -> View:
    text = view.text
    if "_" not in text and "\n" not in text:
        return view
    plain = without_layout(text)
    return view if plain == text else View(plain, view.starts, view.ends)


def escaped(text: str) -> str:
    """Return `text` escaped as it would be between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def is_json(text: str) -> bool:
    """Return whether `text` parses as JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def digits_of(number: str) -> str:
    """Return a JSON number without fraction and exponent if its value is whole (`4.1e15`, `850.0`), else unchanged."""
    if number.lstrip("-").isdigit():
        return number
    try:
        value = float(number)
    except ValueError:
        return number
    return str(int(value)) if abs(value) < _MOST_EXACT and value.is_integer() else number


def map_values(text: str, rewrite: Callable[[str], str]) -> str:
    """Apply `rewrite` to every string (including names) and every long number of a JSON text.

    A number that changes becomes a string, so valid JSON stays valid. The text is processed token by token, so a
    duplicate name cannot hide its first value.
    """

    def token(match: re.Match[str]) -> str:
        raw = match[0]
        if raw[0] == '"':
            try:
                plain = json.loads(raw, strict=False)
            except ValueError:
                plain = raw[1:-1]
            changed = rewrite(plain)
            return raw if changed == plain else json.dumps(changed, ensure_ascii=False)
        plain = digits_of(raw)
        if len(plain) < _LONG_NUMBER:
            return raw
        changed = rewrite(plain)
        return raw if changed == plain else json.dumps(changed, ensure_ascii=False)

    return _TOKEN.sub(token, text)
