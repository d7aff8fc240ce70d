"""Recognition of placeholders in the forms in which a model repeats them, complete or still incomplete in a stream.

A placeholder is identified by its number and its nonce, which are unique to the request; the label is ignored. Accepted
variations are: different case; missing or other separators (spaces, hyphens, line breaks); missing brackets; a label
that was translated, renamed or embedded in an identifier; an inflectional ending; escapes of JSON, URLs and HTML. The
search starts at each occurrence of the nonce, so text without it costs one substring search.
"""

import re
from collections.abc import Callable, Container, Mapping
from html import escape as html_escaped
from typing import NamedTuple, Protocol
from urllib.parse import quote

from policy.redact.text.alphabet import ALNUM, LETTER
from policy.redact.text.json_text import compose, escaped, unescape
from policy.redact.text.normalise import View, lowered
from policy.redact.text.web_text import revealed

REACH = 240  # maximum number of characters of a form before and after its nonce: a label of four words, escaped
MOST_DIGITS = 12
LONGEST_ENDING = 4  # letters of an inflectional ending after a placeholder
_LONGEST_LABEL = 40
_LONGEST_ESCAPE = 12  # JSON nested in JSON, three levels: `\\\\\\\\u003c`
_MOST_ESCAPES = 3  # JSON nested in JSON, three levels

_GAP = r"[\s_\-.:\\]{0,4}"
_IN_LABEL = r"[\w\-.:/\\'’]"
_BRACKET = rf"<(?:\s?{_IN_LABEL}{{0,48}}|{_IN_LABEL}{{1,24}}(?:\s{{1,2}}{_IN_LABEL}{{1,24}}){{0,3}})\s{{0,2}}"
_BRACKETED = re.compile(rf"\\?{_BRACKET}(?<![0-9])([0-9]{{1,{MOST_DIGITS}}}){_GAP}\Z")
_OPEN_BRACKET = re.compile(
    rf"{_BRACKET}(?:[0-9]{{1,{MOST_DIGITS}}}{_GAP}[A-Za-z0-9]{{0,16}}(?:['’]?[{LETTER}]{{0,4}})[\s\\]{{0,2}})?\Z"
)
_CLOSE = re.compile(rf"([0-9]{{0,4}})((?:['’]?[{LETTER}]{{1,{LONGEST_ENDING}}})?)[\s\\]{{0,2}}>")
_OPEN_CLOSE = re.compile(rf"[0-9]{{0,4}}(?:['’]?[{LETTER}]{{0,{LONGEST_ENDING}}})[\s\\]{{0,2}}\Z")
_NUMBER = re.compile(rf"(?<![0-9%])([0-9]{{1,{MOST_DIGITS}}})({_GAP})\Z")
_END = re.compile(rf"([0-9]{{0,4}})[{LETTER}]{{0,{LONGEST_ENDING}}}(?![{ALNUM}])")
_OPEN_END = re.compile(rf"[0-9]{{0,4}}[{LETTER}]{{0,{LONGEST_ENDING}}}\Z")
# Matched backwards: the separator between label and number, then the label. One character more than the longest label
# shows that it is not a label.
_LABEL_BACKWARDS = re.compile(rf"(\s{{0,3}}[_\-\\]{{0,3}}\s{{0,2}})([{LETTER}_\-\\]{{0,{_LONGEST_LABEL + 1}}})")
_PARTIAL_ESCAPE = re.compile(
    r"(?:\\{1,4}(?:u[0-9A-Fa-f]{0,3})?"
    r"|\\?(?:%[0-9A-Fa-f]?|&(?:[A-Za-z]{0,8}|#(?:[xX][0-9A-Fa-f]{0,6}|[0-9]{0,7}))))\Z"
)
_ESCAPE_SIGNS = re.compile(r"[\\%&<]")
_SIGNS = re.compile(r"[\\%&<0-9]")
_DIGIT = re.compile("[0-9]")
_PERCENT = re.compile("%[0-9A-Fa-f]{2}")
_JSON_ESCAPE = re.compile(r"(\\+)(?:u[0-9A-Fa-f]{4}|[nrt])")
_REFERENCE = re.compile("&[a-zA-Z#]")
_SAFE_IN_URL = "@:/!$'()*,;=~?"


