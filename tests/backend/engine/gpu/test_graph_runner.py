"""The runner that works ahead gives the tokens of the plain one, whatever else happens: on the kernels' twins anywhere,
on the kernels and CUDA graphs where there is a GPU."""

import copy
import random
from typing import Any

import msgspec
import pytest
import torch

from backend.engine.cache.attention import KVCache
from backend.engine.cache.pinned_pages import PinnedPages
from backend.engine.core.progress import Finish, Progress
from backend.engine.core.runner import Masks
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import Drafted, Drafter
from backend.engine.engine import Engine
from backend.engine.gpu import graph_runner
from backend.engine.gpu.captures import graph_sizes, piece_size
from backend.engine.gpu.d2h import PendingTokens
from backend.engine.gpu.graph_runner import GraphRunner
from backend.engine_config import EngineConfig, groups_of, size_cache
from backend.kernels.interface import kernels_for
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from backend.quantization.format import Quantization
from backend.quantization.none import NONE
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.toy_grammar import ToyGrammars
from tests.backend.tiny import generate, greedy, in_whole_blocks, run, tiny_engine, tiny_model
from tests.conftest import how_many

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
GRAPHS = pytest.mark.parametrize("graphs", ["none", "whole", "pieces"] if GPU else ["none"])
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 16},
    "qwen3": {"head_dim": 32, "num_heads": 4, "num_kv_heads": 2, "qk_norm": True, "tie_word_embeddings": False},
    "qwen2": {"head_dim": 16, "num_heads": 3, "num_kv_heads": 1, "qkv_bias": True},
    "mistral": {"head_dim": 16, "windows": (24, 24)},
    "qwen2 with a window above": {"head_dim": 16, "qkv_bias": True, "windows": (None, 20)},
}
LENGTHS = (1, 5, 16, 17, 33, 60, 90, 7, 48)


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest) -> Decoder:
    return tiny_model(**SHAPES[request.param])


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(320) for _ in range(n)] for n in LENGTHS]


@pytest.fixture(scope="module")
def expected(model: Decoder, prompts: list[list[int]]) -> list[list[int]]:
    return generate(tiny_engine(model), prompts)


def ahead(
    model: Decoder,
    *,
    graphs: str = "none",
    eos_ids: frozenset[int] = frozenset(),
    dtype: torch.dtype = torch.float32,
    drafter: Drafter | None = None,
    runs_on: type[GraphRunner] = GraphRunner,
    quantization: Quantization = NONE,
    invariant: bool = False,
    **changes: Any,
) -> Engine:
    """An engine like `tiny_engine`, with the runner under test on the device at hand. num_blocks: of all layers."""
    settings: dict[str, Any] = {"model": "", "num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 64}
    config = in_whole_blocks(EngineConfig(**{**settings, **changes}), model.config)
    cache = size_cache(config, model.config, 4)
    on_device = copy.deepcopy(model).to(DEVICE, dtype) if quantization is NONE else model  # packed is taken over
    pages = KVCache(
        model.config, cache.num_blocks, config.block_size, dtype, str(DEVICE), groups=groups_of(config, model.config)
    )
    runner = runs_on(
        kind_of(model.config, batch_invariant=invariant)(on_device, kernels_for(DEVICE), quantization),
        pages,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=cache.max_model_len,
        speculates=drafter is not None,
        batch_invariant=invariant,
    )
    if graphs != "none":
        runner.capture(graph_sizes(config.max_num_seqs))
    if graphs == "pieces":  # instead of the whole steps that small prompts take; else steps do without what is missing
        runner._prompt_replays = []
        while runner.prepare():
            pass
    host = PinnedPages(pages, cache.host_blocks) if cache.host_blocks else None
    return Engine(on_device, config, cache, eos_ids, runner=runner, drafter=drafter, host=host)


def assert_idle(engine: Engine) -> None:
    assert not engine.has_work
    assert engine.blocks.num_used == 0
    assert sorted(engine.scheduler._free_rows) == list(range(engine.config.max_num_seqs))


@GRAPHS
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefix_cache": False},
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 17, "block_size": 32},
        {"block_size": 64, "num_blocks": 16},
        {"num_blocks": 12, "max_model_len": 120},
        {"max_num_seqs": 3},
    ],
    ids=str,
)
def test_batched_chunked_preempted_and_in_any_pages(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]], changes: dict[str, Any], graphs: str
) -> None:
    engine = ahead(model, graphs=graphs, **changes)
    assert generate(engine, prompts) == expected
    assert_idle(engine)
    assert generate(engine, prompts) == expected  # the second time from the prefix cache, in used rows and blocks
    assert_idle(engine)
    assert (engine.stats.prefix_hits > 0) == changes.get(
        "prefix_cache", "num_blocks" not in changes or 16 in (changes.get("num_blocks"),)
    )


