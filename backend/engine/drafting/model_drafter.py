"""Drafter that uses a smaller model of the same vocabulary (Leviathan et al. 2023), with greedy decoding.

The draft model has its own runner and KV cache and follows a sequence under the sequence's id. Cached keys and values
stay valid up to the first token that differs, so after a rejected token the drafter continues from there. It computes a
long prompt one step at a time, which delays the target model by at most one draft step; a sequence has no proposals
until its prompt is computed.
"""

from backend.engine.core.block_manager import BlockManager
from backend.engine.core.runner import Runner
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence

LIKELIEST = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


class ModelDrafter:
    """A `speculation.Drafter`.

    Args:
        runner: runner of the draft model, whose KV cache has `blocks`. It decodes greedily.
        rows: largest number of sequences followed at once; the least recently used one is dropped for a new one.
        budget: tokens of a step. longest: context length of the draft model, in tokens.
        vocabulary: the smaller vocabulary size of both models; token ids from there on are neither followed nor
            proposed.
    """

    def __init__(
        self, runner: Runner, blocks: BlockManager, *, rows: int, budget: int, longest: int, vocabulary: int
    ) -> None:
        self.runner = runner
        self._blocks = blocks
        self._budget, self._longest, self._vocabulary = budget, longest, vocabulary
        self._rows = list(range(rows))
        self._followed: dict[int, Followed] = {}  # by sequence id, least recently used first

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        ids = {sequence.id for sequence, _ in wanted}
        for sequence, _ in wanted:
            self._follow(sequence, ids)
        found: dict[int, list[int]] = {sequence.id: [] for sequence, _ in wanted}
        asking = {s.id: most for s, most in wanted if most > 0 and s.id in self._followed}
        while asking:
            drawn = self._step(list(asking), ids)
            for id in list(asking):
                token = drawn.get(id)
                if token is None or token >= self._vocabulary:  # prompt not yet computed, or no next token
                    del asking[id]
                    continue
                found[id].append(token)
                self._followed[id].sequence.tokens.append(token)
                if len(found[id]) >= asking[id]:
                    del asking[id]
        self._tidy()
        return [found[sequence.id] for sequence, _ in wanted]

    def forget(self, id: int) -> None:
        """Drop a sequence and zero its blocks."""
        self._leave(id)
        self._tidy()

    @property
    def followed(self) -> int:
        """Number of sequences with keys and values in the cache."""
        return len(self._followed)

    def residue(self) -> int:
        """Zero the free blocks, read them back and return the number of their bytes that are not zero."""
        free = self._blocks.forget_free()
        self.runner.scrub(free)
        self._blocks.dirty.clear()
        return self.runner.residue(free)

    def _follow(self, sequence: Sequence, kept: set[int]) -> None:
        """Update the record of a sequence to its current tokens, and add it if it is new."""
        if len(sequence.tokens) >= self._longest or max(sequence.tokens[-1:], default=0) >= self._vocabulary:
            self._leave(sequence.id)
            return
        own = self._followed.pop(sequence.id, None)
        if own is None:
            if not self._rows and not self._make_way(kept):
                return
            if max(sequence.tokens) >= self._vocabulary:
                return
            own = Followed(Sequence(sequence.id, [], LIKELIEST, arrival=0, max_length=self._longest))
            own.sequence.row = self._rows.pop()
        self._followed[sequence.id] = own
        own.update(sequence.tokens)

    def _step(self, ids: list[int], kept: set[int]) -> dict[int, int | None]:
        """Run one step of the draft model. Returns the next token of each sequence whose end was reached, by id."""
        batch: list[Scheduled] = []
        budget = self._budget
        for id in ids:
            own = self._followed.get(id)
            if own is None:
                continue
            count = min(own.sequence.num_uncomputed, budget)
            if count <= 0 or len(own.sequence.tokens) >= self._longest or not self._grown(own, count, kept):
                continue
            batch.append(Scheduled(own.sequence, count, admitted=not own.known))
            own.known = True
            budget -= count
        if not batch:
            return {}
        self._tidy()
        launched = self.runner.launch(batch)
        sampled = [scheduled.sequence for scheduled in batch if scheduled.samples]
        for scheduled in batch:
            scheduled.sequence.num_computed += scheduled.num_tokens
        return {s.id: token for s, token in zip(sampled, launched.tokens(), strict=True)}

    def _grown(self, own: "Followed", count: int, kept: set[int]) -> bool:
        while not self._blocks.grow(own.sequence, count):
            if not self._make_way(kept):
                return False
        return True

    def _make_way(self, kept: set[int]) -> bool:
        """Drop the least recently used sequence that is not in `kept`. Returns False if there is none."""
        oldest = next((id for id in self._followed if id not in kept), None)
        if oldest is None:
            return False
        self._leave(oldest)
        return True

    def _leave(self, id: int) -> None:
        own = self._followed.pop(id, None)
        if own is None:
            return
        self._blocks.release(own.sequence)
        if own.sequence.row is not None:
            self._rows.append(own.sequence.row)

    def _tidy(self) -> None:
        if self._blocks.dirty:
            self.runner.scrub(self._blocks.dirty)
            self._blocks.dirty = []


class Followed:
    """A sequence in the draft model's cache. known: whether the runner's tables are up to date for it."""

    __slots__ = ("known", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.known = False

    def update(self, tokens: list[int]) -> None:
        """Set the current tokens. The last one is left to compute, because its successor is requested."""
        own = self.sequence
        if own.tokens == tokens and own.num_computed < len(tokens):
            return
        computed = min(own.num_computed, len(tokens) - 1)
        if own.tokens[:computed] != tokens[:computed]:
            computed = next(i for i in range(computed) if own.tokens[i] != tokens[i])
        own.tokens = list(tokens)
        own.num_computed = computed
        self.known = False
