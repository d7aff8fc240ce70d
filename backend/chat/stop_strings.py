"""Stop strings: cut a growing text before the first of them, and hold back what may be the start of one."""

from collections.abc import Sequence


class StopStrings:
    """One stream of text.

    The stop that is complete first wins, and of several complete at once the one that began first: so the cut does not
    depend on where the tokens end. What is held back is the longest end of the text that begins a stop string, never
    more.

    include: the stop itself is shown.

    Attributes:
        stop: the string that ended the text; None while none has.
        cut: characters that were fed and are not shown because of it.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = [s for s in stops if s]
        self._include = include
        self._held = ""
        self.stop: str | None = None
        self.cut = 0

    def feed(self, text: str) -> str:
        """The text that may be shown now. After a match nothing more is."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self._held = ""
            end, begin, self.stop = min(found)
            shown = held[: end if self._include else begin]
            self.cut = len(held) - len(shown)
            return shown
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    @property
    def matched(self) -> bool:
        return self.stop is not None

    @property
    def held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def flush(self) -> str:
        """The text has ended: what was held back is text after all."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
