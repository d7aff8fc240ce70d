"""An embedding model brought up on a GPU from its folder: the CPU's vectors, sleep, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from backend.engine.embedding.engine import EmbeddingEngine
from backend.engine.embedding.gpu_start import require_embedder
from backend.engine_config import EngineConfig
from backend.errors import ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint
from tests.backend.embedding_models import say_how
from tests.backend.engine.embedding.test_gpu_pooling import BERT, TEXTS, encoder, vectors
from tests.backend.tiny import tiny_model, tiny_tokenizer, write_folder

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def write_qwen3(folder: Path, pooling: str = "lasttoken") -> Path:
    model = tiny_model(6, head_dim=16, qk_norm=True, max_position=256)
    write_folder(folder, model, architectures=["Qwen3ForCausalLM"])
    say_how(folder, pooling)
    return folder


def write_bert(folder: Path, pooling: str = "mean") -> Path:
    folder.mkdir()
    shape = {
        "architectures": ["RobertaModel"], "vocab_size": BERT.vocab_size, "hidden_size": BERT.hidden_size,
        "intermediate_size": BERT.intermediate_size, "num_hidden_layers": BERT.num_layers,
        "num_attention_heads": BERT.num_heads, "max_position_embeddings": BERT.table_rows, "pad_token_id": 1,
        "type_vocab_size": 1, "layer_norm_eps": BERT.eps,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    tensors = {name: tensor.clone().contiguous() for name, tensor in encoder().places().items()}
    save_file(tensors, folder / "model.safetensors")
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    say_how(folder, pooling)
    return folder


WRITERS: dict[str, Any] = {"decoder": write_qwen3, "encoder": write_bert}


def engine_of(folder: Path, **changes: Any) -> EmbeddingEngine:
    settings: dict[str, Any] = {
        "model": str(folder), "num_blocks": 64, "max_num_seqs": 16, "max_num_batched_tokens": 160,
    }  # fmt: skip
    return EmbeddingEngine.from_checkpoint(Checkpoint(folder), EngineConfig(**{**settings, **changes}))


@pytest.mark.parametrize("kind", WRITERS)
def test_without_a_gpu_its_absence_is_said_before_anything_is_loaded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = WRITERS[kind](tmp_path / kind)
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="there is no CUDA device"):
        engine_of(folder, device="cuda")


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("decoder", {"quantization": "fp8", "dtype": "bfloat16"}, "no quantization fp8"),
        ("encoder", {"kv_dtype": "fp8"}, "no kv_dtype fp8"),
        ("encoder", {"batch_invariant": True}, "a mode of decoders"),
        ("decoder", {"block_size": 4}, "a power of two of at least 16"),
    ],
)
def test_what_it_cannot_do_there_is_refused(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = WRITERS[kind](tmp_path / kind)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=message):
        require_embedder(EngineConfig(model=str(folder), device="cuda", **changes), Checkpoint(folder))


@pytest.mark.parametrize("kind", WRITERS)
def test_these_folders_are_read_on_the_cpu(kind: str, tmp_path: Path) -> None:
    """What the card is compared with is a model that the CPU's own tests hold to transformers."""
    found = vectors(engine_of(WRITERS[kind](tmp_path / kind)), TEXTS)
    assert len({tuple(vector.tolist()) for vector in found}) == len(TEXTS)


@needs_gpu
@pytest.mark.parametrize("pooling", ["lasttoken", "mean", "cls"])
@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_from_its_folder_it_gives_the_cpus_vectors_asleep_or_not(
    kind: str, pooling: str, dtype: str, tmp_path: Path
) -> None:
    folder = WRITERS[kind](tmp_path / kind, pooling)
    expected = vectors(engine_of(folder), TEXTS)
    engine = engine_of(folder, device="cuda", dtype=dtype)
    found = vectors(engine, TEXTS)
    for mine, wanted in zip(found, expected, strict=True):
        if dtype == "float32":
            torch.testing.assert_close(mine, wanted, atol=1e-4, rtol=1e-4)
        assert similar(mine, wanted) > (0.99999 if dtype == "float32" else 0.99)
    assert engine.scrub() == 0
    engine.sleep()
    assert engine.asleep
    engine.wake()
    assert all(similar(a, b) > 0.9999 for a, b in zip(vectors(engine, TEXTS), found, strict=True))


@needs_gpu
def test_a_share_of_the_card_that_holds_no_text_is_refused_with_the_number(tmp_path: Path) -> None:
    folder = write_qwen3(tmp_path / "model")
    with pytest.raises(ConfigError, match="needs 16 KV blocks"):
        engine_of(folder, device="cuda", num_blocks=4, max_model_len=256)


def similar(one: Tensor, other: Tensor) -> float:
    return float(torch.cosine_similarity(one, other, 0))
