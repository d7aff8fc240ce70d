"""A mixture of experts in place of the MLP (Shazeer et al. 2017; Jiang et al. 2024, Mixtral).

Experts run one after another, each over the rows that chose it: exact, and quick enough on a CPU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.kernels.moe.reference import clamped_gate, route
from backend.models.families.family import Experts
from backend.models.layers import in_parts
from backend.models.layers.held_experts import HeldExperts
from backend.models.layers.linear import linear
from backend.parallel.group import SINGLE, ParallelGroup
from backend.quantization.format import Packed, Quantization


class ExpertLayer(nn.Module):
    """Weights of all experts of one layer: gate_up [count, 2 * inner, hidden], down [count, hidden, inner].

    packed: both by name where `quantization` keeps them as stored, all experts' rows one below another; the parameters
    then have no memory. Only the decoders of the kernels multiply by such. group: sums what each rank's part of the
    experts adds. Where a rank holds some experts as wholes, these are the weights of those in its slots (`held`).
    """

    def __init__(
        self,
        shape: Experts,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization | None = None,
        group: ParallelGroup = SINGLE,
    ) -> None:
        super().__init__()
        self.group = group

        def empty(*size: int, on: torch.device) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size, dtype=dtype, device=on), requires_grad=False)

        inner, held = shape.intermediate_size, shape.held(group.shard.rank)
        count = len(held)
        self.shape = shape
        self.held = HeldExperts(shape.placement, group, shape.count, device) if shape.placement else None
        self.router = empty(shape.count, hidden, on=device)
        self.packed: dict[str, Packed] = {}
        if quantization is not None:
            self.packed["gate_up"] = quantization.empty(count * 2 * inner, hidden, dtype, device, (inner,))
            self.packed["down"] = quantization.empty(count * hidden, inner, dtype, device, (hidden,))
            device = torch.device("meta")
        self.gate_up = empty(count, 2 * inner, hidden, on=device)
        self.down = empty(count, hidden, inner, on=device)
        biased = shape.clamp is not None
        self.router_bias = empty(shape.count, on=self.router.device) if biased else None
        self.gate_up_bias = empty(count, 2 * inner, on=self.router.device) if biased else None
        self.down_bias = empty(count, hidden, on=self.router.device) if biased else None
        bias = torch.zeros(shape.count, dtype=torch.float32, device=self.router.device)
        self.correction = nn.Parameter(bias, requires_grad=False) if shape.corrected else None

    def forward(self, x: Tensor) -> Tensor:
        """x: [tokens, hidden]; so is what comes back, of all ranks."""
        logits = linear(x, self.router, self.router_bias)
        correction = None if self.correction is None else self.correction.float()
        weights, chosen = route(logits, self.shape.routing, correction)
        slots = chosen if self.held is None else self.held.local(chosen)
        if self.group.ordered:
            return self._in_order(x, weights, slots)
        out = torch.zeros_like(x)
        for slot in _used(slots):
            rows, place = (slots == slot).nonzero(as_tuple=True)
            y = self._of_expert(slot, x[rows])
            out.index_add_(0, rows, (y * weights[rows, place, None].to(y.dtype)).to(out.dtype))
        return self.group.all_reduce(out)

    def _of_expert(self, slot: int, x: Tensor) -> Tensor:
        """x: [rows, hidden], of an expert's tokens; so is what it makes of them."""
        if self.gate_up_bias is None or self.down_bias is None or self.shape.clamp is None:
            gate, up = linear(x, self.gate_up[slot]).chunk(2, -1)
            return linear(F.silu(gate) * up, self.down[slot])
        gated = clamped_gate(linear(x, self.gate_up[slot], self.gate_up_bias[slot]), self.shape.clamp, self.shape.slope)
        return linear(gated, self.down[slot], self.down_bias[slot])

    def _in_order(self, x: Tensor, weights: Tensor, slots: Tensor) -> Tensor:
        """The same of an ordered group: each expert is summed over the ranks, and then a token's experts, the best
        first."""
        added = x.new_zeros(*slots.shape, x.shape[1], dtype=torch.float32)
        for slot in _used(slots):
            rows, place = (slots == slot).nonzero(as_tuple=True)
            if self.shape.clamp is None:
                found = in_parts.gated_sum(x[rows], self.gate_up[slot], self.down[slot], self.shape.parts, F.silu)
            else:
                found = self._of_expert(slot, x[rows]).float()
            added[rows, place] = found
        added = self.group.all_reduce(added) * weights[:, :, None]
        out = added[:, 0]
        for i in range(1, added.shape[1]):
            out = out + added[:, i]
        return out.to(x.dtype)

    def release(self) -> None:
        """Give the weights of the experts back, which are kept in another form."""
        self.packed.clear()
        for weight in (self.gate_up, self.down):
            weight.data = weight.data.new_empty(0)

    def arrange(self) -> None:
        """As `Matrices.arrange`."""
        if self.down.dim() == 3 and self.shape.clamp is None:
            self.down.data = in_parts.columns(self.down.data, self.shape.parts).contiguous()

    def rebalance(self, least: int) -> bool:
        """See `HeldExperts.rebalance`."""
        return self.held is not None and self.held.rebalance([self.gate_up.data, self.down.data], least)

    def places(self) -> dict[str, Tensor]:
        """The checkpoint's names, behind the layer's own prefix, and where their tensors go."""
        names = self.shape.names
        places: dict[str, Tensor] = {names.router: self.router}
        if self.correction is not None:
            places[names.correction] = self.correction
        if self.router_bias is not None and self.gate_up_bias is not None and self.down_bias is not None:
            return places | {
                names.gate: self.gate_up.flatten(0, 1), names.down: self.down.flatten(0, 1),
                names.router.replace("weight", "bias"): self.router_bias,
                f"{names.gate}_bias": self.gate_up_bias, f"{names.down}_bias": self.down_bias,
            }  # fmt: skip
        for slot, expert in enumerate(self.experts):
            gate, up = self.gate_up[slot].chunk(2)
            places |= {names.gate.format(expert): gate, names.up.format(expert): up}
            places[names.down.format(expert)] = self.down[slot]
        return places

    @property
    def experts(self) -> tuple[int, ...]:
        """Those whose weights are here, or parts of them, by slot."""
        return self.shape.held(self.group.shard.rank) if self.held is None else self.held.own

    def elsewhere(self, name: str) -> bool:
        """Whether an expert that another rank holds has a tensor of that name."""
        names, own = self.shape.names, self.experts
        others = (expert for expert in range(self.shape.count) if expert not in own)
        return any(name == part.format(e) for e in others for part in (names.gate, names.up, names.down))

    def packed_places(self) -> dict[str, Packed]:
        """As `places`, of experts that are kept as stored."""
        if not self.packed:
            return {}
        names, places = self.shape.names, {}
        gate_up, down = self.packed["gate_up"], self.packed["down"]
        if self.shape.clamp is not None:
            return {names.gate: gate_up, names.down: down}
        inner, hidden = self.shape.intermediate_size, self.down.shape[1]
        for slot, expert in enumerate(self.experts):
            begin = 2 * inner * slot
            places[names.gate.format(expert)] = gate_up.rows(begin, begin + inner)
            places[names.up.format(expert)] = gate_up.rows(begin + inner, begin + 2 * inner)
            places[names.down.format(expert)] = down.rows(hidden * slot, hidden * (slot + 1))
        return places


def _used(slots: Tensor) -> list[int]:
    """Those of this rank that any token takes."""
    return sorted(slot for slot in set(slots.flatten().tolist()) if slot >= 0)
