"""The runner that works ahead against the oracle: on the kernels' twins anywhere, on kernels and CUDA graphs on a GPU.

Its draws come from another generator, and its logits are in float32. So the oracle follows the tokens that the engine
gave, and each has to be the one that it would draw, up to rounding; where rounding decided, that is counted.
"""

import copy
from collections.abc import Callable

import pytest
import torch

from backend.engine.cache.attention import KVCache
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.speculation import Drafter
from backend.engine.engine import Engine
from backend.engine.gpu.captures import graph_sizes
from backend.engine.gpu.graph_runner import GraphRunner
from backend.engine_config import CacheSize, EngineConfig
from backend.kernels import reference
from backend.kernels.interface import kernels_for
from backend.models.decoders.fused_decoder import FusedDecoder
from tests.backend.engine.test_oracle import (
    EOS,
    WholeEngine,
    ended,
    say_what_the_oracle_says,
    seen,
    shaped,
    small_model,
)
from tests.conftest import how_many

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
SEQUENCES = how_many(2000, 2000) if GPU else how_many(400, 120)
ROUNDING = 0.02 if GPU else 1e-3  # of scores; kernels multiply float32 in TF32


def drawable(x: torch.Tensor, p: SamplingParams, position: int) -> tuple[int, set[int]]:
    """The token that is drawn from these logits, and those that it might be after rounding."""
    temperature = 0.0 if p.greedy else p.temperature
    value = [torch.tensor([v]) for v in (temperature, p.top_k, p.top_p, p.min_p)]
    threshold = reference.sampling_threshold(x[None], *value)
    noise = reference.gumbel_noise(torch.tensor([p.seed]), torch.tensor([position]), len(x))[0]
    scores = x / temperature + noise if temperature else x
    near = ROUNDING / (temperature or 1.0)
    kept, perhaps = (scores.masked_fill(x < threshold - by, float("-inf")) for by in (0, ROUNDING))
    best = int(kept.argmax())
    return best, {t for t in range(len(x)) if perhaps[t] >= scores[best] - near and not perhaps[t].isinf()}


class AheadEngine(WholeEngine):
    block_sizes = (16, 32, 64)
    near = 0.01 if GPU else 1e-4

    def made(self, config: EngineConfig, cache: CacheSize, drafter: Drafter | None) -> Engine:
        model = copy.deepcopy(small_model()).to(DEVICE, torch.float32)
        pages = KVCache(model.config, cache.num_blocks, config.block_size, torch.float32, str(DEVICE))
        runner = GraphRunner(
            FusedDecoder(model, kernels_for(DEVICE)),
            pages,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=cache.max_model_len,
            speculates=drafter is not None,
        )
        if GPU and config.block_size == 16:  # captured and, in the other sizes, kernel by kernel
            runner.capture(graph_sizes(config.max_num_seqs))
            while runner.prepare():
                pass
        return Engine(model, config, cache, frozenset({EOS}), runner=runner, drafter=drafter)

    def check_tokens(self, id: int) -> None:
        finish = self.follow(id)
        assert self.said[id][-1].finish is finish is not None

    def check_beginning(self, id: int) -> None:
        self.follow(id)

    def follow(self, id: int) -> object:
        prompt, params = self.asked[id]
        output: list[int] = []
        finish = None
        for item in self.said[id]:
            assert finish is None and item.token is not None
            best, others = drawable(shaped(prompt, output, params), params, len(prompt) + len(output))
            assert item.token == best or item.token in others
            seen["draws"] += 1
            seen["rounded"] += item.token != best
            output.append(item.token)
            finish = ended(prompt, output, params)
        return finish


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_sequences_that_run_ahead_say_what_the_oracle_says(record_property: Callable[[str, object], None]) -> None:
    say_what_the_oracle_says(AheadEngine, SEQUENCES, record_property)
    assert seen["draws"] > SEQUENCES
    assert seen["rounded"] < seen["draws"] * (0.05 if GPU else 0.005)
