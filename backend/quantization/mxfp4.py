"""MXFP4 checkpoints (OCP Microscaling Formats 1.0, 5.1), as gpt-oss is released: experts of four bits.

``x_blocks`` uint8 [experts, outputs, width / 32, 16], a byte of which holds two neighbouring columns, the first in its
lower half, as e2m1; ``x_scales`` uint8 [experts, outputs, width / 32], powers of two as e8m0, 2 ** (byte - 127). The
numbers and scales are kept, in the order in which they are unpacked on their way to the tensor cores
(`kernels.moe.mxfp4_reference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.quantization.format import Packed, Quantization, StoredWeights, TensorHead
from backend.quantization.int4 import require_shape, require_shapes
from backend.quantization.none import NONE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GROUP = 32
NAN = 255  # of e8m0
MODES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True)
class ExpertWeights(StoredWeights):
    """Checkpoints in which only experts are quantised, whatever modules the file lists beside."""

    def keeps(self, module: str) -> bool:
        return "experts" not in module


class Mxfp4(Quantization):
    name = "mxfp4"
    summary = "4 bits a weight in groups of 32, of the experts of a gpt-oss checkpoint"
    methods = ("mxfp4",)
    dtypes = MODES
    width_multiple = GROUP
    from_any = False
    as_stored = True
    groups_stored = True
    batch_invariant = True
    speeds = NONE.speeds

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        if declared.get("dequantize"):
            raise UnsupportedModel("mxfp4 weights that were multiplied out are not read; use the release")
        return ExpertWeights(self)

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        name, _, part = head.name.rpartition("_")
        return (name, part) if part in ("blocks", "scales") and "experts" in name else None

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        """Shape of all experts' rows, one below another."""
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
        from backend.kernels.moe.mxfp4_reference import dense

        found = self.packed(parts, stored, parts["scales"].dtype)
        return dense(found["words"], found["groups"].t())[:, : parts["scales"].shape[2] * GROUP]

    def packed(self, parts: Mapping[str, Tensor], stored: StoredWeights, dtype: torch.dtype) -> dict[str, Tensor]:
        """Raises CorruptCheckpoint for a scale that is not a number, or beyond what a weight can be."""
        from backend.kernels.moe.mxfp4_reference import MOST_SCALE, pack

        largest = int(parts["scales"].max())
        if largest == NAN:
            raise CorruptCheckpoint("an mxfp4 scale is not a number")
        if largest > MOST_SCALE:
            raise CorruptCheckpoint(f"an mxfp4 scale is 2 ** {largest - 127}; no weight is that large")
        words, groups = pack(parts["blocks"].flatten(0, 1).flatten(1), parts["scales"].flatten(0, 1))
        return {"words": words, "groups": groups}

    def empty(
        self, outputs: int, width: int, dtype: torch.dtype, device: torch.device, cuts: tuple[int, ...] = ()
    ) -> Packed:
        import torch

        from backend.kernels.moe.mxfp4_reference import CHUNK, padded

        def made(columns: int) -> Tensor:
            return torch.empty(outputs, columns, dtype=torch.int32, device=device)

        return Packed(self, {"words": made(padded(width) // 8), "groups": made(padded(width) // CHUNK)})

    def fill_randomly(self, packed: Packed, spread: float) -> None:
        """Numbers of any size, scaled so that most are of that spread."""
        packed.parts["words"].random_(-(2**31), 2**31 - 1)
        packed.parts["groups"].fill_(120 * 0x01010101)

    def expert_bytes(self, outputs: int, width: int, element_size: int) -> int:
        columns = -(-width // 128) * 128  # as `kernels.moe.mxfp4_reference.padded` has it, which imports torch
        return outputs * (columns // 2 + columns // GROUP)

    def bytes_read(self, element_size: int, rows: int) -> float:
        return 0.5 + 1 / GROUP


MXFP4 = Mxfp4()
