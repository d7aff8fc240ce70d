"""What rank 0 tells and what another rank makes of it, in one process: the same batches, the same blocks, and all
asleep or none."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import pytest
import torch

from backend.engine.cache.attention import KVCache
from backend.engine.cache.host_pages import HostPages
from backend.engine.core.runner import Masks
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import Drafted
from backend.engine.cpu.model_runner import Done as Drawn
from backend.engine.cpu.model_runner import ModelRunner
from backend.engine.engine import Engine
from backend.engine.parallel import step_messages
from backend.engine.parallel.follower import Follower
from backend.engine.parallel.leader import LeadingHostPages, LeadingRunner, LeadingSleeper
from backend.engine.parallel.step_messages import FromFollower, ToFollower
from backend.engine_config import CacheSize, EngineConfig
from backend.errors import CannotSleep, CannotWake
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.toy_grammar import ToyGrammars
from tests.backend.tiny import generate, greedy

DECODER = msgspec.msgpack.Decoder(ToFollower)


def seen(batch: list[Scheduled]) -> list[Any]:
    """All that a runner may read of a batch, but for tokens that are of no use to it."""
    return [
        (
            s.sequence.id, s.num_tokens, s.admitted, s.samples, s.prompt_rows, list(s.sequence.tokens),
            list(s.sequence.block_table), s.sequence.num_computed, s.sequence.num_pending, s.sequence.num_prompt,
            s.sequence.params, s.sequence.row, s.sequence.may_not_end, s.sequence.ends,
        )
        for s in batch
    ]  # fmt: skip


@dataclass
class Seeing:
    """A runner that takes down what it is told to do."""

    ahead: int = 0
    plain_only: bool = False
    missed: int = 0
    pages: None = None
    did: list[Any] = field(default_factory=list)

    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Drawn:
        self.did.append(("launch", seen(batch), masks() if masks else None))
        return Drawn([], [], [], [])

    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        self.did.append(("verify", [(d.sequence.id, list(d.sequence.tokens), d.guesses) for d in batch]))
        return []

    def prepare(self) -> bool:
        self.did.append("prepare")
        return len(self.did) < 3

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        self.did.append(("copy", [tuple(pair) for pair in pairs]))

    def scrub(self, blocks: list[int]) -> None:
        self.did.append(("scrub", list(blocks)))

    def residue(self, blocks: list[int]) -> int:
        self.did.append(("residue", blocks))
        return 3


class Telling(ModelRunner):
    """Rank 0's own: takes down the same, and computes."""

    did: list[Any]

    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Any:
        self.did.append(("launch", seen(batch), None))
        return super().launch(batch, masks)

    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        self.did.append(("verify", [(d.sequence.id, list(d.sequence.tokens), d.guesses) for d in batch]))
        return super().verify(batch)

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        self.did.append(("copy", list(pairs)))
        super().copy(pairs)

    def scrub(self, blocks: list[int]) -> None:
        self.did.append(("scrub", list(blocks)))
        super().scrub(blocks)


class InProcess:
    """Other ranks, called as they would be by a connection."""

    def __init__(self, *runners: Any, sleepers: tuple[Any, ...] = (), host: Any = None) -> None:
        self.answered: list[list[FromFollower]] = [[] for _ in runners]
        self.ranks = [
            Follower(runner, sleepers[i] if sleepers else None, self._answering(i), host=host)
            for i, runner in enumerate(runners)
        ]

    def _answering(self, place: int) -> Any:
        answered = self.answered

        class Leader:
            def answer(self, message: FromFollower) -> None:
                answered[place].append(message)

        return Leader()

    def send(self, message: ToFollower) -> None:
        for rank in self.ranks:
            rank.handle(DECODER.decode(msgspec.msgpack.encode(message)))

    def answers(self) -> list[FromFollower]:
        return [own.pop(0) for own in self.answered]


