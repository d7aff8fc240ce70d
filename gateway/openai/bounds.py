"""What one request body may hold, by number of things and not only by bytes.

The cost of a body is in its values: 8 MB of one string are parsed in milliseconds, 8 MB of ``{}`` in seconds, and the
interpreter lock is held all the while. So the values are counted in the raw bytes before anything is parsed, in a few
linear passes of C code, and the shape is checked on the parsed body before it is validated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.wire import MAX_BIASES
from gateway.errors import BodyTooComplex

MAX_MESSAGES = 4096
MAX_TOOLS = 512
MAX_FORM_CONTAINERS = 4096
"""Objects and arrays of one schema: `response_format`, `structured_outputs`, `guided_json` or one tool."""
MAX_FORM_DEPTH = 64
_FORMS = ("response_format", "structured_outputs", "guided_json")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one JSON text. `containers`: objects and arrays. `strings`: with the names of members. `values`: commas, so
    elements and members beyond the first of each container."""

    containers: int = 10_000
    strings: int = 100_000
    values: int = 1_000_000

    def check(self, raw: bytes) -> None:
        """Raises BodyTooComplex. Exact for JSON up to its first syntax error, where a parser stops.

        Without strings the rest is structure. Mostly the whole text holds so few of each sign that it need not be
        taken apart.
        """
        if len(raw) <= self.containers:
            return
        quotes = raw.count(b'"')
        opened = raw.count(b"{") + raw.count(b"[")
        if opened <= self.containers and quotes <= 2 * self.strings and raw.count(b",") <= self.values:
            return
        if b"\\" in raw:  # pairs from the left, as a parser reads them; then no quote that is left is inside a string
            raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
            quotes = raw.count(b'"')
        _bound("strings", quotes // 2, self.strings)
        structure = b"".join(raw.split(b'"')[::2])
        _bound("objects and arrays", structure.count(b"{") + structure.count(b"["), self.containers)
        _bound("values", structure.count(b","), self.values)


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
            f"{at}The request holds {found} {what}, and at most {most} are accepted; send fewer in one request",
            param=place,
        )
