"""INT8 weights and activations (W8A8), as compressed-tensors stores them (``int-quantized``).

``x.weight`` int8 [outputs, width] with ``x.weight_scale`` of one number or one an output channel. Activations are
quantised token by token without zero points, whether the file has them dynamic or brings a scale (``input_scale``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from backend.errors import CorruptCheckpoint
from backend.quantization.compressed_tensors import METHOD, scheme_of, stored_as
from backend.quantization.format import Packed, Quantization, Speed, StoredWeights, TensorHead
from backend.quantization.linear import Hidden, Linear, Operand

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from backend.kernels.interface import Kernels
    from backend.parallel.shard import Share

SCALE_BYTES = 4  # one an output channel
SCALE = "weight_scale"


class Int8(Quantization):
    name = "int8"
    summary = (
        "8 bits a weight, activations quantised token by token, of a compressed-tensors checkpoint (int-quantized)"
    )
    methods = (METHOD,)
    dtypes = ("bfloat16",)
    unit = "int8"
    batch_invariant = True
    as_stored = True
    from_any = False
    few_rows = 0
    narrow_rows = 128  # for which output and down projections leave parts
    width_multiple = 32
    # Not measured: FP8's by channel, less a tenth, for norm and gate do not quantise in the same kernel.
    speeds: ClassVar = {"h100": Speed(2.0e12, 2.0e12, 900e12), "h200": Speed(2.7e12, 3.0e12, 900e12)}

    def reads(self, declared: Mapping[str, Any]) -> bool:
        scheme = scheme_of(declared)
        by_row = (scheme.type, scheme.bits) == ("int", 8) and scheme.strategy in ("tensor", "channel")
        return by_row and scheme.symmetric and scheme.activation == "int"

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        return stored_as(self, declared)

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        if head.name.endswith(f".{SCALE}"):
            return head.name.removesuffix("_scale"), "scale"
        return (head.name, "weight") if str(head.dtype) == "torch.int8" else None

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        for name in ("weight", "scale"):
            if name not in parts:
                missing = weight if name == "weight" else f"{weight}_scale"
                raise CorruptCheckpoint(f"tensor {missing} is missing")
        if len(parts["weight"].shape) != 2:
            raise CorruptCheckpoint(f"tensor {weight} is {list(parts['weight'].shape)}, expected a matrix")
        outputs, width = parts["weight"].shape
        if parts["scale"].shape not in ((), (1,), (outputs,), (outputs, 1)):
            found = list(parts["scale"].shape)
            raise CorruptCheckpoint(f"tensor {parts['scale'].name} is {found}, expected {[outputs, 1]}")
        return outputs, width

    def cut(self, share: Share, parts: Mapping[str, TensorHead]) -> dict[str, Share | None]:
        scale = parts["scale"].shape
        found: dict[str, Share | None] = {"weight": share}
        return (
            found if scale in ((), (1,)) and scale[:1] != share.whole[:1] else found | {"scale": share.rows_of(scale)}
        )

    def dense(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        return parts["weight"].float() * parts["scale"].float().view(-1, 1)

    def packed(self, parts: Mapping[str, Tensor], stored: StoredWeights, dtype: torch.dtype) -> dict[str, Tensor]:
        weight = parts["weight"]
        return {"weight": weight, "scale": parts["scale"].float().view(-1, 1).expand(len(weight), 1)}

    def empty(
        self, outputs: int, width: int, dtype: torch.dtype, device: torch.device, cuts: tuple[int, ...] = ()
    ) -> Packed:
        import torch

        weight = torch.empty(outputs, width, dtype=torch.int8, device=device)
        return Packed(self, {"weight": weight, "scale": weight.new_empty(outputs, 1, dtype=torch.float32)})

    def fill_randomly(self, packed: Packed, spread: float) -> None:
        """Uniform numbers."""
        packed.parts["weight"].random_(-127, 128)
        packed.parts["scale"].fill_(spread / 73.3)

    def linear(self, kernels: Kernels, packed: Packed) -> Linear:
        return Int8Linear(kernels, packed.parts["weight"], packed.parts["scale"])

    def matrix_bytes(self, outputs: int, width: int, element_size: int) -> int:
        return outputs * (width + SCALE_BYTES)

    def bytes_read(self, element_size: int, rows: int) -> float:
        return 1

    def operand_bytes(self, element_size: int) -> int:
        return 1

    def activation_bytes(self, width: int) -> int:
        return width


class Int8Linear(Linear):
    """data: int8 [outputs, width]; scale: float32 [outputs, 1]."""

    def __init__(self, kernels: Kernels, data: Tensor, scale: Tensor) -> None:
        super().__init__(kernels)
        self.data, self.scale = data, scale
        if data.device.type == "cuda":
            from backend.kernels.linear import int8

            self._products: Any = int8
        else:
            from backend.kernels.linear import int8_reference

            self._products = int8_reference

    def tensors(self) -> list[Tensor]:
        return [self.data, self.scale]

    def operand(self, x: Tensor) -> Operand:
        return Operand(*self._products.quantize_int8(x))

    def normed(self, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        x, residual = super().normed(hidden, norm, eps)
        return self.operand(x.x), residual

    def gated(self, gate_up: Tensor) -> Operand:
        return self.operand(self.kernels.silu_mul(gate_up))

    def one_row(
        self,
        x: Tensor,
        *,
        bias: Tensor | None = None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
        residual: Tensor | None = None,
        gated: bool = False,
    ) -> Tensor:
        """As a few rows."""
        y = self.narrow(
            self.operand(x if norm is None else self.kernels.rms_norm(x, norm, eps)), bias=bias, gated=gated
        )
        return y if residual is None else y + residual

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        y: Tensor = self._products.int8_linear(x.x, x.scale, self.data, self.scale, bias, gated=gated)
        return y

    def narrow_parts(self, x: Operand) -> Tensor:
        y: Tensor = self._products.int8_parts(x.x, x.scale, self.data, self.scale)
        return y

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return self.narrow(x, bias=bias)

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        """As always: sums of integers are exact."""
        return self.narrow(x, bias=bias)

    def columns(self, begin: int, end: int) -> Linear:
        return Int8Linear(self.kernels, self.data[:, begin:end].contiguous(), self.scale)


INT8 = Int8()
