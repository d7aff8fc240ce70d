"""Vectors of the engine against transformers' hidden states, and the life of a text in the queue."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backend.engine.core.progress import Finish, Progress
from backend.engine.embedding.engine import EmbeddingEngine
from backend.engine_config import EngineConfig
from backend.errors import CannotSleep, ConfigError, ContextLengthExceeded, CorruptCheckpoint, UnsupportedModel
from backend.models.checkpoints.checkpoint import Checkpoint
from tests.backend.embedding_models import TEXTS, reference, write_decoder, write_encoder

CLOSE = 1e-4


def engine_of(folder: Path, **changes: Any) -> EmbeddingEngine:
    settings: dict[str, Any] = {
        "model": str(folder), "num_blocks": 64, "block_size": 4, "max_num_seqs": 16, "max_num_batched_tokens": 24,
    }  # fmt: skip
    return EmbeddingEngine.from_checkpoint(Checkpoint(folder), EngineConfig(**{**settings, **changes}))


def run(engine: EmbeddingEngine) -> list[Progress]:
    progress = []
    while engine.has_work:
        progress += engine.step()
    return progress


def vectors(engine: EmbeddingEngine, texts: list[list[int]]) -> list[Tensor]:
    for id, text in enumerate(texts):
        engine.add(id, text)
    found: dict[int, Tensor] = {}
    for item in run(engine):
        assert (item.finish, item.token) == (Finish.VECTOR, None)
        assert item.vector is not None
        found[item.id] = torch.from_numpy(np.frombuffer(item.vector, "<f4").copy())
    return [found[id] for id in range(len(texts))]


def tokens(folder: Path) -> list[list[int]]:
    text = Checkpoint(folder).embedding_text
    return [text.encode(each) for each in TEXTS]


@pytest.mark.parametrize("budget", [16, 24, 512], ids=lambda n: f"{n} tokens a step")
@pytest.mark.parametrize("pooling", ["lasttoken", "mean", "cls"])
@pytest.mark.parametrize("whole", [False, True], ids=["saved as a body", "saved with its head's name"])
def test_a_decoders_vectors_equal_transformers(whole: bool, pooling: str, budget: int, tmp_path: Path) -> None:
    theirs = write_decoder(tmp_path, pooling, whole=whole)
    ids = tokens(tmp_path)
    assert max(map(len, ids)) > 30  # so that the smaller budgets cut it
    for found, text in zip(vectors(engine_of(tmp_path, max_num_batched_tokens=budget), ids), ids, strict=True):
        expected = reference(theirs, text, pooling, normalised=False)
        torch.testing.assert_close(found, expected, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "XLMRoberta"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_an_encoders_vectors_equal_transformers(pooling: str, kind: str, tmp_path: Path) -> None:
    theirs = write_encoder(tmp_path, pooling, kind=kind)
    ids = tokens(tmp_path)
    for found, text in zip(vectors(engine_of(tmp_path), ids), ids, strict=True):
        expected = reference(theirs, text, pooling, normalised=False)
        torch.testing.assert_close(found, expected, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("write", [write_decoder, write_encoder])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_the_precision_vectors_point_the_same_way(dtype: str, write: Any, tmp_path: Path) -> None:
    write(tmp_path)
    ids = tokens(tmp_path)
    exact, rough = vectors(engine_of(tmp_path), ids), vectors(engine_of(tmp_path, dtype=dtype), ids)
    for one, other in zip(exact, rough, strict=True):
        assert torch.cosine_similarity(one, other, 0) > 0.99
        assert not torch.equal(one, other)


def test_an_encoders_text_of_exactly_its_length_is_served_and_one_more_is_refused(tmp_path: Path) -> None:
    theirs = write_encoder(tmp_path, kind="Roberta")
    engine = engine_of(tmp_path)
    assert engine.max_model_len == 127  # a row of the 128 positions is the padding's
    text = [4 + i % 50 for i in range(127)]
    (found,) = vectors(engine, [text])
    torch.testing.assert_close(found, reference(theirs, text, "mean", normalised=False), atol=CLOSE, rtol=CLOSE)
    with pytest.raises(ContextLengthExceeded):
        engine.add(9, [*text, 4])


def test_a_decoders_text_of_exactly_its_length_is_served_and_one_more_is_refused(tmp_path: Path) -> None:
    theirs = write_decoder(tmp_path)
    engine = engine_of(tmp_path, max_model_len=100)
    text = [3 + i % 200 for i in range(100)]
    (found,) = vectors(engine, [text])
    torch.testing.assert_close(found, reference(theirs, text, "lasttoken", normalised=False), atol=CLOSE, rtol=CLOSE)
    with pytest.raises(ContextLengthExceeded):
        engine.add(9, [*text, 4])


def test_the_files_own_length_bounds_a_text(tmp_path: Path) -> None:
    write_encoder(tmp_path, max_tokens=20)
    assert engine_of(tmp_path).max_model_len == 20


def test_a_beginning_that_was_seen_comes_from_the_cache_and_changes_nothing(tmp_path: Path) -> None:
    theirs = write_decoder(tmp_path)
    engine = engine_of(tmp_path)
    text = [3 + i % 200 for i in range(50)]
    vectors(engine, [text])
    longer = [*text, 7, 8, 9]
    (found,) = vectors(engine, [longer])
    assert engine.stats.prefix_hits == 48
    torch.testing.assert_close(found, reference(theirs, longer, "lasttoken", normalised=False), atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize(
    "write", [lambda folder: write_decoder(folder, "mean"), write_encoder], ids=["mean", "encoder"]
)
def test_a_mean_takes_nothing_from_a_cache_for_it_needs_every_token(write: Any, tmp_path: Path) -> None:
    write(tmp_path)
    engine = engine_of(tmp_path)
    text = [4 + i % 50 for i in range(50)]
    first, again = vectors(engine, [text]), vectors(engine, [text])
    assert engine.stats.prefix_hits == 0
    assert torch.equal(first[0], again[0])


def test_nothing_is_held_once_texts_are_done(tmp_path: Path) -> None:
    write_decoder(tmp_path)
    engine = engine_of(tmp_path)
    vectors(engine, tokens(tmp_path))
    assert engine.stats.used_blocks == 0
    assert engine.scrub() == 0


def test_a_text_that_is_preempted_halfway_has_the_same_mean(tmp_path: Path) -> None:
    theirs = write_decoder(tmp_path, "mean")
    engine = engine_of(tmp_path, max_num_batched_tokens=16, max_num_seqs=1)
    long, urgent = [3 + i % 200 for i in range(60)], [5, 6, 7]
    engine.add(0, long, priority=1)
    engine.step()
    engine.add(1, urgent, priority=0)
    progress = run(engine)
    assert [item.id for item in progress] == [1, 0]
    assert engine.stats.preemptions == 1
    found = torch.from_numpy(np.frombuffer(progress[1].vector or b"", "<f4").copy())
    torch.testing.assert_close(found, reference(theirs, long, "mean", normalised=False), atol=CLOSE, rtol=CLOSE)


def test_an_aborted_text_is_forgotten_between_its_chunks(tmp_path: Path) -> None:
    write_decoder(tmp_path)
    engine = engine_of(tmp_path, max_num_batched_tokens=16)
    engine.add(0, [3 + i % 200 for i in range(60)])
    engine.step()
    engine.abort(0)
    assert not engine.has_work
    assert engine.stats.used_blocks == 0


def test_texts_of_an_encoder_are_never_cut(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    engine = engine_of(tmp_path)
    assert engine.scheduler.budget == 128
    for id in range(4):
        engine.add(id, [4 + i % 50 for i in range(50)])
    batches = [[scheduled.num_tokens for scheduled in engine.scheduler.schedule()]]
    assert batches == [[50, 50]]


def test_what_is_no_number_is_an_error_of_that_text_alone(tmp_path: Path) -> None:
    write_decoder(tmp_path)
    engine = engine_of(tmp_path)
    engine.runner.model.embedding[9] = float("nan")  # type: ignore[attr-defined]
    engine.add(0, [3, 9, 4])
    engine.add(1, [3, 8, 4])
    assert {item.id: item.finish for item in run(engine)} == {0: Finish.ERROR, 1: Finish.VECTOR}


@pytest.mark.parametrize("write", [write_decoder, write_encoder])
def test_it_sleeps_and_wakes_with_the_same_vectors(write: Any, tmp_path: Path) -> None:
    write(tmp_path)
    engine = engine_of(tmp_path)
    texts = tokens(tmp_path)
    before = vectors(engine, texts)
    assert engine.sleep() > 0
    engine.wake()
    assert all(torch.equal(a, b) for a, b in zip(before, vectors(engine, texts), strict=True))
    engine.add(0, texts[0])
    with pytest.raises(CannotSleep):
        engine.sleep()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "cuda"}, "device 'cuda' was asked for, and there is no CUDA device"),
        ({"device": "cuda", "quantization": "fp8"}, "computed in its dtype: no quantization fp8"),
        ({"device": "cuda", "kv_dtype": "fp8"}, "computed in its dtype: no kv_dtype fp8"),
        ({"speculation": "ngram"}, "draws no tokens"),
        ({"load_format": "dummy"}, "loaded from its weights"),
        ({"max_model_len": 300}, "beyond the model's context"),
    ],
)
@pytest.mark.parametrize("write", [write_decoder, write_encoder])
def test_what_such_a_model_cannot_do_is_said_before_it_is_loaded(
    write: Any, changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=message):
        engine_of(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hidden_act": "relu"}, UnsupportedModel),
        ({"position_embedding_type": "relative_key"}, UnsupportedModel),
        ({"is_decoder": True}, UnsupportedModel),
        ({"num_attention_heads": 7}, CorruptCheckpoint),
        ({"layer_norm_eps": None}, CorruptCheckpoint),
        ({"hidden_size": 0}, CorruptCheckpoint),
        ({"architectures": ["MPNetModel"]}, UnsupportedModel),
    ],
)
def test_an_encoder_that_would_be_computed_wrongly_is_refused(
    changes: dict[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    import json

    write_encoder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(error):
        engine_of(tmp_path)
