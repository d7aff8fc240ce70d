"""Drafter that guesses from the model's hidden states, with a head of one layer (`models.heads`), greedily and in a
chain.

The entry of place p in the head's cache is computed of the hidden state at p and the token at p + 1; from the last one
the head guesses, and goes on from what it left itself. These entries are replaced once hidden states of the model are
there, those that the check of the guesses computed.

Hidden states are taken from each step of the model behind which they are known, by copies on the device, which nothing
waits for. Of a long prompt the head computes its entries at once, of others when it is asked for guesses or when many
have come together. Where there are none (blocks from the prefix cache or from another sequence of the same prompt,
steps of too many sequences) the head's context begins behind the gap, at the first place that follows. Positions count
from there; rotary embeddings know differences only. Nothing is computed again for a guess: the context before adds
little, since each hidden state stands for all the text before it.
"""

from typing import Protocol

import torch
from torch import Tensor

from backend.engine.core.block_manager import BlockManager
from backend.engine.core.runner import Runner
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import HiddenStates
from backend.engine.drafting.model_drafter import LIKELIEST, Followed, ModelDrafter

WAITING = 64  # hidden states of a sequence that wait for a guess; with more the head computes their entries


class HeadRunner(Runner, Protocol):
    """A runner of a head."""

    def feed(self, features: dict[int, Tensor]) -> None:
        """Hidden states that enter with the tokens of the next step, [tokens, hidden_size] by sequence id."""
        ...

    def output(self, id: int) -> Tensor:
        """What the last step left of the last token of a sequence that samples, [1, hidden_size]. Valid until the next
        step."""
        ...

    def combined(self, states: Tensor) -> Tensor:
        """Features of the model's hidden states: [tokens, hidden_size]."""
        ...


class HeadDrafter(ModelDrafter):
    """A `speculation.StateDrafter`. runner: of the head. Others: as of `ModelDrafter`."""

    _followed: dict[int, "_Context"]  # type: ignore[assignment]

    def __init__(
        self, runner: HeadRunner, blocks: BlockManager, *, rows: int, budget: int, longest: int, vocabulary: int
    ) -> None:
        super().__init__(runner, blocks, rows=rows, budget=budget, longest=longest, vocabulary=vocabulary)
        self.head = runner

    def observe(self, tokens: list[tuple[Sequence, int]], exposed: HiddenStates) -> None:
        ids = {sequence.id for sequence, _ in tokens}
        for sequence, count in tokens:
            first = exposed.first.get(sequence.id)
            own = None if first is None else self._context(sequence, count, ids)
            if own is None or first is None:
                continue
            known = own.end - sequence.num_computed  # computed once more, after a preemption
            if known < count:
                own.waiting.append(exposed.states[first + known : first + count])
                if own.num_waiting > WAITING:
                    self._catch_up(own, sequence.tokens, ids)
                if own.waiting:
                    own.waiting[-1] = own.waiting[-1].clone()  # the next step of the model overwrites it
        self._tidy()

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        ids = {sequence.id for sequence, _ in wanted}
        found: dict[int, list[int]] = {sequence.id: [] for sequence, _ in wanted}
        asking = {sequence.id: most for sequence, most in wanted if most > 0 and self._ready(sequence)}
        while asking:
            drawn, stuck = self._advance(list(asking), ids)
            for id in stuck:
                del asking[id]
            for id, token in drawn.items():
                if token is None or token >= self._vocabulary:  # no number
                    del asking[id]
                    continue
                found[id].append(token)
                self._followed[id].go_on(token, self.head.output(id))
                if len(found[id]) >= asking[id]:
                    del asking[id]
        for sequence, _ in wanted:
            if sequence.id in self._followed:
                self._followed[sequence.id].settle()
        self._tidy()
        return [found[sequence.id] for sequence, _ in wanted]

    def _ready(self, sequence: Sequence) -> bool:
        """Whether it can be guessed from: the hidden state of its last but one token is known."""
        own = self._followed.pop(sequence.id, None)
        if own is None:
            return False
        self._followed[sequence.id] = own  # the most recently used
        return own.end >= len(sequence.tokens) - 1 and own.prepare(sequence.tokens, self.head)

    def _context(self, sequence: Sequence, count: int, kept: set[int]) -> "_Context | None":
        """Of a sequence whose next `count` hidden states are there: a new one if it has none, if there is a gap or if
        it has become too long. None if there is no place for it."""
        own = self._followed.get(sequence.id)
        start = sequence.num_computed
        if own is not None and start <= own.end and max(own.end, start + count) - own.begin < self._longest:
            return own
        self._leave(sequence.id)
        if count >= self._longest or (not self._rows and not self._make_way(kept)):
            return None
        own = _Context(sequence.id, start, self._longest)
        own.sequence.row = self._rows.pop()
        self._followed[sequence.id] = own
        return own

    def _catch_up(self, own: "_Context", tokens: list[int], kept: set[int]) -> None:
        """Compute the entries whose tokens are known, without waiting for it."""
        if own.prepare(tokens, self.head):
            stuck: list[int] = []
            while len(own.features) and not stuck:
                stuck = self._advance([own.sequence.id], kept, waits=False)[1]
        own.settle()

    def _advance(
        self, ids: list[int], kept: set[int], *, waits: bool = True
    ) -> tuple[dict[int, int | None], list[int]]:
        """Run one step of the head on the features that are ready.

        Returns the next token of each sequence whose features are all computed, if it `waits` for one, and the
        sequences that cannot continue.
        """
        batch: list[Scheduled] = []
        features: dict[int, Tensor] = {}
        stuck: list[int] = []
        budget = self._budget
        for id in ids:
            own = self._followed[id]
            count = min(len(own.features), budget)
            if count <= 0:
                continue
            if len(own.sequence.tokens) >= self._longest or not self._grown(own, count, kept):
                stuck.append(id)
                continue
            batch.append(Scheduled(own.sequence, count, admitted=not own.known))
            features[id], own.features = own.features.tensor_split((count,))
            own.last = features[id][-1:]
            own.known = True
            budget -= count
        if not batch:
            return {}, ids
        self._tidy()
        self.head.feed(features)
        launched = self.head.launch(batch)
        sampled = [scheduled.sequence.id for scheduled in batch if scheduled.samples]
        for scheduled in batch:
            scheduled.sequence.num_computed += scheduled.num_tokens
        drawn = dict(zip(sampled, launched.tokens(), strict=True)) if waits else {}
        return drawn, stuck


