"""Stop strings: cut a growing text before the first of them, and hold back what may be the start of one."""

from collections.abc import Sequence


class StopStrings:
    """One stream of text.

    The stop that is complete first wins, and of several complete at once the one that began first: so the cut does not
    depend on where the tokens end. What is held back is the longest end of the text that begins a stop string, never
    more.

    include: the stop itself is shown.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = [s for s in stops if s]
        self._include = include
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """The text that may be shown now. After a match nothing more is."""
        if self.matched:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.matched = True
            self._held = ""
            end, begin = min(found)
            return held[: end if self._include else begin]
        keep = max(_overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

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
