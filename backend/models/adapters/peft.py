"""Reader of adapters saved by PEFT: adapter_config.json and adapter_model.safetensors (huggingface/peft, LoraConfig).

Each file is read once and completely, so the digest is that of the loaded bytes. An unsupported feature is refused, and
the error names it.
"""

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.errors import AdapterRefused, ModelError
from backend.models.adapters.places import shares_of
from backend.models.checkpoints.direct import DTYPES
from backend.models.checkpoints.safetensors import read_json, regular
from backend.models.checkpoints.tensor_table import TableEntry, entries_of
from backend.models.config import ModelConfig
from backend.models.tensors import require_finite
from backend.parallel.shard import Share

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ROOT = "base_model.model."
TEXT_PARTS = (("model.language_model.", "model."), ("language_model.", ""))
TENSOR = re.compile(r"model\.layers\.(\d+)\.(.+)\.lora_([AB])(?:\.default)?\.weight")
HEADER = 4 << 20  # bytes by which a file may exceed the size of its tensor data
FLOATS = ("F32", "F16", "BF16")
READ = frozenset({"peft_type", "task_type", "r", "lora_alpha", "use_rslora", "init_lora_weights"})
NEUTRAL = frozenset(
    {
        "auto_mapping",
        "peft_version",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "lora_dropout",
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "megatron_core",
        "qalora_group_size",
    }
)
"""Keys without effect on the product: modules and layers follow from the tensors, and dropout only affects training."""
PLAIN_INITIALS = (True, False, "gaussian", "eva", "orthogonal", None)
"""Values of `init_lora_weights` that leave the base model unchanged."""
LEFT_OUT = (
    ("lora_magnitude_vector", "DoRA"),
    ("lora_embedding_", "embeddings"),
    ("modules_to_save", "modules_to_save"),
    ("embed_tokens", "embeddings"),
    ("lm_head", "the head"),
)
"""Substrings in the names of unsupported tensors, and the feature that each belongs to."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """scaling: factor of the product of both matrices."""

    rank: int
    scaling: float


@dataclass(frozen=True)
class Adapter:
    """An adapter that was read: this rank's share.

    Attributes:
        digest: SHA-256 in hexadecimal, see `digest_of`. size: bytes of both files.
        parts: by (layer of this rank, module): (a [rank, width], b [outputs, rank], scaled), float32.
    """

    digest: str
    size: int
    rank: int
    parts: dict[tuple[int, str], tuple[Tensor, Tensor]]


def read_adapter(folder: Path, model: ModelConfig, most_rank: int, whole_layers: int) -> Adapter:
    """Read and check an adapter.

    Args:
        model: this rank's share. most_rank: largest rank accepted. whole_layers: layers of the whole model.
    Raises:
        AdapterRefused: a file is missing or too large, a feature is unsupported, a shape is wrong or a number is not
            finite.
    """
    try:
        return _read(folder, model, most_rank, whole_layers)
    except ModelError as error:
        raise AdapterRefused(str(error)) from None


def _read(folder: Path, model: ModelConfig, most_rank: int, whole_layers: int) -> Adapter:
    """As `read_adapter`; also raises ModelError, from the checkpoint readers."""
    declared = _declared(folder)
    config = parsed(declared[0])
    if config.rank > most_rank:
        raise AdapterRefused(
            f"its rank is {config.rank}, and at most {most_rank} fit; start the backend with "
            f"--max-adapter-rank {config.rank}"
        )
    data = _content(folder, model, config.rank, whole_layers)
    entries = list(entries_of(io.BytesIO(data), folder / WEIGHTS, len(data)))
    found = _by_module(entries, model, whole_layers)
    parts = {place: _pair(data, *place, pair, model, config) for place, pair in found.items()}
    own = {(layer - model.first_layer, module): pair for (layer, module), pair in parts.items() if pair is not None}
    return Adapter(digest_of(declared[1], data), len(declared[1]) + len(data), config.rank, own)


def digest_of(config: bytes, weights: bytes) -> str:
    """Return the SHA-256 of two lines, each with the SHA-256 and the name of a file: the output of
    `sha256sum adapter_config.json adapter_model.safetensors | sha256sum`."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in ((CONFIG, config), (WEIGHTS, weights))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def parsed(config: Mapping[str, Any]) -> AdapterConfig:
    """Parse the content of adapter_config.json. Raises AdapterRefused, which names the unsupported or bad value."""
    _refuse_kinds(config)
    for name, value in config.items():
        if name not in READ | NEUTRAL and name != "bias" and value not in (None, False, {}, [], ""):
            raise AdapterRefused(f"{name} is not computed; train without it, or merge the adapter into its model")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise AdapterRefused(f"r is {rank!r}, not a rank; repair {CONFIG}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise AdapterRefused(f"lora_alpha is {alpha!r}, not a number; repair {CONFIG}")
    return AdapterConfig(rank, alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank)


def _refuse_kinds(config: Mapping[str, Any]) -> None:
    """Raises AdapterRefused for an adapter of another kind than plain LoRA of a language model."""
    if config.get("peft_type") != "LORA":
        raise AdapterRefused(f"peft_type {config.get('peft_type')!r} is not computed; use an adapter of type LORA")
    if config.get("task_type") not in (None, "CAUSAL_LM"):
        raise AdapterRefused(f"task_type {config['task_type']!r} is not computed; use an adapter for CAUSAL_LM")
    if config.get("use_dora"):
        raise AdapterRefused("DoRA (use_dora) is not computed; merge the adapter into its model, or train without")
    if config.get("bias") not in (None, "none"):
        raise AdapterRefused(f"bias {config['bias']!r} is not computed; train with bias none")
    begun = config.get("init_lora_weights")
    if not any(begun is plain or (isinstance(begun, str) and begun == plain) for plain in PLAIN_INITIALS):
        raise AdapterRefused(
            f"init_lora_weights {begun!r} changes the base model; save it converted "
            "(path_initial_model_for_weight_conversion)"
        )


def _declared(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Return adapter_config.json parsed, and its bytes."""
    if not folder.is_dir():
        raise AdapterRefused(f"there is no folder {folder.name!r} among the adapters; name one that is there")
    content = regular(folder / CONFIG)
    read_json(content)  # bounds its size
    data = content.read_bytes()
    declared = json.loads(data)
    return declared if isinstance(declared, dict) else {}, data


def _content(folder: Path, model: ModelConfig, rank: int, layers: int) -> bytes:
    path = folder / WEIGHTS
    if not path.exists():
        pickled = (folder / "adapter_model.bin").exists()
        if pickled:
            raise AdapterRefused(f"{folder.name} has a pickle, which is not read; save it as safetensors")
        raise AdapterRefused(f"{folder.name} has no {WEIGHTS}; copy the whole folder")
    size = regular(path).stat().st_size
    numbers = sum(rank * (3 * width + outputs) for outputs, width in model.matrices.values())
    most = layers * model.shard.size * numbers * 4 + HEADER
    if size > most:
        raise AdapterRefused(f"{WEIGHTS} has {size} bytes, more than the {most} of rank {rank}; check the file")
    return path.read_bytes()


Pair = dict[str, TableEntry]


def _by_module(entries: list[TableEntry], model: ModelConfig, layers: int) -> dict[tuple[int, str], Pair]:
    """Return the pair of tensors of each (layer, module) of the whole model."""
    found: dict[tuple[int, str], Pair] = {}
    for entry in entries:
        layer, module, side = _place(entry.name)
        if layer >= layers or module not in model.modules or model.modules[module][0] not in model.matrices:
            raise AdapterRefused(f"tensor {entry.name} is of a module that is not adapted; use {_targets(model)}")
        if model.experts is not None and module.startswith("mlp.") and layer not in model.experts.dense_layers:
            raise AdapterRefused(f"tensor {entry.name}: experts are not adapted; adapt attention only")
        if entry.kind not in FLOATS:
            raise AdapterRefused(f"tensor {entry.name} is {entry.kind}; save it as one of {', '.join(FLOATS)}")
        pair = found.setdefault((layer, module), {})
        if side in pair:
            raise AdapterRefused(f"tensor {entry.name} is there twice; save the adapter again")
        pair[side] = entry
    if not found:
        raise AdapterRefused(f"{WEIGHTS} holds no tensor; train the adapter, and save it with PEFT")
    return found


def _place(tensor: str) -> tuple[int, str, str]:
    """Return the layer, module and side (A or B) of a tensor. Raises AdapterRefused if its name is not an adapter's."""
    name = tensor.removeprefix(ROOT)
    for part, instead in TEXT_PARTS:
        name = instead + name.removeprefix(part) if name.startswith(part) else name
    left_out = next((what for mark, what in LEFT_OUT if mark in name), None)
    if left_out is not None:
        raise AdapterRefused(f"tensor {tensor}: {left_out} are not computed; train without")
    matched = TENSOR.fullmatch(name)
    if matched is None:
        raise AdapterRefused(f"tensor {tensor} is not one of a LoRA adapter; save the adapter with PEFT")
    return int(matched[1]), matched[2], matched[3]


def _targets(model: ModelConfig) -> str:
    return ", ".join(name.rpartition(".")[2] for name in model.modules)


def _pair(
    data: bytes, layer: int, module: str, pair: Pair, model: ModelConfig, config: AdapterConfig
) -> tuple[Tensor, Tensor] | None:
    """Return this rank's share of both matrices, or None for a layer of another pipeline stage.

    All numbers are checked, those of other ranks too.
    """
    if set(pair) != {"A", "B"}:
        raise AdapterRefused(f"layer {layer} has one of both matrices of {module}; save the adapter again")
    index = layer - model.first_layer
    own = 0 <= index < model.num_layers
    share = _share(model, index if own else 0, module)
    outputs, width = share.whole if isinstance(share, Share) else share
    wanted = {"A": (config.rank, width), "B": (outputs, config.rank)}
    for side, entry in pair.items():
        if entry.shape != wanted[side]:
            raise AdapterRefused(
                f"tensor {entry.name} is {list(entry.shape)}, not {list(wanted[side])}; use an adapter of this model"
            )
    a, b = (_tensor(data, pair[side]) for side in "AB")
    require_finite([(pair["A"].name, a), (pair["B"].name, b)])
    if not own:
        return None
    if isinstance(share, Share):
        if share.columns is not None:
            a = a[:, slice(*share.columns)]
        b = torch.cat([b[begin:end] for begin, end in share.rows])
    return a, b * config.scaling


def _share(model: ModelConfig, layer: int, module: str) -> Share | tuple[int, int]:
    """Return this rank's share of the module's weight, or its (outputs, width) where the rank has all of it."""
    matrix, begin, end = model.modules[module]
    found = shares_of(model, layer).get(module)
    return (end - begin, model.matrices[matrix][1]) if found is None else found


def _tensor(data: bytes, entry: TableEntry) -> Tensor:
    view = memoryview(data)[entry.offset : entry.offset + entry.size]
    return torch.frombuffer(bytearray(view), dtype=DTYPES[entry.kind]).view(entry.shape).float()
