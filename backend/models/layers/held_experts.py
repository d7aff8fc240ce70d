"""The experts of a layer that a rank holds as wholes, how often each is taken, and copies of the ones most taken.

Attention is tensor-parallel, so every rank has every token: none travels to its experts, and what they add comes
together in the sum that ends the branch anyway. Of experts with copies, their holders take tokens in turn.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from backend.parallel.expert_placement import Placement
from backend.parallel.group import ParallelGroup


class HeldExperts:
    """One layer's. Tables by expert, int32 on the device: `slot`, its slot on this rank or -1; `copies`, how many ranks
    hold it; `turn`, which of them this rank is. `counts`: int64, pairs of a token and an expert since the start."""

    def __init__(self, placement: Placement, group: ParallelGroup, experts: int, device: torch.device) -> None:
        self.group, self.experts = group, experts
        self.counts = torch.zeros(experts, dtype=torch.int64, device=device)
        self._before: list[int] = [0] * experts  # counts when copies were last chosen
        self.slot, self.copies, self.turn = (torch.zeros(experts, dtype=torch.int32, device=device) for _ in range(3))
        self._place(placement)

    def _place(self, placement: Placement) -> None:
        self.placement = placement
        own, rank = placement.slots[self.group.shard.rank], self.group.shard.rank
        holders = [placement.holders(expert) for expert in range(self.experts)]
        rows = (
            (self.slot, [own.index(e) if e in own else -1 for e in range(self.experts)]),
            (self.copies, [len(held) for held in holders]),
            (self.turn, [held.index(rank) if rank in held else -1 for held in holders]),
        )
        for table, values in rows:
            table.copy_(torch.tensor(values, dtype=torch.int32))  # in place: captured steps read it

    @property
    def own(self) -> tuple[int, ...]:
        """The experts in this rank's slots."""
        return self.placement.slots[self.group.shard.rank]

    def local(self, chosen: Tensor) -> Tensor:
        """The slots that this rank computes: int32 of chosen's shape, -1 for another rank's. Counts them.

        chosen: int [tokens, per_token], experts.
        """
        flat = chosen.flatten().long()
        self.counts.index_add_(0, flat, torch.ones_like(flat))
        row = torch.arange(len(chosen), dtype=torch.int32, device=chosen.device)[:, None]
        index = chosen.long()
        mine = row % self.copies[index] == self.turn[index]
        return torch.where(mine, self.slot[index], -1)

    def rank_loads(self) -> list[float]:
        """Pairs that fell to each rank, as experts are placed now. Waits for the device."""
        return self.placement.rank_loads(self.counts.tolist())

    def rebalance(self, weights: Sequence[Tensor], least: int) -> bool:
        """Copy the experts that are taken most since the last time to where there is least to do; all ranks at once.
        False if fewer than `least` pairs have come since, or there is no slot for a copy.

        weights: each [slots, ...] of this rank.
        """
        if not self.placement.spare:
            return False
        counts = self.counts.tolist()
        since = [now - before for now, before in zip(counts, self._before, strict=True)]
        if sum(since) < least:
            return False
        self._before = counts
        wanted = self.placement.balanced(since)
        for rank, (old, new) in enumerate(zip(self.placement.slots, wanted.slots, strict=True)):
            for slot, (before, expert) in enumerate(zip(old, new, strict=True)):
                if before != expert:
                    self._copy(weights, expert, wanted.owner(expert), rank, slot)
        self._place(wanted)
        return True

    def _copy(self, weights: Sequence[Tensor], expert: int, source: int, rank: int, slot: int) -> None:
        """Copy of one expert from its owner to another rank's slot."""
        here = self.group.shard.rank
        for weight in weights:
            at = self.own.index(expert) if here == source else slot if here == rank else None
            held = weight[0].clone() if at is None else weight[at]
            moved = held.contiguous() if here == source else torch.empty_like(held)
            self.group.broadcast(moved, source)
            if here == rank:
                weight[slot].copy_(moved)
