"""Products whose result does not depend on the number of ranks that a model is divided among.

In an ordered group (`parallel.group`) a rank computes as if each of up to `shard.SAME` ranks had its own part: every
product has the shape that it has on the largest number of ranks, and what ends a residual branch is summed in float32
as one tree over all parts, within a rank first and then over the ranks. So one, two, four and eight ranks make the same
calls on the same numbers, and add up what comes of them in the same order.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from backend.models.layers.linear import linear
from backend.parallel.group import ParallelGroup, tree_sum

ALIGNMENT = 64  # bytes: where an operand begins decides which of its kernels a library takes


def aligned(x: Tensor) -> Tensor:
    """`x`, contiguous, at an address like that of new memory."""
    x = x.contiguous()
    return x if x.data_ptr() % ALIGNMENT == 0 else x.clone()


def by_rows(x: Tensor, weight: Tensor, heights: list[int], bias: Tensor | None = None) -> Tensor:
    """x @ weightᵀ + bias, by tiles of the weight's rows, so high. x: [tokens, width]; returns [tokens, outputs]."""
    y = torch.cat([linear(x, aligned(tile)) for tile in torch.split(weight, heights)], -1)
    return y if bias is None else y.add_(bias)


def columns(weight: Tensor, parts: int) -> Tensor:
    """[..., outputs, width] as equally wide matrices: [..., parts, outputs, width / parts]."""
    return weight.view(*weight.shape[:-1], parts, -1).transpose(-3, -2)


def arrange(weight: nn.Parameter, parts: int) -> None:
    """Lay a weight out as `columns` has it, so that each part is contiguous. Harmless the second time."""
    if weight.dim() == 2:
        weight.data = columns(weight.data, parts).contiguous()


def product_sum(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    """x @ weightᵀ in float32, as the tree over equal parts of the inner width.

    x: [tokens, width]. weight: [outputs, width], or as `arrange` leaves it.
    """
    each = columns(weight, parts) if weight.dim() == 2 else weight
    slices = x.chunk(parts, -1)
    return tree_sum(torch.stack([linear(aligned(a), aligned(b)) for a, b in zip(slices, each, strict=True)]))


def gated_sum(x: Tensor, gate_up: Tensor, down: Tensor, parts: int, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """``(activation(gate) * up) @ downᵀ`` in float32, as the tree over equal parts of the inner width.

    x: [tokens, width]. gate_up: [2 * inner, width]. down: [width, inner], or as `arrange` leaves it.
    """
    each = columns(down, parts) if down.dim() == 2 else down
    gates, ups = (half.chunk(parts) for half in gate_up.chunk(2))
    added = [
        linear(activation(linear(x, aligned(gate))) * linear(x, aligned(up)), aligned(part))
        for gate, up, part in zip(gates, ups, each, strict=True)
    ]
    return tree_sum(torch.stack(added))


def summed(group: ParallelGroup, own: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over an ordered group's ranks of what `product_sum` and `gated_sum` give."""
    return group.all_reduce(own).to(dtype)
