"""A mixture of experts in place of the MLP (Shazeer et al. 2017; Jiang et al. 2024, Mixtral).

Experts run one after another, each over the rows that chose it: exact, and quick enough on a CPU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.models.families.family import Experts
from backend.models.layers.linear import linear


class ExpertLayer(nn.Module):
    """Weights of all experts of one layer: gate_up [count, 2 * inner, hidden], down [count, hidden, inner]."""

    def __init__(self, shape: Experts, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()

        def empty(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size, dtype=dtype, device=device), requires_grad=False)

        self.shape = shape
        self.router = empty(shape.count, hidden)
        self.gate_up = empty(shape.count, 2 * shape.intermediate_size, hidden)
        self.down = empty(shape.count, hidden, shape.intermediate_size)

    def forward(self, x: Tensor) -> Tensor:
        """x: [tokens, hidden]; so is what comes back."""
        weights, chosen = linear(x, self.router).float().softmax(-1).topk(self.shape.per_token, -1)
        if self.shape.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up = linear(x[rows], self.gate_up[expert]).chunk(2, -1)
            y = linear(F.silu(gate) * up, self.down[expert])
            out.index_add_(0, rows, (y * weights[rows, place, None].to(y.dtype)).to(out.dtype))
        return out

    def places(self) -> dict[str, Tensor]:
        """The checkpoint's names, behind the layer's own prefix, and where their tensors go."""
        names = self.shape.names
        places: dict[str, Tensor] = {names.router: self.router}
        for expert in range(self.shape.count):
            gate, up = self.gate_up[expert].chunk(2)
            places |= {names.gate.format(expert): gate, names.up.format(expert): up}
            places[names.down.format(expert)] = self.down[expert]
        return places
