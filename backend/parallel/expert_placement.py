"""Which experts of a mixture each rank holds as wholes (expert parallelism; Lepikhin et al. 2021, GShard), and which
copies of those that are taken most often (DeepSeek-AI 2024, V3, section 3.4).

Pure arithmetic, without torch: the planner counts with it, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Placement:
    """By rank, the experts in its slots: first its own, which stay, then `spare` copies of others'."""

    slots: tuple[tuple[int, ...], ...]
    spare: int = 0

    @classmethod
    def even(cls, experts: int, size: int, spare: int = 0) -> "Placement":
        """As equally many for each rank as can be; copies are of the ranks' next ones until loads are known."""
        bounds = [experts * rank // size for rank in range(size + 1)]
        own = [tuple(range(begin, end)) for begin, end in pairwise(bounds)]
        spare = min(spare, experts - max(len(held) for held in own))
        return cls(tuple(held + _next(held, experts, spare) for held in own), spare)

    def owner(self, expert: int) -> int:
        """The rank that always holds it."""
        return next(rank for rank, held in enumerate(self.slots) if expert in held[: len(held) - self.spare])

    def holders(self, expert: int) -> tuple[int, ...]:
        """All ranks that hold it, which take turns."""
        return tuple(rank for rank, held in enumerate(self.slots) if expert in held)

    def rank_loads(self, loads: Sequence[float]) -> list[float]:
        """What falls to each rank. loads: by expert."""
        each = [load / len(self.holders(expert)) for expert, load in enumerate(loads)]
        return [sum(each[expert] for expert in held) for held in self.slots]

    def balanced(self, loads: Sequence[float]) -> "Placement":
        """With copies of what makes the most loaded ranks so, on the least loaded ones, one after another; a slot that
        does not help keeps its copy. loads: by expert."""
        own = [held[: len(held) - self.spare] for held in self.slots]
        found = Placement(tuple(own))
        for _ in range(self.spare * len(own)):
            found = found._with_a_copy(own, self.spare, loads) or found
        return Placement(
            tuple(
                held + _kept(held, self.slots[rank], len(own[rank]) + self.spare)
                for rank, held in enumerate(found.slots)
            ),
            self.spare,
        )

    def _with_a_copy(self, own: list[tuple[int, ...]], spare: int, loads: Sequence[float]) -> "Placement | None":
        """One copy more, where it helps most; None where there is no such place."""
        ranks = self.rank_loads(loads)
        free = [rank for rank in range(len(own)) if len(self.slots[rank]) < len(own[rank]) + spare]
        for rank in sorted(free, key=lambda rank: ranks[rank]):
            most = max(range(len(own)), key=lambda other: ranks[other])
            offered = [expert for expert in self.slots[most] if expert not in self.slots[rank]]
            if rank == most or not offered:
                continue
            hottest = max(offered, key=lambda expert: loads[expert] / len(self.holders(expert)))
            slots = list(self.slots)
            slots[rank] = (*slots[rank], hottest)
            return Placement(tuple(slots))
        return None


def _next(held: tuple[int, ...], experts: int, count: int) -> tuple[int, ...]:
    return tuple((held[-1] + 1 + i) % experts for i in range(count))


def _kept(held: tuple[int, ...], before: tuple[int, ...], slots: int) -> tuple[int, ...]:
    """For slots that are left: copies from before."""
    return tuple(expert for expert in before if expert not in held)[: slots - len(held)]
