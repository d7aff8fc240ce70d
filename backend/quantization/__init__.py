"""Weight formats: reading, storing and multiplying weights, a file for each format.

`backend.models`, `backend.engine_config`, `backend.planner`, `backend.engine` and `backend.cli` may import it. A new
format adds its module and its object to `FORMATS`.
"""

from collections.abc import Mapping
from typing import Any

from backend.errors import ConfigError, UnsupportedModel
from backend.quantization.awq import AWQ
from backend.quantization.compressed_int4 import COMPRESSED_INT4
from backend.quantization.compressed_tensors import described
from backend.quantization.format import Quantization, StoredWeights
from backend.quantization.fp8 import FP8
from backend.quantization.fp8_block import FP8_BLOCK
from backend.quantization.gptq import GPTQ
from backend.quantization.int8 import INT8
from backend.quantization.mxfp4 import MXFP4
from backend.quantization.none import NONE

FORMATS: tuple[Quantization, ...] = (NONE, FP8, FP8_BLOCK, INT8, COMPRESSED_INT4, AWQ, GPTQ, MXFP4)


def of_name(name: str) -> Quantization:
    """By its name on the command line. Raises ConfigError naming those there are."""
    for format in FORMATS:
        if format.name == name:
            return format
    raise ConfigError(
        f"quantization {name!r} is not one of {', '.join(format.name for format in FORMATS)}"
        "; set --quantization to one of them"
    )


def declared_by(quantization_config: Mapping[str, Any]) -> StoredWeights:
    """What config.json says of a checkpoint's weights. Raises UnsupportedModel naming the methods that are read."""
    method = quantization_config.get("quant_method")
    of_method = [format for format in FORMATS if method in format.methods]
    for format in of_method:
        if format.reads(quantization_config):
            return format.stored(quantization_config)
    known = sorted({method for format in FORMATS for method in format.methods})
    if of_method:
        forms = "; ".join(f"{format.name}: {format.summary}" for format in of_method)
        raise UnsupportedModel(f"{method} weights ({described(quantization_config)}) are not read, only {forms}")
    raise UnsupportedModel(f"quant_method {method!r} is not one of {', '.join(known)}")


def reader_of(stored: StoredWeights | None) -> StoredWeights:
    """What reads a checkpoint's weights. FP8 tensors say by their type what they are, declared or not."""
    return stored or StoredWeights(FP8)


def chosen(name: str | None, stored: StoredWeights | None) -> Quantization:
    """The format that the engine keeps the layers' weights in.

    name: what was asked for; None leaves it to the checkpoint. Raises ConfigError for a format that the checkpoint's
    weights cannot be brought into.
    """
    kept = stored.format if stored is not None and stored.format.as_stored else None
    if name is None:
        return kept or NONE
    format = of_name(name)
    if not format.from_any and format is not kept:
        raise ConfigError(
            f"quantization {name} needs a checkpoint that is stored so, and this one is not; "
            f"leave --quantization out, or choose fp8"
        )
    if kept is not None and format not in (kept, NONE) and format.name not in kept.becomes:
        raise ConfigError(
            f"the checkpoint's weights are {kept.name}; leave --quantization out to serve them as they are, "
            f"or choose none to dequantise them"
        )
    return format
