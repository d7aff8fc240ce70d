"""Calls as Mistral writes them, behind the control token ``[TOOL_CALLS]``: a list of objects, or, from its eleventh
tokenizer on, ``name[ARGS]{…}`` for each (Mistral AI, mistral-common)."""

from backend.tools.call import CallScript
from backend.tools.parts import Arguments, CallStart, Content
from backend.tools.script import END, SPACE, Reading

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
LONGEST_NAME = 256


class MistralParser(CallScript):
    """What follows the token and is no call of an offered function is text."""

    def run(self) -> Reading[None]:
        behind_call = False
        while (yield from self.prose(CALLS, trim=behind_call)):
            self.remember()
            character = yield from self.after()
            behind_call = yield from (self._list() if character == "[" else self._named(character))

    def _list(self) -> Reading[bool]:
        """Behind the bracket. Each object in turn; the first that is no call is text, and all behind it."""
        before = self.remembered()
        called = False
        while True:
            character = yield from self.after(SPACE + ",")
            if character in ("]", END) and called:
                return True
            self.give_back(character)
            if not (yield from self.call()):
                self._is_text("" if called else before, "" if called else self.left_out)
                return called
            called = True

    def _named(self, first: str) -> Reading[bool]:
        """A name, and perhaps the call's own id, before the arguments."""
        head = first
        while head[-1:] not in ("{", END) and len(head) < LONGEST_NAME:
            character = yield from self.next()
            if character == END:
                break
            head += character
        read = self.remembered()
        name = head.removesuffix("{").split(ARGS)[0].split(CALL_ID)[0].strip(SPACE)
        if not head.endswith("{") and self.was_cut:
            return True
        if not head.endswith("{") or name not in self.names:
            self._is_text(read, self.left_out)
            return False
        self.say(CallStart(name))
        yield from self.value("{", lambda text: self.say(Arguments(text)))
        return True

    def _is_text(self, read: str, before: str) -> None:
        """What was read behind the token is no call, so the white space before the token separates words."""
        self.say(Content(before))
        self.give_back(read)
