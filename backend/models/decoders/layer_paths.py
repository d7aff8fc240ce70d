"""Ways through a layer of `fused_decoder`, by how many rows there are.

A single row is all about reading weights, and a few are little else; many are multiplied by the library. How a product
is computed is up to the weight (`quantization.linear`), so that a layer may have weights of several formats. Each
way has two halves, to attention and from there to the end of the layer, since the last layer's second half is computed
for fewer rows than its first.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from backend.models.decoders.paged_decoder import Products
from backend.models.layers.in_parts import summed
from backend.parallel.group import ParallelGroup
from backend.quantization.experts import WIDE_ROWS, Experts
from backend.quantization.linear import Hidden, Linear, Operand

Scales = tuple[Tensor, Tensor]  # by row and by column


@dataclass(frozen=True, slots=True)
class NormedProducts(Products):
    input_norm: Tensor
    post_norm: Tensor


@dataclass(frozen=True, slots=True)
class FusedLayer(NormedProducts):
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class MixtureLayer(NormedProducts):
    """router: [experts, width], in the model's dtype. shared_gate_up, shared_down: of experts that every token takes
    beside those it chose; None: there are none."""

    router: Linear
    experts: Experts
    shared_gate_up: Linear | None = None
    shared_down: Linear | None = None

    @property
    def shared(self) -> tuple[Linear, Linear] | None:
        gate_up, down = self.shared_gate_up, self.shared_down
        return None if gate_up is None or down is None else (gate_up, down)


Layer = FusedLayer | MixtureLayer


class LayerPath(Protocol):
    def to_attention(self, layer: Layer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        """(qkv, perhaps in parts, the scales that it lacks, the residual [rows, width])."""
        ...

    def from_attention(self, layer: Layer, residual: Tensor, attended: Tensor) -> Hidden:
        """What the layer leaves; it may write into ``residual``."""
        ...


@dataclass(frozen=True, slots=True)
class OneRow:
    """Norms, gate and residual adds within the products."""

    eps: float

    def to_attention(self, layer: Layer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x = hidden.residual
        return layer.qkv.one_row(x, bias=layer.qkv_bias, norm=layer.input_norm, eps=self.eps), None, x

    def from_attention(self, layer: Layer, residual: Tensor, attended: Tensor) -> Hidden:
        residual = layer.out.one_row(attended, residual=residual)
        if isinstance(layer, MixtureLayer):
            x, residual = layer.router.normed(Hidden(residual), layer.post_norm, self.eps)
            logits = layer.router.one_row(x.x)
            if layer.shared is not None:
                gate_up, down = layer.shared
                residual = down.one_row(gate_up.one_row(x.x, gated=True), residual=residual)
            return Hidden(layer.experts.added(residual, x.x, logits))
        gated = layer.gate_up.one_row(residual, norm=layer.post_norm, eps=self.eps, gated=True)
        return Hidden(layer.down.one_row(gated, residual=residual))


@dataclass(frozen=True, slots=True)
class NarrowRows:
    """The norms sum what the products before them leave in parts, and so does the turn of q and k where that pays.

    whole_qkv: attention reads k and v from qkv.
    """

    eps: float
    whole_qkv: bool = False

    def to_attention(self, layer: Layer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x, residual = layer.qkv.normed(hidden, layer.input_norm, self.eps)
        if self.whole_qkv or layer.qkv_bias is not None or len(residual) > layer.qkv.rows_in_parts:
            return layer.qkv.narrow(x, bias=layer.qkv_bias), None, residual
        return layer.qkv.narrow_parts(x), None, residual

    def from_attention(self, layer: Layer, residual: Tensor, attended: Tensor) -> Hidden:
        parts = layer.out.narrow_parts(layer.out.operand(attended))
        if isinstance(layer, MixtureLayer):
            x, residual = layer.router.normed(Hidden(residual, parts), layer.post_norm, self.eps)
            added = layer.experts.parts(x.x, layer.router.narrow(x))
            if layer.shared is not None:
                gate_up, down = layer.shared
                gated = gate_up.narrow(gate_up.operand(x.x), gated=True)
                added = torch.cat((added, down.narrow_parts(down.operand(gated))))
            return Hidden(residual, added)
        x, residual = layer.gate_up.normed(Hidden(residual, parts), layer.post_norm, self.eps)
        gated = layer.gate_up.narrow(x, gated=True)
        return Hidden(residual, layer.down.narrow_parts(layer.down.operand(gated)))


@dataclass(frozen=True, slots=True)
class ManyRows:
    """whole_qkv: attention reads k and v from qkv, which may lack no scales for that."""

    eps: float
    whole_qkv: bool = False

    def to_attention(self, layer: Layer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x, residual = layer.qkv.normed(hidden, layer.input_norm, self.eps)
        if self.whole_qkv or layer.qkv_bias is not None:
            return layer.qkv.many(x, layer.qkv_bias), None, residual
        return *layer.qkv.unscaled(x), residual

    def from_attention(self, layer: Layer, residual: Tensor, attended: Tensor) -> Hidden:
        hidden = layer.out.added(residual, layer.out.operand(attended))
        if isinstance(layer, MixtureLayer):
            x, residual = layer.router.normed(hidden, layer.post_norm, self.eps)
            logits = layer.router.many(x)
            if layer.shared is not None:
                residual = residual + _many(layer.shared, x.x)
            return Hidden(layer.experts.added(residual, x.x, logits))
        x, residual = layer.gate_up.normed(hidden, layer.post_norm, self.eps)
        return layer.down.added(residual, layer.down.gated(layer.gate_up.many(x)))


@dataclass(frozen=True, slots=True)
class InvariantRows:
    """One kernel for all products, whatever the number of rows; for formats that have one."""

    eps: float

    def to_attention(self, layer: Layer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x, residual = layer.qkv.normed(hidden, layer.input_norm, self.eps)
        return layer.qkv.invariant(x, layer.qkv_bias), None, residual

    def from_attention(self, layer: Layer, residual: Tensor, attended: Tensor) -> Hidden:
        added = layer.out.invariant(layer.out.operand(attended))
        if isinstance(layer, MixtureLayer):
            x, residual = layer.router.normed(Hidden(residual, added), layer.post_norm, self.eps)
            logits = layer.router.invariant(x)
            if layer.shared is not None:
                residual = residual + _invariant(layer.shared, x.x)
            return Hidden(layer.experts.added(residual, x.x, logits, batch_invariant=True))
        x, residual = layer.gate_up.normed(Hidden(residual, added), layer.post_norm, self.eps)
        return Hidden(residual, layer.down.invariant(layer.down.gated(layer.gate_up.invariant(x))))


@dataclass(frozen=True, slots=True)
class ShardedRows:
    """A rank's share of a layer (Shoeybi et al. 2019, Megatron-LM): what ends a residual branch is summed over the
    ranks, and added, by the norm behind it.

    width: of a row of the residual. few_rows, narrow_rows: up to where there are one, and a few (`Quantization`).
    """

    eps: float
    group: ParallelGroup
    width: int
    few_rows: int
    narrow_rows: int

    def to_attention(self, layer: Layer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        x, residual = self._normed(layer.qkv, hidden, layer.input_norm)
        return self._product(layer.qkv, x, layer.qkv_bias), None, residual

    def from_attention(self, layer: Layer, residual: Tensor, attended: Tensor) -> Hidden:
        hidden = Hidden(residual, self._part(layer.out, attended), partial=True)
        if isinstance(layer, MixtureLayer):
            x, residual = self._normed(layer.router, hidden, layer.post_norm)
            return Hidden(residual, self._mixed(layer, x.x, self._product(layer.router, x)), partial=True)
        x, residual = self._normed(layer.gate_up, hidden, layer.post_norm)
        if len(residual) <= self.few_rows:
            added = layer.down.one_row(layer.gate_up.one_row(x.x, gated=True))
        elif len(residual) <= self.narrow_rows:
            added = self._part(layer.down, layer.gate_up.narrow(x, gated=True))
        else:
            added = layer.down.many(layer.down.gated(layer.gate_up.many(x)))
        return Hidden(residual, added, partial=True)

    def _normed(self, weight: Linear, hidden: Hidden, norm: Tensor) -> tuple[Operand, Tensor]:
        """What `_product` by that weight takes: a single row is not quantised."""
        few = len(hidden.residual) <= self.few_rows
        if hidden.partial and hidden.added is not None and few:
            kernels, group = weight.kernels, self.group
            x, residual = group.add_rms_norm(kernels, hidden.added, hidden.residual, norm, self.eps)
            return Operand(x), residual
        if hidden.partial:
            return weight.normed_sum(self.group, hidden, norm, self.eps)
        return Linear.normed(weight, hidden, norm, self.eps) if few else weight.normed(hidden, norm, self.eps)

    def _product(self, weight: Linear, x: Operand, bias: Tensor | None = None) -> Tensor:
        if len(x.x) <= self.few_rows:
            return weight.one_row(x.x, bias=bias)
        return weight.narrow(x, bias=bias) if len(x.x) <= self.narrow_rows else weight.many(x, bias)

    def _part(self, weight: Linear, x: Tensor) -> Tensor:
        """This rank's part of the product by a weight of whose columns each rank has some. x: [tokens, columns], not
        quantised."""
        tokens = len(x)
        if self.few_rows < tokens <= self.narrow_rows and self.group.takes_parts(tokens, self.width):
            return weight.narrow_parts(weight.operand(x))
        return weight.product(x, self.few_rows, self.narrow_rows)

    def _mixed(self, layer: MixtureLayer, x: Tensor, logits: Tensor) -> Tensor:
        """This rank's part of what the experts add."""
        parts = len(x) <= WIDE_ROWS and self.group.takes_parts(*x.shape)
        found = layer.experts.parts(x, logits) if parts else layer.experts.summed(x, logits)
        if layer.shared is None:
            return found
        gate_up, down = layer.shared
        few, narrow = self.few_rows, self.narrow_rows
        own = down.product(gate_up.kernels.silu_mul(gate_up.product(x, few, narrow)), few, narrow)
        return torch.cat((found, own.float()[None])) if parts else found + own


