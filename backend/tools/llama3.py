"""Calls as Llama 3.1 and later write them: the answer is ``{"name": …, "parameters": {…}}``, perhaps behind the control
token ``<|python_tag|>``, several with semicolons between (Meta, prompt format of Llama 3.1)."""

from backend.tools.call import CallScript
from backend.tools.parts import Content
from backend.tools.script import END, SPACE, Reading

TAG = "<|python_tag|>"


class Llama3Parser(CallScript):
    """A call may be at the beginning of the answer, after another call and after the tag; an object elsewhere is text,
    and so is one that calls nothing that was offered. The tag is never text."""

    def run(self) -> Reading[None]:
        called = tagged = False
        spaces = ""  # before a tag that no call has followed yet
        while True:
            self.remember()
            character = yield from self.after(SPACE + ";," if called else SPACE)
            self.give_back(character)
            before = self.remembered()
            spaces += "" if called else before
            if (yield from self.follows(TAG)):
                tagged = True
                continue
            if character == "{" and (yield from self.call(marked=tagged or called)):
                called, tagged, spaces = True, False, ""
                continue
            if character == END and called:
                return
            self.say(Content(spaces))
            tagged = yield from self.prose(TAG)
            if not tagged:
                return
            spaces = self.left_out
