"""Hidden states that a model leaves are those of a forward pass of the whole text, on each runner, whatever is cut into
chunks and whatever runs beside."""

import copy
from typing import Any

import pytest
import torch

from backend.engine.core.speculation import MAX_ROWS
from backend.engine.engine import Engine
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.exposure import Exposure
from tests.backend.engine.gpu.test_graph_runner import DEVICE, GPU, ahead
from tests.backend.tiny import greedy, tiny_engine, tiny_model
from tests.backend.tiny_deepseek import tiny_deepseek
from tests.backend.tiny_families import tiny_family
from tests.backend.tiny_heads import states_of

READS = [(0, 1, 2), (1, 2), ()]
NEAR = 2e-2 if GPU else 1e-3  # kernels multiply float32 in TF32
MODELS = ["llama", "gemma2", "deepseek"]


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Decoder:
    if request.param == "deepseek":
        return tiny_deepseek("v3", 4)
    if request.param == "gemma2":
        return tiny_family("gemma2")
    return tiny_model(head_dim=16, hidden_size=64, num_layers=3)


def engine_on(on: str, model: Decoder, reads: tuple[int, ...], **changes: Any) -> Engine:
    exposing = copy.deepcopy(model)
    device = torch.device("cpu") if on in ("plain", "tokenwise") else DEVICE
    rows = MAX_ROWS + 1024
    exposing.exposure = Exposure(reads, rows, model.config.hidden_size, torch.float32, device)
    if on == "plain":
        return tiny_engine(exposing, **changes)
    if on == "tokenwise":
        return tiny_engine(exposing, batch_invariant=True, **changes)
    return ahead(exposing, invariant=on == "invariant", **changes)


@pytest.mark.parametrize("on", ["plain", "tokenwise", "ahead", "invariant"])
@pytest.mark.parametrize("reads", READS, ids=str)
def test_they_are_those_of_the_whole_text(model: Decoder, reads: tuple[int, ...], on: str) -> None:
    lengths = (1, 5, 40) if on == "tokenwise" else (1, 5, 40, 90)
    texts = [[(7 * i + 3 * j) % model.config.vocab_size for j in range(length)] for i, length in enumerate(lengths)]
    known = [states_of(copy.deepcopy(model), reads, text) for text in texts]
    engine = engine_on(on, model, reads, max_num_batched_tokens=64)
    for id, text in enumerate(texts):
        engine.add(id, text, greedy(4))
    seen = [0] * len(texts)
    sequences = {id: engine._sequences[id] for id in range(len(texts))}
    while any(done < len(text) for done, text in zip(seen, texts, strict=True)):
        before = {id: sequence.num_computed for id, sequence in sequences.items()}
        engine.step()
        exposed = engine.runner.exposed()  # type: ignore[attr-defined]
        for id, first in exposed.first.items():
            count = min(sequences[id].num_computed, len(texts[id])) - before[id]
            if count > 0:
                found = exposed.states[first : first + count].cpu()
                assert torch.allclose(found, known[id][before[id] : before[id] + count], atol=NEAR, rtol=1e-3)
                seen[id] += count
    assert seen == list(lengths)


def test_a_model_that_exposes_nothing_leaves_nothing(model: Decoder) -> None:
    for engine in (tiny_engine(model), ahead(model)):
        engine.add(0, [1, 2, 3], greedy(2))
        engine.step()
        assert engine.runner.exposed() is None  # type: ignore[attr-defined]
