"""A head guesses from hidden states: the tokens are those of the plain engine, whatever else happens, on the plain
runner, token by token, and on the one that works ahead; and nothing of a sequence outlives it in the head's cache."""

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from backend.engine.cache.attention import KVCache
from backend.engine.core.block_manager import BlockManager
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import MAX_ROWS, HiddenStates
from backend.engine.cpu.head_runner import HeadModelRunner
from backend.engine.drafting.head_drafter import WAITING, HeadDrafter, HeadRunner
from backend.engine.drafting.start import DraftModel
from backend.engine.engine import Engine
from backend.engine.gpu.captures import graph_sizes
from backend.engine.gpu.head_runner import HeadGraphRunner
from backend.engine_config import EngineConfig
from backend.errors import ConfigError
from backend.kernels.interface import kernels_for
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.exposure import Exposure
from backend.models.heads.head_decoder import HeadDecoder
from backend.models.heads.paged_head import paged_head
from tests.backend.engine.gpu.test_graph_runner import DEVICE, GPU, ahead
from tests.backend.engine.toy_grammar import ToyGrammars
from tests.backend.tiny import generate, greedy, run, tiny_engine, tiny_model, write_folder
from tests.backend.tiny_deepseek import stored_tensors, tiny_deepseek, write_deepseek
from tests.backend.tiny_heads import eagle3, mtp, states_of, stored, tiny_head, trained, write_eagle3

PROMPTS = [[(7 * i + 3 * j) % 320 for j in range(length)] for i, length in enumerate((1, 5, 16, 33))]
SAMPLED = SamplingParams(max_tokens=16, temperature=0.7, top_p=0.9, seed=11, ignore_eos=True)
READS = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
ON = pytest.mark.parametrize("on", ["plain", "ahead", *(["graphs"] if GPU else [])])


