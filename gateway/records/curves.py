"""Curves over an hour, a day and a week: into which steps time is cut, and times of calls into classes."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log10
from typing import Final

CLASSES_A_DECADE: Final = 10
LAST_CLASS: Final = 80
"""Class of 10**8 ms, more than a day."""


@dataclass(frozen=True, slots=True)
class Period:
    """`step_s`: width of one point. `points`: how many are shown. `kept_s`: rows are kept for this long."""

    step_s: int
    points: int

    @property
    def kept_s(self) -> int:
        return self.step_s * (self.points + 2)

    def begins(self, now: float) -> list[int]:
        """The beginnings of the points, seconds since 1970, the running one last."""
        last = begin_of(now, self.step_s)
        return [last - self.step_s * back for back in range(self.points - 1, -1, -1)]


PERIODS: Final = {"1h": Period(60, 60), "24h": Period(600, 144), "7d": Period(3600, 168)}


def begin_of(moment: float, step_s: int) -> int:
    return int(moment // step_s) * step_s


def steps_of(moment: float, now: float) -> Iterator[tuple[int, int]]:
    """Width and beginning of each step that `moment` is in, where rows of it are still kept at `now`."""
    for period in PERIODS.values():
        if moment > now - period.kept_s:
            yield period.step_s, begin_of(moment, period.step_s)


def class_of(ms: float) -> int:
    """The class of a time: the smallest n with ``ms <= 10 ** (n / 10)``. Of two neighbours one is 26 % greater."""
    return 0 if ms <= 1 else min(LAST_CLASS, ceil(CLASSES_A_DECADE * log10(ms) - 1e-9))


def quantile(classes: dict[int, int], share: float) -> float | None:
    """The time in milliseconds that at most `share` of the times exceed from above, found within its class in
    proportion; None without times. `classes`: how many times there are in each."""
    wanted = share * sum(classes.values())
    below = 0
    for number in sorted(classes):
        if below + classes[number] >= wanted and classes[number]:
            upper = 10 ** (number / CLASSES_A_DECADE)
            lower = 10 ** ((number - 1) / CLASSES_A_DECADE) if number else 0.0
            return lower + (upper - lower) * (wanted - below) / classes[number]
        below += classes[number]
    return None