@GRAPHS
def test_alone(model: Decoder, prompts: list[list[int]], expected: list[list[int]], graphs: str) -> None:
    engine = ahead(model, graphs=graphs)
    assert [generate(engine, [prompt])[0] for prompt in prompts] == expected


@pytest.mark.parametrize("count", [257, 300, 512])
@pytest.mark.parametrize("graphs", ["none", "whole"] if GPU else ["none"])
def test_more_sequences_at_once_than_the_ordinary_limit(graphs: str, count: int) -> None:
    model = tiny_model(**SHAPES["llama"])
    rng = random.Random(4)
    some = [[rng.randrange(320) for _ in range(rng.randrange(1, 6))] for _ in range(9)]
    expected = generate(tiny_engine(model, prefix_cache=False), some, greedy(4))
    engine = ahead(
        model,
        graphs=graphs,
        max_num_seqs=512,
        num_blocks=600,
        max_num_batched_tokens=1024,
        max_model_len=32,
        prefix_cache=False,
    )
    assert generate(engine, [some[i % 9] for i in range(count)], greedy(4)) == [expected[i % 9] for i in range(count)]
    assert_idle(engine)


@GRAPHS
def test_when_someone_is_preempted_again_and_again(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]], graphs: str
) -> None:
    engine = ahead(model, graphs=graphs)
    for id, prompt in enumerate(prompts):
        engine.add(id, prompt, greedy(12))
    tokens: dict[int, list[int | None]] = {}
    rng = random.Random(3)
    while engine.has_work:
        for item in engine.step():
            tokens.setdefault(item.id, []).append(item.token)
        if engine.scheduler.running and rng.random() < 0.3:
            engine.scheduler.preempt(rng.choice(engine.scheduler.running))
    assert [tokens[id] for id in range(len(prompts))] == expected
    assert_idle(engine)


@GRAPHS
@pytest.mark.campaign
def test_when_others_come_and_are_aborted_in_between(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]], graphs: str
) -> None:
    engine = ahead(model, graphs=graphs)
    rng = random.Random(5)
    waiting = list(enumerate(prompts))
    tokens: dict[int, list[int | None]] = {}
    intruder = 1000
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.5:
            id, prompt = waiting.pop()
            engine.add(id, prompt, greedy(12))
        if rng.random() < 0.5:
            intruder += 1
            engine.add(intruder, [rng.randrange(320) for _ in range(20)], greedy(9))
        if rng.random() < 0.5:
            engine.abort(rng.randint(1000, intruder))
        for item in engine.step():
            tokens.setdefault(item.id, []).append(item.token)
        if intruder > 1000 + how_many(200, 60):
            break
    tokens.update(run_rest(engine, tokens))
    assert [tokens[id] for id in range(len(prompts))] == expected
    assert_idle(engine)


def run_rest(engine: Engine, tokens: dict[int, list[int | None]]) -> dict[int, list[int | None]]:
    while engine.has_work:
        for item in engine.step():
            tokens.setdefault(item.id, []).append(item.token)
    return tokens


def test_prompts_that_share_a_beginning_and_arrive_together_compute_it_once(model: Decoder) -> None:
    head = list(range(100, 148))
    prompts = [[*head, 5 + i, 6, 7] for i in range(4)]
    alone = [generate(tiny_engine(model), [prompt])[0] for prompt in prompts]
    engine = ahead(model, max_num_batched_tokens=128)
    assert generate(engine, prompts) == alone
    assert engine.stats.prefix_hits == 3 * 48


