"""A weight of a layer and its products: what the decoders of the kernels call, whatever the format.

A layer is computed in one of three ways, by the number of rows (`models.decoders.layer_paths`): a single row, a few, or
many. A format that has nothing special for one of them inherits the dense form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from backend.kernels.interface import Kernels
    from backend.parallel.group import ParallelGroup


@dataclass(frozen=True, slots=True)
class Hidden:
    """What the layers leave behind: ``residual + added``, both [tokens, width]; None adds nothing.

    added: perhaps in parts, float32 [parts, tokens, width], to be summed. scales: of `added` by row and by column, if
    it is yet to be multiplied by them. partial: `added` is one rank's, to be summed over the group's. normed: the norm
    before the model's head has been applied.
    """

    residual: Tensor
    added: Tensor | None = None
    scales: tuple[Tensor, Tensor] | None = None
    partial: bool = False
    normed: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """Activations as a weight's products take them: [tokens, width], and their scale by token if they are quantised."""

    x: Tensor
    scale: Tensor | None = None


class Linear(ABC):
    """A weight [outputs, width] in some format, and x @ weightᵀ in the forms that layers need.

    rows_in_parts: up to so many rows, a kernel that reads the product sums its parts faster than a kernel of its own.
    """

    rows_in_parts = 0

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """All that it multiplies by."""

    # Activations on their way in

    def operand(self, x: Tensor) -> Operand:
        """x: [tokens, width]."""
        return Operand(x)

    def normed(self, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        """(RMSNorm of `hidden`, the new residual)."""
        if hidden.added is None:
            return Operand(self.kernels.rms_norm(hidden.residual, norm, eps)), hidden.residual
        x, residual = self.kernels.add_rms_norm(hidden.added, hidden.residual, norm, eps, scales=hidden.scales)
        return Operand(x), residual

    def normed_sum(self, group: ParallelGroup, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        """`normed`, of what is `partial`."""
        assert hidden.added is not None  # noqa: S101 -- something is to be summed
        x, residual = group.add_rms_norm(self.kernels, hidden.added, hidden.residual, norm, eps)
        return self.operand(x), residual

    def gated(self, gate_up: Tensor) -> Operand:
        """``silu(gate) * up``. gate_up: [tokens, 2 * width]."""
        return Operand(self.kernels.silu_mul(gate_up))

    # Products

    @abstractmethod
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
        """`kernels.skinny_linear` by this weight. x: [1, width], not quantised."""

    @abstractmethod
    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        """Product of a few rows: `kernels.narrow_linear` by this weight."""

    @abstractmethod
    def narrow_parts(self, x: Operand) -> Tensor:
        """Product of a few rows: float32 [parts, tokens, outputs], whose sum is the product."""

    @abstractmethod
    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        """Product of many rows: [tokens, outputs] in the model's dtype."""

    def unscaled(self, x: Operand) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Product of many rows, perhaps yet to be multiplied by scales, by row and by column, that come with it."""
        return self.many(x), None

    def added(self, residual: Tensor, x: Operand) -> Hidden:
        """Product of many rows, for a product that ends a residual branch; it may write into `residual`."""
        return Hidden(residual, *self.unscaled(x))

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        """The product, each row of which depends on that row of x alone."""
        raise NotImplementedError(f"{type(self).__name__} has no product that is independent of the batch")

    def divided(self, parts: int) -> Linear:
        """The same weight for an ordered group (`models.layers.in_parts`): its one product is `invariant`, in float32,
        as the tree over `parts` equal parts of its columns. It takes this one's memory over."""
        width = self.tensors()[0].shape[1] // parts
        return LinearInParts(self.kernels, [self.columns(i * width, (i + 1) * width) for i in range(parts)])

    def columns(self, begin: int, end: int) -> Linear:
        """A copy of some of the weight's columns."""
        raise NotImplementedError(f"{type(self).__name__} is not divided by columns")

    def product(self, x: Tensor, few_rows: int, narrow_rows: int) -> Tensor:
        """By the form for so many rows. few_rows, narrow_rows: up to where there are one, and a few."""
        if len(x) <= few_rows:
            return self.one_row(x)
        operand = self.operand(x)
        return self.narrow(operand) if len(x) <= narrow_rows else self.many(operand)


class DenseLinear(Linear):
    """A weight in the model's dtype."""

    def __init__(self, kernels: Kernels, data: Tensor) -> None:
        """data: [outputs, width]."""
        super().__init__(kernels)
        self.data = data

    def tensors(self) -> list[Tensor]:
        return [self.data]

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
        return self.kernels.skinny_linear(x, self.data, bias=bias, norm=norm, eps=eps, residual=residual, gated=gated)

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        return self.kernels.narrow_linear(x.x, self.data, bias=bias, gated=gated)

    def narrow_parts(self, x: Operand) -> Tensor:
        return self.kernels.narrow_parts(x.x, self.data)

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        import torch.nn.functional as F

        return F.linear(x.x, self.data, bias)

    def added(self, residual: Tensor, x: Operand) -> Hidden:
        """The library adds to the residual itself: one pass over it less."""
        return Hidden(residual.addmm_(x.x, self.data.t()))

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return self.kernels.invariant_linear(x.x, self.data, bias)

    def divided(self, parts: int) -> Linear:
        return DenseInParts(self.kernels, self.data, parts)


class BiasedLinear(Linear):
    """A weight of any format whose products get a bias. bias: [outputs]."""

    def __init__(self, base: Linear, bias: Tensor) -> None:
        super().__init__(base.kernels)
        self.base, self.bias = base, bias

    def tensors(self) -> list[Tensor]:
        return [*self.base.tensors(), self.bias]

    def operand(self, x: Tensor) -> Operand:
        return self.base.operand(x)

    def normed(self, hidden: Hidden, norm: Tensor, eps: float) -> tuple[Operand, Tensor]:
        return self.base.normed(hidden, norm, eps)

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
        return self.base.one_row(x, bias=self.bias, norm=norm, eps=eps, residual=residual)

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        return self.base.narrow(x, bias=self.bias)

    def narrow_parts(self, x: Operand) -> Tensor:
        parts = self.base.narrow_parts(x)
        parts[0] += self.bias
        return parts

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return self.base.many(x, self.bias)

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return self.base.invariant(x, self.bias)


class _InParts(Linear):
    """A weight whose product ends a residual branch of an ordered group; other products are not asked for."""

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
        return self.invariant(Operand(x))

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        return self.invariant(x)

    def narrow_parts(self, x: Operand) -> Tensor:
        return self.invariant(x)[None]

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return self.invariant(x)


class DenseInParts(_InParts):
    """data: [outputs, width], in the model's dtype."""

    def __init__(self, kernels: Kernels, data: Tensor, parts: int) -> None:
        super().__init__(kernels)
        self.data, self.parts = data, parts

    def tensors(self) -> list[Tensor]:
        return [self.data]

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        return tree_sum(self.kernels.invariant_parts(x.x, self.data, self.parts))


class LinearInParts(_InParts):
    """parts: of a quantised weight, each with its columns; activations are quantised part by part."""

    def __init__(self, kernels: Kernels, parts: list[Linear]) -> None:
        super().__init__(kernels)
        self.parts = parts

    def tensors(self) -> list[Tensor]:
        return [tensor for part in self.parts for tensor in part.tensors()]

    def invariant(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        import torch

        slices = zip(self.parts, x.x.chunk(len(self.parts), 1), strict=True)
        return tree_sum(torch.stack([part.invariant(part.operand(x.contiguous())) for part, x in slices]))


def tree_sum(parts: Tensor) -> Tensor:
    """`parallel.group.tree_sum`; imported where there is torch."""
    from backend.parallel import group

    return group.tree_sum(parts)
