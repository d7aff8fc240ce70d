"""Speculative decoding (Leviathan et al. 2023; Chen et al. 2023): guess some tokens, check them all in one step.

A step that reads the weights once can judge several positions of a sequence. A drafter guesses the next tokens; the
model's own draw at each position is made as it would have been, keyed by seed and position (`sampler`), and a guess is
kept for as long as it is what was drawn. The first draw that differs is kept in its place, so every step gains at least
one token. This is rejection sampling for a draft that is certain of itself: a guess x passes with probability p(x), and
otherwise the token comes from p without x. So the tokens are those of the engine without a drafter, one by one, greedy
or not, as far as the logits are the same.

A step in which draws of any sequence are shaped by more than a grammar, or reported (penalties, log probabilities),
makes no guesses. Under a grammar each place has its own tokens that may be drawn; guesses that it rules out are
dropped.

It pays while steps are bound by reading weights: with many sequences, and for a sequence whose guesses fail, it rests.
What guesses of a model cost is measured beside what they save (`Benefit`).
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from backend.engine.core.block_manager import BlockManager
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence

GUESSES_BY_BATCH = ((4, 5), (16, 3))  # up to so many sequences a step, so many guesses each; beyond, none
MAX_ROWS = 64  # that a checking step has, each a draw: 16 × (1 + 3)
LONGEST_REST = 64  # tokens
PROBE_STEPS = 8  # of each way to go on, before they are compared
TRUSTED_STEPS = 256  # of the better way, before the other is tried again


class Drafter(Protocol):
    """Guesses tokens. Guesses may be wrong, and must not use the engine's random numbers."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        """For each sequence, guesses of the tokens behind its last, at most as many as asked for; possibly none."""
        ...

    def forget(self, id: int) -> None:
        """The sequence is over."""
        ...


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Of the tokens of the last step launched; on a device, behind it on the same stream.

    Attributes:
        states: [rows, width], valid until the next step is launched.
        first: by sequence id, the row of the first of its tokens; the others follow. A sequence that is missing has
            none here.
    """

    states: Tensor
    first: dict[int, int]


def first_rows(counts: Iterable[tuple[int, int]]) -> dict[int, int]:
    """`HiddenStates.first` of (sequence id, number of tokens) in the order of their rows."""
    found, at = {}, 0
    for id, count in counts:
        found[id] = at
        at += count
    return found


class StateDrafter(Drafter, Protocol):
    """A drafter that guesses from hidden states of the model."""

    def observe(self, tokens: list[tuple[Sequence, int]], exposed: HiddenStates) -> None:
        """A step was launched in which so many tokens of each sequence, from its `num_computed` on, were computed and
        are part of it. May not wait for the step."""
        ...


@dataclass(frozen=True, slots=True)
class Drafted:
    """A decode whose next tokens are guessed to be `guesses`. allowed: of a sequence with a grammar, the tokens that
    may be drawn behind its last token and behind each guess: int32 [num_tokens, words], bits as in
    `token_masks.Allowed`; None: all."""

    sequence: Sequence
    guesses: list[int]
    allowed: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return 1 + len(self.guesses)


def agreed(guesses: list[int], drawn: list[int | None]) -> int:
    """How many guesses the draws at their positions confirm, from the first on; a draw follows the last of them."""
    pairs = zip(guesses, drawn[:-1], strict=False)
    return next((i for i, (guess, token) in enumerate(pairs) if token != guess), min(len(guesses), len(drawn) - 1))


@dataclass(slots=True)
class _Trust:
    """`misses`: checks in a row that confirmed nothing. No guess before the sequence has `resume_at` tokens."""

    misses: int = 0
    resume_at: int = 0


class Benefit:
    """Whether steps with guesses give more tokens a second than steps without, at each size of batch: both are tried,
    the better one is kept for a while, and then the other tried again. now: seconds, monotonic."""

    def __init__(self, now: Callable[[], float], by_batch: Items[tuple[int, int]] = GUESSES_BY_BATCH) -> None:
        self._now = now
        self._trials = [_Trial() for _ in by_batch]
        self._sizes = [size for size, _ in by_batch]
        self._began = 0.0

    def wants(self, batch: int) -> bool:
        """Whether a step of so many sequences is to have guesses."""
        trial = self._trial(batch)
        return trial is not None and trial.guesses

    def begin(self) -> None:
        """A step begins."""
        self._began = self._now()

    def end(self, batch: int, tokens: int) -> None:
        """It is over; so many sequences got so many tokens, and nothing else was computed."""
        trial = self._trial(batch)
        if trial is not None:
            trial.take(tokens / batch, self._now() - self._began)

    def _trial(self, batch: int) -> "_Trial | None":
        return next((t for size, t in zip(self._sizes, self._trials, strict=True) if 0 < batch <= size), None)


class _Trial:
    """guesses: what is tried now. rates: tokens a second and sequence, without guesses and with."""

    def __init__(self) -> None:
        self.guesses = False
        self._rates: list[float | None] = [None, None]
        self._steps, self._tokens, self._seconds = 0, 0.0, 0.0
        self._most = PROBE_STEPS

    def take(self, tokens: float, seconds: float) -> None:
        self._steps, self._tokens, self._seconds = self._steps + 1, self._tokens + tokens, self._seconds + seconds
        if self._steps < self._most:
            return
        self._rates[self.guesses] = self._tokens / self._seconds if self._seconds > 0 else None
        self._steps, self._tokens, self._seconds = 0, 0.0, 0.0
        without, given = self._rates
        if without is None or given is None or self._most == TRUSTED_STEPS:
            self.guesses, self._most = not self.guesses, PROBE_STEPS
        else:
            self.guesses, self._most = given > without, TRUSTED_STEPS


@dataclass
class Speculation:
    """When to guess and how much. `proposed` and `accepted` count guesses since birth. benefit: of a drafter that takes
    its time; None for one that looks guesses up, which is asked whenever it may have some. by_place: the same counts of
    guesses that are first, second … of their step. observer: the drafter, if it guesses from hidden states."""

    drafter: Drafter
    by_batch: Items[tuple[int, int]] = GUESSES_BY_BATCH
    proposed: int = 0
    accepted: int = 0
    benefit: Benefit | None = None
    observer: StateDrafter | None = None
    by_place: list[tuple[int, int]] = field(default_factory=list)
    _trust: dict[int, _Trust] = field(default_factory=dict)

    def most(self, batch: int) -> int:
        """Guesses a sequence in a batch of that size; 0 under load, and where they would not pay."""
        if self.benefit is not None and not self.benefit.wants(batch):
            return 0
        return next((guesses for size, guesses in self.by_batch if batch <= size), 0)

    def promises(self, running: list[Sequence]) -> bool:
        """Whether it is worth waiting for tokens in flight, to guess what follows them.

        Looked up from the tokens that are known: a guess that reaches past those in flight says that the text is
        one that can be guessed.
        """
        most = self.most(len(running))
        trusted = [s for s in running if self._rested(s)]
        if not most or not trusted or not all(s.params.guessable for s in running):
            return False
        if self.benefit is not None or self.observer is not None:
            return True
        guesses = self.drafter.propose([(s, s.num_pending + 1) for s in trusted])
        return any(len(g) > s.num_pending for s, g in zip(trusted, guesses, strict=True))

    def draft(self, batch: list[Scheduled], blocks: BlockManager, budget: int) -> list[Drafted]:
        """`batch` with guesses, and the blocks they need; empty if there are none, or prompts fill the step anyway."""
        most = self.most(len(batch))
        if not most or any(s.num_tokens > 1 or s.admitted or not s.samples for s in batch):
            return []
        if not all(s.sequence.params.guessable for s in batch):
            return []  # what shapes or reports a draw depends on the tokens before it, which are not certain here
        wanted = [(s.sequence, room) for s in batch if (room := self._room(s.sequence, most)) > 0]
        found = {s.id: guesses for (s, _), guesses in zip(wanted, self.drafter.propose(wanted), strict=True)}
        drafted = []
        spare, guessed = budget - len(batch), 0  # tokens
        for scheduled in batch:
            guesses = found.get(scheduled.sequence.id, [])[: max(0, spare - guessed)]
            if guesses and not blocks.grow(scheduled.sequence, 1 + len(guesses)):
                guesses = []  # no sequence is preempted for a guess
            guessed += len(guesses)
            drafted.append(Drafted(scheduled.sequence, guesses))
        return drafted if guessed else []

    def observe(self, tokens: list[tuple[Sequence, int]], exposed: Callable[[], HiddenStates | None]) -> None:
        """Show the hidden states of the last step to a drafter that guesses from them, unless so many sequences run
        that there are no guesses: it has a gap then. tokens: as in `StateDrafter.observe`."""
        if self.observer is None or len(tokens) > max(size for size, _ in self.by_batch):
            return
        states = exposed()
        if states is not None:
            self.observer.observe(tokens, states)

    def record_accepted(self, drafted: Drafted, accepted: int) -> None:
        """Take note of how many guesses were right."""
        if not drafted.guesses:
            return
        self.proposed += len(drafted.guesses)
        self.accepted += accepted
        more = len(drafted.guesses) - len(self.by_place)
        self.by_place += [(0, 0)] * more
        for place in range(len(drafted.guesses)):
            proposed, right = self.by_place[place]
            self.by_place[place] = (proposed + 1, right + (place < accepted))
        trust = self._trust.setdefault(drafted.sequence.id, _Trust())
        trust.misses = 0 if accepted else trust.misses + 1
        rest = min(LONGEST_REST, (1 << trust.misses) - 1) if trust.misses else 0
        trust.resume_at = len(drafted.sequence.tokens) + rest

    def forget(self, id: int) -> None:
        self._trust.pop(id, None)
        self.drafter.forget(id)

    def _room(self, sequence: Sequence, most: int) -> int:
        """Guesses that leave a place for the draw behind the last of them."""
        return min(most, sequence.max_length - len(sequence.tokens) - 1) if self._rested(sequence) else 0

    def _rested(self, sequence: Sequence) -> bool:
        trust = self._trust.get(sequence.id)
        return trust is None or len(sequence.tokens) + sequence.num_pending >= trust.resume_at
