"""One call as a JSON object, ``{"name": …, "arguments": {…}}``, its keys in any order.

Nothing is said of a call before its name is known to be one that was offered; from then on its arguments are handed on
as they come, and are not judged: whether they are good JSON is for the caller to see, as with any model.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass

from backend.tools.parts import Arguments, CallStart
from backend.tools.script import END, SPACE, Reading, Script

ARGUMENTS = ("arguments", "parameters")
NO_ARGUMENTS = "{}"
MOST_FAILURES = 32  # objects of one answer that turn out to be no calls, each read twice; behind them all is text


@dataclass(slots=True)
class _Call:
    """A call that is being read.

    Attributes:
        name: of the function; None until it is read and known to be one that was offered.
        waiting: arguments that were read before the name, and are said behind it.
        argued: the arguments were said; further ones are left out.
    """

    name: str | None = None
    waiting: str | None = None
    argued: bool = False


class CallScript(Script):
    """A script that reads calls. names: of the functions that may be called."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self._failures = 0
        super().__init__()

    def call(self, *, marked: bool = True) -> Reading[bool]:
        """Read an object and say its call. False: it calls nothing that was offered, and was given back whole.

        marked: it follows a marker, so that the beginning of one, in an answer that was cut, is the beginning of
        a call and no text: nothing is said of it.
        """
        if self._failures == MOST_FAILURES:
            return False
        self.remember()
        call = _Call()
        character = yield from self._members(call)
        read = self.remembered()
        if call.name is None:
            if marked and self.was_cut:
                return True
            self.give_back(read)
            self._failures += 1
            return False
        if character not in ("}", END):
            self.give_back(character)  # a call that began is one, whatever comes behind
        if not call.argued and character != END:
            self.say(Arguments(NO_ARGUMENTS))
        return True

    def _members(self, call: _Call) -> Reading[str]:
        """Read an object into `call`, up to its end or to what is no member of a call; the last character read."""
        character = yield from self.after()
        if character != "{":
            return character
        while True:
            character = yield from self.after(SPACE + ",")
            if character != '"':
                return character
            key = string((yield from self.value(character)))
            character = yield from self.after()
            if character != ":":
                return character
            character = yield from self.after()
            accepted = yield from self._member(call, key, character)
            if not accepted:
                return character

    def _member(self, call: _Call, key: str | None, first: str) -> Reading[bool]:
        """Read a member's value, which begins with `first`, and say what it adds to the call. False: it is the name of
        a function that was not offered."""
        is_arguments = key in ARGUMENTS and not call.argued
        streams = call.name is not None and is_arguments and first in ("{", "[")
        value = yield from self.value(first, self._say_arguments if streams else None)
        if key == "name" and call.name is None:
            name = string(value)
            if name is None or name not in self.names:
                return False
            call.name = name
            self.say(CallStart(name))
            if call.waiting is not None:
                self.say(Arguments(unwrapped(call.waiting)))
                call.argued = True
        elif is_arguments and call.name is None:
            call.waiting = value
        elif is_arguments:
            if not streams:
                self.say(Arguments(unwrapped(value)))
            call.argued = True
        return True

    def _say_arguments(self, text: str) -> None:
        self.say(Arguments(text))


def string(text: str) -> str | None:
    """A JSON string's text; None if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def unwrapped(text: str) -> str:
    """Arguments that are written as a string, as in OpenAI's own messages, are what the string says."""
    inner = string(text)
    if inner is None:
        return NO_ARGUMENTS if text == "null" else text
    return inner if inner.lstrip()[:1] == "{" else text
