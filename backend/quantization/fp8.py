"""FP8: weights in e4m3 with a scale per output channel, activations quantised token by token.

Any checkpoint can be served so: its weights are quantised by channel once they are loaded. Checkpoints that are in FP8
already are kept as they are: ``x.weight`` with ``x.weight_scale`` of one number or one an output channel, [out] or
[out, 1], as compressed-tensors (``float-quantized``) and ModelOpt (``FP8``) write them; one number is repeated for
each channel, for matrices that are joined have several. Scales by block (``x.weight_scale_inv``, which multiplies
despite its name; compressed-tensors' strategy ``block``) are `fp8_block`'s, unless this format is asked for: then
weights are multiplied out and quantised by channel, which rounds once more (docs/engine.md says what that costs).
Scales of activations that a checkpoint brings (``input_scale``) are not used: those of each token are at least as near.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.quantization.compressed_tensors import (
    METHOD,
    MODELOPT,
    algorithm_of,
    scheme_of,
    stored_as,
    stored_by_modelopt,
)
from backend.quantization.format import Packed, Quantization, Speed, StoredWeights, TensorHead
from backend.quantization.linear import Hidden, Linear, Operand

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from backend.kernels.interface import Kernels
    from backend.kernels.moe.rule import Routing
    from backend.parallel.group import ParallelGroup
    from backend.parallel.shard import Share
    from backend.quantization.experts import Experts

BLOCK = 128
SCALE_BYTES = 4  # one an output channel
MODELOPT_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN")
WEIGHT_SCALE = re.compile(r"(.+)\.(weight_scale(?:_inv)?)")


class Fp8(Quantization):
    name = "fp8"
    summary = "8 bits a weight (e4m3), activations quantised token by token"
    methods = (METHOD, "fp8", MODELOPT)
    as_stored = True
    groups_stored = True
    dtypes = ("bfloat16",)
    unit = "fp8"
    width_multiple = 16
    speeds: ClassVar = {"h100": Speed(2.6e12, 2.2e12, 1200e12), "h200": Speed(3.4e12, 3.3e12, 1200e12)}

    def reads(self, declared: Mapping[str, Any]) -> bool:
        method = declared["quant_method"]
        if method == METHOD:
            scheme = scheme_of(declared)
            by_row = (scheme.type, scheme.bits) == ("float", 8) and scheme.strategy in ("tensor", "channel")
            return by_row and scheme.symmetric and scheme.activation in (None, "float")
        if method == MODELOPT:
            return algorithm_of(declared) in MODELOPT_ALGORITHMS
        return not declared.get("weight_block_size")

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        """Raises UnsupportedModel for numbers that are not e4m3."""
        if declared["quant_method"] == METHOD:
            return stored_as(self, declared)
        if declared["quant_method"] == MODELOPT:
            return stored_by_modelopt(self, declared)
        return stored_fp8(self, declared)

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        return fp8_part(head)

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        return fp8_shape(weight, parts)

    def cut(self, share: Share, parts: Mapping[str, TensorHead]) -> dict[str, Share | None]:
        return fp8_cut(share, parts)

    def dense(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        return fp8_dense(parts)

    def packed(self, parts: Mapping[str, Tensor], stored: StoredWeights, dtype: torch.dtype) -> dict[str, Tensor]:
        from backend.kernels.reference import quantize_rows

        values, scale = parts["weight"], _scale(parts)
        rows = len(values)
        if scale.numel() not in (1, rows):  # by block, though config.json does not say so
            values, scale = quantize_rows(fp8_dense(parts))
        return {"weight": values, "scale": scale.view(-1, 1).expand(rows, 1)}

    def empty(
        self, outputs: int, width: int, dtype: torch.dtype, device: torch.device, cuts: tuple[int, ...] = ()
    ) -> Packed:
        import torch

        weight = torch.empty(outputs, width, dtype=torch.float8_e4m3fn, device=device)
        return Packed(self, {"weight": weight, "scale": weight.new_empty(outputs, 1, dtype=torch.float32)})

    def fill_randomly(self, packed: Packed, spread: float) -> None:
        fill_normal(packed.parts["weight"])
        packed.parts["scale"].fill_(spread)

    def linear(self, kernels: Kernels, packed: Packed) -> Linear:
        return Fp8Linear(kernels, packed.parts["weight"], packed.parts["scale"])

    def quantised(self, kernels: Kernels, parameter: nn.Parameter) -> Linear:
        made = Fp8Linear(kernels, *kernels.quantize_rows(parameter))
        parameter.data = parameter.data.new_empty(0)
        return made

    def experts(self, kernels: Kernels, routing: Routing, gate_up: nn.Parameter, down: nn.Parameter) -> Experts:
        return fp8_experts(kernels, routing, gate_up, down)

    def stored_experts(self, kernels: Kernels, routing: Routing, gate_up: Packed, down: Packed) -> Experts:
        from backend.quantization.experts import Experts

        weights = [
            packed.parts["weight"].view(routing.experts, -1, packed.parts["weight"].shape[1])
            for packed in (gate_up, down)
        ]
        scales = [packed.parts["scale"].view(routing.experts, -1, 1) for packed in (gate_up, down)]
        return Experts(kernels, routing, weights[0], weights[1], (scales[0], scales[1]))

    def expert_bytes(self, outputs: int, width: int, element_size: int) -> int:
        return self.matrix_bytes(outputs, width, element_size)

    def matrix_bytes(self, outputs: int, width: int, element_size: int) -> int:
        return outputs * (width + SCALE_BYTES)

    def bytes_read(self, element_size: int, rows: int) -> float:
        return 1

    def operand_bytes(self, element_size: int) -> int:
        return 1

    def activation_bytes(self, width: int) -> int:
        return width


def fp8_experts(kernels: Kernels, routing: Routing, gate_up: nn.Parameter, down: nn.Parameter) -> Experts:
    """Quantised by channel; takes the weights over and leaves the parameters empty."""
    from backend.quantization.experts import Experts

    made, scales = [], []
    for parameter in (gate_up, down):
        experts, outputs, width = parameter.shape
        values, scale = kernels.quantize_rows(parameter.view(experts * outputs, width))
        made.append(values.view(experts, outputs, width))
        scales.append(scale.view(experts, outputs, 1))
        parameter.data = parameter.data.new_empty(0)
    return Experts(kernels, routing, made[0], made[1], (scales[0], scales[1]))


def stored_fp8(format: Quantization, declared: Mapping[str, Any]) -> StoredWeights:
    """The format of ``quant_method: fp8``, by Qwen and DeepSeek. Raises UnsupportedModel for numbers that are not
    e4m3."""
    if declared.get("fmt", "e4m3") != "e4m3":
        raise UnsupportedModel(f"fp8 weights in {declared['fmt']!r}; only e4m3 is read")
    return StoredWeights(format, tuple(declared.get("modules_to_not_convert") or ()))


def fp8_part(head: TensorHead) -> tuple[str, str] | None:
    """See `Quantization.part_of`."""
    if scale := WEIGHT_SCALE.fullmatch(head.name):
        return scale[1] + ".weight", scale[2]
    return (head.name, "weight") if str(head.dtype) == "torch.float8_e4m3fn" else None


def fp8_shape(weight: str, parts: Mapping[str, TensorHead], *, by_block_only: bool = False) -> tuple[int, int]:
    """Shape of a matrix in e4m3 with one tensor of scales. Raises CorruptCheckpoint naming what does not fit."""
    scales = [part for name, part in parts.items() if name != "weight"]
    if "weight" not in parts:
        raise CorruptCheckpoint(f"tensor {scales[0].name} scales nothing")
    if len(scales) != 1:
        raise CorruptCheckpoint(f"tensor {weight} is FP8 and has {'two scales' if scales else 'no scale'} beside it")
    if len(parts["weight"].shape) != 2:
        raise CorruptCheckpoint(f"tensor {weight} is {list(parts['weight'].shape)}, expected a matrix")
    rows, columns = parts["weight"].shape
    blocks = blocks_of(rows, columns)
    allowed: list[tuple[int, ...]] = [blocks]
    if not by_block_only and not scales[0].name.endswith("_inv"):
        allowed += [(), (1,), (rows,), (rows, 1)]
    if scales[0].shape not in allowed:
        raise CorruptCheckpoint(f"tensor {scales[0].name} is {list(scales[0].shape)}, expected {list(allowed[-1])}")
    return rows, columns


def fp8_cut(share: Share, parts: Mapping[str, TensorHead]) -> dict[str, Share | None]:
    """See `Quantization.cut`: scales by channel go with their rows, those by block with their blocks."""
    ((name, scale),) = [(name, part) for name, part in parts.items() if name != "weight"]
    rows, columns = parts["weight"].shape
    found: dict[str, Share | None] = {"weight": share}
    if scale.shape in ((rows,), (rows, 1)) and (name == "weight_scale" or scale.shape != blocks_of(rows, columns)):
        found[name] = share.rows_of(scale.shape)
    elif scale.shape == blocks_of(rows, columns):
        found[name] = share.in_groups(scale.shape, BLOCK, BLOCK)
    return found


def fp8_dense(parts: Mapping[str, Tensor]) -> Tensor:
    """float32, exact."""
    values, scale = parts["weight"], _scale(parts)
    rows, columns = values.shape
    if tuple(scale.shape) == blocks_of(rows, columns):  # a matrix of one block alone: the same either way
        scale = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    elif scale.numel() == rows:
        scale = scale.view(rows, 1)
    return values.float() * scale


def _scale(parts: Mapping[str, Tensor]) -> Tensor:
    return next(part for name, part in parts.items() if name != "weight").float()


def blocks_of(rows: int, columns: int) -> tuple[int, int]:
    """The last ones may be cut."""
    return -(-rows // BLOCK), -(-columns // BLOCK)


def fill_normal(weight: Tensor) -> None:
    """Standard normal numbers in e4m3, for measuring."""
    import torch

    for begin in range(0, len(weight), 4096):
        rows = weight[begin : begin + 4096]
        rows.copy_(torch.randn(rows.shape, device=weight.device))


class Fp8Linear(Linear):
    """A weight in float8_e4m3fn. Products of many rows are left unscaled where their readers have few scales to read;
    the library is faster so."""

    def __init__(self, kernels: Kernels, data: Tensor, scale: Tensor) -> None:
        """data: [outputs, width] float8_e4m3fn; scale: [outputs, 1] float32."""
        super().__init__(kernels)
        self.data, self.scale = data, scale
        self._one = scale.new_ones(())

    def tensors(self) -> list[Tensor]:
        return [self.data, self.scale]

    def operand(self, x: Tensor) -> Operand:
        return Operand(*self.kernels.quantize_rows(x))

    def normed(self, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        k = self.kernels
        if hidden.added is None:
            return Operand(*k.rms_norm_fp8(hidden.residual, norm, eps)), hidden.residual
        x, scale, residual = k.add_rms_norm_fp8(hidden.added, hidden.residual, norm, eps, scales=hidden.scales)
        return Operand(x, scale), residual

    def normed_sum(self, group: ParallelGroup, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        assert hidden.added is not None  # noqa: S101 -- something is to be summed
        x, scale, residual = group.add_rms_norm_fp8(self.kernels, hidden.added, hidden.residual, norm, eps)
        return Operand(x, scale), residual

    def gated(self, gate_up: Tensor) -> Operand:
        return Operand(*self.kernels.silu_mul_fp8(gate_up))

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
        """x stays as precise as it is."""
        return self.kernels.skinny_linear(
            x, self.data, scale=self.scale, bias=bias, norm=norm, eps=eps, residual=residual, gated=gated
        )

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        return self.kernels.narrow_linear(x.x, self.data, scales=self._scales(x), bias=bias, gated=gated)

    def narrow_parts(self, x: Operand) -> Tensor:
        return self.kernels.narrow_parts(x.x, self.data, scales=self._scales(x))

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        y = self.kernels.fp8_linear(x.x, self._scales(x)[0], self.data, self.scale)
        return y if bias is None else y + bias

    def unscaled(self, x: Operand) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        return self.kernels.fp8_product(x.x, self.data, self._one), self._scales(x)

    def _scales(self, x: Operand) -> tuple[Tensor, Tensor]:
        assert x.scale is not None  # noqa: S101 -- `operand` and its like have made one
        return x.scale, self.scale


FP8 = Fp8()
