"""FP8 checkpoints: weights in e4m3 and, beside them, the scales they are to be multiplied by.

Two layouts are common. compressed-tensors: ``x.weight`` with ``x.weight_scale`` of one number, one an output channel
[out, 1], or, by its strategy ``block``, one for each block of 128 × 128 (the last ones may be cut). Qwen3 and
DeepSeek-V3: ``x.weight_scale_inv``, always by block; despite its name it multiplies. A checkpoint may also bring one
scale for keys and one for values of each layer's FP8 cache.

Weights become the model's dtype on the way in. An engine that computes in FP8 quantises them by channel again: from
scales by channel or tensor that gives back the same e4m3 numbers; from blocks it rounds once more (docs/engine.md has
what that costs).
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.direct import Stored, fill

BLOCK = 128
FP8 = torch.float8_e4m3fn
WEIGHT_SCALE = re.compile(r"(.+)\.weight_scale(_inv)?")
CACHE_SCALE = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:attn\.|[kv]_proj\.)?([kv])_scale")
UNUSED = re.compile(r".+\.(input_scale|q_scale|prob_output_scale)")  # static scales of what we quantise dynamically


@dataclass(frozen=True)
class Scales:
    """weights: by the name of the weight; cache: by layer and "k" or "v"."""

    weights: dict[str, Stored]
    cache: dict[tuple[int, str], Stored]

    def applied(self, stored: Stored, values: Tensor) -> Tensor:
        """`values`, times their scale if they are FP8. [out, in]"""
        if stored.dtype != FP8:
            return values
        scale = _read(self.weights[stored.name], values.device)
        rows, columns = values.shape
        if scale.shape == _blocks(rows, columns):  # a matrix of one block alone: the same either way
            scale = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
        elif scale.numel() == rows:
            scale = scale.view(rows, 1)
        return values.float() * scale

    def require_all_used(self, tensors: list[Stored]) -> None:
        """Raises CorruptCheckpoint if an FP8 tensor lacks its scale, a scale its tensor, or their shapes disagree."""
        quantised = {t.name: t for t in tensors if t.dtype == FP8}
        for name in quantised.keys() - self.weights.keys():
            raise CorruptCheckpoint(f"tensor {name} is FP8 and has no scale beside it")
        for name in self.weights.keys() - quantised.keys():
            raise CorruptCheckpoint(f"tensor {self.weights[name].name} scales nothing")
        for name, scale in self.weights.items():
            rows, columns = quantised[name].shape
            blocks = _blocks(rows, columns)
            allowed = [blocks] if scale.name.endswith("_inv") else [blocks, (), (1,), (rows,), (rows, 1)]
            if scale.shape not in allowed:
                raise CorruptCheckpoint(f"tensor {scale.name} is {list(scale.shape)}, expected {list(allowed[-1])}")

    def of_cache(self, layers: int) -> Tensor:
        """[layers, 2] float32, on the CPU; 1 where none is given."""
        scales = torch.ones(layers, 2)
        for (layer, part), stored in self.cache.items():
            value = _read(stored, torch.device("cpu"))
            if layer >= layers or value.numel() != 1 or not 0 < float(value) < float("inf"):
                raise CorruptCheckpoint(f"tensor {stored.name} is not one positive number of a layer there is")
            scales[layer, "kv".index(part)] = float(value)
        return scales


def _blocks(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // BLOCK), -(-columns // BLOCK)


def split(stored: list[Stored]) -> tuple[list[Stored], Scales]:
    """The weights, and the scales among them."""
    tensors: list[Stored] = []
    scales = Scales({}, {})
    for tensor in stored:
        of_weight, of_cache = WEIGHT_SCALE.fullmatch(tensor.name), CACHE_SCALE.fullmatch(tensor.name)
        if of_weight:
            scales.weights[of_weight[1] + ".weight"] = tensor
        elif of_cache:
            scales.cache[int(of_cache[1]), of_cache[2]] = tensor
        elif not UNUSED.fullmatch(tensor.name):
            tensors.append(tensor)
    return tensors, scales


def _read(stored: Stored, device: torch.device) -> Tensor:
    buffer = torch.empty(stored.shape, dtype=stored.dtype)
    fill([(stored, buffer)])
    scale = buffer.float().to(device)
    if not scale.isfinite().all():
        raise CorruptCheckpoint(f"tensor {stored.name} holds NaN or infinity")
    return scale
