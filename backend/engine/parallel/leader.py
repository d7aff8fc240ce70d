"""Rank 0's runner: every call of the engine goes to the other ranks as well, and then to its own runner.

All ranks run the same steps on the same inputs and draw the same tokens from the same logits, so nothing comes back
from the others but what a control message asks for.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from backend.engine.cache.sleeper import Sleeper
from backend.engine.core.host_tier import HostOperation, HostPages
from backend.engine.core.runner import BlockBytes, Launched, Masks, Runner
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.speculation import Drafted
from backend.engine.core.token_masks import Allowed
from backend.engine.parallel import step_messages as say
from backend.engine.parallel.followers import Followers
from backend.engine.parallel.leading_pages import Division, LeadingPages
from backend.engine.parallel.mirrors import Originals
from backend.engine.parallel.step_messages import FromFollower
from backend.errors import BackendError, CannotSleep, CannotWake
from backend.models.checkpoints.direct import OnProgress


@dataclass
class LeadingRunner:
    """A `runner.Runner`. division: of the cache; None: its blocks do not travel."""

    own: Runner
    followers: Followers
    division: Division | None = None
    ahead: int = field(init=False)
    plain_only: bool = field(init=False)
    pages: BlockBytes | None = field(init=False, default=None)
    _originals: Originals = field(default_factory=Originals)
    _prepared: bool = False

    def __post_init__(self) -> None:
        self.ahead, self.plain_only = self.own.ahead, self.own.plain_only
        if self.division is not None and self.own.pages is not None:
            self.pages = LeadingPages(lambda: self.own.pages, self.division, self.followers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.own.windows

    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Launched:
        self._prepared = False
        gone, admitted = self._originals.gone(), self._originals.admitted(batch)
        words = self._originals.words([(s.sequence, s.num_tokens, s.admitted) for s in batch])
        self.followers.send(say.Launch(gone, admitted, words, masks is not None))
        return self.own.launch(batch, None if masks is None else lambda: self._told(masks()))

    def _told(self, allowed: Allowed) -> Allowed:
        self.followers.send(say.Masks(allowed.ids, allowed.bits.contiguous().numpy().tobytes()))
        return allowed

    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        words = self._originals.words([(d.sequence, d.num_tokens, False) for d in batch])
        allowed = [b"" if d.allowed is None else d.allowed.contiguous().numpy().tobytes() for d in batch]
        self.followers.send(say.Verify(self._originals.gone(), words, [d.guesses for d in batch], allowed))
        return self.own.verify(batch)

    def checked_activations(self) -> list[list[bytes]]:
        return self.own.checked_activations()

    @property
    def missed(self) -> int:
        return self.own.missed

    def prepare(self) -> bool:
        if self._prepared:
            return False
        self.followers.send(say.Prepare())
        self._prepared = not self.own.prepare()
        return not self._prepared

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        self.followers.send(say.Copy(pairs))
        self.own.copy(pairs)

    def scrub(self, blocks: list[int]) -> None:
        self.followers.send(say.Scrub(self._originals.gone(), blocks))
        self.own.scrub(blocks)

    def residue(self, blocks: list[int]) -> int:
        """Of all ranks together."""
        self.followers.send(say.Residue(blocks))
        own = self.own.residue(blocks)
        return own + sum(numbers(self.followers.answers()))

    def forget(self) -> None:
        """The tokens that the others were told: no sequence is there."""
        self._originals = Originals()


@dataclass(frozen=True)
class LeadingHostPages:
    """`core.host_tier.HostPages` of all ranks: each has its share of a block in the same slot. A load that has arrived
    at the first may be under way at another, whose next step then waits for it on its own device."""

    own: HostPages
    followers: Followers

    @property
    def slot_bytes(self) -> int:
        return self.own.slot_bytes

    def do(self, operation: HostOperation) -> None:
        self.followers.send(operation)
        self.own.do(operation)

    def arrived(self, number: int) -> float | None:
        return self.own.arrived(number)

    def residue(self, slots: list[int]) -> int:
        """Of all ranks together."""
        self.followers.send(say.HostResidue(slots))
        own = self.own.residue(slots)
        return own + sum(numbers(self.followers.answers()))

    def forget(self) -> None:
        self.followers.send(say.HostForget())
        self.own.forget()


@dataclass(frozen=True)
class LeadingSleeper:
    """A `sleeper.Sleeper` of all ranks, which turn at the same time: either all sleep or none does."""

    own: Sleeper
    runner: LeadingRunner

    def sleep(self, on_progress: OnProgress) -> int:
        """Bytes given back by all ranks together."""
        given, refused, answers = self._turn(say.Sleep(), lambda: self.own.sleep(on_progress))
        if refused is not None:
            self._turn(say.Wake(), lambda: 0 if given is None else self._wake_own())
            raise CannotSleep(refused)
        self.runner.forget()
        return (given or 0) + sum(numbers(answers))

    def wake(self, on_progress: OnProgress) -> None:
        awake, refused, _ = self._turn(say.Wake(), lambda: self._wake_own(on_progress))
        if refused is not None:
            self._turn(say.Sleep(), lambda: 0 if awake is None else self.own.sleep(lambda done, total: None))
            raise CannotWake(refused)

    def _turn(
        self, message: say.Sleep | say.Wake, own: Callable[[], int]
    ) -> tuple[int | None, str | None, Items[FromFollower]]:
        """All ranks at once: what this one returned, None if it refused; what those that refused have said, None if
        none did; and the others' answers."""
        self.runner.followers.send(message)
        given, said = None, []
        try:
            given = own()
        except BackendError as error:
            said.append(str(error))
        answers = self.runner.followers.answers()
        said += [refused] if (refused := refusals(answers)) else []
        return given, "; ".join(said) or None, answers

    def _wake_own(self, on_progress: OnProgress = lambda done, total: None) -> int:
        self.own.wake(on_progress)
        return 0


def numbers(answers: Items[FromFollower]) -> list[int]:
    return [answer.number for answer in answers if isinstance(answer, say.Done)]


def refusals(answers: Items[FromFollower]) -> str:
    """What the ranks that refused have said; "" if none did."""
    found = [
        f"rank {rank}: {answer.message}" for rank, answer in enumerate(answers, 1) if isinstance(answer, say.Refused)
    ]
    return "; ".join(found)
