"""AWQ checkpoints (Lin et al. 2024), as AutoAWQ's "gemm" layout and transformers write them.

``x.qweight`` int32 [width, outputs / 8], ``x.qzeros`` int32 [groups, outputs / 8] and ``x.scales`` float16 [groups,
outputs]. A word holds eight neighbouring outputs, output ``ORDER[i]`` of them in bits 4 i to 4 i + 3. A weight is
``(number - zero) * scale``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.quantization.format import StoredWeights, TensorHead
from backend.quantization.int4 import GROUP, PLACES, Int4, require_shape, require_shapes

if TYPE_CHECKING:
    from torch import Tensor

    from backend.parallel.shard import Share

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Awq(Int4):
    name = "awq"
    summary = "4 bits a weight in groups of 128, of an AWQ checkpoint"
    methods = ("awq",)

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        bits, group = (
            declared.get("bits", declared.get("w_bit")),
            declared.get("group_size", declared.get("q_group_size")),
        )
        if bits != 4 or group != GROUP:
            raise UnsupportedModel(
                f"awq weights of {bits} bits in groups of {group}; only 4 bits in groups of {GROUP} are read"
            )
        if declared.get("zero_point", True) is not True:
            raise UnsupportedModel("awq weights without zero points are not read; quantise with zero_point: true")
        version = str(declared.get("version", "gemm")).lower()
        if version != "gemm":
            raise UnsupportedModel(f"awq weights in the layout {version!r} are not read; export them as gemm")
        return StoredWeights(self, tuple(declared.get("modules_to_not_convert") or ()))

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        require_shapes(weight, parts, ("qweight", "qzeros", "scales"))
        if "g_idx" in parts:
            raise CorruptCheckpoint(f"tensor {parts['g_idx'].name} has no place in an AWQ checkpoint")
        width, packed = parts["qweight"].shape if len(parts["qweight"].shape) == 2 else (0, 0)
        outputs, groups = packed * PLACES, width // GROUP
        if width % GROUP or not packed or not width:
            raise CorruptCheckpoint(
                f"tensor {parts['qweight'].name} is {list(parts['qweight'].shape)}; expected a multiple of {GROUP} rows"
            )
        require_shape(parts["qzeros"], (groups, packed))
        require_shape(parts["scales"], (groups, outputs))
        return outputs, width

    def cut(self, share: Share, parts: Mapping[str, TensorHead]) -> dict[str, Share | None]:
        turned = share.transposed()
        return {
            "qweight": turned.in_groups(parts["qweight"].shape, columns=PLACES),
            "qzeros": turned.in_groups(parts["qzeros"].shape, GROUP, PLACES),
            "scales": turned.in_groups(parts["scales"].shape, GROUP),
        }

    def numbers(self, parts: Mapping[str, Tensor]) -> Tensor:
        return _unpacked(parts["qweight"]).t()

    def zeros(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        return _unpacked(parts["qzeros"]).t()


def _unpacked(words: Tensor) -> Tensor:
    """[rows, 8 * columns] of int32 [rows, columns]."""
    numbers = words.new_empty(*words.shape, PLACES)
    for place, output in enumerate(ORDER):
        numbers[..., output] = (words >> (4 * place)) & 0xF
    return numbers.flatten(1)


AWQ = Awq()
