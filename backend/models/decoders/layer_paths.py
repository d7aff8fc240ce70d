"""Ways through a layer of `fused_decoder`, by how many rows there are.

A single row is all about reading weights, and a few are little else; many are multiplied by the library; and with FP8
weights their activations are quantised token by token on the way in. Each way has two halves, to attention and from
there to the end of the layer, since the last layer's second half is computed for fewer rows than its first.
"""

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from backend.kernels.interface import Kernels
from backend.models.decoders.paged_decoder import Hidden, Products, Weight, linear_fp8, quantised, scales_of

Scales = tuple[Tensor, Tensor]  # by row and by column


@dataclass(frozen=True, slots=True)
class FusedLayer(Products):
    input_norm: Tensor
    post_norm: Tensor


class Road(Protocol):
    def to_attention(self, layer: FusedLayer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        """(qkv, the scales that it lacks, the residual [rows, width])."""
        ...

    def from_attention(self, layer: FusedLayer, residual: Tensor, attended: Tensor) -> Hidden:
        """What the layer leaves; it may write into ``residual``."""
        ...


@dataclass(frozen=True, slots=True)
class FewRows:
    """Norms, gate and residual adds within the products."""

    kernels: Kernels
    eps: float

    def to_attention(self, layer: FusedLayer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        qkv = self.kernels.skinny_linear(
            hidden.residual, layer.qkv.data, scale=layer.qkv.scale, bias=layer.qkv_bias, norm=layer.input_norm,
            eps=self.eps,
        )  # fmt: skip
        return qkv, None, hidden.residual

    def from_attention(self, layer: FusedLayer, residual: Tensor, attended: Tensor) -> Hidden:
        linear = self.kernels.skinny_linear
        residual = linear(attended, layer.out.data, scale=layer.out.scale, residual=residual)
        gated = linear(
            residual, layer.gate_up.data, scale=layer.gate_up.scale, norm=layer.post_norm, eps=self.eps, gated=True
        )
        return Hidden(linear(gated, layer.down.data, scale=layer.down.scale, residual=residual))


@dataclass(frozen=True, slots=True)
class NarrowRows:
    """With weights of either kind; the norms sum what the products before them leave in parts."""

    kernels: Kernels
    eps: float
    fp8: bool

    def to_attention(self, layer: FusedLayer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x, x_scale, residual = self._normed(hidden, layer.input_norm)
        qkv = self.kernels.narrow_linear(x, layer.qkv.data, scales=scales_of(x_scale, layer.qkv), bias=layer.qkv_bias)
        return qkv, None, residual

    def from_attention(self, layer: FusedLayer, residual: Tensor, attended: Tensor) -> Hidden:
        x, x_scale = quantised(self.kernels, attended, fp8=self.fp8)
        parts = self.kernels.narrow_parts(x, layer.out.data, scales=scales_of(x_scale, layer.out))
        x, x_scale, residual = self._normed(Hidden(residual, parts), layer.post_norm)
        scales = scales_of(x_scale, layer.gate_up)
        gated = self.kernels.narrow_linear(x, layer.gate_up.data, scales=scales, gated=True)
        x, x_scale = quantised(self.kernels, gated, fp8=self.fp8)
        return Hidden(residual, self.kernels.narrow_parts(x, layer.down.data, scales=scales_of(x_scale, layer.down)))

    def _normed(self, hidden: Hidden, weight: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """(normalised, its scale if quantised, residual)."""
        if self.fp8:
            return normed_fp8(self.kernels, hidden, weight, self.eps)
        x, residual = normed(self.kernels, hidden, weight, self.eps)
        return x, None, residual


@dataclass(frozen=True, slots=True)
class ManyRows:
    """The products that end a residual branch add to the residual themselves: one pass over it less."""

    kernels: Kernels
    eps: float

    def to_attention(self, layer: FusedLayer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x, residual = normed(self.kernels, hidden, layer.input_norm, self.eps)
        return F.linear(x, layer.qkv.data, layer.qkv_bias), None, residual

    def from_attention(self, layer: FusedLayer, residual: Tensor, attended: Tensor) -> Hidden:
        k = self.kernels
        residual.addmm_(attended, layer.out.data.t())
        gate_up = F.linear(k.rms_norm(residual, layer.post_norm, self.eps), layer.gate_up.data)
        return Hidden(residual.addmm_(k.silu_mul(gate_up), layer.down.data.t()))


@dataclass(frozen=True, slots=True)
class ManyRowsFp8:
    """Products are left unscaled where their readers have few scales to read; the library is faster so.

    one: a scale of 1. whole_qkv: attention reads k and v from qkv, which has to be scaled for that.
    """

    kernels: Kernels
    eps: float
    one: Tensor
    whole_qkv: bool

    def to_attention(self, layer: FusedLayer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x, x_scale, residual = normed_fp8(self.kernels, hidden, layer.input_norm, self.eps)
        if not self.whole_qkv and layer.qkv_bias is None:
            return *self._product(x, x_scale, layer.qkv), residual
        qkv = linear_fp8(self.kernels, x, x_scale, layer.qkv)
        return qkv if layer.qkv_bias is None else qkv + layer.qkv_bias, None, residual

    def from_attention(self, layer: FusedLayer, residual: Tensor, attended: Tensor) -> Hidden:
        k = self.kernels
        out, scales = self._product(*k.quantize_rows(attended), layer.out)
        x, x_scale, residual = normed_fp8(k, Hidden(residual, out, scales), layer.post_norm, self.eps)
        x, x_scale = k.silu_mul_fp8(linear_fp8(k, x, x_scale, layer.gate_up))
        return Hidden(residual, *self._product(x, x_scale, layer.down))

    def _product(self, x: Tensor, x_scale: Tensor, weight: Weight) -> tuple[Tensor, Scales]:
        """(product, the scales that it lacks)."""
        assert weight.scale is not None  # noqa: S101
        return self.kernels.fp8_product(x, weight.data, self.one), (x_scale, weight.scale)


@dataclass(frozen=True, slots=True)
class InvariantRows:
    """One kernel for all products, whatever the number of rows. Weights in the model's dtype only: products of FP8 ones
    are the library's, which chooses by rows."""

    kernels: Kernels
    eps: float

    def to_attention(self, layer: FusedLayer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x, residual = normed(self.kernels, hidden, layer.input_norm, self.eps)
        return self.kernels.invariant_linear(x, layer.qkv.data, layer.qkv_bias), None, residual

    def from_attention(self, layer: FusedLayer, residual: Tensor, attended: Tensor) -> Hidden:
        k, linear = self.kernels, self.kernels.invariant_linear
        added = linear(attended, layer.out.data)
        x, residual = k.add_rms_norm(added, residual, layer.post_norm, self.eps)
        return Hidden(residual, linear(k.silu_mul(linear(x, layer.gate_up.data)), layer.down.data))


def normed(kernels: Kernels, hidden: Hidden, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(normalised, residual), of what is not in FP8."""
    if hidden.added is None:
        return kernels.rms_norm(hidden.residual, weight, eps), hidden.residual
    return kernels.add_rms_norm(hidden.added, hidden.residual, weight, eps)


def normed_fp8(kernels: Kernels, hidden: Hidden, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(normalised, its scale, residual)."""
    if hidden.added is None:
        return *kernels.rms_norm_fp8(hidden.residual, weight, eps), hidden.residual
    return kernels.add_rms_norm_fp8(hidden.added, hidden.residual, weight, eps, scales=hidden.scales)
