"""What a folder's tensors are: weights in a float type, parts of quantised matrices, scales of an FP8 cache.

How a quantised matrix is stored is its format's matter (`backend.quantization`). A checkpoint may also bring one scale
for keys and one for values of each layer's FP8 cache, whatever the format of its weights.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from backend.errors import CorruptCheckpoint
from backend.models.checkpoints.direct import Stored, fill, placed
from backend.models.tensors import require_finite
from backend.parallel.shard import Share
from backend.quantization.format import Quantization

CACHE_SCALE = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:attn\.|[kv]_proj\.)?([kv])_scale")
UNUSED = re.compile(r".+\.(input_scale|q_scale|prob_output_scale)")  # static scales of what is quantised dynamically


@dataclass(frozen=True)
class Contents:
    """plain: weights in a float type. matrices: parts of quantised matrices, by the name that the dense weight would
    have. cache_scales: by layer and "k" or "v"."""

    plain: list[Stored] = field(default_factory=list)
    matrices: dict[str, dict[str, Stored]] = field(default_factory=dict)
    cache_scales: dict[tuple[int, str], Stored] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: list[Stored], format: Quantization) -> "Contents":
        """format: of the quantised matrices."""
        found = cls()
        for tensor in stored:
            of_cache, of_matrix = CACHE_SCALE.fullmatch(tensor.name), format.part_of(tensor)
            if of_matrix:
                weight, part = of_matrix
                found.matrices.setdefault(weight, {})[part] = tensor
            elif of_cache:
                found.cache_scales[int(of_cache[1]), of_cache[2]] = tensor
            elif not UNUSED.fullmatch(tensor.name):
                found.plain.append(tensor)
        return found

    def scales_of_cache(self, layers: int) -> Tensor:
        """[layers, 2] float32, on the CPU; 1 where none is given. Raises CorruptCheckpoint."""
        scales = torch.ones(layers, 2)
        for (layer, part), stored in self.cache_scales.items():
            value = read({part: stored}, torch.device("cpu"))[part]
            if layer >= layers or value.numel() != 1 or not 0 < float(value) < float("inf"):
                raise CorruptCheckpoint(f"tensor {stored.name} is not one positive number of a layer there is")
            scales[layer, "kv".index(part)] = float(value)
        return scales


def read(
    parts: dict[str, Stored], device: torch.device, shares: Mapping[str, Share | None] | None = None
) -> dict[str, Tensor]:
    """The tensors, or, of those that `shares` names, a rank's part, or nothing for None. Raises CorruptCheckpoint
    naming one of floats that holds NaN or infinity."""
    shares = shares or {}
    buffers: dict[str, Tensor] = {}
    wanted: list[tuple[Stored, Tensor]] = []
    for name, part in parts.items():
        share = shares.get(name)
        if name in shares and share is None:
            continue
        shape = part.shape if share is None else share.shape
        buffers[name] = torch.empty(shape, dtype=part.dtype, device=device)
        wanted += placed(part, buffers[name], share)
    fill(wanted)
    numbers = [(parts[name].name, x.float()) for name, x in buffers.items() if x.is_floating_point()]
    require_finite([(name, x) for name, x in numbers if x.numel()])
    return buffers