def test_an_end_token_ends_the_answer_though_the_next_step_is_on_its_way(
    model: Decoder, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = ahead(model, eos_ids=frozenset({expected[0][4]}))
    engine.add(0, prompts[0], greedy(12, ignore_eos=False))
    engine.add(1, prompts[1], greedy(12))
    seen: dict[int, list[int | None]] = {}
    finishes: dict[int, Finish | None] = {}
    while engine.has_work:
        for item in engine.step():
            seen.setdefault(item.id, []).append(item.token)
            finishes[item.id] = item.finish
    first = expected[0].index(expected[0][4])
    assert seen == {0: expected[0][: first + 1], 1: expected[1]}
    assert finishes == {0: Finish.STOP, 1: Finish.LENGTH}
    assert_idle(engine)


def test_the_context_is_filled_to_its_last_token_and_no_further(model: Decoder) -> None:
    engine = ahead(model, max_model_len=32)
    engine.add(0, list(range(20)), greedy(500))
    assert len(run(engine)[0]) == 12
    assert_idle(engine)


@GRAPHS
def test_logits_that_are_not_numbers_end_that_sequence_only(graphs: str) -> None:
    model = tiny_model(3, head_dim=16, tie_word_embeddings=False)
    model.embedding[11] = float("nan")
    engine = ahead(model, graphs=graphs)
    engine.add(0, [1, 11, 2], greedy(4))
    engine.add(1, [1, 2, 3], greedy(4))
    engine.add(2, [4, 11], SamplingParams(max_tokens=4, temperature=1.0, top_p=0.5))
    engine.add(3, [1] * 40 + [11], greedy(4))
    tokens: dict[int, list[int | None]] = {}
    finishes = {}
    while engine.has_work:
        for item in engine.step():
            tokens.setdefault(item.id, []).append(item.token)
            finishes[item.id] = item.finish
    assert tokens[0] == tokens[2] == tokens[3] == [None]
    assert finishes == {0: Finish.ERROR, 1: Finish.LENGTH, 2: Finish.ERROR, 3: Finish.ERROR}
    assert tokens[1] == generate(tiny_engine(model), [[1, 2, 3]], greedy(4))[0]
    assert not engine.blocks._by_hash
    assert_idle(engine)


@GRAPHS
def test_seeded_draws_are_the_same_alone_batched_chunked_and_preempted(
    model: Decoder, prompts: list[list[int]], graphs: str
) -> None:
    def params(i: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=12,
            temperature=0.9,
            top_p=0.9 if i % 2 else 1.0,
            top_k=i % 3 * 20,
            seed=2**64 - 1 - i,
            ignore_eos=True,
        )

    alone = [generate(ahead(model, graphs=graphs), [p], params(i))[0] for i, p in enumerate(prompts)]
    assert alone != [generate(tiny_engine(model), [p])[0] for p in prompts]
    for changes in ({}, {"max_num_batched_tokens": 16}, {"num_blocks": 12, "max_model_len": 120}):
        engine = ahead(model, graphs=graphs, **changes)
        for i, prompt in enumerate(prompts):
            engine.add(i, prompt, params(i))
        tokens = run(engine)
        assert [tokens[i] for i in range(len(prompts))] == alone


def test_batch_sizes_worth_a_graph_end_at_the_largest_batch() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(16)[-2:] == [8, 16]
    for most in (1, 7, 100, 256, 300):
        sizes = graph_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most


def test_steps_in_pieces_are_padded_by_little() -> None:
    assert [piece_size(n) for n in (1, 256, 257, 2048, 2049, 8192, 8193)] == [256, 256, 512, 2048, 2560, 8192, 8704]


@GRAPHS
def test_a_prefix_that_the_whole_batch_shares_is_read_once_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, model: Decoder, graphs: str
) -> None:
    head = [(7 * i) % 320 for i in range(150)]
    prompts = [[*head, i, i + 1, *range(3 * i)] for i in range(6)]
    expected = [generate(tiny_engine(model), [prompt])[0] for prompt in prompts]
    monkeypatch.setattr(graph_runner, "SHARED_TOKENS", 64)
    monkeypatch.setattr(graph_runner, "SHARED_SEQUENCES", 3)
    lengths = []
    find = GraphRunner._common_prefix
    monkeypatch.setattr(
        GraphRunner, "_common_prefix", lambda self, batch: lengths.append(found := find(self, batch)) or found
    )
    engine = ahead(model, graphs=graphs, max_num_batched_tokens=512)
    assert generate(engine, prompts) == expected
    # 144 tokens in nine blocks, in whole tiles of 64; a window sees no common prefix
    assert set(lengths) == {0 if model.config.windows else 128}
    strangers = [[9, *prompt] for prompt in prompts[:3]] + [[i, *head] for i in range(4)]
    assert generate(engine, strangers) == [generate(tiny_engine(model), [prompt])[0] for prompt in strangers]
    assert lengths[-1] == 0
    assert_idle(engine)