class Mention(NamedTuple):
    """A placeholder at ``text[start:end]``.

    Attributes:
        number: number of the value.
        word: nonce and digits of the spelling.
        ending: inflectional ending to keep after the value.
        encode: escapes a value as the placeholder is escaped.
    """

    start: int
    end: int
    number: int
    word: str
    ending: str
    encode: Callable[[str], str]


class Known(Protocol):
    """What is needed to recognise the placeholders of a request."""

    @property
    def nonce(self) -> str: ...

    @property
    def names(self) -> Mapping[str, int]:
        """The labels issued so far, in upper case, with their counts."""

    @property
    def begun(self) -> Container[str]:
        """Every prefix of every number issued so far."""

    def value(self, number: int, word: str) -> str | None:
        """Return the value to restore for a number and the word after it; None if this request did not issue it."""

    def name_of(self, number: int) -> str | None:
        """Return the label with which a number was issued; None for an unknown number."""


class Search(NamedTuple):
    """Result of `search`.

    ``mentions``: placeholders in order. ``open_at``: offset of text that may still become a placeholder, or the text's
    length.
    """

    mentions: list[Mention]
    open_at: int


def search(text: str, start: int, known: Known, *, final: bool, own: bool = True) -> Search:
    """Find every placeholder in ``text[start:]`` of a normalised text. Characters before `start` are context.

    ``final``: no text follows. ``own``: return only placeholders that this request issued; otherwise any with its
    nonce, which the request might issue later.
    """
    mentions: list[Mention] = []
    open_at = len(text)
    low = lowered(text)
    bound = start
    at = low.find(known.nonce, start)
    while at >= 0:
        found = _around(text, low, bound, at, known, final=final)
        if isinstance(found, Mention):
            if not own or known.value(found.number, found.word) is not None:
                mentions.append(found)
                bound = found.end
        elif found is not None:
            open_at = min(open_at, found)
        at = low.find(known.nonce, at + 1)
    if not final:
        open_at = min(open_at, _open_at(text, bound, known))
    return Search(mentions, open_at)


def may_be_open(text: str, start: int, known: Known) -> int:
    """Return `Search.open_at` for the part of a text after `start` that contains no complete nonce."""
    return _open_at(text, start, known)


def _around(text: str, low: str, bound: int, at: int, known: Known, *, final: bool) -> Mention | int | None:
    """Return the placeholder whose nonce is at `at`.

    Returns its offset instead if the following text decides, and None if there is no placeholder.
    """
    behind = at + len(known.nonce)
    floor = max(0, at - REACH)
    left = _decoded(text[floor:at])
    least = _index(left, max(0, bound - floor), at - floor)
    rest = text[behind : behind + REACH]
    is_last = not final and behind + len(rest) == len(text)
    if bracket := _BRACKETED.search(left.text, least):
        begin = floor + left.start(bracket.start(), at - floor)
        right = _decoded(rest)
        if close := _CLOSE.match(right.text):
            end = behind + right.span(0, close.end())[1]
            return Mention(begin, end, int(bracket[1]), low[at:behind] + close[1], close[2], _encoder(text[begin:end]))
        if is_last and _OPEN_CLOSE.match(_decoded(_PARTIAL_ESCAPE.sub("", rest)).text):
            return begin
    number = _NUMBER.search(left.text, least)
    if number is None:
        return None
    begin = floor + left.start(_label_start(left.text[: number.start()], least, known, number[1]), at - floor)
    if is_last and _OPEN_END.match(rest):
        return begin
    end_match = _END.match(rest)
    if end_match is None:
        return None
    last = behind + end_match.end(1)
    return Mention(begin, last, int(number[1]), low[at:behind] + end_match[1], "", _encoder(text[begin:last]))


