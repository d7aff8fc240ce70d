"""How long to wait before the next start of what keeps failing: twice as long each time, until it is quiet."""

from dataclasses import dataclass

FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S, MAX_FAILURES, STEADY_S = 1.0, 60.0, 16, 300.0


@dataclass(slots=True)
class BackOff:
    """Back-off of one deployment. Times are monotonic seconds."""

    failures: int = 0
    failed_at: float = float("-inf")
    not_before: float = 0.0

    def failed(self, now: float) -> None:
        if now - self.failed_at >= STEADY_S:
            self.failures = 0
        self.failures, self.failed_at = min(self.failures + 1, MAX_FAILURES), now
        self.not_before = now + min(FIRST_BACK_OFF_S * 2 ** (self.failures - 1), LONGEST_BACK_OFF_S)
