"""gpt-oss on the kernels, or their twins: the tokens of the plain decoder, whatever else happens."""

from pathlib import Path

import pytest
import torch

from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from backend.quantization.mxfp4 import MXFP4
from tests.backend.adapters_on_disk import write_adapter
from tests.backend.engine import test_adapters as adapters
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.gpu.test_graph_runner import GRAPHS, ahead
from tests.backend.models.decoders.test_fused_decoder import DEVICE, distance, fused
from tests.backend.models.decoders.test_fused_decoder import plain as exactly
from tests.backend.tiny import generate, greedy, run, tiny_engine
from tests.backend.tiny_gpt_oss import random_tensors, write_gpt_oss

PROMPTS = [[3 + (i * 7 + k) % 300 for i in range(n)] for k, n in enumerate((1, 5, 17, 33, 60, 90))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = write_gpt_oss(tmp_path_factory.mktemp("gpt-oss") / "model", random_tensors(4))
    return load_model(Checkpoint(folder), "float32")


@pytest.fixture(scope="module")
def expected(model: Decoder) -> list[list[int]]:
    return generate(tiny_engine(model), PROMPTS, greedy(10))


@GRAPHS
@pytest.mark.parametrize("changes", [{}, {"max_num_batched_tokens": 16}, {"num_blocks": 14}], ids=str)
def test_batched_chunked_preempted_and_from_the_cache(
    model: Decoder, expected: list[list[int]], changes: dict[str, int], graphs: str
) -> None:
    engine = ahead(model, graphs=graphs, **changes)
    assert generate(engine, PROMPTS, greedy(10)) == expected
    assert generate(engine, PROMPTS, greedy(10)) == expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt_oss(tmp_path_factory.mktemp("gpt-oss") / "stored", random_tensors(4))


@GRAPHS
def test_experts_that_are_kept_as_stored_give_the_same_tokens(
    folder: Path, expected: list[list[int]], graphs: str
) -> None:
    stored = load_model(Checkpoint(folder), "float32", str(DEVICE), quantization=MXFP4)
    assert all(layer.experts.gate_up.is_meta for layer in stored.layers)
    assert all(layer.packed.keys() == {"experts.gate_up", "experts.down"} for layer in stored.layers)
    engine = ahead(stored, graphs=graphs, quantization=MXFP4)
    assert generate(engine, PROMPTS, greedy(10)) == expected


def test_in_deterministic_mode_a_sequence_gets_the_same_tokens_alone(model: Decoder, expected: list[list[int]]) -> None:
    engine = ahead(model, invariant=True)
    assert generate(engine, PROMPTS, greedy(10)) == expected
    assert [generate(engine, [prompt], greedy(10))[0] for prompt in PROMPTS] == expected


def test_guesses_are_checked(model: Decoder, expected: list[list[int]]) -> None:
    engine = ahead(model, drafter=Oracle(dict(enumerate(expected)), wrong=0.3))
    assert generate(engine, PROMPTS, greedy(10)) == expected
    assert engine.stats.draft_tokens_accepted > 0


@pytest.mark.parametrize("step", [1, 3, 20, 64])  # a single row, a few, many
def test_each_road_through_a_layer_has_its_biases(model: Decoder, step: int) -> None:
    """Without a window and sinks, which the attention of this test does not know."""
    import copy
    from dataclasses import replace

    changed = copy.deepcopy(model)
    changed.config = replace(model.config, windows=(), sinks=False)
    for layer in changed.layers:
        layer.sinks = None
    ids = torch.randint(0, 300, (50,))
    assert distance(fused(changed, ids, torch.float32, step=step), exactly(changed, ids)) < 1e-5


def test_attention_of_it_takes_adapters(model: Decoder, tmp_path: Path) -> None:
    write_adapter(tmp_path / "one", model.config, 3, targets=("q_proj", "o_proj"))
    engines = [adapters.plain(model, tmp_path), adapters.ahead(model, tmp_path)]
    found = []
    for engine in engines:
        engine.load_adapter("one", "one")
        for id, prompt in enumerate(PROMPTS):
            engine.add(id, prompt, greedy(6), adapter="one" if id % 2 else "")
        found.append(run(engine))
    assert found[0] == found[1]
    assert found[0][3] != generate(tiny_engine(model), [PROMPTS[3]], greedy(6))[0]