class _Context(Followed):
    """A sequence in the head's cache, by its entries.

    Attributes:
        begin: place of the first entry.
        real: entries computed of hidden states of the model.
        waiting: the model's hidden states behind these, in parts.
        features: to be computed next; last: of the last entry computed.
        sequence: its tokens are those at places begin + 1, begin + 2, …
    """

    __slots__ = ("_entries", "_settled", "begin", "features", "last", "real", "waiting")

    def __init__(self, id: int, begin: int, longest: int) -> None:
        super().__init__(Sequence(id, [], LIKELIEST, arrival=0, max_length=longest))
        self.begin, self.real = begin, 0
        self._entries = 0  # that there are of known tokens
        self.waiting: list[Tensor] = []
        self.features = self.last = torch.empty(0)
        self._settled: Tensor | None = None  # of the last real entry

    @property
    def num_waiting(self) -> int:
        return sum(len(part) for part in self.waiting)

    @property
    def end(self) -> int:
        """The place behind the last whose hidden state is known."""
        return self.begin + self.real + self.num_waiting

    def prepare(self, tokens: list[int], head: HeadRunner) -> bool:
        """Compute the features that these tokens allow. Return False if there are none."""
        own, entries = self.sequence, len(tokens) - 1 - self.begin
        count = min(entries - self.real, self.num_waiting)
        if entries <= 0 or count < 0 or (count == 0 and self._settled is None):
            return False
        own.tokens, own.num_computed, self.known = tokens[self.begin + 1 :], self.real, False
        if count:
            states = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
            self.features = head.combined(states[:count])
        else:  # asked once more: the last entry is computed again
            assert self._settled is not None  # noqa: S101 -- looked at above
            self.features, own.num_computed = self._settled, self.real - 1
        own.tokens = own.tokens[: own.num_computed + len(self.features)]
        self._entries = len(own.tokens)
        return True

    def go_on(self, token: int, output: Tensor) -> None:
        """A token was guessed: the next entry is of it, and of what the head left."""
        self.take_note()
        self.sequence.tokens.append(token)
        self.features = output

    def take_note(self) -> None:
        """Of how many of the entries computed are real; hidden states that became some wait no more."""
        computed = min(self.sequence.num_computed, self._entries)
        made = computed - self.real
        if made > 0:
            self._settled = self.last.clone()
            states = self.waiting[0] if len(self.waiting) == 1 else torch.cat(self.waiting)
            self.waiting = [states[made:]] if made < len(states) else []
            self.real = computed

    def settle(self) -> None:
        """Nothing more is computed for now. What was guessed is not looked back at."""
        self.take_note()
        self.features = self.features[:0]
