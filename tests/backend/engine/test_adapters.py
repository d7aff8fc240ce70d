"""Sequences of several adapters and of none in one batch: each gets its own merged model's tokens, on every road."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.adapter_places import OwnPlaces
from backend.engine.adapters import Adapters
from backend.engine.cache.attention import KVCache
from backend.engine.core.runner import Runner
from backend.engine.cpu.model_runner import ModelRunner
from backend.engine.cpu.tokenwise_runner import TokenwiseRunner
from backend.engine.engine import Engine
from backend.engine.gpu.captures import graph_sizes
from backend.engine.gpu.graph_runner import GraphRunner
from backend.engine_config import EngineConfig, size_cache
from backend.errors import (
    AdapterInUse,
    AdapterRefused,
    AdaptersFull,
    AdapterUnknown,
    InvalidRequest,
)
from backend.kernels.interface import kernels_for
from backend.models.adapters.bank import AdapterBank
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from backend.models.families import mixtral
from backend.models.families.family import Experts
from backend.parallel.group import SINGLE_ORDERED
from tests.backend.adapters_on_disk import merged, write_adapter
from tests.backend.engine.drafters import Oracle
from tests.backend.tiny import generate, greedy, run, tiny_config, tiny_engine, tiny_model
from tests.backend.tiny_families import tiny_family

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 16},
    "qwen2": {"head_dim": 16, "num_heads": 3, "num_kv_heads": 1, "qkv_bias": True},
    "phi3": {"head_dim": 16, "fused_names": True},
    "mixtral": {"head_dim": 16, "experts": Experts(4, 2, 32, mixtral.NAMES)},
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS: dict[str, tuple[str, ...]] = {
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "mixtral": ATTENTION,
}
NAMES = ("", "french", "", "legal", "french", "short", "legal", "")
PROMPTS = [[3 + (i * 11 + k * 5) % 300 for i in range(n)] for k, n in enumerate((5, 1, 17, 33, 40, 7, 70, 2))]

Made = Callable[..., Engine]


def places(model: Decoder, root: Path, *, slots: int = 4, batch_invariant: bool = False) -> OwnPlaces:
    bank = AdapterBank(
        model.config, slots, 8, model.embedding.dtype, model.embedding.device, batch_invariant=batch_invariant
    )
    model.adapt(bank)
    return OwnPlaces(bank, model.config, root)


def plain(model: Decoder, root: Path, **changes: Any) -> Engine:
    return _engine(copy.deepcopy(model), root, ModelRunner, **changes)


def tokenwise(model: Decoder, root: Path, **changes: Any) -> Engine:
    made = copy.deepcopy(model)
    made.group = SINGLE_ORDERED
    for layer in made.layers:
        layer.group = SINGLE_ORDERED
    return _engine(made, root, TokenwiseRunner, **changes)


def ahead(
    model: Decoder,
    root: Path,
    *,
    graphs: str = "none",
    guesses: list[list[int]] | None = None,
    invariant: bool = False,
    **changes: Any,
) -> Engine:
    """On kernels, or their twins."""
    drafter = None if guesses is None else Oracle(dict(enumerate(guesses)), wrong=0.3)

    def runner(own: Decoder, pages: KVCache) -> Runner:
        decoder = kind_of(own.config, batch_invariant=invariant)(own, kernels_for(DEVICE))
        found = GraphRunner(
            decoder,
            pages,
            max_num_seqs=16,
            max_num_batched_tokens=changes.get("max_num_batched_tokens", 64),
            max_model_len=pages.keys.shape[1] * pages.block_size,
            speculates=drafter is not None,
            batch_invariant=invariant,
        )
        if graphs != "none":
            found.capture(graph_sizes(16))
        if graphs == "pieces":
            found._prompt_replays = []
        return found

    made = copy.deepcopy(model).to(DEVICE)
    return _engine(made, root, runner, drafter=drafter, batch_invariant_bank=invariant, **changes)


def _engine(
    model: Decoder,
    root: Path,
    runner_of: Callable[[Decoder, KVCache], Runner],
    *,
    drafter: Any = None,
    batch_invariant_bank: bool = False,
    **changes: Any,
) -> Engine:
    settings: dict[str, Any] = {"model": "", "num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 64}
    config = EngineConfig(**{**settings, **changes})
    cache = size_cache(config, model.config, 4)
    own = places(model, root, batch_invariant=batch_invariant_bank)
    embedding = model.embedding
    pages = KVCache(model.config, cache.num_blocks, config.block_size, embedding.dtype, str(embedding.device))
    made = runner_of(model, pages)
    return Engine(model, config, cache, runner=made, drafter=drafter, adapters=Adapters(own))


def load_all(engine: Engine) -> None:
    for name in ("french", "legal", "short"):
        engine.load_adapter(name, name)


def answers(engine: Engine, tokens: int = 10) -> list[list[int]]:
    for id, (prompt, name) in enumerate(zip(PROMPTS, NAMES, strict=True)):
        engine.add(id, prompt, greedy(tokens), adapter=name)
    found = run(engine)
    return [found[id] for id in range(len(PROMPTS))]


@pytest.fixture(scope="module", params=SHAPES)
def base(request: pytest.FixtureRequest) -> Decoder:
    return tiny_model(**SHAPES[request.param])


def written(root: Path, model: Decoder, targets: tuple[str, ...] | None = None) -> Path:
    """Three adapters: of unlike ranks, scalings, modules and layers."""
    kind = "phi3" if model.config.fused_names else "mixtral" if model.config.experts else "llama"
    every = targets or TARGETS.get(kind, (*ATTENTION, "gate_proj", "up_proj", "down_proj"))
    write_adapter(root / "french", model.config, 1, targets=every)
    write_adapter(root / "legal", model.config, 2, rank=8, alpha=4, rslora=True, targets=every)
    write_adapter(root / "short", model.config, 3, rank=1, alpha=2, targets=every[:2], layers=(1,), strength=0.8)
    return root


@pytest.fixture(scope="module")
def root(base: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("adapters"), base)


def expected_of(base: Decoder, root: Path) -> list[list[int]]:
    """Each prompt alone, by the merged model of its adapter."""
    models = {"": base} | {name: merged(base, root / name) for name in ("french", "legal", "short")}
    each = [
        generate(tiny_engine(models[name]), [prompt], greedy(10))[0]
        for prompt, name in zip(PROMPTS, NAMES, strict=True)
    ]
    return each


@pytest.fixture(scope="module")
def expected(base: Decoder, root: Path) -> list[list[int]]:
    found = expected_of(base, root)
    alone = generate(tiny_engine(base), PROMPTS, greedy(10))
    changed = [mine != other for mine, other in zip(found, alone, strict=True)]
    assert changed == [bool(name) for name in NAMES]  # every adapter makes a difference
    return found


GRAPHS = ["none", "whole", "pieces"] if GPU else ["none"]


def test_each_sequence_gets_the_tokens_of_its_merged_model(
    base: Decoder, root: Path, expected: list[list[int]]
) -> None:
    engine = plain(base, root)
    load_all(engine)
    assert answers(engine) == expected
    assert answers(engine) == expected  # from the prefix cache, the second time


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("changes", [{}, {"max_num_batched_tokens": 16}, {"num_blocks": 14}], ids=str)
def test_the_runner_that_works_ahead_gives_the_same(
    base: Decoder, root: Path, expected: list[list[int]], graphs: str, changes: dict[str, Any]
) -> None:
    """In chunks, and preempted, too; loaded after the graphs were captured."""
    engine = ahead(base, root, graphs=graphs, **changes)
    load_all(engine)
    assert answers(engine) == expected
    assert answers(engine) == expected


def test_guesses_are_checked_with_their_sequences_adapter(base: Decoder, root: Path, expected: list[list[int]]) -> None:
    engine = ahead(base, root, guesses=expected)
    load_all(engine)
    assert answers(engine) == expected
    assert engine.stats.draft_tokens_accepted > 0


def test_in_deterministic_mode_a_sequence_gets_the_same_bits_in_any_company(base: Decoder, root: Path) -> None:
    engine = tokenwise(base, root)
    load_all(engine)
    together, params = {}, greedy(6, logprobs=2)
    for id, (prompt, name) in enumerate(zip(PROMPTS, NAMES, strict=True)):
        engine.add(id, prompt, params, adapter=name)
    while engine.has_work:
        for item in engine.step():
            together.setdefault(item.id, []).append((item.token, item.logprobs))
    for id in (1, 3, 7):
        alone = tokenwise(base, root)
        load_all(alone)
        alone.add(0, PROMPTS[id], params, adapter=NAMES[id])
        found = [(item.token, item.logprobs) for _ in range(200) if alone.has_work for item in alone.step()]
        assert found == together[id]


def test_a_step_in_which_no_sequence_has_an_adapter_runs_none(
    base: Decoder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    begin = AdapterBank.begin

    def noted(bank: AdapterBank, slots: torch.Tensor | None) -> None:
        begun.append(slots is not None)
        begin(bank, slots)

    engine = ahead(base, root)
    monkeypatch.setattr(AdapterBank, "begin", noted)
    alone = generate(engine, PROMPTS[2:3], greedy(6))
    assert begun
    assert not any(begun) or GPU  # pieces of a captured step have adapters
    load_all(engine)
    begun.clear()
    engine.add(1, PROMPTS[2], greedy(6))
    engine.add(2, PROMPTS[3], greedy(6), adapter="legal")
    beside = run(engine)
    assert all(begun) or GPU
    assert beside[1] == alone[0]


def test_the_invariant_decoder_adds_the_same_within_rounding(
    base: Decoder, root: Path, expected: list[list[int]]
) -> None:
    engine = ahead(base, root, invariant=True)
    load_all(engine)
    assert answers(engine) == expected


@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
def test_families_that_depart_from_llama_take_adapters(family: str, tmp_path: Path) -> None:
    model = tiny_family(family)
    written(tmp_path, model)
    wanted = expected_of(model, tmp_path)
    for engine in (plain(model, tmp_path), ahead(model, tmp_path)):
        load_all(engine)
        assert answers(engine) == wanted


# Loading and unloading


@pytest.fixture
def small(tmp_path: Path) -> tuple[Decoder, Path]:
    model = tiny_model(**SHAPES["llama"])
    return model, written(tmp_path, model)


@pytest.mark.parametrize("make", [plain, ahead], ids=["plain", "ahead"])
def test_an_adapter_in_use_is_not_unloaded_and_afterwards_leaves_zeros(small: tuple[Decoder, Path], make: Made) -> None:
    engine = make(*small)
    load_all(engine)
    engine.add(0, PROMPTS[0], greedy(5), adapter="legal")
    engine.step()
    with pytest.raises(AdapterInUse, match="1 sequences run with 'legal'"):
        engine.unload_adapter("legal")
    engine.unload_adapter("french")  # which nobody uses
    run(engine)
    engine.unload_adapter("legal")
    engine.unload_adapter("short")
    bank = engine._adapters.places.bank  # type: ignore[union-attr]
    held = [part for layer in bank.layers for pages in layer.values() for part in (pages.a, pages.b)]
    assert sum(int(part.count_nonzero()) for part in held) == 0
    with pytest.raises(AdapterUnknown, match="no adapter named 'legal' is loaded here"):
        engine.add(1, PROMPTS[0], greedy(5), adapter="legal")
    assert not engine.has_work


def test_a_slot_that_is_used_again_has_nothing_of_the_one_before(small: tuple[Decoder, Path]) -> None:
    model, root = small
    engine = plain(model, root)
    engine.load_adapter("a", "legal")  # of rank 8, all modules and layers
    engine.unload_adapter("a")
    engine.load_adapter("b", "short")  # of rank 1, two modules of one layer
    engine.add(0, PROMPTS[3], greedy(8), adapter="b")
    assert run(engine)[0] == generate(tiny_engine(merged(model, root / "short")), [PROMPTS[3]], greedy(8))[0]


def test_prefixes_are_apart_by_adapter_and_shared_within_one(small: tuple[Decoder, Path]) -> None:
    engine = plain(*small)
    load_all(engine)
    prompt = PROMPTS[6]
    hits = []
    for id, name in enumerate(("french", "legal", "", "french", "legal", "")):
        before = engine.stats.prefix_hits
        engine.add(id, prompt, greedy(2), adapter=name)
        run(engine)
        hits.append(engine.stats.prefix_hits - before)
    assert hits[:3] == [0, 0, 0]
    assert all(hit == 64 for hit in hits[3:])


def test_another_adapter_under_an_old_name_finds_no_prefix_of_it(small: tuple[Decoder, Path]) -> None:
    model, root = small
    engine = plain(model, root)
    engine.load_adapter("mine", "french")
    engine.add(0, PROMPTS[6], greedy(2), adapter="mine")
    run(engine)
    engine.unload_adapter("mine")
    engine.load_adapter("mine", "legal")
    engine.add(1, PROMPTS[6], greedy(4), adapter="mine")
    assert run(engine)[1] == generate(tiny_engine(merged(model, root / "legal")), [PROMPTS[6]], greedy(4))[0]
    assert engine.stats.prefix_hits == 0


def test_forks_share_their_leaders_blocks_with_the_same_adapter(small: tuple[Decoder, Path]) -> None:
    model, root = small
    engine = plain(model, root)
    load_all(engine)
    params = greedy(6, temperature=0.8, seed=3)
    engine.add(0, PROMPTS[4], params, adapter="legal")
    engine.add(1, PROMPTS[4], greedy(6), leader=0, adapter="legal")
    assert run(engine)[1] == generate(tiny_engine(merged(model, root / "legal")), [PROMPTS[4]], greedy(6))[0]


def test_a_full_house_and_a_name_in_use_are_refused_and_the_same_again_is_harmless(small: tuple[Decoder, Path]) -> None:
    engine = plain(*small)
    load_all(engine)
    first = engine.load_adapter("fourth", "legal")
    assert engine.load_adapter("fourth", "legal", digest=first.digest) == first
    with pytest.raises(AdapterInUse, match="an adapter named 'fourth' is loaded"):
        engine.load_adapter("fourth", "french")
    with pytest.raises(AdapterInUse):  # without its digest nobody knows whether it is the same
        engine.load_adapter("fourth", "legal")
    with pytest.raises(AdaptersFull, match="all 4 places have an adapter; unload one"):
        engine.load_adapter("fifth", "french")
    assert [adapter.name for adapter in engine._adapters.loaded] == ["french", "legal", "short", "fourth"]


def test_a_refused_load_leaves_the_slot_free_and_empty(small: tuple[Decoder, Path]) -> None:
    engine = plain(*small)
    with pytest.raises(AdapterRefused, match="has the digest"):
        engine.load_adapter("mine", "french", digest="0" * 64)
    assert engine._adapters.loaded == []
    with pytest.raises(AdapterUnknown):
        engine.add(0, [1], greedy(1), adapter="mine")
    engine.load_adapter("mine", "french")


@pytest.mark.parametrize("path", ["", "..", "../french", "/etc", "link"])
def test_a_path_out_of_the_folder_of_adapters_is_refused(
    path: str, small: tuple[Decoder, Path], tmp_path: Path
) -> None:
    model, root = small
    inside = root / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(root / "french")
    engine = plain(model, inside)
    with pytest.raises(AdapterRefused, match="leads out of the folder"):
        engine.load_adapter("mine", path)


@pytest.mark.parametrize("name", ["", "a b", "ü", "a:b", "-a", "a" * 65, "../a"])
def test_a_name_that_could_be_read_two_ways_is_refused(name: str, small: tuple[Decoder, Path]) -> None:
    with pytest.raises(InvalidRequest, match="the name of an adapter is"):
        plain(*small).load_adapter(name, "french")


def test_another_projects_adapter_is_as_unknown_as_none(small: tuple[Decoder, Path]) -> None:
    engine = plain(*small)
    engine.load_adapter("mine", "french", project="shop")
    engine.add(0, [5, 6], greedy(1), adapter="mine", project=b"shop")
    said = []
    for project, name in ((b"", "mine"), (b"Shop", "mine"), (b"shop", "theirs")):
        with pytest.raises(AdapterUnknown) as refused:
            engine.add(1, [5, 6], greedy(1), adapter=name, project=project)
        said.append(str(refused.value).replace(name, "NAME"))
    assert len(set(said)) == 1


def test_two_projects_may_call_their_adapters_alike_and_each_gets_its_own(small: tuple[Decoder, Path]) -> None:
    model, root = small
    engine = plain(model, root)
    engine.load_adapter("mine", "french", project="shop")
    engine.load_adapter("mine", "legal", project="bank")
    engine.load_adapter("mine", "short")
    found = {}
    for id, project in enumerate((b"shop", b"bank", b"third")):
        engine.add(id, PROMPTS[3], greedy(6), adapter="mine", project=project)
        found[id] = run(engine)[id]
    for id, path in enumerate(("french", "legal", "short")):
        assert found[id] == generate(tiny_engine(merged(model, root / path)), [PROMPTS[3]], greedy(6))[0]
    engine.unload_adapter("mine", "bank")
    assert [adapter.project for adapter in engine._adapters.loaded] == ["shop", ""]


def test_an_engine_without_adapters_says_how_to_have_them() -> None:
    engine = tiny_engine(tiny_model())
    with pytest.raises(InvalidRequest, match="start it with --max-adapters and --adapters"):
        engine.load_adapter("a", "b")
    with pytest.raises(AdapterUnknown):
        engine.add(0, [1], greedy(1), adapter="a")


def test_bank_takes_the_bytes_that_are_planned(small: tuple[Decoder, Path]) -> None:
    from backend.models.adapters.places import adapter_bytes

    for config in (small[0].config, tiny_config(**SHAPES["mixtral"]), tiny_config(**SHAPES["phi3"])):
        bank = AdapterBank(config, 3, 8, torch.float32, torch.device("cpu"))
        held = [part for layer in bank.layers for pages in layer.values() for part in (pages.a, pages.b)]
        assert sum(part.numel() * 4 for part in held) == 3 * adapter_bytes(config, 8, 4)
