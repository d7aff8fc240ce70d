"""How long a transfer may go wrong before it is given up."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """attempts: in a row that bring a file on by less than `least` bytes; pause_s: after the first of them, doubled
    after each further one. stall_s: a transfer that brings less than `least` bytes in that time, and an answer that
    takes that long, count as cut."""

    attempts: int = 6
    pause_s: float = 1.0
    stall_s: float = 60.0
    least: int = 1 << 20

    def pause(self, failures: int) -> float:
        """Seconds before the next attempt; half a minute at most."""
        return min(30.0, self.pause_s * 2.0 ** (failures - 1))
