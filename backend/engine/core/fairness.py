"""Who was served how much: the Virtual Token Counter (Sheng et al. 2024, "Fairness in Serving Large Language Models").

Each project of a tenant has a counter of what was computed for it; who has the least is admitted next. One that comes
back after a pause is lifted to the least of those that are active, so an idle project accumulates no claim.
"""

from collections import Counter

READ, WRITTEN = 1, 2  # what a token costs: written ones are computed one by one


class FairShare:
    """Counters of the projects that have sequences, and of those that were served more than these."""

    def __init__(self) -> None:
        self._served: dict[bytes, int] = {}
        self._sequences: Counter[bytes] = Counter()

    def join(self, project: bytes) -> None:
        """One more sequence of it is there."""
        if not self._sequences[project]:
            floor = min((self._served[other] for other in self._sequences if self._sequences[other]), default=0)
            self._served = {p: n for p, n in self._served.items() if n > floor or self._sequences[p]}
            self._served[project] = max(self._served.get(project, 0), floor)
        self._sequences[project] += 1

    def leave(self, project: bytes) -> None:
        self._sequences[project] -= 1
        if not self._sequences[project]:
            del self._sequences[project]

    def charge(self, project: bytes, read: int, written: int) -> None:
        """So many tokens were computed for it."""
        if project in self._served:
            self._served[project] += READ * read + WRITTEN * written

    def served(self, project: bytes) -> int:
        return self._served.get(project, 0)
