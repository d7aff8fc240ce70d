from typing import Any

import pytest

from backend.engine import warm_up as module
from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine
from backend.engine.warm_up import warm_up
from backend.engine_config import EngineConfig, size_cache
from backend.models.decoders.decoder import Decoder
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model


@pytest.fixture(scope="module")
def model() -> Decoder:
    return tiny_model()


class OnACard(Engine):
    """An engine whose configuration names a GPU, computed by the plain runner."""

    def __init__(self, model: Decoder, **changes: Any) -> None:
        settings: dict[str, Any] = {"num_blocks": 256, "max_num_seqs": 20, "max_num_batched_tokens": 256}
        config = EngineConfig(model="", **{**settings, **changes})
        super().__init__(model, config, size_cache(config, model.config, 4))
        self.config = EngineConfig(model="", device="cuda", **{**settings, **changes})
        self.asked: list[tuple[int, SamplingParams]] = []

    def add(self, id: int, prompt: list[int], params: SamplingParams, **more: Any) -> None:
        self.asked.append((len(prompt), params))
        super().add(id, prompt, params, **more)


def test_on_a_card_every_kind_of_draw_and_prompt_has_run_before_it_is_ready(model: Decoder) -> None:
    engine = OnACard(model, max_model_len=128)
    warm_up(engine)
    params = [asked for _, asked in engine.asked]
    for name in ("logprobs", "prompt_logprobs", "allowed_token_ids", "bad_words", "logit_bias", "min_tokens",
                 "presence_penalty", "top_k", "min_p"):  # fmt: skip
        assert any(getattr(asked, name) for asked in params), name
    lengths = {length for length, _ in engine.asked}
    assert {1, 17, 64} <= lengths and max(lengths) <= 128


def test_a_common_prefix_is_met_where_the_context_has_room_for_one(model: Decoder, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "SHARED_TOKENS", 64)
    monkeypatch.setattr(module, "SHARED_SEQUENCES", (6,))
    engine = OnACard(model, max_model_len=128)
    warm_up(engine)
    assert engine.stats.prefix_hits > 0


def test_it_leaves_no_block_and_no_byte_behind_and_changes_no_answer(model: Decoder) -> None:
    expected = generate(tiny_engine(model), [[1, 2, 3], [4]], greedy(6))
    engine = OnACard(model, max_model_len=128)
    warm_up(engine)
    assert engine.stats.used_blocks == 0
    assert engine.runner.residue(list(range(256))) == 0
    assert generate(engine, [[1, 2, 3], [4]], greedy(6)) == expected


@pytest.mark.parametrize("length", [5, 24])
def test_a_short_context_is_warmed_up_within_its_bounds(model: Decoder, length: int) -> None:
    engine = OnACard(model, max_model_len=length)
    warm_up(engine)
    assert max(asked for asked, _ in engine.asked) < length
