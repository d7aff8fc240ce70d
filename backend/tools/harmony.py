"""Answers in channels, as gpt-oss writes them (OpenAI, Harmony response format): thoughts in ``analysis``, the answer
in ``final``, calls in ``commentary to=functions.NAME``.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

The prompt ends with ``<|start|>assistant``; ``<|return|>`` and ``<|call|>`` are end tokens, and not seen here.
"""

import re

from backend.tools.call import NO_ARGUMENTS, CallScript
from backend.tools.parts import Arguments, CallStart, Content, Reasoning
from backend.tools.script import END, Reading

CHANNEL, MESSAGE, START, CLOSE, CONSTRAIN = "<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"
MARKERS = (CHANNEL, MESSAGE, START, CLOSE, CONSTRAIN)
ANALYSIS, FUNCTIONS = "analysis", "functions."
MOST_HEADER = 256  # characters before a message; what is longer is no header
RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
NAMED = re.compile(re.escape(CHANNEL) + r"\s*([A-Za-z]+)")


class HarmonyParser(CallScript):
    """What is addressed to a function that was not offered, or to a tool of the model's own, stays text, as what has no
    header does."""

    def run(self) -> Reading[None]:
        begun = ""  # the marker that this parser has read before a header
        while (header := (yield from self._header(begun))) is not None:
            yield from self._body(header)
            if not (yield from self.follows(START)):
                break
            begun = START
        yield from self.rest()
        return None

    def _header(self, begun: str) -> Reading[str | None]:
        """What precedes a message, whose marker is read, too; None, and nothing read, where none comes."""
        read = ""
        while len(read) < MOST_HEADER:
            character = yield from self.next()
            if character == END:
                break
            read += character
            if read.endswith(MESSAGE):
                return read.removesuffix(MESSAGE)
        if not (self.was_cut and (begun or read.lstrip().startswith("<|"))):  # a header that was cut is no text
            self.give_back(begun + read)
        return None

    def _body(self, header: str) -> Reading[None]:
        """Say a message, up to its end or the text's."""
        channel, recipient = NAMED.search(header), RECIPIENT.search(header)
        name = recipient[1].removeprefix(FUNCTIONS) if recipient else None
        if recipient and recipient[1].startswith(FUNCTIONS) and name in self.names:
            self.say(CallStart(str(name)))
            character = yield from self.after()
            self.give_back(character)
            if character == END or (yield from self.follows(CLOSE)):
                self.say(Arguments(NO_ARGUMENTS))
                return
            yield from self.prose(CLOSE, trim=True, kind=Arguments)
        elif channel and channel[1] == ANALYSIS and not recipient:
            yield from self.prose(CLOSE, trim=True, kind=Reasoning)
        else:
            yield from self.prose(CLOSE, kind=Content)
