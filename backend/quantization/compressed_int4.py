"""Weights of four bits as compressed-tensors stores them (``pack-quantized``, W4A16), in groups of 128.

``x.weight_packed`` int32 [outputs, width / 8], a word of which holds eight neighbouring columns, lowest bits first,
each number plus 8; ``x.weight_scale`` [outputs, groups]; ``x.weight_shape``; with zero points ``x.weight_zero_point``
int32 [outputs / 8, groups], a word of which holds those of eight neighbouring outputs, each plus 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.quantization.compressed_tensors import METHOD, scheme_of, stored_as
from backend.quantization.format import StoredWeights, TensorHead
from backend.quantization.int4 import GROUP, PLACES, Int4, require_shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from backend.parallel.shard import Share

PACKED, SCALE, ZEROS, SHAPE, ORDER = (
    "weight_packed",
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
)
MIDDLE = 8  # the zero of numbers without zero points


class CompressedInt4(Int4):
    name = "w4a16"
    summary = "4 bits a weight in groups of 128, of a compressed-tensors checkpoint (pack-quantized)"
    methods = (METHOD,)

    def reads(self, declared: Mapping[str, Any]) -> bool:
        scheme = scheme_of(declared)
        in_groups = (scheme.type, scheme.bits, scheme.strategy, scheme.group) == ("int", 4, "group", GROUP)
        return in_groups and scheme.activation is None

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        return stored_as(self, declared)

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        module, _, part = head.name.rpartition(".")
        return (f"{module}.weight", part) if part in (PACKED, SCALE, ZEROS, SHAPE, ORDER) else None

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        for name in (PACKED, SCALE, SHAPE):
            if name not in parts:
                raise CorruptCheckpoint(f"tensor {weight.removesuffix('weight')}{name} is missing")
        if ORDER in parts:
            raise UnsupportedModel(f"tensor {parts[ORDER].name} orders columns by activation, which is not read")
        outputs, packed = parts[PACKED].shape if len(parts[PACKED].shape) == 2 else (0, 0)
        width = packed * PLACES
        if not outputs or not width or width % GROUP:
            raise CorruptCheckpoint(
                f"tensor {parts[PACKED].name} is {list(parts[PACKED].shape)}; expected a multiple of "
                f"{GROUP // PLACES} columns"
            )
        require_shape(parts[SCALE], (outputs, width // GROUP))
        require_shape(parts[SHAPE], (2,))
        if ZEROS in parts:
            require_shape(parts[ZEROS], (-(-outputs // PLACES), width // GROUP))
        return outputs, width

    def cut(self, share: Share, parts: Mapping[str, TensorHead]) -> dict[str, Share | None]:
        found: dict[str, Share | None] = {
            PACKED: share.in_groups(parts[PACKED].shape, columns=PLACES),
            SCALE: share.in_groups(parts[SCALE].shape, columns=GROUP),
            SHAPE: None,  # of the whole matrix
        }
        return found | ({ZEROS: share.in_groups(parts[ZEROS].shape, PLACES, GROUP)} if ZEROS in parts else {})

    def numbers(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Raises CorruptCheckpoint if the shape that the file states is another."""
        words = parts[PACKED]
        shape = [len(words), words.shape[1] * PLACES]
        if SHAPE in parts and parts[SHAPE].tolist() != shape:
            raise CorruptCheckpoint(f"a {SHAPE} says {parts[SHAPE].tolist()} of a matrix that is {shape}")
        return _unpacked(words)

    def scales(self, parts: Mapping[str, Tensor]) -> Tensor:
        return parts[SCALE]

    def zeros(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        import torch

        if ZEROS not in parts:
            return torch.full(parts[SCALE].shape, MIDDLE, dtype=torch.int32, device=parts[SCALE].device)
        return _unpacked(parts[ZEROS].t()).t()[: len(parts[SCALE])]

    def packed(self, parts: Mapping[str, Tensor], stored: StoredWeights, dtype: torch.dtype) -> dict[str, Tensor]:
        """Raises UnsupportedModel for a scale that float16, which the kernels read, does not hold: those of files are
        often in bfloat16, whose range is wider."""
        scale = parts[SCALE].float()
        half = scale.half().float()
        if not (half.isfinite().all() and ((half != 0) | (scale == 0)).all()):
            raise UnsupportedModel(
                f"scales of weights from {scale.abs().min():.1e} to {scale.abs().max():.1e} leave float16's range; "
                "serve it with --quantization none"
            )
        return super().packed(parts, stored, dtype)


def _unpacked(words: Tensor) -> Tensor:
    """[rows, 8 * columns] of int32 [rows, columns]."""
    import torch

    return torch.stack([(words >> (4 * place)) & 0xF for place in range(PLACES)], -1).flatten(1)


COMPRESSED_INT4 = CompressedInt4()
