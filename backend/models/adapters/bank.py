"""Device memory for all adapters of a model, and the adapter slot of each row of a step.

The number of slots is fixed and all have one rank; an adapter of a lower rank is padded with zeros. The slot of a row
is data, so loading or unloading an adapter allocates no memory and needs no new capture of a CUDA graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from backend.kernels.adapters import reference
from backend.kernels.adapters.reference import Segments
from backend.kernels.launching.side_stream import SideStream
from backend.models.adapters.peft import Adapter
from backend.models.adapters.places import Place, places_of
from backend.models.config import ModelConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Pages:
    """Adapter weights of one matrix. a: [slots, modules * rank, width]; b: [slots, outputs, rank], scaled."""

    place: Place
    a: Tensor
    b: Tensor


class AdapterBank:
    """model: this rank's share. dtype: the model's. batch_invariant: see `kernels.adapters.deltas.segments`."""

    def __init__(
        self,
        model: ModelConfig,
        slots: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        batch_invariant: bool = False,
    ) -> None:
        self.slots, self.rank = slots, rank
        self._batch_invariant = batch_invariant
        self._rows: Segments | None = None
        self._ops: Any = reference
        self._side = SideStream(device)
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
        """Return the bank itself: a copied model shares its adapters."""
        return self

    # What is in the slots

    @torch.inference_mode()
    def fill(self, slot: int, adapter: Adapter) -> None:
        """Copy an adapter into a slot, in stream order after the steps in flight. Its rank is at most the bank's."""
        self.clear(slot)
        for (layer, module), (a, b) in adapter.parts.items():
            pages = next(p for p in self.layers[layer].values() if module in p.place.modules)
            at = pages.place.modules.index(module)
            begin = sum(pages.place.heights[:at])
            pages.a[slot, at * self.rank :][: len(a)].copy_(a)
            pages.b[slot, begin : begin + len(b), : adapter.rank].copy_(b)

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Zero a slot, in stream order after the steps in flight."""
        for layer in self.layers:
            for pages in layer.values():
                pages.a[slot].zero_()
                pages.b[slot].zero_()

    # The adapter of each row of a step

    def begin(self, slots: Tensor | None) -> None:
        """Set the slots of the rows of the next calls of `add`.

        slots: int32 [rows], -1 for a row without an adapter; None: no row has an adapter.
        """
        invariant = self._batch_invariant
        self._rows = None if slots is None else self._ops.segments(slots, self.slots, batch_invariant=invariant)

    @property
    def idle(self) -> bool:
        """Whether the host knows that no row of the step has an adapter."""
        return self._rows is None

    def add(self, layer: int, matrix: str, x: Tensor, y: Tensor) -> Tensor:
        """Add the adapters' product of `x` for that matrix to `y`, in place, and return `y`.

        x: [rows, width]. y: [rows, outputs], in the model's dtype or float32.
        """
        if self._rows is None:
            return y
        pages = self.layers[layer][matrix]
        heights = pages.place.heights
        h = self._ops.shrink(x.contiguous(), pages.a, self._rows, len(heights))
        self._ops.expand(y, h, pages.b, self._rows, heights)
        return y

    def added(
        self, layer: int, matrix: str, x: Tensor, product: Callable[[], Tensor], *, parts: bool = False
    ) -> Tensor:
        """The same for a product that is still to be made, and returned; parts: it is [parts, rows, outputs].

        In a captured step the first of an adapter's two matrices is multiplied beside `product`, which leaves most of
        the card's processors waiting for memory. The two share nothing but `x`.
        """
        if self._rows is None or not self._side.usable:
            y = product()
            self.add(layer, matrix, x, y[0] if parts else y)
            return y
        pages, x = self.layers[layer][matrix], x.contiguous()
        heights = pages.place.heights
        with self._side.beside():
            h = self._ops.shrink(x, pages.a, self._rows, len(heights), chain=False)
        y = product()
        self._side.join()
        self._ops.expand(y[0] if parts else y, h, pages.b, self._rows, heights, chain=False)
        return y

    def beside(self, layer: int, matrix: str, x: Tensor, product: Callable[[], T]) -> tuple[T, Tensor]:
        """(`product`, the adapters' product of `x` for that matrix, [rows, outputs] in x's dtype), which the caller
        adds. Some row of the step may have an adapter.

        In a captured step both of an adapter's matrices are multiplied beside `product`.
        """
        assert self._rows is not None  # noqa: S101 -- see `idle`
        pages, rows, x = self.layers[layer][matrix], self._rows, x.contiguous()
        heights = pages.place.heights

        def more(chain: bool) -> Tensor:
            h = self._ops.shrink(x, pages.a, rows, len(heights), chain=chain)
            y = x.new_zeros(len(x), sum(heights))
            self._ops.expand(y, h, pages.b, rows, heights, chain=False)  # behind one that takes no part
            return y

        if not self._side.usable:
            return product(), more(chain=True)
        with self._side.beside():
            added = more(chain=False)
        found = product()
        self._side.join()
        return found, added

    def adapts(self, layer: int, matrix: str) -> bool:
        return matrix in self.layers[layer]

    def rows(self, index: Tensor) -> None:
        """Keep only these rows of those given to `begin`, for the next calls of `add`. index: [rows kept]."""
        if self._rows is not None:
            self.begin(self._rows.slots[index])