@GRAPHS
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "changes", [{}, {"max_num_batched_tokens": 24}, {"block_size": 64, "num_blocks": 16}, {"max_num_seqs": 3}], ids=str
)
def test_guesses_are_checked_in_one_step_and_change_nothing(
    model: Decoder,
    prompts: list[list[int]],
    expected: list[list[int]],
    changes: dict[str, Any],
    wrong: float,
    graphs: bool,
) -> None:
    engine = ahead(model, graphs=graphs, drafter=Oracle(dict(enumerate(expected)), wrong), **changes)
    for _ in range(2):
        assert generate(engine, prompts) == expected
        assert_idle(engine)
    assert engine.stats.draft_tokens > 0
    assert (engine.stats.draft_tokens_accepted == engine.stats.draft_tokens) == (wrong == 0)


@GRAPHS
def test_guesses_with_seeded_draws_preemption_and_an_end_among_them(
    model: Decoder, prompts: list[list[int]], graphs: bool
) -> None:
    def params(i: int) -> SamplingParams:
        return SamplingParams(max_tokens=5 + 2 * i, temperature=0.9, top_k=i % 3 * 20, seed=i, ignore_eos=i % 2 == 0)

    def drawn(engine: Engine, seed: int) -> dict[int, list[int | None]]:
        rng = random.Random(seed)
        for i, prompt in enumerate(prompts):
            engine.add(i, prompt, params(i))
        tokens: dict[int, list[int | None]] = {}
        while engine.has_work:
            for item in engine.step():
                tokens.setdefault(item.id, []).append(item.token)
            if engine.scheduler.running and rng.random() < 0.2 * (seed > 0):
                engine.scheduler.preempt(rng.choice(engine.scheduler.running))
        assert_idle(engine)
        return tokens

    plain = drawn(ahead(model, graphs=graphs), 0)
    ends = frozenset(tokens[len(tokens) // 2] for i, tokens in plain.items() if i % 2 and tokens)
    plain = drawn(ahead(model, graphs=graphs, eos_ids=ends), 0)  # type: ignore[arg-type]
    known = {i: [token or 0 for token in tokens] + [1, 2, 3] for i, tokens in plain.items()}
    for seed in (0, 1):
        engine = ahead(model, graphs=graphs, eos_ids=ends, drafter=Oracle(known, 0.2))  # type: ignore[arg-type]
        assert drawn(engine, seed) == plain
        assert 0 < engine.stats.draft_tokens_accepted < engine.stats.draft_tokens


@GRAPHS
def test_guessing_and_running_ahead_take_turns(model: Decoder, graphs: bool) -> None:
    class Moody(Oracle):
        """Has something to say now and then."""

        def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
            return [
                g if s.num_output % 7 < 3 else [] for g, (s, _) in zip(super().propose(wanted), wanted, strict=True)
            ]

    expected = generate(tiny_engine(model), [[3, 4, 5]], greedy(40))
    launched: list[int] = []
    verified: list[int] = []

    class Watched(GraphRunner):
        """Tells how many steps were on their way when it was given one more."""

        def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> PendingTokens:
            launched.append(len(engine._launched))
            return super().launch(batch, masks)

        def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
            verified.append(len(engine._launched))
            return super().verify(batch)

    engine = ahead(model, graphs=graphs, drafter=Moody(dict(enumerate(expected))), runs_on=Watched)
    assert generate(engine, [[3, 4, 5]], greedy(40)) == expected
    assert set(verified) == {0}  # nothing else was on its way
    assert 1 in launched  # and where nothing was guessed, the next step was launched before the last came home


SHAPED: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"repetition_penalty": 1.6},
    {"logit_bias": ((7, 3.0), (9, -100.0)), "logprobs": 2},
    {"min_tokens": 9, "ignore_eos": False, "logit_bias": ((3, 50.0),)},
    {"logprobs": 0, "prompt_logprobs": 1},
    {"min_p": 0.2, "temperature": 1.0, "seed": 5, "repetition_penalty": 0.8},
    {"grammar": "7"},
    {"bad_words": ((5,), (7, 9), (9, 7)), "allowed_token_ids": (3, 5, 7, 9, 11), "min_tokens": 3, "ignore_eos": False},
]