@dataclass(frozen=True, slots=True)
class OrderedRows:
    """As `InvariantRows`, of an ordered group: the bits do not depend on the number of ranks either
    (`layers.in_parts`)."""

    eps: float
    group: ParallelGroup

    def to_attention(self, layer: Layer, hidden: Hidden) -> tuple[Tensor, Scales | None, Tensor]:
        return InvariantRows(self.eps).to_attention(layer, hidden)

    def from_attention(self, layer: Layer, residual: Tensor, attended: Tensor) -> Hidden:
        out = layer.out.invariant(layer.out.operand(attended))
        added = summed(self.group, out, residual.dtype)
        if isinstance(layer, MixtureLayer):
            x, residual = layer.router.normed(Hidden(residual, added), layer.post_norm, self.eps)
            mixed = layer.experts.in_order(self.group, x.x, layer.router.invariant(x))
            if layer.shared is not None:
                mixed = mixed + summed(self.group, _invariant(layer.shared, x.x), residual.dtype)
            return Hidden(residual, mixed)
        x, residual = layer.gate_up.normed(Hidden(residual, added), layer.post_norm, self.eps)
        down = layer.down.invariant(layer.down.gated(layer.gate_up.invariant(x)))
        return Hidden(residual, summed(self.group, down, residual.dtype))


def _many(shared: tuple[Linear, Linear], x: Tensor) -> Tensor:
    """Gate and up, then down, of many rows."""
    gate_up, down = shared
    return down.many(down.gated(gate_up.many(gate_up.operand(x))))


def _invariant(shared: tuple[Linear, Linear], x: Tensor) -> Tensor:
    """The same, each row by itself."""
    gate_up, down = shared
    return down.invariant(down.gated(gate_up.invariant(gate_up.operand(x))))
