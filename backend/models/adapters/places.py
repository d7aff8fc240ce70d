"""The matrices of a layer that adapters apply to, and their memory. Does not import torch: the planner uses it."""

from dataclasses import dataclass

from backend.models.config import ModelConfig
from backend.models.sharding import layer_shares
from backend.parallel.shard import Share


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's share of one matrix of a layer.

    Attributes:
        width: columns. heights: rows of each module that the matrix is made of, in order.
        modules: names of these modules.
    """

    width: int
    heights: tuple[int, ...]
    modules: tuple[str, ...]

    def numbers(self, rank: int) -> int:
        """Return how many numbers one adapter of that rank has for this matrix."""
        return rank * (len(self.heights) * self.width + sum(self.heights))


def places_of(model: ModelConfig, layer: int) -> dict[str, Place]:
    """Return the places of a layer by matrix (`ModelConfig.matrices`), without the matrices of experts."""
    experts = model.experts
    mixture = experts is not None and layer not in experts.dense_layers
    found: dict[str, Place] = {}
    for matrix, (_, width) in model.matrices.items():
        if mixture and matrix in ("gate_up", "down"):
            continue
        own = [(name, end - begin) for name, (of, begin, end) in model.modules.items() if of == matrix]
        found[matrix] = Place(width, tuple(height for _, height in own), tuple(name for name, _ in own))
    return found


def shares_of(model: ModelConfig, layer: int) -> dict[str, Share]:
    """Return, by module, the share of its weight that this rank has. A module that the rank has all of is left out."""
    if model.shard.alone:
        return {}
    return {name.removesuffix(".weight"): share for name, share in layer_shares(model, layer).items()}


def adapter_bytes(model: ModelConfig, rank: int, element_size: int) -> int:
    """Return the bytes of one adapter slot. element_size: bytes of a number."""
    layers = range(model.num_layers)
    return sum(p.numbers(rank) for layer in layers for p in places_of(model, layer).values()) * element_size
