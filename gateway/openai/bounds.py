"""What one request body may hold, by number of things and not only by bytes.

The cost of a body is in its values: 8 MB of one string are parsed in milliseconds, 8 MB of ``{}`` in seconds, and the
interpreter lock is held all the while. So the values are counted in the raw bytes before anything is parsed, slice by
slice, and the shape is checked on the parsed body before it is validated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from backend.wire import MAX_BIASES
from gateway.errors import BodyTooComplex

MAX_MESSAGES = 4096
MAX_TOOLS = 512
MAX_FORM_CONTAINERS = 4096
"""Objects and arrays of one schema: `response_format`, `structured_outputs`, `guided_json` or one tool."""
MAX_FORM_DEPTH = 64
SLICE = 64 << 10
"""Bytes that are counted in one step: about a millisecond for the costliest text."""
_FORMS = ("response_format", "structured_outputs", "guided_json")


GROUP = 19
"""Digits of a group: a number of 64 bits has no whole one behind another digit. Longer numbers are read and written in
a time that grows with the square of their digits."""
_ZEROS = b"0" * GROUP
_OTHERS = bytes(code for code in range(256) if code not in b"0123456789")
_DIGITS_ALONE = bytes.maketrans(b"123456789" + _OTHERS, b"0" * 9 + b" " * len(_OTHERS))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one JSON text. `containers`: objects and arrays. `strings`: with the names of members. `values`:
    commas, so elements and members beyond the first of each container: 300,000, the most token ids that OpenAI's
    embeddings take in one request, since each step over them (parsing, validation, serialisation) holds the interpreter
    to its end. For the same reason `names` bounds members of objects, `digits` those of numbers (8 for each of 300,000
    token ids), `groups` the whole groups of GROUP digits in a row, and `backslashes` those of escapes, of which 8 MB of
    text in another script have 1,400,000."""

    containers: int = 10_000
    strings: int = 100_000
    values: int = 300_000
    names: int = 40_000
    digits: int = 2_400_000
    groups: int = 1_000
    backslashes: int = 2_000_000

    def check(self, raw: bytes) -> None:
        """Raises BodyTooComplex. Exact for JSON up to its first syntax error, where a parser stops."""
        for _ in self.scan(raw):
            pass

    def scan(self, raw: bytes) -> Iterator[None]:
        """As `check`, in steps of SLICE bytes, so that an event loop can do other work between them.

        Mostly the whole text holds so few of each sign that it need not be taken apart. It is refused at the first
        slice that exceeds a bound, so the rest costs nothing.
        """
        if len(raw) <= self.containers:
            return
        quotes = opened = commas = colons = digits = backslashes = 0
        most_digits = min(self.digits, GROUP * self.groups)  # in fewer there are not so many groups
        for start in range(0, len(raw), SLICE):
            end = start + SLICE
            quotes += raw.count(b'"', start, end)
            opened += raw.count(b"{", start, end) + raw.count(b"[", start, end)
            commas += raw.count(b",", start, end)
            colons += raw.count(b":", start, end)
            digits += len(raw[start:end].translate(None, _OTHERS))
            backslashes += raw.count(b"\\", start, end)
            _bound("backslashes", backslashes, self.backslashes)
            if opened > self.containers or quotes > 2 * self.strings or commas > self.values:
                break
            if colons > self.names or digits > most_digits:
                break
            yield
        else:
            return
        yield
        yield from self._scan_structure(raw)

    def _scan_structure(self, raw: bytes) -> Iterator[None]:
        """Count outside of strings. Between two slices it is known whether a string continues, and whether the last
        sign was a backslash that belongs to the next one."""
        quotes = opened = commas = colons = 0
        numbers = _Numbers()
        escape = b""
        for start in range(0, len(raw), SLICE):
            piece = escape + raw[start : start + SLICE]
            escape = b""
            if b"\\" in piece:  # pairs from the left, as a parser reads them; then no quote left is inside a string
                piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
                if piece.endswith(b"\\"):
                    piece, escape = piece[:-1], b"\\"
            parts = piece.split(b'"')
            structure = b'"'.join(parts[quotes & 1 :: 2])
            quotes += len(parts) - 1
            opened += structure.count(b"{") + structure.count(b"[")
            commas += structure.count(b",")
            colons += structure.count(b":")
            numbers.add(structure)
            _bound("strings", quotes // 2, self.strings)
            _bound("objects and arrays", opened, self.containers)
            _bound("values", commas, self.values)
            _bound("members of objects", colons, self.names)
            _bound("digits of numbers", numbers.digits, self.digits)
            _bound(f"groups of {GROUP} digits in a row", numbers.groups, self.groups)
            yield


class _Numbers:
    """Counts digits, and whole groups of them, of a text that comes in pieces."""

    __slots__ = ("_open", "digits", "groups")

    def __init__(self) -> None:
        self.digits = self.groups = 0
        self._open = b""  # zeros: the digits of the group that the last piece ended in

    def add(self, piece: bytes) -> None:
        zeros = piece.translate(_DIGITS_ALONE)
        self.digits += zeros.count(b"0")
        zeros = self._open + zeros
        self.groups += zeros.count(_ZEROS)
        self._open = zeros[len(zeros.rstrip(b"0")) :]
        self._open = self._open[: len(self._open) % GROUP]


BOUNDS = Bounds()


_SMALL = 2 * MAX_TOOLS


def may_exceed_shape(raw: bytes) -> bool:
    """Whether `check_shape` could refuse what `raw` is parsed to. Each item of a list takes two bytes at the least."""
    return len(raw) > _SMALL or raw.count(b"{") + raw.count(b"[") > MAX_FORM_DEPTH


def check_shape(body: Mapping[str, Any]) -> None:
    """Messages, tools and schemas of a parsed body. Raises BodyTooComplex naming the field."""
    for field, most in (("messages", MAX_MESSAGES), ("tools", MAX_TOOLS), ("logit_bias", MAX_BIASES)):
        found = body.get(field)
        if isinstance(found, list | dict):
            _bound(field, len(found), most, field)
    for name in _FORMS:
        if isinstance(form := body.get(name), dict | list):
            _check_form(form, name)
    tools = body.get("tools")
    for at, tool in enumerate(tools if isinstance(tools, list) else ()):
        _check_form(tool, f"tools.{at}")


def _check_form(form: Any, place: str) -> None:
    containers, depth, level = 0, 0, [form]
    while level := [each for each in level if isinstance(each, dict | list)]:
        containers, depth = containers + len(level), depth + 1
        _bound("levels of a schema", depth, MAX_FORM_DEPTH, place)
        _bound("objects and arrays of a schema", containers, MAX_FORM_CONTAINERS, place)
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]


def _bound(what: str, found: int, most: int, place: str | None = None) -> None:
    if found > most:
        at = f"{place}: " if place and place != what else ""
        raise BodyTooComplex(
            f"{at}The request holds more than {most} {what}, and at most that many are accepted; send fewer in one"
            " request",
            param=place,
        )
