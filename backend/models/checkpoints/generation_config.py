"""Sampling defaults that a checkpoint recommends in its ``generation_config.json``, as vLLM applies them."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.safetensors import read_json
from backend.sampling_parameters import PARAMETERS, SamplingParameter

FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request that does not set a field gets; ranges are the wire contract's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def sampling_defaults(folder: Path) -> SamplingDefaults:
    """Sampling defaults of a Hugging Face folder; neutral where it names none. Raises CorruptCheckpoint for a value out
    of range."""
    if not (folder / FILE).is_file():
        return SamplingDefaults()
    config = read_json(folder / FILE)
    return SamplingDefaults(
        **{p.name: _number(p, config[p.name]) for p in PARAMETERS if p.recommended and config.get(p.name) is not None}
    )


def _number(parameter: SamplingParameter, value: Any) -> Any:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not isfinite(value) or not parameter.allows(value):
        raise CorruptCheckpoint(
            f"{FILE}: {parameter.name} is {value!r} and has to be a number {parameter.range}; "
            "correct it, or start with --generation-config none"
        )
    found = parameter.value(value, None)
    return int(found) if parameter.whole else float(found)
