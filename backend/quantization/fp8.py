"""FP8: weights in e4m3 with a scale per output channel, activations quantised token by token.

Any checkpoint can be served so: its weights are quantised by channel once they are loaded. Checkpoints that are in FP8
already come in two layouts. compressed-tensors: ``x.weight`` with ``x.weight_scale`` of one number, one an output
channel [out, 1], or, by its strategy ``block``, one for each block of 128 × 128 (the last ones may be cut). Qwen3 and
DeepSeek-V3: ``x.weight_scale_inv``, always by block; despite its name it multiplies. They become the model's dtype
while they are loaded, and are quantised by channel again if the engine computes in FP8: from scales by channel or
tensor that gives back the same e4m3 numbers; from blocks it rounds once more (docs/engine.md says what that costs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.quantization.format import Quantization, Speed, StoredWeights, TensorHead
from backend.quantization.linear import Hidden, Linear, Operand

if TYPE_CHECKING:
    from torch import Tensor, nn

    from backend.kernels.interface import Kernels

BLOCK = 128
SCALE_BYTES = 4  # one an output channel
WEIGHT_SCALE = re.compile(r"(.+)\.(weight_scale(?:_inv)?)")


class Fp8(Quantization):
    name = "fp8"
    summary = "8 bits a weight (e4m3), activations quantised token by token"
    methods = ("compressed-tensors", "fp8")
    dtypes = ("bfloat16",)
    unit = "fp8"
    width_multiple = 16
    speeds: ClassVar = {"h100": Speed(2.6e12, 2.2e12, 1200e12), "h200": Speed(3.4e12, 3.3e12, 1200e12)}

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        """e4m3 weights with scales by tensor, channel or block are read. Activations are quantised token by token
        whatever the file says."""
        if declared.get("quant_method") == "fp8":
            if declared.get("fmt", "e4m3") != "e4m3":
                raise UnsupportedModel(f"fp8 weights in {declared['fmt']!r}; only e4m3 is read")
            return StoredWeights(self)
        for group in (declared.get("config_groups") or {}).values():
            weights = group.get("weights") or {}
            kind = (weights.get("type"), weights.get("num_bits"), weights.get("strategy"))
            known = kind[:2] == ("float", 8) and kind[2] in ("tensor", "channel", "block")
            if not known or not weights.get("symmetric", True):
                raise UnsupportedModel(
                    f"compressed-tensors weights of type, bits and strategy {kind}; only float, 8 are read"
                )
        return StoredWeights(self)

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        if scale := WEIGHT_SCALE.fullmatch(head.name):
            return scale[1] + ".weight", scale[2]
        return (head.name, "weight") if str(head.dtype) == "torch.float8_e4m3fn" else None

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        scales = [part for name, part in parts.items() if name != "weight"]
        if "weight" not in parts:
            raise CorruptCheckpoint(f"tensor {scales[0].name} scales nothing")
        if len(scales) != 1:
            raise CorruptCheckpoint(
                f"tensor {weight} is FP8 and has {'two scales' if scales else 'no scale'} beside it"
            )
        if len(parts["weight"].shape) != 2:
            raise CorruptCheckpoint(f"tensor {weight} is {list(parts['weight'].shape)}, expected a matrix")
        rows, columns = parts["weight"].shape
        blocks = _blocks(rows, columns)
        by_block_only = scales[0].name.endswith("_inv")
        allowed = [blocks] if by_block_only else [blocks, (), (1,), (rows,), (rows, 1)]
        if scales[0].shape not in allowed:
            raise CorruptCheckpoint(f"tensor {scales[0].name} is {list(scales[0].shape)}, expected {list(allowed[-1])}")
        return rows, columns

    def dense(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        values = parts["weight"]
        scale = next(part for name, part in parts.items() if name != "weight").float()
        rows, columns = values.shape
        if tuple(scale.shape) == _blocks(rows, columns):  # a matrix of one block alone: the same either way
            scale = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
        elif scale.numel() == rows:
            scale = scale.view(rows, 1)
        return values.float() * scale

    def quantised(self, kernels: Kernels, parameter: nn.Parameter) -> Linear:
        made = Fp8Linear(kernels, *kernels.quantize_rows(parameter))
        parameter.data = parameter.data.new_empty(0)
        return made

    def matrix_bytes(self, outputs: int, width: int, element_size: int) -> int:
        return outputs * (width + SCALE_BYTES)

    def bytes_read(self, element_size: int, rows: int) -> float:
        return 1

    def operand_bytes(self, element_size: int) -> int:
        return 1

    def activation_bytes(self, width: int) -> int:
        return width


def _blocks(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // BLOCK), -(-columns // BLOCK)


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

    def gated(self, gate_up: Tensor) -> Operand:
        return Operand(*self.kernels.silu_mul_fp8(gate_up))

    def one_row(
        self, x: Tensor, *, bias: Tensor | None = None, norm: Tensor | None = None, eps: float = 1e-6,
        residual: Tensor | None = None, gated: bool = False,
    ) -> Tensor:  # fmt: skip
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