@pytest.fixture(scope="module", params=["eagle3", "mtp"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(kind: str) -> Decoder:
    return tiny_deepseek("v3", 4) if kind == "mtp" else tiny_model(head_dim=16, num_layers=4)


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[list[int]]:
    return generate(tiny_engine(model), PROMPTS, greedy(24))


@pytest.fixture(scope="module")
def random_head(kind: str, model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> HeadDecoder:
    if kind == "mtp":
        return mtp(model.config)
    config = eagle3(tmp_path_factory.mktemp("head"), model.config, draft_vocab_size=320, **READS)
    return tiny_head(config)


@pytest.fixture(scope="module")
def good_head(random_head: HeadDecoder, model: Decoder, expected: list[list[int]]) -> HeadDecoder:
    texts = [prompt + answer for prompt, answer in zip(PROMPTS, expected, strict=True)]
    return trained(copy.deepcopy(random_head), model, texts)


def guesser(head: HeadDecoder, *, blocks: int = 64, rows: int = 16, budget: int = 64, on: str = "plain") -> HeadDrafter:
    pages = KVCache(head.config, blocks, 16, torch.float32, "cpu" if on == "plain" else str(DEVICE))
    runner: HeadRunner
    if on == "plain":
        runner = HeadModelRunner(copy.deepcopy(head), pages)
    else:
        paged = paged_head(copy.deepcopy(head).to(DEVICE), kernels_for(DEVICE))
        paged.reserve(2048)
        runner = HeadGraphRunner(
            paged, pages, max_num_seqs=rows, max_num_batched_tokens=budget, max_model_len=256, speculates=False
        )
        if on == "graphs":
            runner.capture(graph_sizes(rows))
    manager = BlockManager(blocks, 16, prefix_cache=False)
    return HeadDrafter(runner, manager, rows=rows, budget=budget, longest=256, vocabulary=320)


def with_head(model: Decoder, drafter: HeadDrafter, on: str = "plain", **changes: Any) -> Engine:
    """Guesses whenever it may: nobody asks what they save."""
    model = copy.deepcopy(model)
    config = drafter.head.model.config  # type: ignore[attr-defined]
    device = torch.device("cpu") if on == "plain" else DEVICE
    rows = max(MAX_ROWS, changes.get("max_num_batched_tokens", 64) + 512)
    model.exposure = Exposure(config.reads, rows, model.config.hidden_size, torch.float32, device)
    if on == "plain":
        engine = tiny_engine(model, drafter=drafter, **changes)
    else:
        engine = ahead(model, drafter=drafter, graphs="whole" if on == "graphs" else "none", **changes)
    engine._exposed = engine.runner.exposed  # type: ignore[attr-defined]
    engine._draft = DraftModel(drafter, None)
    assert engine._speculation is not None
    engine._speculation.observer = drafter
    return engine


@ON
@pytest.mark.parametrize("changes", [{}, {"max_num_batched_tokens": 16}, {"num_blocks": 8}], ids=str)
def test_tokens_are_those_of_the_plain_engine(
    model: Decoder,
    good_head: HeadDecoder,
    random_head: HeadDecoder,
    expected: list[list[int]],
    changes: dict[str, Any],
    on: str,
) -> None:
    shares = []
    for head in (good_head, random_head):
        drafter = guesser(head, on=on)
        engine = with_head(model, drafter, on, **changes)
        assert generate(engine, PROMPTS, greedy(24)) == expected
        stats = engine.stats
        shares.append(stats.draft_tokens_accepted / stats.draft_tokens)
        assert [proposed for proposed, _ in stats.draft_places] == sorted(
            (proposed for proposed, _ in stats.draft_places), reverse=True
        )
        assert sum(right for _, right in stats.draft_places) == stats.draft_tokens_accepted
        assert generate(engine, PROMPTS, greedy(24)) == expected  # from the prefix cache: without states of the prompt
        assert drafter.followed == 0
        assert drafter._blocks.num_used == 0
        assert sum(engine.scrubbing()) == 0
        assert (engine.scheduler.num_preemptions > 0) == ("num_blocks" in changes)
    assert shares[0] > 0.2
    assert shares[1] < 0.1


@ON
def test_a_head_that_learned_saves_steps(
    model: Decoder, good_head: HeadDecoder, expected: list[list[int]], on: str
) -> None:
    plain, guessing = tiny_engine(model), with_head(model, guesser(good_head, on=on), on)
    for engine in (plain, guessing):
        assert generate(engine, PROMPTS[3:], greedy(24)) == expected[3:]
    assert guessing.stats.steps < 0.75 * plain.stats.steps
    first, *_ = guessing.stats.draft_places
    assert first[1] > 0.6 * first[0]


@ON
def test_seeded_draws_are_those_of_the_plain_engine(model: Decoder, good_head: HeadDecoder, on: str) -> None:
    plain = generate(tiny_engine(model) if on == "plain" else ahead(model), PROMPTS, SAMPLED)
    engine = with_head(model, guesser(good_head, on=on), on)
    assert generate(engine, PROMPTS, SAMPLED) == plain
    assert engine.stats.draft_tokens > 0


@ON
def test_in_deterministic_mode_they_are_those_without_guesses(model: Decoder, good_head: HeadDecoder, on: str) -> None:
    for params in (greedy(8), SAMPLED):
        if on == "plain":
            plain = generate(tiny_engine(model, batch_invariant=True), PROMPTS[:2], params)
            engine = with_head(model, guesser(good_head), batch_invariant=True)
        else:
            plain = generate(ahead(model, invariant=True), PROMPTS[:2], params)
            engine = with_head(model, guesser(good_head, on=on), on, invariant=True)
        assert generate(engine, PROMPTS[:2], params) == plain
        assert engine.stats.draft_tokens > 0


@ON
def test_beside_forms_penalties_forks_and_those_that_are_cancelled(
    model: Decoder, good_head: HeadDecoder, on: str
) -> None:
    """One engine: a sequence under a grammar, two of one prompt, one with a penalty, and one that goes meanwhile."""

    def served(engine: Engine) -> dict[int, list[int]]:
        engine._grammars = ToyGrammars()  # type: ignore[assignment]
        engine.add(0, PROMPTS[3], greedy(20, grammar="12"))
        engine.add(1, PROMPTS[2], greedy(12))
        engine.add(2, PROMPTS[2], SAMPLED, leader=1)
        engine.add(3, PROMPTS[1], greedy(16))
        found: dict[int, list[int]] = {}
        for _ in range(4):
            for item in engine.step():
                found.setdefault(item.id, []).append(item.token or 0)
        engine.abort(3)
        for id, tokens in run(engine).items():
            found.setdefault(id, []).extend(tokens)
        assert len(found.pop(3)) < 16
        engine.add(4, PROMPTS[1], greedy(8, frequency_penalty=0.5))
        engine.add(5, PROMPTS[0], greedy(8))
        return found | run(engine)

    ends = frozenset({3})
    plain = served(tiny_engine(model, ends) if on == "plain" else ahead(model, eos_ids=ends))
    drafter = guesser(good_head, on=on)
    engine = with_head(model, drafter, on, eos_ids=ends)
    assert served(engine) == plain
    assert engine.stats.draft_tokens > 0
    assert drafter.followed == 0
    assert sum(engine.scrubbing()) == 0


# --- what it keeps ---------------------------------------------------------------------------------------------------


def observed(drafter: HeadDrafter, model: Decoder, sequence: Sequence, count: int) -> None:
    """The model computes so many further tokens of a sequence, whose states are known."""
    reads = drafter.head.model.config.reads  # type: ignore[attr-defined]
    states = states_of(model, reads, sequence.tokens)[sequence.num_computed :][:count]
    drafter.observe([(sequence, count)], HiddenStates(states, {sequence.id: 0}))
    sequence.num_computed += count


def test_guesses_do_not_depend_on_how_the_states_came(model: Decoder, good_head: HeadDecoder) -> None:
    """At once, in chunks, token by token, longer than what waits; asked before the last is known: nothing."""
    text = [(5 * i) % 320 for i in range(3 * WAITING)]
    found = []
    for chunks in ([len(text) - 1], [100, 60, len(text) - 161], [WAITING, *[1] * (len(text) - 1 - WAITING)]):
        drafter, sequence = guesser(good_head, budget=32), Sequence(0, text, greedy(8), arrival=0)
        for count in chunks:
            assert drafter.propose([(sequence, 4)]) == [[]]
            observed(drafter, model, sequence, count)
        found.append(drafter.propose([(sequence, 4)])[0])
        assert drafter.propose([(sequence, 4)])[0] == found[-1]  # asked once more
        sequence.tokens += [found[-1][0], 7]
        observed(drafter, model, sequence, 2)
        found.append(drafter.propose([(sequence, 4)])[0])
    assert found[0::2] == [found[0]] * 3
    assert found[1::2] == [found[1]] * 3
    assert len(found[0]) == 4


def test_behind_a_gap_its_context_begins_anew(model: Decoder, good_head: HeadDecoder) -> None:
    text = [(5 * i) % 320 for i in range(60)]
    drafter, sequence = guesser(good_head), Sequence(0, text, greedy(8), arrival=0)
    observed(drafter, model, sequence, 20)
    sequence.num_computed = 40  # a step with too many sequences, or blocks of the prefix cache
    assert drafter.propose([(sequence, 4)]) == [[]]
    observed(drafter, model, sequence, 19)
    assert len(drafter.propose([(sequence, 4)])[0]) == 4
    own = drafter._followed[0]
    assert (own.begin, own.real) == (40, 19)
    sequence.num_computed = 10  # preempted: what is computed once more is known
    observed(drafter, model, sequence, 49)
    assert (drafter._followed[0].begin, drafter._followed[0].real) == (40, 19)


def test_those_that_asked_least_recently_make_way_for_rows_and_for_blocks(
    model: Decoder, good_head: HeadDecoder
) -> None:
    sequences = [Sequence(i, [(i + j) % 320 for j in range(40)], greedy(8), arrival=i) for i in range(4)]
    for drafter in (guesser(good_head, rows=2), guesser(good_head, blocks=7)):
        for sequence in sequences:
            sequence.num_computed = 0
            observed(drafter, model, sequence, 39)
            assert len(drafter.propose([(sequence, 2)])[0]) == 2
        assert drafter.followed == 2
        assert drafter.propose([(s, 2) for s in sequences])[:2] == [[], []]
        for sequence in sequences:
            drafter.forget(sequence.id)
        assert drafter.followed == 0
        assert drafter.residue() == 0


# --- bringing it up --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config(kind: str, model: Decoder, good_head: HeadDecoder, tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    root = tmp_path_factory.mktemp("models")
    own = copy.deepcopy(good_head)
    if kind == "mtp":
        of_model = {name: t for name, t in stored_tensors(model).items() if not name.endswith("eh_proj.weight")}
        base, head = write_deepseek(root / "base", "v3", of_model | stored(own)), ""
    else:
        base = write_folder(root / "base", model)
        head = str(write_eagle3(root / "head", own, model.config, **READS))
    return EngineConfig(
        model=str(base),
        num_blocks=64,
        max_num_seqs=16,
        max_num_batched_tokens=64,
        speculation=kind,
        draft_model=head,
        draft_memory=1 << 20,
    )


@pytest.mark.parametrize("invariant", [False, True])
def test_an_engine_of_folders_gives_the_same_tokens_and_sleeps_with_its_head(
    config: EngineConfig, expected: list[list[int]], invariant: bool
) -> None:
    engine = Engine.from_checkpoint(
        Checkpoint(Path(config.model)), msgspec.structs.replace(config, batch_invariant=invariant)
    )
    assert engine._draft is not None
    engine._draft = DraftModel(engine._draft.drafter, engine._draft.sleeper)
    assert engine._speculation is not None
    engine._speculation.benefit = None  # nobody asks what it saves
    prompts, answers = (PROMPTS[:2], [tokens[:8] for tokens in expected[:2]])
    assert generate(engine, prompts, greedy(8)) == answers
    assert engine.stats.draft_tokens_accepted > 0
    assert engine.sleep() > 1 << 19
    exposed = engine._exposed()
    assert exposed is not None
    assert exposed.states.count_nonzero() == 0
    engine.wake()
    before = engine.stats.draft_tokens_accepted
    assert generate(engine, prompts, greedy(8)) == answers
    assert engine.stats.draft_tokens_accepted > before
    assert engine.scrub() == 0


def test_random_weights_can_be_measured(config: EngineConfig) -> None:
    engine = Engine.from_checkpoint(
        Checkpoint(Path(config.model)), msgspec.structs.replace(config, load_format="dummy")
    )
    assert len(generate(engine, PROMPTS, greedy(40))[0]) == 40
    assert engine.stats.draft_tokens > 0  # tried, at least


def test_what_does_not_go_with_a_head_is_refused(kind: str, config: EngineConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"which are spread over the stages; leave --pipeline-parallel-size or"):
        msgspec.structs.replace(config, pipeline_parallel_size=2)
    other = {"eagle3": "", "mtp": "folder"}[kind]
    with pytest.raises(ConfigError, match=r"both --speculation eagle3 and --draft-model; add the one that is missing"):
        msgspec.structs.replace(config, draft_model=other)
    base = Checkpoint(Path(config.model))
    with pytest.raises(ConfigError, match="hold no block of the draft model's KV cache"):
        Engine.from_checkpoint(base, msgspec.structs.replace(config, draft_memory=10))
    plain = write_folder(tmp_path / "plain", tiny_model(head_dim=16))
    settings = {"eagle3": {"draft_model": str(plain)}, "mtp": {"model": str(plain)}}[kind]
    with pytest.raises(ConfigError, match={"eagle3": "is no EAGLE-3 head", "mtp": "has no layer for multi"}[kind]):
        Engine.from_checkpoint(
            Checkpoint(plain if kind == "mtp" else Path(config.model)), msgspec.structs.replace(config, **settings)
        )
