"""The products of a mixture of experts, in the model's dtype or in FP8, by channel or in blocks.

A router's logits say which experts a token takes (`kernels.moe`). What comes out are parts, one for each of a token's
experts, whose sum is what the layer adds to the residual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from backend.kernels.interface import Kernels
    from backend.kernels.moe.reference import Blocks
    from backend.kernels.moe.rule import Routing
    from backend.parallel.group import ParallelGroup

GROUP = 128  # columns of a block
Scales = tuple["Tensor", "Tensor"]


class HeldExperts(Protocol):
    """See `models.layers.held_experts`."""

    def local(self, chosen: Tensor) -> Tensor: ...


class Experts:
    """gate_up: [experts, 2 * inner, width]; down: [experts, width, inner].

    scales: of both if they are float8_e4m3fn, float32 [experts, 2 * inner, 1] and [experts, width, 1]; activations are
    then quantised row by row. spans: of both if they are in blocks, whose scales are float32 [rows of all experts /
    span, columns / 128].
    """

    def __init__(
        self,
        kernels: Kernels,
        routing: Routing,
        gate_up: Tensor,
        down: Tensor,
        scales: Scales | None = None,
        spans: tuple[int, int] = (0, 0),
    ) -> None:
        self.kernels, self.routing = kernels, routing
        self.gate_up, self.down, self.scales, self.spans = gate_up, down, scales, spans
        self.divisions: tuple[Experts, ...] = ()
        self.held: HeldExperts | None = None
        self.correction: Tensor | None = None
        self._in_groups: Any
        self._route: Any
        self._blocks: Any
        self._products: Any
        if gate_up.device.type == "cuda":
            from backend.kernels.moe import blocks, products
            from backend.kernels.moe import routing as choice

            self._route, self._blocks, self._products = choice.route, blocks.blocks_by_expert, products
            from backend.kernels.linear.fp8_block import quantize_groups
        else:
            from backend.kernels.moe import reference

            self._route, self._blocks, self._products = reference.route, reference.blocks_by_expert, reference
            from backend.kernels.linear.fp8_block_reference import quantize_groups
        self._in_groups = quantize_groups

    def tensors(self) -> list[Tensor]:
        """All that it multiplies by."""
        if self.divisions:
            return [tensor for part in self.divisions for tensor in part.tensors()]
        own = [] if self.correction is None else [self.correction]
        return [self.gate_up, self.down, *(self.scales or ()), *own]

    def parts(
        self,
        x: Tensor,
        logits: Tensor,
        *,
        wide: bool = True,
        batch_invariant: bool = False,
        slots: Tensor | None = None,
    ) -> Tensor:
        """What each of a token's experts adds, [per_token, tokens, width], in float32 or, if not wide, in x's dtype.

        x: [tokens, width], in the model's dtype, normalised. logits: [tokens, experts], the router's. slots: what
        `HeldExperts.local` says, if it was asked already.
        """
        import torch

        per_token = self.routing.per_token
        factors, chosen = self._route(logits, self.routing, self.correction)
        absent = None
        if self.held is not None:
            chosen = self.held.local(chosen) if slots is None else slots
            absent = chosen < 0
        size = self._products.block_size(chosen.numel(), len(self.gate_up), batch_invariant=batch_invariant)
        blocks = self._blocks_of(chosen, absent, size)
        rows, scales = self._operand(x, 0)
        inner = self._products.grouped_linear(
            rows,
            self.gate_up,
            blocks,
            per_token=per_token,
            gated=True,
            scales=scales,
            span=self.spans[0],
            out_dtype=x.dtype,
        )
        rows, scales = self._operand(inner, 1)
        found: Tensor = self._products.grouped_linear(
            rows,
            self.down,
            blocks,
            per_token=per_token,
            scales=scales,
            span=self.spans[1],
            factors=factors,
            out_dtype=torch.float32 if wide else x.dtype,
        )
        return found if absent is None else found.masked_fill_(absent.t()[:, :, None], 0.0)

    def _blocks_of(self, chosen: Tensor, absent: Tensor | None, size: int) -> Blocks:
        """Blocks of pairs by slot; those of the pairs of other ranks, which are absent, are of no expert."""
        slots = len(self.gate_up)
        if absent is None:
            found: Blocks = self._blocks(chosen, slots, size)
            return found
        found = self._blocks(chosen.masked_fill(absent, slots), slots + 1, size)
        found.experts.masked_fill_(found.experts == slots, -1)
        return found

    def by_slot(self) -> list[Tensor]:
        """All that it multiplies by, [slots, ...] each."""
        if self.divisions:
            return [tensor for part in self.divisions for tensor in part.by_slot()]
        own = (self.gate_up, self.down, *(self.scales or ()))
        return [tensor.view(len(self.gate_up), -1) for tensor in own]

    def added(self, residual: Tensor, x: Tensor, logits: Tensor, *, batch_invariant: bool = False) -> Tensor:
        """``residual`` and what all experts add to it, in residual's dtype."""
        few = len(x) <= WIDE_ROWS or batch_invariant
        parts = self.parts(x, logits, wide=few, batch_invariant=batch_invariant)
        found: Tensor = self._products.combine(parts, residual)
        return found

    def summed(self, x: Tensor, logits: Tensor, *, batch_invariant: bool = False) -> Tensor:
        """What all experts add, [tokens, width] in x's dtype, yet to be summed over ranks that hold parts of each."""
        few = len(x) <= WIDE_ROWS or batch_invariant
        parts = self.parts(x, logits, wide=few, batch_invariant=batch_invariant)
        found: Tensor = self._products.combine(parts[1:], parts[0]) if len(parts) > 1 else parts[0]
        return found.to(x.dtype)

    def in_order(self, group: ParallelGroup, x: Tensor, logits: Tensor) -> Tensor:
        """What all experts of an ordered group's ranks add, [tokens, width] in x's dtype: each expert is summed over
        its parts and the ranks, and then a token's experts, the best first."""
        import torch

        from backend.parallel.group import tree_sum

        slots = None if self.held is None else self.held.local(self._route(logits, self.routing, self.correction)[1])
        parts = self.divisions or (self,)
        own = torch.stack([part.parts(x, logits, batch_invariant=True, slots=slots) for part in parts])
        each = group.all_reduce(tree_sum(own))
        found: Tensor = self._products.combine(each[1:], each[0]) if len(each) > 1 else each[0]
        return found.to(x.dtype)

    def divided(self, parts: int) -> Experts:
        """The same for `in_order`, whose inner columns are in so many parts. It holds a copy of the weights."""
        if parts == 1:
            return self
        found = Experts(self.kernels, self.routing, self.gate_up[:0], self.down[:0])
        found.divisions = tuple(self._part(i, parts) for i in range(parts))
        found.hold(self.held)
        found.correct(self.correction)
        return found

    def hold(self, held: HeldExperts | None) -> None:
        """These are the experts in a rank's slots, not parts of all."""
        self.held = held
        for part in self.divisions:
            part.held = held

    def correct(self, bias: Tensor | None) -> None:
        """Add it to scores where experts are chosen, not where they are weighed. bias: float32 [experts]."""
        self.correction = bias
        for part in self.divisions:
            part.correction = bias

    def _part(self, index: int, parts: int) -> Experts:
        experts, width, inner = self.down.shape
        step = inner // parts
        columns = slice(index * step, (index + 1) * step)
        gate_up = self.gate_up.view(experts, 2, inner, width)[:, :, columns].reshape(experts, 2 * step, width)
        down = self.down[:, :, columns].contiguous()
        if self.scales is None:
            return Experts(self.kernels, self.routing, gate_up.contiguous(), down)
        span, groups = self.spans[0], slice(index * step // GROUP, (index + 1) * step // GROUP)
        rows = slice(index * step // span, (index + 1) * step // span)
        wide = self.scales[0].view(experts, 2, inner // span, -1)[:, :, rows].reshape(-1, width // GROUP)
        scales = wide.contiguous(), self.scales[1][:, groups].contiguous()
        return Experts(self.kernels, self.routing, gate_up.contiguous(), down, scales, self.spans)

    def _operand(self, x: Tensor, matrix: int) -> tuple[Tensor, Scales | None]:
        if self.scales is None:
            return x, None
        quantised, scale = self._in_groups(x) if self.spans[matrix] else self.kernels.quantize_rows(x)
        return quantised, (scale, self.scales[matrix])


class ClampedExperts(Experts):
    """gpt-oss's: gate and up by turns, clamped (`kernels.moe.reference.clamped_gate`), and biases.

    gate_up, down: in the model's dtype, or with `scales` in MXFP4, words and groups of
    `kernels.moe.mxfp4_reference`. biases: of both, [experts, 2 * inner] and [experts, width].
    """

    def __init__(
        self,
        kernels: Kernels,
        routing: Routing,
        gate_up: Tensor,
        down: Tensor,
        biases: tuple[Tensor, Tensor],
        gate: tuple[float, float],
        scales: Scales | None = None,
    ) -> None:
        """gate: where it is clamped, and the slope of its sigmoid."""
        super().__init__(kernels, routing, gate_up, down, scales)
        self.biases, self.gate = biases, gate
        self._packed: Any
        self._size: Any
        if gate_up.device.type == "cuda":
            from backend.kernels.moe import mxfp4

            self._packed = mxfp4.grouped_mxfp4
            self._size = self._products.block_size if scales is None else mxfp4.block_size
        else:
            from backend.kernels.moe import mxfp4_reference

            self._packed, self._size = mxfp4_reference.grouped_mxfp4, self._products.block_size

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), *self.biases]

    def parts(
        self,
        x: Tensor,
        logits: Tensor,
        *,
        wide: bool = True,
        batch_invariant: bool = False,
        slots: Tensor | None = None,
    ) -> Tensor:
        import torch

        factors, chosen = self._route(logits, self.routing, self.correction)
        per_token = chosen.shape[1]
        size = self._size(chosen.numel(), len(self.gate_up), batch_invariant=batch_invariant)
        blocks, dtype = self._blocks_of(chosen, None, size), torch.float32 if wide else x.dtype
        if self.scales is None:
            return self._dense(x, factors, chosen, blocks).to(dtype)
        gated = self._packed(
            x, self.gate_up, self.scales[0], self.biases[0], blocks, per_token=per_token, gate=self.gate
        )
        found: Tensor = self._packed(
            gated,
            self.down,
            self.scales[1],
            self.biases[1],
            blocks,
            per_token=per_token,
            factors=factors,
            out_dtype=dtype,
        )
        return found

    def _dense(self, x: Tensor, factors: Tensor, chosen: Tensor, blocks: Blocks) -> Tensor:
        """By weights that are multiplied out: float32 [per_token, tokens, width]."""
        import torch

        from backend.kernels.moe.reference import clamped_gate

        def product(rows: Tensor, matrix: int, per_token: int) -> Tensor:
            weight, bias = (self.gate_up, self.down)[matrix], self.biases[matrix]
            found: Tensor = self._products.grouped_linear(
                rows, weight, blocks, per_token=per_token, out_dtype=torch.float32
            )
            return found + bias[expert].float()

        expert = chosen.flatten().long()
        gated = clamped_gate(product(x, 0, chosen.shape[1]), *self.gate).to(x.dtype)
        found = product(gated, 1, 1) * factors.view(-1, 1)
        return found.view(*chosen.shape, -1).transpose(0, 1).contiguous()

    def divided(self, parts: int) -> Experts:
        """As it is: a checkpoint of one tensor for all experts is not divided."""
        return self


WIDE_ROWS = 128  # up to which parts are in float32: beyond, a row of them would be most of what a step takes
