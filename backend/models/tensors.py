"""The tensors that a model waits for, and whether those that come are fit to be computed with."""

from collections.abc import Callable

import torch
from torch import Tensor

from backend.errors import CorruptCheckpoint
from backend.parallel.shard import Share


class Expected:
    """The tensors that a checkpoint is to bring, each once. ``ignored`` may come, too: some exports repeat a shared
    matrix. ``shares``: of those that only a part is kept of, which part. ``elsewhere``: whether another rank holds the
    tensor of that name."""

    def __init__(
        self,
        places: dict[str, Tensor],
        ignored: set[str],
        shares: dict[str, Share] | None = None,
        elsewhere: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._elsewhere = elsewhere
        self._places = places
        self._shares = shares or {}
        self._ignored = ignored
        self._missing = set(places)

    def share(self, name: str) -> Share | None:
        """Which part of the tensor goes to its place; None: all of it."""
        return self._shares.get(name)

    def place(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """Where it goes; None to pass it over. Raises CorruptCheckpoint if it is unknown, there twice or misshapen."""
        if name in self._ignored:
            return None
        if name not in self._places and self._elsewhere(name):
            return None
        if name not in self._places:
            raise CorruptCheckpoint(f"tensor {name} has no place in this architecture")
        if name not in self._missing:
            raise CorruptCheckpoint(f"tensor {name} is there twice")
        place = self._places[name]
        share = self.share(name)
        whole = tuple(place.shape) if share is None else share.whole
        if shape != whole:
            raise CorruptCheckpoint(f"tensor {name} is {list(shape)}, expected {list(whole)}")
        self._missing.remove(name)
        return place

    def require_all(self) -> None:
        if self._missing:
            raise CorruptCheckpoint(f"{len(self._missing)} tensors are missing, the first is {min(self._missing)}")


def part_of(tensor: Tensor, share: Share | None) -> Tensor:
    """A rank's part of a whole tensor; None: all of it."""
    if share is None:
        return tensor
    rows = torch.cat([tensor[begin:end] for begin, end in share.rows])
    return rows if share.columns is None else rows[:, slice(*share.columns)]


def require_finite(tensors: list[tuple[str, Tensor]]) -> None:
    """Raises CorruptCheckpoint naming the first that holds NaN or infinity. Waits for the device once."""
    if not tensors:
        return
    extremes = torch.stack([torch.stack(tensor.aminmax()).isfinite().all() for _, tensor in tensors])  # NaN is either's
    for (name, _), finite in zip(tensors, extremes.tolist(), strict=True):
        if not finite:
            raise CorruptCheckpoint(f"tensor {name} holds NaN or infinity")
