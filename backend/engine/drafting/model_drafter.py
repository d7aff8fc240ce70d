"""Guesses by a smaller model of the same vocabulary (Leviathan et al. 2023): its likeliest next tokens, one by one.

It has a runner and a cache of its own, in which a sequence is followed under the same id. What it computed stays valid
as far as the tokens agree: behind a guess that was rejected it goes on from there. Long prompts are followed a step at
a time, so that they hold up the model's own steps by no more than that; until then there are no guesses.
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
        runner: of the smaller model, with a cache of `blocks`. It draws nothing but its likeliest token.
        rows: sequences that it follows at once; those that asked least recently make way.
        budget: tokens of its steps. longest: tokens that it can look back at.
        vocabulary: of both models, the smaller: tokens from there on are neither followed nor guessed.
    """

    def __init__(
        self, runner: Runner, blocks: BlockManager, *, rows: int, budget: int, longest: int, vocabulary: int
    ) -> None:
        self.runner = runner
        self._blocks = blocks
        self._budget, self._longest, self._vocabulary = budget, longest, vocabulary
        self._rows = list(range(rows))
        self._followed: dict[int, _Followed] = {}  # by id, the one that asked least recently first

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
                if token is None or token >= self._vocabulary:  # still within the prompt, or nothing to go on with
                    del asking[id]
                    continue
                found[id].append(token)
                self._followed[id].sequence.tokens.append(token)
                if len(found[id]) >= asking[id]:
                    del asking[id]
        self._tidy()
        return [found[sequence.id] for sequence, _ in wanted]

    def forget(self, id: int) -> None:
        """What was kept of it is zeroed."""
        self._leave(id)
        self._tidy()

    @property
    def followed(self) -> int:
        """Sequences whose keys and values it holds."""
        return len(self._followed)

    def residue(self) -> int:
        """Zero the free blocks; returns how many of their bytes are not zero when read back."""
        free = self._blocks.forget_free()
        self.runner.scrub(free)
        self._blocks.dirty.clear()
        return self.runner.residue(free)

    def _follow(self, sequence: Sequence, kept: set[int]) -> None:
        """Bring what is known of a sequence up to its tokens."""
        if len(sequence.tokens) >= self._longest or max(sequence.tokens[-1:], default=0) >= self._vocabulary:
            self._leave(sequence.id)
            return
        own = self._followed.pop(sequence.id, None)
        if own is None:
            if not self._rows and not self._make_way(kept):
                return
            if max(sequence.tokens) >= self._vocabulary:
                return
            own = _Followed(Sequence(sequence.id, [], LIKELIEST, arrival=0, max_length=self._longest))
            own.sequence.row = self._rows.pop()
        self._followed[sequence.id] = own
        own.update(sequence.tokens)

    def _step(self, ids: list[int], kept: set[int]) -> dict[int, int | None]:
        """One step of the smaller model: the token that it draws behind each that it got to the end of."""
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

    def _grown(self, own: "_Followed", count: int, kept: set[int]) -> bool:
        while not self._blocks.grow(own.sequence, count):
            if not self._make_way(kept):
                return False
        return True

    def _make_way(self, kept: set[int]) -> bool:
        """Forget the one that asked least recently, but for those of `kept`; False if there is none."""
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


class _Followed:
    """known: whether the runner's tables have the sequence as it is."""

    __slots__ = ("known", "sequence")

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.known = False

    def update(self, tokens: list[int]) -> None:
        """Its tokens are these now. The last one is left to compute, for what follows it is asked for."""
        own = self.sequence
        if own.tokens == tokens and own.num_computed < len(tokens):
            return
        computed = min(own.num_computed, len(tokens) - 1)
        if own.tokens[:computed] != tokens[:computed]:
            computed = next(i for i in range(computed) if own.tokens[i] != tokens[i])
        own.tokens = list(tokens)
        own.num_computed = computed
        self.known = False
