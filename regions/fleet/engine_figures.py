"""Speed and cards of backends as they report them, and the rates between two reports.

Counters grow since the start of an engine. Rates are of the last `WINDOW_S` seconds with a report.
"""

from collections import deque
from typing import NamedTuple

WINDOW_S = 30.0


class EngineFigures(NamedTuple):
    """`written`: tokens of answers; `first_tokens`, `first_token_s`: first tokens, and the seconds from their requests'
    arrival to them, in all; `joules`: energy of the cards; these count since the engine's start. `gpu_use`: share of
    time in which a card computes, `gpu_memory`: share of its memory in use (both 0 to 1, the mean of several cards);
    `watts`: what all cards draw now. None: not reported."""

    written: float | None = None
    first_tokens: float | None = None
    first_token_s: float | None = None
    joules: float | None = None
    gpu_use: float | None = None
    gpu_memory: float | None = None
    watts: float | None = None


class EngineRates(NamedTuple):
    """`tokens_per_s`: written; `first_token_ms`: the mean of those requests whose first token came in the window;
    `joules_per_1000_tokens`: of the written ones. The others as in `EngineFigures`. None: not known."""

    tokens_per_s: float | None = None
    first_token_ms: float | None = None
    joules_per_1000_tokens: float | None = None
    gpu_use: float | None = None
    gpu_memory: float | None = None
    watts: float | None = None


class RecentFigures:
    """The figures of one backend over the window."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: deque[tuple[float, EngineFigures]] = deque()

    def note(self, at: float, figures: EngineFigures) -> None:
        """at: seconds of a monotonic clock."""
        if self._told and _began_anew(self._told[-1][1], figures):
            self._told.clear()
        self._told.append((at, figures))
        while len(self._told) > 2 and at - self._told[1][0] >= WINDOW_S:
            self._told.popleft()

    def rates(self, now: float) -> EngineRates | None:
        """None without a report within the window."""
        if not self._told or now - self._told[-1][0] > WINDOW_S:
            return None
        (began, first), (ended, last) = self._told[0], self._told[-1]
        written, joules = _grown(first.written, last.written), _grown(first.joules, last.joules)
        waited, answers = (
            _grown(first.first_token_s, last.first_token_s),
            _grown(first.first_tokens, last.first_tokens),
        )
        return EngineRates(
            tokens_per_s=_ratio(written, ended - began),
            first_token_ms=_ratio(waited, answers, 1e3),
            joules_per_1000_tokens=_ratio(joules, written, 1e3),
            gpu_use=last.gpu_use,
            gpu_memory=last.gpu_memory,
            watts=last.watts,
        )


def _began_anew(before: EngineFigures, after: EngineFigures) -> bool:
    """Whether a counter fell: another process reports."""
    return any(old is not None and (new is None or new < old) for old, new in zip(before[:4], after[:4], strict=True))


def _grown(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else last - first


def _ratio(above: float | None, below: float | None, times: float = 1.0) -> float | None:
    return None if above is None or not below else above / below * times
