"""A linear layer that adds each row's adapter to the product of its weight. It works with any weight format.

The steps that a format fuses into a product (norm before, gate and residual after, quantisation of the activations) run
outside of it here: an adapter multiplies the unquantised activations and is added before the gate. Where the host knows
that no row of the step has an adapter, the weight's own products are all there is.
"""

from collections.abc import Callable

from torch import Tensor

from backend.models.adapters.bank import AdapterBank
from backend.parallel.group import ParallelGroup
from backend.quantization.linear import DenseLinear, Hidden, Linear, Operand


class AdaptedLinear(Linear):
    """base: the weight. layer, matrix: its place in the model. With tensor parallelism each rank has a share of both
    adapter matrices, and the sum over ranks at the end of a residual branch includes the adapter's product."""

    def __init__(self, base: Linear, bank: AdapterBank, layer: int, matrix: str) -> None:
        super().__init__(base.kernels)
        self.rows_in_parts = base.rows_in_parts
        self.base, self.bank, self.layer, self.matrix = base, bank, layer, matrix

    def tensors(self) -> list[Tensor]:
        pages = self.bank.layers[self.layer][self.matrix]
        return [*self.base.tensors(), pages.a, pages.b]

    def operand(self, x: Tensor) -> Operand:
        return self.base.operand(x) if self.bank.idle else Operand(x)

    def normed(self, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        return self.base.normed(hidden, norm, eps) if self.bank.idle else super().normed(hidden, norm, eps)

    def normed_sum(self, group: ParallelGroup, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        if self.bank.idle:
            return self.base.normed_sum(group, hidden, norm, eps)
        return super().normed_sum(group, hidden, norm, eps)

    def gated(self, gate_up: Tensor) -> Operand:
        return self.base.gated(gate_up) if self.bank.idle else super().gated(gate_up)

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
        if self.bank.idle:
            return self.base.one_row(x, bias=bias, norm=norm, eps=eps, residual=residual, gated=gated)
        x = x if norm is None else self.kernels.rms_norm(x, norm, eps)
        y = self._added(x, lambda: self.base.one_row(x, bias=bias))
        y = self.kernels.silu_mul(y) if gated else y
        return y if residual is None else residual + y

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        if self.bank.idle:
            return self.base.narrow(x, bias=bias, gated=gated)
        y = self._added(x.x, lambda: self.base.narrow(self.base.operand(x.x), bias=bias))
        return self.kernels.silu_mul(y) if gated else y

    def narrow_parts(self, x: Operand) -> Tensor:
        if self.bank.idle:
            return self.base.narrow_parts(x)
        return self._added(x.x, lambda: self.base.narrow_parts(self.base.operand(x.x)), parts=True)

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        if self.bank.idle:
            return self.base.many(x, bias)
        return self._added(x.x, lambda: self.base.many(self.base.operand(x.x), bias))

    def unscaled(self, x: Operand) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        return self.base.unscaled(x) if self.bank.idle else super().unscaled(x)

    def added(self, residual: Tensor, x: Operand) -> Hidden:
        if self.bank.idle:
            return self.base.added(residual, x)
        if not isinstance(self.base, DenseLinear):
            return super().added(residual, x)  # may leave its scales to the norm, which adapters do not have
        hidden, more = self.bank.beside(self.layer, self.matrix, x.x, lambda: self.base.added(residual, x))
        return Hidden(hidden.residual, more)

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        if self.bank.idle:
            return self.base.invariant(x, bias)
        return self._added(x.x, lambda: self.base.invariant(self.base.operand(x.x), bias))

    def _added(self, x: Tensor, product: Callable[[], Tensor], *, parts: bool = False) -> Tensor:
        return self.bank.added(self.layer, self.matrix, x, product, parts=parts)
