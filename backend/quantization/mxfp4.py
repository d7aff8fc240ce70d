"""MXFP4 checkpoints (OCP Microscaling Formats 1.0, 5.1), as gpt-oss is released: experts of four bits.

``x_blocks`` uint8 [experts, outputs, width / 32, 16], a byte of which holds two neighbouring columns, the lower half
first, as e2m1; ``x_scales`` uint8 [experts, outputs, width / 32], powers of two as e8m0, 2 ** (byte - 127). The engine
multiplies them out on their way in: no kernel multiplies by them yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.quantization.format import Quantization, StoredWeights, TensorHead
from backend.quantization.int4 import require_shape, require_shapes
from backend.quantization.none import NONE

if TYPE_CHECKING:
    from torch import Tensor

GROUP = 32
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of e2m1; the highest of four bits is the sign
NAN = 255  # of e8m0


class Mxfp4(Quantization):
    name = "mxfp4"
    summary = "4 bits a weight in groups of 32, of gpt-oss; experts are multiplied out on their way in"
    methods = ("mxfp4",)
    from_any = False
    gpu_only = False
    speeds = NONE.speeds

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        if declared.get("dequantize"):
            raise UnsupportedModel("mxfp4 weights that were multiplied out are not read; use the release")
        return StoredWeights(self, kept=tuple(declared.get("modules_to_not_convert") or ()))

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        name, _, part = head.name.rpartition("_")
        return (name, part) if part in ("blocks", "scales") and "experts" in name else None

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        """Of all experts' rows, one below another."""
        import torch

        require_shapes(weight, parts, ("blocks", "scales"))
        blocks, scales = parts["blocks"], parts["scales"]
        if len(blocks.shape) != 4 or blocks.shape[3] != GROUP // 2:
            raise CorruptCheckpoint(f"tensor {blocks.name} is {list(blocks.shape)}; expected bytes of {GROUP} columns")
        require_shape(scales, tuple(blocks.shape[:3]))
        for part in (blocks, scales):
            if part.dtype != torch.uint8:
                raise CorruptCheckpoint(f"tensor {part.name} is {part.dtype}, expected bytes")
        experts, outputs, groups, _ = blocks.shape
        return experts * outputs, groups * GROUP

    def dense(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        import torch

        blocks, scales = parts["blocks"].flatten(0, 1), parts["scales"].flatten(0, 1)
        if bool((scales == NAN).any()):
            raise CorruptCheckpoint("an mxfp4 scale is not a number")
        values = torch.tensor([*VALUES, *(-value for value in VALUES)], device=blocks.device)
        numbers = torch.stack((blocks & 0xF, blocks >> 4), -1).flatten(2)
        found = values[numbers.int()] * torch.exp2(scales.float() - 127)[:, :, None]
        return found.flatten(1)


MXFP4 = Mxfp4()
