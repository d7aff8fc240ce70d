"""The memory of all adapters of a model, and which of them each row of a step has.

A fixed number of slots, all of one rank: an adapter of a lower one is padded with zeros. So nothing is allocated, and
no graph captured again, when adapters come and go: which slot a row has is data.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.kernels.adapters import reference
from backend.kernels.adapters.reference import Segments
from backend.models.adapters.peft import Adapter
from backend.models.adapters.places import Place, places_of
from backend.models.config import ModelConfig


@dataclass(frozen=True)
class Pages:
    """Of one matrix. a: [slots, modules * rank, width]; b: [slots, outputs, rank], scaled."""

    place: Place
    a: Tensor
    b: Tensor


class AdapterBank:
    """model: this rank's share. dtype: the model's. batch_invariant: see `kernels.adapters.deltas.segments`."""

    def __init__(
        self, model: ModelConfig, slots: int, rank: int, dtype: torch.dtype, device: torch.device, *,
        batch_invariant: bool = False,
    ) -> None:  # fmt: skip
        self.slots, self.rank = slots, rank
        self._batch_invariant = batch_invariant
        self._rows: Segments | None = None
        self._ops: Any = reference
        if device.type == "cuda":
            from backend.kernels.adapters import deltas

            self._ops = deltas

        def pages(place: Place) -> Pages:
            modules, outputs = len(place.heights), sum(place.heights)
            a = torch.zeros(slots, modules * rank, place.width, dtype=dtype, device=device)
            return Pages(place, a, torch.zeros(slots, outputs, rank, dtype=dtype, device=device))

        layers = range(model.num_layers)
        self.layers = [{name: pages(place) for name, place in places_of(model, i).items()} for i in layers]

    def __deepcopy__(self, memo: object) -> "AdapterBank":
        """A copied model has the same adapters."""
        return self

    # What is in the slots

    @torch.inference_mode()
    def fill(self, slot: int, adapter: Adapter) -> None:
        """Put an adapter there, behind the steps in flight. Its rank is at most the bank's."""
        self.clear(slot)
        for (layer, module), (a, b) in adapter.parts.items():
            pages = next(p for p in self.layers[layer].values() if module in p.place.modules)
            at = pages.place.modules.index(module)
            begin = sum(pages.place.heights[:at])
            pages.a[slot, at * self.rank :][: len(a)].copy_(a)
            pages.b[slot, begin : begin + len(b), : adapter.rank].copy_(b)

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Zero it, behind the steps in flight."""
        for layer in self.layers:
            for pages in layer.values():
                pages.a[slot].zero_()
                pages.b[slot].zero_()

    # Whose the rows of a step are

    def begin(self, slots: Tensor | None) -> None:
        """slots: int32 [rows], of the rows that `add` is given from now on, -1 for none; None: none has an adapter."""
        invariant = self._batch_invariant
        self._rows = None if slots is None else self._ops.segments(slots, self.slots, batch_invariant=invariant)

    @property
    def idle(self) -> bool:
        """Whether no row of the step has an adapter, as far as the host knows."""
        return self._rows is None

    def add(self, layer: int, matrix: str, x: Tensor, y: Tensor) -> Tensor:
        """`y` with what the adapters add to the product of `x` by that matrix. It is written to.

        x: [rows, width]. y: [rows, outputs], in the model's dtype or float32.
        """
        if self._rows is None:
            return y
        pages = self.layers[layer][matrix]
        heights = pages.place.heights
        h = self._ops.shrink(x.contiguous(), pages.a, self._rows, len(heights))
        self._ops.expand(y, h, pages.b, self._rows, heights)
        return y

    def adapts(self, layer: int, matrix: str) -> bool:
        return matrix in self.layers[layer]

    def rows(self, index: Tensor) -> None:
        """Of the rows that `begin` was given, only these from now on."""
        if self._rows is not None:
            self.begin(self._rows.slots[index])
