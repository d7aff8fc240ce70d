import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.errors import ConfigError, CorruptCheckpoint, ModelNotFound, UnsupportedModel
from backend.models.checkpoints import safetensors
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.decoders.decoder import Decoder
from backend.models.loader import load_model
from tests.backend.tiny import tiny_model, write_folder


@pytest.fixture
def copy(tmp_path: Path, model: Decoder) -> Path:
    return write_folder(tmp_path / "model", model)


def shard(folder: Path) -> dict[str, Any]:
    """Cut the one file into two; returns the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    index: dict[str, Any] = {"weight_map": {}}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file)
        index["weight_map"].update(dict.fromkeys(part, file))
    (folder / safetensors.INDEX).write_text(json.dumps(index))
    return index


def assert_same(a: Decoder, b: Decoder) -> None:
    for name, parameter in a.named_parameters():
        assert torch.equal(parameter, b.get_parameter(name)), name


def test_one_file_is_read(copy: Path, model: Decoder) -> None:
    loaded = load_model(Checkpoint(copy), "float32")
    assert loaded.config == model.config
    assert_same(model, loaded)


def test_shards_are_read(copy: Path, model: Decoder) -> None:
    shard(copy)
    assert_same(model, load_model(Checkpoint(copy), "float32"))


def test_an_untied_head_is_read(tmp_path: Path) -> None:
    source = tiny_model(4, tie_word_embeddings=False)
    assert_same(source, load_model(Checkpoint(write_folder(tmp_path / "m", source)), "float32"))


def test_bfloat16_files_become_the_dtype_asked_for(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    save_file({n: t.bfloat16() for n, t in tensors.items()}, copy / "model.safetensors")
    loaded = load_model(Checkpoint(copy), "float32")
    assert loaded.norm.dtype == torch.float32
    assert torch.equal(loaded.norm, tensors["model.norm.weight"].bfloat16().float())
    assert load_model(Checkpoint(copy), "bfloat16").norm.dtype == torch.bfloat16


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard(copy)
    (copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match="model-00002-of-00002"):
        load_model(Checkpoint(copy), "float32")


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors"])
def test_an_index_cannot_name_files_elsewhere(copy: Path, name: str) -> None:
    index = shard(copy)
    index["weight_map"]["model.norm.weight"] = name
    (copy / safetensors.INDEX).write_text(json.dumps(index))
    with pytest.raises(CorruptCheckpoint, match="outside its folder"):
        safetensors.shards(copy)


def test_a_truncated_file_is_corrupt(copy: Path) -> None:
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors"):
        load_model(Checkpoint(copy), "float32")


def test_a_folder_without_weights_or_config_says_what_is_missing(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="index"):
        load_model(Checkpoint(copy), "float32")
    (copy / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        _ = Checkpoint(copy).config


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_broken_config_is_corrupt(copy: Path, text: str) -> None:
    (copy / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CorruptCheckpoint, match=r"config\.json"):
        _ = Checkpoint(copy).config


def test_an_unknown_dtype_names_the_known_ones(copy: Path) -> None:
    with pytest.raises(ConfigError, match="float32, bfloat16, float16"):
        load_model(Checkpoint(copy), "int4")


def test_a_path_of_neither_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match=r"model\.bin"):
        Checkpoint(tmp_path / "model.bin")
    with pytest.raises(ModelNotFound):
        Checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["weights.gguf", "folder/config.json", "folder/model.safetensors.index.json"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(CorruptCheckpoint, match=f"{path.name} is not a regular file"):
        Checkpoint(path) if path.suffix == ".gguf" else safetensors.read_json(path)


def test_a_description_of_more_than_it_can_need_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(safetensors.MAX_JSON + 1)
    with pytest.raises(CorruptCheckpoint, match="more than the"):
        Checkpoint(tmp_path).config  # noqa: B018


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def socket_at(path: Path) -> None:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path.relative_to(Path.cwd())))  # the whole path can be longer than an address may be


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def folder_at(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("replace", [fifo, socket_at, device, folder_at])
def test_files_that_are_not_regular_are_refused_before_a_start(
    copy: Path, monkeypatch: pytest.MonkeyPatch, name: str, replace: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(copy)
    if name == safetensors.INDEX:
        (copy / safetensors.SINGLE).unlink()
    replace(copy / name)
    with pytest.raises(CorruptCheckpoint, match=f"{name} is not a regular file"):
        Checkpoint(copy).require_files()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize(("change", "error"), [
    (lambda path: path.write_bytes(b""), CorruptCheckpoint),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), CorruptCheckpoint),
    (lambda path: path.write_bytes(path.read_bytes()[:5]), CorruptCheckpoint),
    (lambda path: path.unlink(), ModelNotFound),
])  # fmt: skip
def test_files_that_are_empty_cut_or_missing_are_refused_before_a_start(
    copy: Path, name: str, change: Callable[[Path], None], error: type[Exception]
) -> None:
    Checkpoint(copy).require_files()
    change(copy / name)
    with pytest.raises(error, match=name):
        Checkpoint(copy).require_files()


@pytest.mark.parametrize("places", [None, [], {}, "x", {"a": 1}, {"a": None}])
def test_an_index_without_places_is_refused(copy: Path, places: Any) -> None:
    (copy / safetensors.SINGLE).unlink()
    (copy / safetensors.INDEX).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CorruptCheckpoint, match="has no weight_map"):
        Checkpoint(copy).require_files()


def test_a_shard_that_was_not_copied_is_named(copy: Path) -> None:
    shard(copy)
    Checkpoint(copy).require_files()
    (copy / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match=r"model-00002-of-00002\.safetensors, which is missing"):
        Checkpoint(copy).require_files()
