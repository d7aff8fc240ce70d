"""Reading an answer while it is being written: straight-line code that waits for its next character.

A script is a generator that is sent one character at a time and says parts of the answer as soon as it is sure of
them. So what it says cannot depend on where tokens end, and what it has not said yet is all that is held back.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import TypeVar

from backend.tools.parts import Arguments, Content, Part, Reasoning, merged

SPACE = " \t\r\n"
END = ""  # what comes when the text has ended, for ever after
LEAST_MARKUP = 2
"""Characters at the end of a text that was cut from which on they count as the beginning of a marker: one is a word."""
T = TypeVar("T")
Reading = Generator[None, str, T]


class Script(ABC):
    """A subclass's `run` reads to the end of the text with `next` and its like, and says parts with `say`."""

    def __init__(self) -> None:
        self._said: list[Part] = []
        self._again: list[str] = []  # given back, to be read before anything new; the next one is the last
        self._read: list[str] | None = None  # since `remember`
        self._ended = False
        self._cut = False
        self.left_out = ""  # white space before the last marker that `prose` read
        self._running = self.run()
        next(self._running)

    @abstractmethod
    def run(self) -> Reading[None]:
        """Reads to the end of the text."""

    def feed(self, text: str) -> list[Part]:
        for character in text:
            self._running.send(character)
        return self._take()

    def finish(self, *, cut: bool = False) -> list[Part]:
        """The text has ended: what was held back is said, as what it is. cut: it ended by its length, not by the
        model's will, so that the beginning of a marker or of a call is part of something that is missing."""
        self._cut = cut
        try:
            self._running.send(END)
        except StopIteration:
            return self._take()
        raise RuntimeError("the script reads on behind the end")

    @property
    def was_cut(self) -> bool:
        """Whether the end was reached, and by length."""
        return self._cut and self._ended and not self._again

    def _take(self) -> list[Part]:
        parts, self._said = merged(self._said), []
        return parts

    def say(self, part: Part) -> None:
        self._said.append(part)

    def next(self) -> Reading[str]:
        """The next character, or END."""
        if self._again:
            character = self._again.pop()
        elif self._ended:
            return END
        else:
            character = yield
            self._ended = character == END
        if self._read is not None:
            self._read += character
        return character

    def give_back(self, text: str) -> None:
        """It is read again, before what follows."""
        self._again += reversed(text)
        if self._read is not None and text:
            del self._read[-len(text) :]

    def remember(self) -> None:
        """From here on keep what is read, for `remembered`."""
        self._read = []

    def remembered(self) -> str:
        read, self._read = "".join(self._read or ()), None
        return read

    def after(self, skipped: str = SPACE) -> Reading[str]:
        """The first character that is none of these, or END."""
        while True:
            character = yield from self.next()
            if character == END or character not in skipped:
                return character

    def follows(self, word: str, *, or_cut: bool = False) -> Reading[bool]:
        """Read `word` if it is what comes next; nothing if not. or_cut: its beginning counts where the text ends."""
        read = ""
        while read != word:
            character = yield from self.next()
            read += character
            if character == END and or_cut:
                return True
            if character == END or not word.startswith(read):
                self.give_back(read)
                return False
        return True

    def prose(
        self, marker: str, *, trim: bool = False, kind: type[Content | Reasoning | Arguments] = Content
    ) -> Reading[bool]:
        """Say text up to `marker`, which is read, too; False where the text ends without it.

        White space before the marker is left out, and kept in `left_out`; with ``trim`` it is also left out at the
        beginning. Takes time linear in the text, whatever it holds: blanks are held as a list, and never looked at
        again.
        """
        blanks: list[str] = []  # white space that may precede the marker
        begun = ""  # a beginning of the marker
        while (character := (yield from self.next())) != END:
            read = begun + character
            if read == marker:
                self.left_out = "".join(blanks)
                return True
            begun = read[len(read) - overlap(read, marker) :]
            text = read[: len(read) - len(begun)]
            if not text:
                continue
            words = text.rstrip(SPACE)
            if words:
                self.say(kind("".join(blanks) + words))
                blanks, trim = [], False
            if not trim:
                blanks.append(text[len(words) :])
        if self.was_cut and len(begun) >= LEAST_MARKUP:
            begun = ""
        self.say(kind("".join(blanks) + begun))
        return False

    def rest(self, *, trim: bool = False) -> Reading[None]:
        """Say all that is left."""
        character = yield from (self.after() if trim else self.next())
        while character != END:
            self.say(Content(character))
            character = yield from self.next()

    def value(self, first: str, each: Callable[[str], None] | None = None) -> Reading[str]:
        """A JSON value that begins with this character, or what came of it: brackets and strings are followed, nothing
        else is judged. ``each`` is called with every character as it is read."""
        text: list[str] = []
        depth, in_string, escaped = 0, False, False
        character = first
        while character != END:
            if first not in '{["' and (character in ",}]" or character in SPACE):
                self.give_back(character)
                break
            text.append(character)
            if each is not None:
                each(character)
            if in_string:
                in_string = escaped or character != '"'
                escaped = not escaped and character == "\\"
            elif character == '"':
                in_string = True
            elif character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
            if first in '{["' and not in_string and depth <= 0:
                break
            character = yield from self.next()
        return "".join(text)


def overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that is a beginning of `marker`, and not all of it."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