def told(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[Progress]]:
    for id, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
        engine.add(id, prompt, p)
    found: list[list[Progress]] = [[] for _ in prompts]
    while engine.has_work:
        for item in engine.step():
            found[item.id].append(item)
    return found


@GRAPHS
@pytest.mark.parametrize(
    "changes",
    [{}, {"max_num_batched_tokens": 16}, {"num_blocks": 12, "max_model_len": 120}, {"max_num_seqs": 3}],
    ids=str,
)
def test_shaped_and_reported_draws_are_those_of_the_plain_runner(
    model: Decoder, prompts: list[list[int]], changes: dict[str, Any], graphs: str
) -> None:
    params = [greedy(12, **SHAPED[i % len(SHAPED)]) for i in range(len(prompts))]
    params = [p if p.temperature == 0 else msgspec.structs.replace(p, temperature=0.0) for p in params]
    grammars: Any = ToyGrammars()
    plain, runs_ahead = (
        tiny_engine(model, frozenset({3})),
        ahead(model, eos_ids=frozenset({3}), graphs=graphs, **changes),
    )
    for engine in (plain, runs_ahead):
        engine._grammars = grammars
    expected = told(plain, prompts, params)
    for _ in range(2):  # the second time in used rows
        found = told(runs_ahead, prompts, params)
        assert [[i.token for i in one] for one in found] == [[i.token for i in one] for one in expected]
        assert [one[-1].finish for one in found] == [one[-1].finish for one in expected]
        for one, other in zip(found, expected, strict=True):
            for item, reference in zip(one, other, strict=True):
                assert (item.logprobs is None) == (reference.logprobs is None)
                if item.logprobs is not None and reference.logprobs is not None:
                    assert item.logprobs.logprob == pytest.approx(reference.logprobs.logprob, abs=2e-3)
                    assert len(item.logprobs.top) == len(reference.logprobs.top)
                assert (item.prompt is None) == (reference.prompt is None)
                if item.prompt is not None and reference.prompt is not None:
                    expected_prompt = [p.logprob for p in reference.prompt]
                    assert [p.logprob for p in item.prompt] == pytest.approx(expected_prompt, abs=2e-3)
        assert_idle(runs_ahead)


@GRAPHS
def test_a_chunk_on_its_way_at_a_preemption_leaves_no_gap_in_what_is_told_of_a_prompt(
    model: Decoder, prompts: list[list[int]], graphs: str
) -> None:
    """Computed anew, the prompt is cut elsewhere, for somebody else takes part of the step."""
    telling = greedy(1, prompt_logprobs=1)
    (expected,) = told(tiny_engine(model), [prompts[3]], [telling])
    engine = ahead(model, graphs=graphs, max_num_seqs=4, max_num_batched_tokens=11, prefix_cache=False)
    engine.add(0, prompts[3], telling)
    engine.step()  # 11 tokens, whose log probabilities are on their way
    engine.scheduler.preempt(engine.scheduler.running[0])
    engine.add(1, prompts[1], greedy(3), priority=-1)  # takes 5 of the next step's
    found: list[Progress] = []
    while engine.has_work:
        found += [item for item in engine.step() if item.id == 0]
    first, reference = found[0].prompt, expected[0].prompt
    assert first is not None and reference is not None
    assert [p.logprob for p in first] == pytest.approx([p.logprob for p in reference], abs=2e-3)


@GRAPHS
def test_forks_share_blocks_on_the_device_too(model: Decoder, prompts: list[list[int]], graphs: str) -> None:
    params = [SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, logit_bias=((i, 2.0),)) for i in range(4)]
    expected = [generate(tiny_engine(model), [prompts[4]], p)[0] for p in params]
    engine = ahead(model, graphs=graphs, prefix_cache=False)
    for id, p in enumerate(params):
        engine.add(id, prompts[4], p, leader=0 if id else None)
    assert run(engine) == dict(enumerate(expected))
    assert_idle(engine)


@GRAPHS
def test_blocks_are_zeroed_on_the_device(model: Decoder, prompts: list[list[int]], graphs: str) -> None:
    engine = ahead(model, graphs=graphs, prefix_cache=False)
    generate(engine, prompts)
    assert engine.runner.residue(list(range(64))) == 0
    cached = ahead(model, graphs=graphs)
    generate(cached, prompts)
    assert cached.runner.residue(list(range(64))) > 0
    assert cached.scrub() == 0
