"""Calls as Llama 3.1 and later write them: the answer is ``{"name": …, "parameters": {…}}``, perhaps behind the control
token ``<|python_tag|>``, several with semicolons between (Meta, prompt format of Llama 3.1)."""

from backend.tools.call import CallScript
from backend.tools.parts import Content
from backend.tools.script import END, SPACE, Reading

TAG = "<|python_tag|>"


class Llama3Parser(CallScript):
    """A call may stand where the answer begins, behind another call and behind the tag; an object elsewhere is text,
    and so is one that calls nothing that was offered. The tag is never text."""

    def run(self) -> Reading[None]:
        called = tagged = False
        while True:
            self.remember()
            character = yield from self.after(SPACE + ";," if called else SPACE)
            self.give_back(character)
            before = self.remembered()
            if (yield from self.follows(TAG)):
                tagged = True
                continue
            if character == "{" and (yield from self.call(marked=tagged or called)):
                called, tagged = True, False
                continue
            if character == END and called:
                return
            self.say(Content("" if called else before))
            tagged = yield from self.prose(TAG)
            if not tagged:
                return
