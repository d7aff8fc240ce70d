"""The tensors that a model waits for, and whether those that come are fit to be computed with."""

import torch
from torch import Tensor

from backend.errors import CorruptCheckpoint


class Expected:
    """The tensors that a checkpoint is to bring, each once. ``ignored`` may come, too: some exports repeat a shared
    matrix."""

    def __init__(self, places: dict[str, Tensor], ignored: set[str]) -> None:
        self._places = places
        self._ignored = ignored
        self._missing = set(places)

    def place(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """Where it goes; None to pass it over. Raises CorruptCheckpoint if it is unknown, there twice or misshapen."""
        if name in self._ignored:
            return None
        if name not in self._places:
            raise CorruptCheckpoint(f"tensor {name} has no place in this architecture")
        if name not in self._missing:
            raise CorruptCheckpoint(f"tensor {name} is there twice")
        place = self._places[name]
        if shape != tuple(place.shape):
            raise CorruptCheckpoint(f"tensor {name} is {list(shape)}, expected {list(place.shape)}")
        self._missing.remove(name)
        return place

    def require_all(self) -> None:
        if self._missing:
            raise CorruptCheckpoint(f"{len(self._missing)} tensors are missing, the first is {min(self._missing)}")


def require_finite(tensors: list[tuple[str, Tensor]]) -> None:
    """Raises CorruptCheckpoint naming the first that holds NaN or infinity. Waits for the device once."""
    if not tensors:
        return
    extremes = torch.stack([torch.stack(tensor.aminmax()).isfinite().all() for _, tensor in tensors])  # NaN is either's
    for (name, _), finite in zip(tensors, extremes.tolist(), strict=True):
        if not finite:
            raise CorruptCheckpoint(f"tensor {name} holds NaN or infinity")