def _label_start(text: str, least: int, known: Known, number: str | None = None) -> int:
    """Return where the label at the end of `text`, before a number, begins; ``len(text)`` if there is no label.

    A word directly attached to the number is always its label. A word separated by a space is one only if this request
    uses that label. Within an identifier (`send_to_email_1_...`) only the label with which the number was issued is
    included.
    """
    match = _LABEL_BACKWARDS.match(text[-_LONGEST_LABEL - 12 :][::-1])
    if match is None:  # for the type checker: the pattern can match the empty text
        return len(text)
    joint, word = match[1][::-1], match[2][::-1]
    stem = len(text) - len(joint)
    label = word.lstrip("_-\\")
    if not label or len(word) > _LONGEST_LABEL:
        touches = 0 < stem >= least and text[stem - 1].isalnum() and joint[:1] in ("_", "-", "\\")
        return stem if touches else len(text)
    plain = label.replace("\\", "").replace("-", "_").upper()
    if joint[:1].isspace() and plain.rpartition("_")[2] not in known.names:
        return len(text)
    begin = stem - len(label)
    own = known.name_of(int(number)) if number else None
    if own and plain.endswith(f"_{own}"):
        begin = stem - len(own)
    return max(begin, least)


def _open_at(text: str, start: int, known: Known) -> int:
    """Return where text that may become a placeholder begins in ``text[start:]``, or ``len(text)``."""
    if not known.names:
        return len(text)
    floor = max(start, len(text) - REACH)
    if not _SIGNS.search(text, floor):  # only words, the common case
        return _label_start(text, floor, known)
    if _ESCAPE_SIGNS.search(text, max(0, floor - _LONGEST_ESCAPE)):
        partial = _PARTIAL_ESCAPE.search(text, max(floor, len(text) - _LONGEST_ESCAPE))
        whole = partial.start() if partial else len(text)
        context = max(0, floor - _LONGEST_LABEL - 12)
        view = _decoded(text[context:whole])
        least = _index(view, floor - context, whole - context)
        opened = min(_open_number(view.text, least, known), _open_brackets(view.text, least))
        return min(whole, context + view.start(opened, whole - context))
    return _open_number(text, floor, known)


def _open_number(text: str, least: int, known: Known) -> int:
    """Return where a form without brackets that may become a placeholder begins, or ``len(text)``.

    Such a form is a label, a label with a number, or both with a prefix of the nonce.
    """
    opened = _label_start(text, least, known)
    if not _DIGIT.search(text, max(least, len(text) - MOST_DIGITS - 16)):
        return opened
    end = lowered(text[-len(known.nonce) :])
    for length in range(len(known.nonce)):
        if not end.endswith(known.nonce[:length]):
            continue
        until = len(text) - length
        number = _NUMBER.search(text[max(0, until - MOST_DIGITS - 8) : until])
        if number is None:
            continue
        digits = number[1].lstrip("0")
        goes_on = length == 0 and not number[2]
        if (goes_on and (not digits or digits in known.begun)) or (digits and known.name_of(int(digits))):
            before = until - len(number[0])
            opened = min(opened, max(least, _label_start(text[:before], least, known)))
    return opened


def _open_brackets(text: str, least: int) -> int:
    at = text.find("<", least)
    while at >= 0:
        if _OPEN_BRACKET.match(text, at):
            return at - 1 if at > least and text[at - 1] == "\\" else at
        at = text.find("<", at + 1)
    return len(text)


def _decoded(text: str) -> View:
    """Return `text` with JSON, URL and HTML escapes decoded."""
    view = View(text)
    for _ in range(_MOST_ESCAPES):
        if "\\" not in view.text:
            break
        view = compose(view, unescape(view.text))
    if "%" in view.text or "&" in view.text:
        view = compose(view, revealed(view.text))
    return view


def _index(view: View, written: int, length: int) -> int:
    """Return the first index of a view whose original offset is `written` or greater."""
    if view.starts is None:
        return min(written, length)
    return next((i for i, start in enumerate(view.starts) if start >= written), len(view.starts))


def _encoder(written: str) -> Callable[[str], str]:
    """Return a function that escapes a value as the placeholder text `written` is escaped."""
    if _PERCENT.search(written):
        return lambda value: quote(value, safe=_SAFE_IN_URL)
    if json_escape := _JSON_ESCAPE.search(written):
        levels = len(json_escape[1]).bit_length()
        return lambda value: _escaped_again(value, levels)
    if _REFERENCE.search(written):
        return html_escaped
    return str


def _escaped_again(value: str, levels: int) -> str:
    for _ in range(levels):
        value = escaped(value)
    return value
