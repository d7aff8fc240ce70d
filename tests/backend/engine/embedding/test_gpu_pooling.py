"""Vectors by the kernels (their twins, where there is no GPU) are those of the plain road: in chunks, from the cache,
of every pooling; and encoders' texts that are padded together are those that are computed one by one."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.core.progress import Finish
from backend.engine.embedding.encoder_runner import EncoderRunner
from backend.engine.embedding.engine import EmbeddingEngine
from backend.engine.embedding.gpu_pooling import GpuPoolingRunner
from backend.engine_config import CacheSize, EngineConfig
from backend.kernels.interface import kernels_for
from backend.models.bert import EncoderConfig
from backend.models.checkpoints.pooling import POOLED, Pooling
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from backend.models.decoders.encoder import BatchLayout, Encoder, one_by_one, together
from tests.backend.tiny import tiny_model
from tests.backend.tiny_families import tiny_family

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE = CacheSize(64, 256)
TEXTS = [[3 + (7 * i * i + n) % 300 for i in range(n)] for n in (1, 5, 40, 77, 2, 33, 130)]
BERT = EncoderConfig(
    vocab_size=320,
    hidden_size=48,
    intermediate_size=80,
    num_layers=3,
    num_heads=6,
    max_position=160,
    first_position=2,
    table_rows=162,
    type_vocab_size=1,
    eps=1e-5,
)


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": "", "num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 64, **changes})


def on_card(
    model: Decoder,
    pooling: Pooling,
    dtype: torch.dtype = torch.float32,
    *,
    batch_invariant: bool = False,
    **changes: Any,
) -> EmbeddingEngine:
    """The engine with the runner under test on the device at hand."""
    settings = config(**changes)
    pages = KVCache(model.config, SIZE.num_blocks, settings.block_size, dtype, str(DEVICE))
    kind = kind_of(model.config, batch_invariant=batch_invariant)
    decoder = kind(copy.deepcopy(model).to(DEVICE, dtype), kernels_for(DEVICE))
    runner = GpuPoolingRunner(decoder, pages, pooling, batch_invariant=batch_invariant)
    return EmbeddingEngine(model, settings, SIZE, pooling, runner=runner)


def vectors(engine: EmbeddingEngine, texts: list[list[int]]) -> list[Tensor]:
    for id, text in enumerate(texts):
        engine.add(id, text)
    found: dict[int, Tensor] = {}
    while engine.has_work:
        for item in engine.step():
            assert item.finish is Finish.VECTOR
            found[item.id] = torch.from_numpy(np.frombuffer(item.vector or b"", "<f4").copy())
    return [found[id] for id in range(len(texts))]


@pytest.fixture(scope="module", params=["qwen3", "mistral", "gemma3"])
def model(request: pytest.FixtureRequest) -> Decoder:
    if request.param == "gemma3":
        return tiny_family("gemma3", 6)
    shapes: dict[str, dict[str, Any]] = {"qwen3": {"qk_norm": True}, "mistral": {"windows": (24, 24)}}
    return tiny_model(6, head_dim=16, max_position=256, **shapes[request.param])


@pytest.mark.parametrize(
    "changes", [{}, {"max_num_batched_tokens": 16}, {"max_num_batched_tokens": 512, "block_size": 32}], ids=str
)
@pytest.mark.parametrize("pooling", POOLED)
def test_vectors_are_those_of_the_plain_road(model: Decoder, pooling: Pooling, changes: dict[str, Any]) -> None:
    expected = vectors(EmbeddingEngine(model, config(), SIZE, pooling), TEXTS)
    for found, wanted in zip(vectors(on_card(model, pooling, **changes), TEXTS), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_in_half_the_precision_they_point_the_same_way(model: Decoder) -> None:
    expected = vectors(EmbeddingEngine(model, config(), SIZE, Pooling.MEAN), TEXTS)
    found = vectors(on_card(model, Pooling.MEAN, torch.bfloat16), TEXTS)
    for mine, wanted in zip(found, expected, strict=True):
        assert torch.cosine_similarity(mine, wanted, 0) > 0.99
        assert not torch.equal(mine, wanted)


def test_a_beginning_comes_from_the_cache_where_the_last_token_alone_is_asked(model: Decoder) -> None:
    engine = on_card(model, Pooling.LAST)
    first = vectors(engine, [TEXTS[6]])[0]
    longer = [*TEXTS[6], 9, 8]
    (found,) = vectors(engine, [longer])
    assert engine.stats.prefix_hits == 128
    wanted = vectors(EmbeddingEngine(model, config(), SIZE, Pooling.LAST), [longer])[0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found, first, atol=1e-2)
    mean = on_card(model, Pooling.MEAN)
    for _ in range(2):
        vectors(mean, [TEXTS[6]])
    assert mean.stats.prefix_hits == 0


def test_nothing_is_held_and_nothing_is_left_once_texts_are_done(model: Decoder) -> None:
    engine = on_card(model, Pooling.LAST)
    vectors(engine, TEXTS)
    assert engine.stats.used_blocks == 0
    assert engine.runner.residue(list(range(SIZE.num_blocks))) > 0  # prefixes
    assert engine.scrub() == 0
    assert engine.runner.residue(list(range(SIZE.num_blocks))) == 0


def test_what_is_no_number_is_an_error_of_that_text_alone(model: Decoder) -> None:
    poisoned = copy.deepcopy(model)
    poisoned.embedding[9] = float("nan")
    engine = on_card(poisoned, Pooling.LAST)
    engine.add(0, [3, 9, 4])
    engine.add(1, [3, 8, 4])
    finishes = {}
    while engine.has_work:
        finishes |= {item.id: item.finish for item in engine.step()}
    assert finishes == {0: Finish.ERROR, 1: Finish.VECTOR}


def test_batch_invariant_vectors_do_not_know_who_runs_beside_them(model: Decoder) -> None:
    alone = [vectors(on_card(model, Pooling.LAST, batch_invariant=True), [text])[0] for text in TEXTS]
    beside = vectors(on_card(model, Pooling.LAST, batch_invariant=True, max_num_batched_tokens=512), TEXTS)
    for one, other in zip(alone, beside, strict=True):
        if DEVICE.type == "cuda":  # the twins' products are the library's
            assert torch.equal(one, other)
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_rehearsal_of_nobody_writes_no_cache(model: Decoder) -> None:
    engine = on_card(model, Pooling.LAST)
    assert isinstance(engine.runner, GpuPoolingRunner)
    for tokens in (1, 20, 64):
        engine.runner.profile_run(tokens)
    assert engine.runner.residue(list(range(SIZE.num_blocks))) == 0


# --- encoders --------------------------------------------------------------------------------------------------------


def encoder(dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Encoder:
    torch.manual_seed(4)
    model = Encoder(BERT)
    for parameter in model.parameters():
        parameter.normal_(0.5 if parameter.dim() == 1 else 0.0, 0.2)
    other = Encoder(BERT, dtype, device)
    other.load_state_dict(model.state_dict())
    return other.eval()


@pytest.mark.parametrize("lengths", [[5], [1, 1], [7, 7, 7], [1, 5, 40, 77, 2, 33, 130], [64, 65, 63, 128]], ids=str)
def test_texts_that_are_padded_together_see_what_they_see_alone(lengths: list[int]) -> None:
    texts = BatchLayout(lengths, torch.device("cpu"))
    qkv = torch.randn(sum(lengths), 3, 4, 16)
    torch.testing.assert_close(together(qkv, texts), one_by_one(qkv, texts), atol=1e-5, rtol=1e-5)
    padded = sum(group.count * group.longest for group in texts.groups)
    assert padded < 2 * sum(lengths)
    assert sum(len(group.rows) for group in texts.groups) == sum(lengths)


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_encoders_vectors_on_the_device_at_hand_are_those_of_the_cpu(dtype: torch.dtype, pooling: Pooling) -> None:
    settings = config(max_num_batched_tokens=160)
    expected = vectors(EmbeddingEngine(encoder(), settings, SIZE, pooling), TEXTS)
    model = encoder(dtype, DEVICE)
    engine = EmbeddingEngine(model, settings, SIZE, pooling, runner=EncoderRunner(model, pooling))
    for found, wanted in zip(vectors(engine, TEXTS), expected, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        assert torch.cosine_similarity(found, wanted, 0) > (0.99999 if dtype == torch.float32 else 0.99)


def test_an_encoder_that_attends_together_gives_the_same_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    from backend.models.decoders import encoder as module

    model = encoder()
    expected = model(TEXTS)
    monkeypatch.setattr(module, "one_by_one", together)
    for found, wanted in zip(model(TEXTS), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
