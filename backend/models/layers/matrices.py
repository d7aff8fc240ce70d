"""The matrices of a decoder layer, and where the modules of a checkpoint go in them."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from backend.errors import UnsupportedModel
from backend.models.config import ModelConfig
from backend.models.layers import in_parts
from backend.models.layers.linear import linear
from backend.parallel.group import SINGLE, ParallelGroup
from backend.quantization.format import Packed, Quantization


class Adapters(Protocol):
    """See `models.adapters.bank.AdapterBank`."""

    @property
    def idle(self) -> bool: ...

    def add(self, layer: int, matrix: str, x: Tensor, y: Tensor) -> Tensor: ...


class Matrices(nn.Module):
    """A layer's matrices, each dense or, in a format that keeps weights as the checkpoint stores them, packed.

    packed: by matrix, see `ModelConfig.matrices`. The parameter of a packed matrix has its shape and no memory. group:
    sums what ends a residual branch over the ranks that hold parts of the layer. adapters: add to the products, each
    row by its own; None: the model takes none.
    """

    adapters: Adapters | None = None

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization,
        group: ParallelGroup = SINGLE,
    ) -> None:
        super().__init__()
        self.index = index
        self.group = group
        self.packed: dict[str, Packed] = {}
        self._config, self._quantization = config, quantization
        self._dtype, self._device = dtype, device

    def matrix(self, name: str) -> nn.Parameter:
        """A matrix of this layer without content. Raises UnsupportedModel as `_packs` does."""
        outputs, width = (self._config.matrices | self._config.shared_matrices)[name]
        device = self._device
        if self._packs(name):
            cuts = tuple(begin for matrix, begin, _ in self._config.modules.values() if matrix == name)
            self.packed[name] = self._quantization.empty(outputs, width, self._dtype, device, cuts)
            device = torch.device("meta")
        return nn.Parameter(torch.empty(outputs, width, dtype=self._dtype, device=device), requires_grad=False)

    def arrange(self) -> None:
        """In an ordered group: lay out what ends a residual branch as it is multiplied by. After loading."""
        for name in ("out", "down", "shared_down"):
            if hasattr(self, name):  # a mixture of experts has no MLP, most have no shared ones
                in_parts.arrange(getattr(self, name), self._config.parts)

    def qkv_of(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x: [tokens, hidden]; returns [tokens, (heads + 2 * kv_heads) * head_dim]."""
        if not self.group.ordered:
            return self._adapted("qkv", x, linear(x, weight, bias))
        c = self._config
        q, kv = c.q_width // c.parts, c.kv_width // c.kv_parts
        return self._adapted("qkv", x, in_parts.by_rows(x, weight, [q] * c.parts + [kv] * (2 * c.kv_parts), bias))

    def _adapted(self, matrix: str, x: Tensor, y: Tensor) -> Tensor:
        """`y`, the product of `x` by that matrix, with what adapters add to it."""
        return y if self.adapters is None else self.adapters.add(self.index, matrix, x, y)

    def branch(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product that ends attention, summed over the ranks. x: [tokens, q_width]; returns [tokens, hidden]."""
        if not self.group.ordered:
            return self.group.all_reduce(self._adapted("out", x, linear(x, weight)))
        own = self._adapted("out", x, in_parts.product_sum(x, weight, self._config.parts))
        return in_parts.summed(self.group, own, x.dtype)

    def gated_branch(
        self,
        x: Tensor,
        gate_up: Tensor,
        down: Tensor,
        activation: Callable[[Tensor], Tensor],
        *,
        adapted: bool = True,
    ) -> Tensor:
        """The MLP, summed over the ranks. x: [tokens, hidden], as what it returns. adapted: by what adapters have for
        "gate_up" and "down"."""
        parts, adapted = self._config.parts, adapted and self.adapters is not None
        if self.group.ordered and (not adapted or self.adapters is None or self.adapters.idle):
            own = in_parts.gated_sum(x, gate_up, down, parts, activation)
            return in_parts.summed(self.group, own, x.dtype)
        if self.group.ordered:  # adapters add before the gate
            rows = [len(gate_up) // (2 * parts)] * (2 * parts)
            gate, up = self._adapted("gate_up", x, in_parts.by_rows(x, gate_up, rows)).chunk(2, -1)
            gated = activation(gate) * up
            own = self._adapted("down", gated, in_parts.product_sum(gated, down, parts))
            return in_parts.summed(self.group, own, x.dtype)
        if not adapted:
            gate, up = linear(x, gate_up).chunk(2, -1)
            return self.group.all_reduce(linear(activation(gate) * up, down))
        gate, up = self._adapted("gate_up", x, linear(x, gate_up)).chunk(2, -1)
        gated = activation(gate) * up
        return self.group.all_reduce(self._adapted("down", gated, linear(gated, down)))

    def matrix_places(self) -> dict[str, Tensor]:
        """By the checkpoint's names, behind the layer's own prefix: the rows of matrices that they fill."""
        return {
            f"{module}.weight": getattr(self, matrix)[begin:end]
            for module, (matrix, begin, end) in self._config.modules.items()
            if hasattr(self, matrix)  # a mixture of experts has no MLP
        }

    def packed_places(self) -> dict[str, Packed]:
        """As `matrix_places`, of packed matrices."""
        return {
            f"{module}.weight": self.packed[matrix].rows(begin, end)
            for module, (matrix, begin, end) in self._config.modules.items()
            if matrix in self.packed
        }

    def keeps(self, name: str) -> bool:
        """Whether that matrix stays in the model's dtype since the checkpoint has it in higher precision."""
        return self._config.keeps(self.index, name)

    def _packs_experts(self) -> bool:
        """Whether the experts of a mixture are kept as stored."""
        stored, format = self._config.stored_weights, self._quantization
        kept = stored is not None and stored.format is format and format.as_stored and format.groups_stored
        return kept and not self._config.keeps_experts(self.index)

    def _packs(self, name: str) -> bool:
        """Whether that matrix is kept as stored. Raises UnsupportedModel if the modules that share it differ."""
        stored = self._config.stored_weights
        if not self._quantization.as_stored or stored is None or stored.format is not self._quantization:
            return False
        modules = [module for module, (matrix, _, _) in self._config.modules.items() if matrix == name]
        kept = self._config.kept_modules(self.index, name)
        if kept and len(kept) < len(modules):
            raise UnsupportedModel(
                f"layer {self.index} keeps {', '.join(kept)} in higher precision and quantises the rest of "
                f"{', '.join(modules)}, which share a matrix; serve it with --quantization none"
            )
        return not kept
