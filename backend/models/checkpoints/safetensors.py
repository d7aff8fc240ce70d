"""A Hugging Face folder: config.json and safetensors, in one file or sharded by model.safetensors.index.json."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel
from backend.models.config import ModelConfig, from_hugging_face

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_JSON = 64 << 20  # bytes; the index of a model of 1,000 shards has some 10 MB
MODELOPT_FILE = "hf_quant_config.json"
DERIVED = ("rotary_emb.inv_freq",)  # old exports carry the RoPE table; it follows from config.json


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelNotFound or CorruptCheckpoint."""
    content = _content(path)
    if not isinstance(content, dict):
        raise CorruptCheckpoint(f"{path.name} does not hold an object")
    return content


def read_list(path: Path) -> list[Any]:
    """A JSON array. Raises ModelNotFound or CorruptCheckpoint."""
    content = _content(path)
    if not isinstance(content, list):
        raise CorruptCheckpoint(f"{path.name} does not hold a list")
    return content


def regular(path: Path) -> Path:
    """Raises CorruptCheckpoint for a pipe, socket, device or folder: to open a pipe would wait for a writer."""
    if path.exists() and not path.is_file():
        raise CorruptCheckpoint(f"{path.name} is not a regular file; put the file itself there")
    return path


def _content(path: Path) -> Any:
    regular(path)
    try:
        if (size := path.stat().st_size) > MAX_JSON:
            raise CorruptCheckpoint(f"{path.name} has {size} bytes, more than the {MAX_JSON} that are read")
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelNotFound(f"no {path.name} in {path.parent}; download the whole checkpoint") from None
    except ValueError as broken:
        raise CorruptCheckpoint(f"{path.name}: {broken}") from None


def model_config(folder: Path) -> ModelConfig:
    return from_hugging_face(_config(folder))


def _config(folder: Path) -> dict[str, Any]:
    """config.json, with what older ModelOpt exports say of quantisation in a file of its own."""
    config = read_json(folder / "config.json")
    if config.get("quantization_config") or not (folder / MODELOPT_FILE).is_file():
        return config
    return config | {"quantization_config": {**read_json(folder / MODELOPT_FILE), "quant_method": "modelopt"}}


def body_config(folder: Path) -> ModelConfig:
    """Configuration of a decoder whose head is not used: releases name its architecture without a head, or by the
    model that it was made from."""
    config = _config(folder)
    names = [str(name) for name in config.get("architectures") or []]
    if config.get("is_causal") is False:
        raise UnsupportedModel("attention to later tokens is not computed in a decoder")
    whole = [name.removesuffix("Model") + "ForCausalLM" if name.endswith("Model") else name for name in names]
    return replace(from_hugging_face({**config, "architectures": whole}), tie_word_embeddings=True)


def shards(folder: Path) -> list[Path]:
    """The weight files. An index may name files of its own folder only.

    Raises ModelNotFound or CorruptCheckpoint.
    """
    if (folder / SINGLE).exists():
        return [regular(folder / SINGLE)]
    if not (folder / INDEX).exists():
        raise ModelNotFound(f"no weights in {folder}: neither {SINGLE} nor {INDEX}; download the whole checkpoint")
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise CorruptCheckpoint(f"{INDEX} has no weight_map")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name:
            raise CorruptCheckpoint(f"{INDEX} names a file outside its folder")
        if not (folder / name).exists():
            raise CorruptCheckpoint(f"{INDEX} names {name}, which is missing")
        regular(folder / name)
    return [folder / name for name in names]
