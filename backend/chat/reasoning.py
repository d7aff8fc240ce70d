"""Reasoning of a model before its answer, ``<think>…</think>`` (DeepSeek-R1, Qwen3, QwQ)."""

from backend.tools.parts import Content, Reasoning
from backend.tools.script import Reading, Script

OPEN, CLOSE = "<think>", "</think>"
ANSWER, ANSWER_END = "<response>", "</response>"
"""What Granite 3.3 puts around its answer where it thinks."""


class ThinkParser(Script):
    """Parts an answer from the thoughts before it; white space at either's borders belongs to neither.

    opened: the prompt ends inside the thoughts already, as some templates have it. Thoughts come first or not at all:
    a ``<think>`` inside an answer is text. A ``</think>`` that comes first ends thoughts of no text; behind text that
    was streamed as the answer it is text.
    """

    def __init__(self, *, opened: bool) -> None:
        self._opened = opened
        super().__init__()

    def run(self) -> Reading[None]:
        if not self._opened:
            self.remember()
            self.give_back((yield from self.after()))
            before = self.remembered()
            if not (yield from self.follows(OPEN)):
                if (yield from self.follows(CLOSE)):  # thoughts that were neither opened nor thought
                    return (yield from self.rest(trim=True))
                self.say(Content(before))
                return (yield from self.rest())
        else:
            self.give_back((yield from self.after()))
            yield from self.follows(OPEN)  # some models repeat what the prompt ends with
        yield from self.prose(CLOSE, trim=True, kind=Reasoning)
        self.give_back((yield from self.after()))
        if (yield from self.follows(ANSWER)):
            yield from self.prose(ANSWER_END, trim=True)
        yield from self.rest(trim=True)
        return None


def opens_thoughts(prompt_end: str) -> bool:
    """Whether a prompt that ends so leaves the model thinking."""
    return prompt_end.rstrip().endswith(OPEN)
