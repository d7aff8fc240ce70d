"""Sampling defaults that a checkpoint recommends in its ``generation_config.json``, as vLLM applies them."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.safetensors import read_json

FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request that does not set a field gets; ranges are the wire contract's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (1e-9, 1),
    "top_k": (-1, 1 << 31),
    "min_p": (0, 1),
    "repetition_penalty": (1e-9, 100),
}


def sampling_defaults(folder: Path) -> SamplingDefaults:
    """Of a Hugging Face folder; neutral where it names none. Raises CorruptCheckpoint for a value out of range."""
    if not (folder / FILE).is_file():
        return SamplingDefaults()
    config = read_json(folder / FILE)
    found = {name: _number(name, config[name]) for name in RANGES if config.get(name) is not None}
    if "top_k" in found:
        found["top_k"] = max(0, int(found["top_k"]))
    return SamplingDefaults(**found)  # type: ignore[arg-type]


def _number(name: str, value: Any) -> float:
    low, high = RANGES[name]
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not isfinite(value) or not low <= value <= high:
        raise CorruptCheckpoint(
            f"{FILE}: {name} is {value!r} and has to be a number from {low:g} to {high:g}; "
            "correct it, or start with --generation-config none"
        )
    return float(value)