class Guessing:
    """A drafter whose guesses are often wrong."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        return [[7, 8, 9][:count] for _, count in wanted]

    def forget(self, id: int) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize("guesses", [False, True])
def test_another_rank_is_told_all_that_rank_0_does(model: Decoder, guesses: bool) -> None:
    """Chunks, forks with copied blocks, shared prefixes, preemptions, guesses, log probabilities of prompts."""
    other = Seeing()
    config = EngineConfig(model="", num_blocks=15, block_size=4, max_num_seqs=5, max_num_batched_tokens=16)
    cache = CacheSize(15, 60)
    own = Telling(model, KVCache(model.config, 15, 4, model.embedding.dtype, "cpu"))
    own.did = []
    team = InProcess(other)
    engine = Engine(
        model, config, cache, frozenset({2}), runner=LeadingRunner(own, team), drafter=Guessing() if guesses else None
    )
    for id in range(14):
        forks = id % 6 == 5
        like = id - forks  # whose prompt it has
        prompt = [5, 6, 7, 8] * (1 + like % 4) + [9 + like]
        extra: dict[str, Any] = {"prompt_logprobs": 1} if id % 5 == 3 and not guesses else {}
        engine.add(id, prompt, greedy(6 + id, ignore_eos=True, **extra), leader=like if forks else None)
    while engine.has_work:
        engine.step()
    assert engine.stats.preemptions > 0
    kinds = {what[0] for what in own.did}
    assert {"launch", "scrub"} <= kinds and ("verify" in kinds) == guesses
    assert other.did == own.did


def test_another_rank_is_told_what_forms_allow_behind_each_guess(model: Decoder) -> None:
    class Keeping(Seeing):
        def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Drawn:
            return Drawn([], [], [], [])  # masks of plain steps come later, and are of no matter here

        def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
            self.did.append(
                [(d.sequence.id, d.guesses, None if d.allowed is None else d.allowed.tolist()) for d in batch]
            )
            return []

    class Own(ModelRunner):
        told: ClassVar[list[Any]] = []

        def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
            self.told.append(
                [(d.sequence.id, d.guesses, None if d.allowed is None else d.allowed.tolist()) for d in batch]
            )
            return super().verify(batch)

    other = Keeping()
    config = EngineConfig(model="", num_blocks=24, max_num_seqs=5)
    own = Own(model, KVCache(model.config, 24, 16, model.embedding.dtype, "cpu"))

    class Without(InProcess):
        def send(self, message: ToFollower) -> None:
            if not isinstance(message, step_messages.Masks):
                super().send(message)

    runner = LeadingRunner(own, Without(other))
    engine = Engine(model, config, CacheSize(24, 96), frozenset({3}), runner=runner, drafter=Guessing())
    engine._grammars = ToyGrammars()  # type: ignore[assignment]
    engine.add(0, [5, 6, 7], greedy(9, grammar="6", ignore_eos=False))
    engine.add(1, [5, 6], greedy(9))
    while engine.has_work:
        engine.step()
    told = [each for each in other.did if isinstance(each, list)]
    assert told == Own.told
    assert {(id, allowed is None) for step in told for id, _, allowed in step} == {(0, False), (1, True)}
    assert all(len(allowed) == 1 + len(guesses) for step in told for _, guesses, allowed in step if allowed)


def test_a_rank_forgets_the_tokens_of_a_sequence_that_is_over(model: Decoder) -> None:
    other = Seeing()
    team = InProcess(other)
    config = EngineConfig(model="", num_blocks=24, max_num_seqs=5, prefix_cache=False)
    own = ModelRunner(model, KVCache(model.config, 24, 16, model.embedding.dtype, "cpu"))
    engine = Engine(model, config, CacheSize(24, 96), runner=LeadingRunner(own, team))
    generate(engine, [[5, 6, 7], [8, 9]], greedy(4))
    assert team.ranks[0]._mirrors._sequences == {}


def test_residues_of_all_ranks_are_added_up_and_preparing_ends(model: Decoder) -> None:
    ranks = [Seeing(), Seeing()]
    leading = LeadingRunner(Seeing(), InProcess(*ranks))
    assert leading.residue([4]) == 9
    assert [leading.prepare() for _ in range(3)] == [True, False, False]
    assert [rank.did for rank in ranks] == [[("residue", [4]), "prepare", "prepare"]] * 2


def test_another_rank_copies_to_its_host_and_back_what_rank_0_does(model: Decoder) -> None:
    pages = [KVCache(model.config, 16, 4, model.embedding.dtype, "cpu") for _ in range(2)]
    hosts = [HostPages(each, 40) for each in pages]
    own, other = (ModelRunner(model, each) for each in pages)
    team = InProcess(other, host=hosts[1])
    config = EngineConfig(model="", block_size=4, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=16)
    host = LeadingHostPages(hosts[0], team)
    engine = Engine(model, config, CacheSize(16, 64, 40), runner=LeadingRunner(own, team), host=host)
    assert engine.blocks.tier is not None
    engine.blocks.tier.pays = lambda copies=1: True  # type: ignore[method-assign]  # whatever this machine measures
    prompts = [[9 + i] * 21 for i in range(4)]
    assert generate(engine, prompts, greedy(20)) == generate(engine, prompts, greedy(20))
    assert engine.stats.swaps > 0
    assert engine.stats.host_hits > 0
    assert torch.equal(hosts[0]._slots, hosts[1]._slots)
    assert torch.equal(pages[0].keys, pages[1].keys)
    assert engine.scrub() == 0
    hosts[1]._slots[39, 3] = 1
    assert host.residue([39]) == 1, "of all ranks"
    assert engine.scrub() == 1
    host.forget()
    assert engine.scrub() == 0


@dataclass
class Bed:
    """A sleeper that refuses as told."""

    refuses: str = ""
    asleep: bool = False

    def sleep(self, on_progress: Any) -> int:
        if self.refuses == "sleep":
            raise CannotSleep("no room")
        self.asleep = True
        return 10

    def wake(self, on_progress: Any) -> None:
        if self.refuses == "wake":
            raise CannotWake("no memory")
        self.asleep = False


def beds(*refusals: str) -> tuple[list[Bed], LeadingSleeper]:
    found = [Bed(refuses) for refuses in refusals]
    others = InProcess(*(Seeing() for _ in found[1:]), sleepers=tuple(found[1:]))
    return found, LeadingSleeper(found[0], LeadingRunner(Seeing(), others))


def quiet(done: int, total: int) -> None:
    """No progress."""


def test_all_ranks_sleep_and_wake_and_their_memory_is_added_up() -> None:
    found, sleeper = beds("", "", "")
    assert sleeper.sleep(quiet) == 30
    assert all(bed.asleep for bed in found)
    sleeper.wake(quiet)
    assert not any(bed.asleep for bed in found)


@pytest.mark.parametrize(("refusals", "said"), [(("", "", "sleep"), "rank 2: no room"), (("sleep", "", ""), "no room")])
def test_where_one_rank_cannot_sleep_none_does(refusals: tuple[str, ...], said: str) -> None:
    found, sleeper = beds(*refusals)
    with pytest.raises(CannotSleep, match=said):
        sleeper.sleep(quiet)
    assert not any(bed.asleep for bed in found)


@pytest.mark.parametrize("refusals", [("", "wake", ""), ("wake", "", "")])
def test_where_one_rank_cannot_wake_all_sleep_on(refusals: tuple[str, ...]) -> None:
    found, sleeper = beds(*refusals)
    sleeper.sleep(quiet)
    with pytest.raises(CannotWake, match="no memory"):
        sleeper.wake(quiet)
    assert all(bed.asleep for bed in found)
