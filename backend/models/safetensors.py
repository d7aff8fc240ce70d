"""A Hugging Face folder: config.json and safetensors, in one file or sharded by model.safetensors.index.json."""

import json
from pathlib import Path
from typing import Any

from backend.errors import CorruptCheckpoint, ModelNotFound
from backend.models.config import ModelConfig, from_hugging_face

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DERIVED = ("rotary_emb.inv_freq",)  # old exports carry the RoPE table; it follows from config.json


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelNotFound or CorruptCheckpoint."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelNotFound(f"no {path.name} in {path.parent}") from None
    except ValueError as broken:
        raise CorruptCheckpoint(f"{path.name}: {broken}") from None
    if not isinstance(content, dict):
        raise CorruptCheckpoint(f"{path.name} does not hold an object")
    return content


def model_config(folder: Path) -> ModelConfig:
    return from_hugging_face(read_json(folder / "config.json"))


def shards(folder: Path) -> list[Path]:
    """The weight files. An index may name files of its own folder only."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    names = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
    for name in names:
        if Path(name).name != name:
            raise CorruptCheckpoint(f"{INDEX} names a file outside its folder")
        if not (folder / name).is_file():
            raise CorruptCheckpoint(f"{INDEX} names {name}, which is missing")
    if not names:
        raise CorruptCheckpoint(f"{INDEX} has no weight_map")
    return [folder / name for name in names]
