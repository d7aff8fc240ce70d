"""Calls as Hermes and Qwen write them: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, one or several, with
text around them (NousResearch, Hermes function calling; the chat templates of Qwen2.5 and Qwen3)."""

from backend.tools.call import CallScript
from backend.tools.parts import Content
from backend.tools.script import SPACE, Reading

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(CallScript):
    """What stands between the markers and is no call of an offered function stays text, opening marker included."""

    def run(self) -> Reading[None]:
        behind_call = False
        while (yield from self.prose(OPEN, trim=behind_call)):
            behind_call = yield from self.call()
            if not behind_call:
                self.say(Content(self.left_out + OPEN))
                continue
            self.give_back((yield from self.after(SPACE + "}")))  # one bracket too many says nothing
            yield from self.follows(CLOSE, or_cut=True)
