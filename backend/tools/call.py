"""One call as a JSON object, ``{"name": …, "arguments": {…}}``, its keys in any order.

Nothing is said of a call before its name is known to be one that was offered; from then on its arguments are handed on
as they come, and are not judged: whether they are good JSON is for the caller to see, as with any model.
"""

import json
from collections.abc import Collection

from backend.tools.parts import Arguments, CallStart
from backend.tools.script import END, SPACE, Reading, Script

ARGUMENTS = ("arguments", "parameters")
NO_ARGUMENTS = "{}"
MOST_FAILURES = 32  # objects of one answer that turn out to be no calls, each read twice; behind them all is text


class CallScript(Script):
    """A script that reads calls. names: of the functions that may be called."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self._failures = 0
        super().__init__()

    def call(self, *, marked: bool = True) -> Reading[bool]:
        """Read an object and say its call. False: it calls nothing that was offered, and was given back whole.

        marked: it stands behind a marker, so that the beginning of one, in an answer that was cut, is the beginning of
        a call and no text: nothing is said of it.
        """
        if self._failures == MOST_FAILURES:
            return False
        self.remember()
        name: str | None = None
        waiting: str | None = None
        argued = False
        character = yield from self.after()
        opened = character == "{"
        while opened:
            character = yield from self.after(SPACE + ",")
            if character != '"':
                break
            key = string((yield from self.value(character)))
            character = yield from self.after()
            if character != ":":
                break
            character = yield from self.after()
            is_arguments = key in ARGUMENTS and not argued
            streams = name is not None and is_arguments and character in ("{", "[")
            value = yield from self.value(character, self._say_arguments if streams else None)
            if key == "name" and name is None:
                name = string(value)
                if name not in self.names:
                    name = None
                    break
                assert name is not None  # noqa: S101 -- it is one of them
                self.say(CallStart(name))
                if waiting is not None:
                    self.say(Arguments(unwrapped(waiting)))
                    argued = True
            elif is_arguments and name is None:
                waiting = value
            elif is_arguments:
                if not streams:
                    self.say(Arguments(unwrapped(value)))
                argued = True
        read = self.remembered()
        if name is None and marked and self.was_cut:
            return True
        if name is None:
            self.give_back(read)
            self._failures += 1
            return False
        if character not in ("}", END):
            self.give_back(character)  # a call that began is one, whatever comes behind
        if not argued and character != END:
            self.say(Arguments(NO_ARGUMENTS))
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
