"""Members of a body of another API, each taken once by name; one that nothing takes is refused.

So no member is dropped unseen: it is translated, compared with known words, or named in an error.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from gateway.api_format import Place
from gateway.errors import InvalidRequest

IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_.:=+/-]{1,256}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}", re.ASCII)
UNSUPPORTED: Final = "unsupported_parameter"
INVALID_TYPE: Final = "invalid_type"
INVALID_VALUE: Final = "invalid_value"
MISSING: Final = "missing_required_parameter"


def refused(place: Place, what: str, fix: str, code: str = UNSUPPORTED) -> InvalidRequest:
    """`what`: said of the field at `place`, which the sentence begins with."""
    param = ".".join(map(str, place))
    return InvalidRequest(f"{param}: {what}; {fix}" if param else f"{what}; {fix}", param=param or None, code=code)


class Fields:
    """One object of a body, at `place` of it. Null is as if it were absent.

    `hints`: members of the API that this gateway does not offer, with what to use instead. Use as a context: leaving it
    raises InvalidRequest for what is left.
    """

    __slots__ = ("_hints", "_left", "place")

    def __init__(self, value: Any, place: Place = (), hints: Mapping[str, str] | None = None) -> None:
        """Raises InvalidRequest for what is no object."""
        if not isinstance(value, dict):
            what = "it is no object" if place else "The body is no object"
            raise refused(place, what, "send a JSON object", INVALID_TYPE)
        self.place = place
        self._left = {name: inner for name, inner in value.items() if inner is not None}
        self._hints = hints or {}

    def __enter__(self) -> "Fields":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.done()

    def done(self) -> None:
        """Raises InvalidRequest for the first member that was not taken."""
        for name in self._left:
            known = _NAME.fullmatch(name) is not None  # another name may be a text of the client's
            at = (*self.place, name) if known else self.place
            fix = self._hints.get(name, "leave it out")
            raise refused(at, "it is not offered here" if known else "it has an unknown member", fix)

    def at(self, *steps: str | int) -> Place:
        return (*self.place, *steps)

    def wrong(self, name: str, what: str, fix: str, code: str = INVALID_VALUE) -> NoReturn:
        raise refused(self.at(name), what, fix, code)

    def has(self, name: str) -> bool:
        """Whether a member of that name is left."""
        return name in self._left

    def any(self, name: str) -> Any:
        """The member; None where there is none."""
        return self._left.pop(name, None)

    def text(self, name: str, *, required: bool = False) -> str | None:
        value = self.any(name)
        if value is None and required:
            self.wrong(name, "it is missing", "add it", MISSING)
        if value is not None and not isinstance(value, str):
            self.wrong(name, "it is no text", "send a text", INVALID_TYPE)
        return value

    def required_text(self, name: str) -> str:
        return self.text(name, required=True) or ""

    def identifier(self, name: str) -> str | None:
        """Raises InvalidRequest for what could be more than an identifier."""
        value = self.text(name)
        if value is not None and not IDENTIFIER.fullmatch(value):
            self.wrong(name, "it is no identifier", "send the one that an answer gave")
        return value

    def one_of(self, name: str, words: Sequence[str], fix: str = "") -> str | None:
        value = self.any(name)
        if value is not None and (not isinstance(value, str) or value not in words):
            self.wrong(name, "this value is not offered", fix or f"send one of {', '.join(words)}")
        return value

    def flag(self, name: str) -> bool | None:
        value = self.any(name)
        if value is not None and not isinstance(value, bool):
            self.wrong(name, "it is neither true nor false", "send true or false", INVALID_TYPE)
        return value

    def only(self, name: str, allowed: bool, fix: str) -> None:
        """Take a flag that may have one value alone."""
        if self.flag(name) not in (None, allowed):
            self.wrong(name, "this value is not offered", fix, UNSUPPORTED)

    def whole_number(self, name: str, least: int = 0, most: int = 2**31) -> int | None:
        value = self.any(name)
        if value is not None and (type(value) is not int or not least <= value <= most):
            self.wrong(name, "it is no such number", f"send a whole number from {least} to {most}")
        return value

    def object(self, name: str) -> dict[str, Any] | None:
        """An object with free members: a schema, metadata."""
        value = self.any(name)
        if value is not None and not isinstance(value, dict):
            self.wrong(name, "it is no object", "send a JSON object", INVALID_TYPE)
        return value

    def fields(self, name: str) -> "Fields | None":
        value = self.any(name)
        return None if value is None else Fields(value, self.at(name))

    def items(self, name: str) -> list[Any]:
        value = self.any(name)
        if value is not None and not isinstance(value, list):
            self.wrong(name, "it is no list", "send a list", INVALID_TYPE)
        return value or []

    def each(self, name: str) -> Iterator["Fields"]:
        """The objects of a list; each is done with before the next."""
        for position, value in enumerate(self.items(name)):
            with Fields(value, self.at(name, position)) as one:
                yield one
