"""The text of one choice, parted into thoughts, words and calls, while it is being written."""

from collections.abc import Iterable

from backend.chat.reasoning import ThinkParser
from backend.tools.call import CallScript
from backend.tools.parts import Arguments, CallStart, Content, Part, Reasoning, merged


class Interpreter:
    """What it says does not depend on how the text is cut into pieces.

    thoughts, calls: their parsers; None where the model has none, or none are asked for. tell_thoughts: or leave them
    out. parallel: report every call, not the first one only.
    """

    def __init__(
        self,
        thoughts: ThinkParser | None,
        calls: CallScript | None,
        *,
        show_reasoning: bool = True,
        parallel: bool = True,
    ) -> None:
        self._thoughts = thoughts
        self._calls = calls
        self._show_reasoning = show_reasoning
        self._parallel = parallel
        self.calls = 0

    def feed(self, text: str) -> list[Part]:
        return self._visible(self._called([Content(text)] if self._thoughts is None else self._thoughts.feed(text)))

    def finish(self, *, cut: bool = False) -> list[Part]:
        """The text has ended; cut: by its length, so that markup of a call may have been left unfinished."""
        parts = self._called([] if self._thoughts is None else self._thoughts.finish())
        return self._visible([*parts, *([] if self._calls is None else self._calls.finish(cut=cut))])

    def _called(self, parts: list[Part]) -> list[Part]:
        if self._calls is None:
            return parts
        read: list[Part] = []
        for part in parts:
            read += self._calls.feed(part.text) if isinstance(part, Content) else [part]
        return read

    def _visible(self, parts: Iterable[Part]) -> list[Part]:
        visible: list[Part] = []
        for part in parts:
            self.calls += isinstance(part, CallStart)
            surplus = self.calls > 1 and not self._parallel and isinstance(part, CallStart | Arguments)
            if not surplus and (self._show_reasoning or not isinstance(part, Reasoning)):
                visible.append(part)
        return merged(visible)
