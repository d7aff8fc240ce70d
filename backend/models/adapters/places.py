"""Where adapters add to a layer's products, and how much memory they take. Without torch, for the planner."""

from dataclasses import dataclass

from backend.models.config import ModelConfig
from backend.models.sharding import layer_shares
from backend.parallel.shard import Share


@dataclass(frozen=True, slots=True)
class Place:
    """One of a layer's matrices, as a rank holds it.

    Attributes:
        width, heights: its columns, and the rows of each module that it is made of, in order.
        modules: their names.
    """

    width: int
    heights: tuple[int, ...]
    modules: tuple[str, ...]

    def numbers(self, rank: int) -> int:
        """That one adapter of that rank has here."""
        return rank * (len(self.heights) * self.width + sum(self.heights))


def places_of(model: ModelConfig, layer: int) -> dict[str, Place]:
    """By matrix (`ModelConfig.matrices`): all but those of experts."""
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
    """By module: which part of its weight this rank has; none where it has all."""
    if model.shard.alone:
        return {}
    return {name.removesuffix(".weight"): share for name, share in layer_shares(model, layer).items()}


def adapter_bytes(model: ModelConfig, rank: int, element_size: int) -> int:
    """That one adapter's place takes."""
    layers = range(model.num_layers)
    return sum(p.numbers(rank) for layer in layers for p in places_of(model, layer).values()) * element_size
