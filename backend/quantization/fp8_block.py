"""FP8 in blocks, as Qwen3-FP8, DeepSeek-V3 (DeepSeek-AI 2024, section 3.3) and compressed-tensors store it: weights in
e4m3 with a scale for each 128 outputs × 128 columns, activations quantised for each token and 128 columns.

``x.weight`` with ``x.weight_scale_inv`` or ``x.weight_scale``, [outputs / 128, width / 128], of which the last ones may
stand for fewer. The engine keeps both as they are. Where modules that share a matrix begin within a block, scales are
repeated for fewer rows each (`Packed.span`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar

from backend.errors import UnsupportedModel
from backend.quantization.compressed_tensors import METHOD, scheme_of, stored_as
from backend.quantization.format import Packed, Quantization, Speed, StoredWeights, TensorHead
from backend.quantization.fp8 import (
    BLOCK,
    SCALE_BYTES,
    fill_normal,
    fp8_cut,
    fp8_dense,
    fp8_part,
    fp8_shape,
    stored_fp8,
)
from backend.quantization.linear import Hidden, Linear, Operand

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from backend.kernels.interface import Kernels
    from backend.kernels.moe.rule import Routing
    from backend.parallel.shard import Share
    from backend.quantization.experts import Experts

MOST_NARROW_ROWS = 128  # for which output and down projections leave parts


class Fp8Block(Quantization):
    name = "fp8-block"
    summary = "8 bits a weight (e4m3) in blocks of 128 × 128, activations quantised in groups of 128"
    methods = ("fp8", METHOD)
    dtypes = ("bfloat16",)
    unit = "fp8"
    batch_invariant = True
    as_stored = True
    groups_stored = True
    from_any = False
    becomes = ("fp8",)
    few_rows = 0
    narrow_rows = MOST_NARROW_ROWS
    width_multiple = BLOCK
    # Not measured: FP8's by channel, less what two more kernels a layer and scales within the sum are thought to cost.
    speeds: ClassVar = {"h100": Speed(1.9e12, 1.9e12, 700e12), "h200": Speed(2.6e12, 2.8e12, 700e12)}

    def reads(self, declared: Mapping[str, Any]) -> bool:
        if declared["quant_method"] == METHOD:
            scheme = scheme_of(declared)
            in_blocks = (scheme.type, scheme.bits, scheme.strategy) == ("float", 8, "block") and scheme.symmetric
            return in_blocks and scheme.block in (None, (BLOCK, BLOCK)) and scheme.activation in (None, "float")
        return list(declared.get("weight_block_size") or ()) == [BLOCK, BLOCK]

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        """Raises UnsupportedModel for numbers that are not e4m3."""
        return stored_as(self, declared) if declared["quant_method"] == METHOD else stored_fp8(self, declared)

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        return fp8_part(head)

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        return fp8_shape(weight, parts, by_block_only=True)

    def cut(self, share: Share, parts: Mapping[str, TensorHead]) -> dict[str, Share | None]:
        return fp8_cut(share, parts)

    def dense(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        return fp8_dense(parts)

    def fill(self, place: Packed, parts: Mapping[str, Tensor], stored: StoredWeights, dtype: torch.dtype) -> None:
        place.parts["weight"].copy_(parts["weight"])
        scale = next(part for name, part in parts.items() if name != "weight").float()
        repeated = scale.repeat_interleave(BLOCK // place.span["scale"], 0)
        place.parts["scale"].copy_(repeated[: len(place.parts["scale"])])

    def empty(
        self, outputs: int, width: int, dtype: torch.dtype, device: torch.device, cuts: tuple[int, ...] = ()
    ) -> Packed:
        """Raises UnsupportedModel where modules begin at odd rows."""
        import torch

        span = gcd(BLOCK, *cuts)
        if span == 1:
            raise UnsupportedModel(f"modules that share a matrix begin at its rows {cuts}; use --quantization none")
        weight = torch.empty(outputs, width, dtype=torch.float8_e4m3fn, device=device)
        scale = weight.new_empty(-(-outputs // span), width // BLOCK, dtype=torch.float32)
        return Packed(self, {"weight": weight, "scale": scale}, {"scale": span})

    def fill_randomly(self, packed: Packed, spread: float) -> None:
        fill_normal(packed.parts["weight"])
        packed.parts["scale"].fill_(spread)

    def linear(self, kernels: Kernels, packed: Packed) -> Linear:
        return Fp8BlockLinear(kernels, packed.parts["weight"], packed.parts["scale"], packed.span["scale"])

    def stored_experts(self, kernels: Kernels, routing: Routing, gate_up: Packed, down: Packed) -> Experts:
        from backend.quantization.experts import Experts

        shapes = [packed.parts["weight"].shape for packed in (gate_up, down)]
        weights = [
            packed.parts["weight"].view(routing.experts, rows // routing.experts, width)
            for packed, (rows, width) in zip((gate_up, down), shapes, strict=True)
        ]
        scales = gate_up.parts["scale"], down.parts["scale"]
        spans = gate_up.span["scale"], down.span["scale"]
        return Experts(kernels, routing, weights[0], weights[1], scales, spans)

    def expert_bytes(self, outputs: int, width: int, element_size: int) -> int:
        return self.matrix_bytes(outputs, width, element_size)

    def matrix_bytes(self, outputs: int, width: int, element_size: int) -> int:
        return outputs * width + SCALE_BYTES * -(-outputs // BLOCK) * (width // BLOCK)

    def bytes_read(self, element_size: int, rows: int) -> float:
        return 1

    def operand_bytes(self, element_size: int) -> int:
        return 1

    def activation_bytes(self, width: int) -> int:
        return width + SCALE_BYTES * (width // BLOCK)


class Fp8BlockLinear(Linear):
    """data: float8_e4m3fn [outputs, width]; scale: float32 [outputs / span, width / 128], each for `span` outputs."""

    def __init__(self, kernels: Kernels, data: Tensor, scale: Tensor, span: int) -> None:
        super().__init__(kernels)
        self.data, self.scale, self.span = data, scale, span
        if data.device.type == "cuda":
            from backend.kernels.linear import fp8_block

            self._products: Any = fp8_block
        else:
            from backend.kernels.linear import fp8_block_reference

            self._products = fp8_block_reference

    def tensors(self) -> list[Tensor]:
        return [self.data, self.scale]

    def operand(self, x: Tensor) -> Operand:
        return Operand(*self._products.quantize_groups(x))

    def normed(self, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        if hidden.added is None:
            return Operand(*self._products.rms_norm_groups(hidden.residual, norm, eps)), hidden.residual
        x, scale, residual = self._products.add_rms_norm_groups(
            hidden.added, hidden.residual, norm, eps, scales=hidden.scales
        )
        return Operand(x, scale), residual

    def gated(self, gate_up: Tensor) -> Operand:
        return Operand(*self._products.silu_mul_groups(gate_up))

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
        operand = self.operand(x) if norm is None else self.normed(Hidden(x), norm, eps)[0]
        y = self.narrow(operand, bias=bias, gated=gated)
        return y if residual is None else y + residual

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        y: Tensor = self._products.fp8_block_linear(x.x, x.scale, self.data, self.scale, self.span, bias, gated=gated)
        return y

    def narrow_parts(self, x: Operand) -> Tensor:
        y: Tensor = self._products.fp8_block_parts(x.x, x.scale, self.data, self.scale, self.span)
        return y

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return self.narrow(x, bias=bias)

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        y: Tensor = self._products.fp8_block_linear(
            x.x, x.scale, self.data, self.scale, self.span, bias, batch_invariant=True
        )
        return y

    def columns(self, begin: int, end: int) -> Linear:
        data, scale = self.data[:, begin:end], self.scale[:, begin // BLOCK : end // BLOCK]
        return Fp8BlockLinear(self.kernels, data.contiguous(), scale.contiguous(), self.span)


FP8_BLOCK = Fp8Block()
