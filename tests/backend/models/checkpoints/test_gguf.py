"""GGUF files written by the gguf package, and broken in every way."""

import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from backend.errors import CorruptCheckpoint, ModelError, ModelNotFound, UnsupportedModel
from backend.models import rope
from backend.models.checkpoints import gguf as ours
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from tests.backend.tiny import tiny_model

SHORT = {long: short for short, long in {**ours.TOP_NAMES, **ours.LAYER_NAMES}.items()}


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """What converting Llama to GGUF does to q and k: rotated halves become neighbouring pairs."""
    head_dim = rows.shape[0] // heads
    order = [half + i for i in range(head_dim // 2) for half in (0, head_dim // 2)]
    return torch.cat([head[order] for head in rows.split(head_dim)])


def write(path: Path, model: Decoder, architecture: str = "llama", leave_out: str = "", **metadata: Any) -> Path:
    c = model.config
    writer = gguf.GGUFWriter(path, architecture)
    numbers = {
        "block_count": c.num_layers,
        "context_length": c.max_position,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_heads,
        "attention.head_count_kv": c.num_kv_heads,
        "attention.key_length": c.head_dim,
        "vocab_size": c.vocab_size,
    }
    for key, value in numbers.items():
        if key != leave_out:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", c.rms_norm_eps)
    writer.add_float32(f"{architecture}.rope.freq_base", c.rope_theta)
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    for key, value in metadata.items():
        add[type(value)](key.replace("__", "."), value)
    for name, tensor in model.places().items():
        stem, suffix = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            short = f"blk.{layer}.{SHORT[part]}"
            if architecture == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
                tensor = interleave(tensor, c.num_heads if "q_proj" in part else c.num_kv_heads)
        else:
            short = SHORT[stem]
        writer.add_tensor(f"{short}.{suffix}", tensor.detach().numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def source() -> Decoder:
    return tiny_model(5, rms_norm_eps=2**-17, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, source: Decoder) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", source)


def assert_same(a: Decoder, b: Decoder) -> None:
    for name, parameter in a.named_parameters():
        assert torch.equal(parameter, b.get_parameter(name)), name


def test_what_was_written_is_read(path: Path, source: Decoder) -> None:
    loaded = load_model(Checkpoint(path), "float32")
    assert loaded.config == source.config
    assert_same(source, loaded)


@pytest.mark.parametrize(("architecture", "changes"), [("qwen2", {"qkv_bias": True}), ("qwen3", {"qk_norm": True})])
def test_families_that_are_not_interleaved_are_read_as_they_are(
    tmp_path: Path, architecture: str, changes: dict[str, bool]
) -> None:
    source = tiny_model(6, rms_norm_eps=2**-17, **changes)
    loaded = load_model(Checkpoint(write(tmp_path / "q.gguf", source, architecture)), "float32")
    assert loaded.config == source.config
    assert_same(source, loaded)


def test_quantised_tensors_are_dequantised(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(6, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    kinds = [gguf.GGMLQuantizationType[k] for k in ("F16", "BF16", "Q8_0", "Q4_1", "Q4_0", "Q5_1")]
    for kind in kinds:
        writer.add_tensor(kind.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = ours.GGUFFile(tmp_path / "q.gguf")
    for kind in kinds:
        read = file.read(kind.name)
        assert read.shape == values.shape
        assert abs(read - values).max() < (0.02 if kind.name in ("F16", "BF16", "Q8_0") else 0.5)
        np.testing.assert_array_equal(read, gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind))


def test_our_header_reader_agrees_with_the_gguf_package(path: Path) -> None:
    file, theirs = ours.GGUFFile(path), gguf.GGUFReader(path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert file.metadata[key] == field.contents()
    for tensor in theirs.tensors:
        assert file.tensors[tensor.name].offset == tensor.data_offset
        assert file.tensors[tensor.name].shape == tuple(reversed(tensor.shape.tolist()))


@pytest.mark.model
def test_our_header_reader_agrees_with_the_gguf_package_on_the_real_model(smollm: Checkpoint) -> None:
    file = smollm.gguf_file
    assert file is not None
    theirs = gguf.GGUFReader(smollm.path)
    assert {t.name: t.data_offset for t in theirs.tensors} == {n: t.offset for n, t in file.tensors.items()}
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"):
        assert file.metadata[key] == theirs.fields[key].contents()


def test_a_file_cut_anywhere_in_its_header_is_corrupt(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    header = min(t.offset for t in ours.GGUFFile(path).tensors.values())
    broken = tmp_path / "cut.gguf"
    for length in [0, 1, 3, 4, 8, 23, 24, *range(30, header, 61), header, len(whole) - 1]:
        broken.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpoint):
            ours.GGUFFile(broken)


def test_a_file_with_any_header_byte_changed_is_read_or_refused_but_never_crashes(path: Path, tmp_path: Path) -> None:
    whole = bytearray(path.read_bytes())
    header = min(t.offset for t in ours.GGUFFile(path).tensors.values())
    broken = tmp_path / "changed.gguf"
    shutil.copy(path, broken)
    for at in range(0, header, 37):
        changed = whole.copy()
        changed[at] ^= 0xFF
        broken.write_bytes(changed)
        try:
            file = ours.GGUFFile(broken)
            config = ours.model_config(file)
            Decoder(config, device="meta")
        except ModelError:
            pass


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(CorruptCheckpoint, match="not a GGUF file"):
        ours.GGUFFile(tmp_path / "x.gguf")
    with pytest.raises(ModelNotFound):
        ours.GGUFFile(tmp_path / "absent.gguf")


def test_a_version_from_the_future_is_unsupported(path: Path, tmp_path: Path) -> None:
    (tmp_path / "new.gguf").write_bytes(b"GGUF\x09\x00\x00\x00" + path.read_bytes()[8:])
    with pytest.raises(UnsupportedModel, match="version 9"):
        ours.GGUFFile(tmp_path / "new.gguf")


def test_an_architecture_we_do_not_compute_is_refused_by_name(tmp_path: Path, source: Decoder) -> None:
    file = ours.GGUFFile(write(tmp_path / "x.gguf", source, "mamba"))
    with pytest.raises(UnsupportedModel, match="'mamba'"):
        ours.model_config(file)


def test_a_missing_hyper_parameter_is_named(tmp_path: Path, source: Decoder) -> None:
    file = ours.GGUFFile(write(tmp_path / "x.gguf", source, leave_out="block_count"))
    with pytest.raises(CorruptCheckpoint, match=r"llama\.block_count"):
        ours.model_config(file)


def test_rope_scaling_we_do_not_compute_is_refused(tmp_path: Path, source: Decoder) -> None:
    file = ours.GGUFFile(write(tmp_path / "x.gguf", source, llama__rope__scaling__type="longrope"))
    with pytest.raises(UnsupportedModel, match="'longrope' is not one of none, linear, yarn"):
        ours.model_config(file)


def test_yarn_is_read_as_from_config_json(tmp_path: Path, source: Decoder) -> None:
    at = "llama__rope__scaling__"
    settings: dict[str, Any] = {at + "type": "yarn", at + "factor": 4.0, at + "original_context_length": 64}
    config = ours.model_config(ours.GGUFFile(write(tmp_path / "x.gguf", source, **settings)))
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    theirs = rope.from_hugging_face({"max_position_embeddings": 256, "rope_scaling": scaling})
    assert config.rope_scaling == theirs.scaling


def test_yarn_without_its_original_length_is_corrupt(tmp_path: Path, source: Decoder) -> None:
    file = ours.GGUFFile(write(tmp_path / "x.gguf", source, llama__rope__scaling__type="yarn"))
    with pytest.raises(CorruptCheckpoint, match=r"llama\.rope\.scaling\.original_context_length"):
        ours.model_config(file)


def test_a_mixture_of_experts_in_gguf_is_refused_and_told_where_it_is_read(tmp_path: Path, source: Decoder) -> None:
    file = ours.GGUFFile(write(tmp_path / "x.gguf", source, llama__expert_count=8))
    with pytest.raises(UnsupportedModel, match="from safetensors"):
        ours.model_config(file)


def test_a_sliding_window_is_read(tmp_path: Path, source: Decoder) -> None:
    path = write(tmp_path / "x.gguf", source, llama__attention__sliding_window=32)
    assert Checkpoint(path).config.windows == (32, 32)
    assert Checkpoint(path, 32).config.windows == ()
