"""DeepSeek on the kernels, or their twins: the tokens of the plain decoder, whatever else happens."""

from pathlib import Path
from typing import Any

import pytest

from backend.engine.core.sampling import SamplingParams
from backend.engine.gpu import start
from backend.engine_config import EngineConfig
from backend.errors import ConfigError
from backend.models.decoders.decoder import Decoder
from tests.backend.adapters_on_disk import merged, write_adapter
from tests.backend.engine import test_adapters as adapters
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.gpu.test_graph_runner import GRAPHS, ahead, assert_idle
from tests.backend.tiny import generate, greedy, run, tiny_engine
from tests.backend.tiny_deepseek import tiny_deepseek

PROMPTS = [[3 + (i * 7 + k) % 300 for i in range(n)] for k, n in enumerate((1, 5, 17, 33, 60, 90))]
SAMPLED = SamplingParams(max_tokens=8, temperature=0.8, top_p=0.9, seed=4, ignore_eos=True)


@pytest.fixture(scope="module", params=["v2-lite", "v3"])
def model(request: pytest.FixtureRequest) -> Decoder:
    return tiny_deepseek(request.param, 4)


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[list[int]]:
    return generate(tiny_engine(model), PROMPTS, greedy(10))


@GRAPHS
@pytest.mark.parametrize(
    "changes", [{}, {"max_num_batched_tokens": 16}, {"num_blocks": 14}, {"prefix_cache": False}], ids=str
)
def test_batched_chunked_preempted_and_from_the_cache(
    model: Decoder, expected: list[list[int]], changes: dict[str, Any], graphs: str
) -> None:
    engine = ahead(model, graphs=graphs, **changes)
    assert generate(engine, PROMPTS, greedy(10)) == expected
    assert generate(engine, PROMPTS, greedy(10)) == expected
    assert_idle(engine)
    assert (engine.scheduler.num_preemptions > 0) == ("num_blocks" in changes)


def test_sequences_that_share_a_beginning_and_drawn_tokens(model: Decoder) -> None:
    prompts = [[*PROMPTS[4], 7 + i] for i in range(20)]
    assert generate(ahead(model), prompts, greedy(6)) == generate(tiny_engine(model), prompts, greedy(6))
    drawn = generate(ahead(model, invariant=True), prompts, SAMPLED)
    assert drawn == generate(ahead(model, invariant=True, max_num_seqs=3, prefix_cache=False), prompts, SAMPLED)
    assert drawn != generate(ahead(model, invariant=True), prompts, greedy(8))


@GRAPHS
def test_in_deterministic_mode_a_sequence_gets_the_same_tokens_alone(
    model: Decoder, expected: list[list[int]], graphs: str
) -> None:
    engine = ahead(model, invariant=True, graphs=graphs)
    assert generate(engine, PROMPTS, greedy(10)) == expected
    assert [generate(engine, [prompt], greedy(10))[0] for prompt in PROMPTS] == expected


@GRAPHS
def test_guesses_are_checked(model: Decoder, expected: list[list[int]], graphs: str) -> None:
    engine = ahead(model, drafter=Oracle(dict(enumerate(expected)), wrong=0.3), graphs=graphs)
    assert generate(engine, PROMPTS, greedy(10)) == expected
    assert engine.stats.draft_tokens_accepted > 0


def test_scrub_finds_nothing_in_either_part_of_the_cache(model: Decoder) -> None:
    engine = ahead(model)
    generate(engine, PROMPTS, greedy(4))
    cache = engine.runner.cache  # type: ignore[attr-defined]
    assert cache.keys.count_nonzero() > 0
    assert cache.values.count_nonzero() > 0
    blocks = list(range(cache.keys.shape[1]))
    assert engine.runner.residue(blocks) > 0
    engine.runner.scrub(blocks)
    assert engine.runner.residue(blocks) == 0


@pytest.mark.parametrize("name", ["v2-lite", "v3"])
def test_attention_takes_adapters(name: str, tmp_path: Path) -> None:
    model = tiny_deepseek(name, 4)
    targets = {"v2-lite": ("q_proj", "kv_a_proj_with_mqa", "o_proj"), "v3": ("q_a_proj", "q_b_proj", "o_proj")}[name]
    write_adapter(tmp_path / "one", model.config, 3, targets=targets)
    found = []
    for engine in (adapters.plain(model, tmp_path), adapters.ahead(model, tmp_path)):
        engine.load_adapter("one", "one")
        for id, prompt in enumerate(PROMPTS):
            engine.add(id, prompt, greedy(6), adapter="one" if id % 2 else "")
        found.append(run(engine))
    assert found[0] == found[1]
    merged_model = merged(model, tmp_path / "one")
    assert [found[0][id] for id in (1, 3)] == generate(tiny_engine(merged_model), [PROMPTS[1], PROMPTS[3]], greedy(6))
    assert found[0][3] != generate(tiny_engine(model), [PROMPTS[3]], greedy(6))[0]


@pytest.mark.parametrize(
    ("config", "shape", "said"),
    [
        ({"kv_dtype": "fp8"}, {}, "latents in FP8 are not computed; leave --kv-dtype out"),
        ({}, {"kv_lora_rank": 1024}, "a rank of 1024"),
        ({}, {"qk_rope_head_dim": 256}, "256 rotary"),
    ],
    ids=str,
)
def test_what_the_kernels_do_not_compute_is_refused_before_anything_is_loaded(
    config: dict[str, Any], shape: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "require_cuda", lambda config: None)
    model = tiny_deepseek("v3", **shape).config
    with pytest.raises(ConfigError, match=said):
        start.require_gpu(EngineConfig(model="", device="cuda", dtype="bfloat16", **config), model)
