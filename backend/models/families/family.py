"""What a family of models adds to the Llama-shaped decoder, and how its checkpoints say so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from backend.errors import CorruptCheckpoint


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Of a layer's tensors under ``model.layers.N.``: the router, and of expert E its three products."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP (Shazeer et al. 2017): each token takes `per_token` of `count`.

    ``intermediate_size`` is one expert's. ``normalised``: the weights of those taken add up to 1. ``dense_layers`` keep
    an ordinary MLP.
    """

    count: int
    per_token: int
    intermediate_size: int
    names: ExpertNames
    normalised: bool = True
    dense_layers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.count <= 0 or self.intermediate_size <= 0 or not 0 < self.per_token <= self.count:
            raise CorruptCheckpoint(
                f"{self.per_token} of {self.count} experts, {self.intermediate_size} wide, cannot be"
            )


@dataclass(frozen=True, slots=True)
class Traits:
    """Fields of `ModelConfig` that tell one family from another. ``fused_names``: q, k and v are one tensor in the
    checkpoint, and so are gate and up."""

    qkv_bias: bool = False
    qk_norm: bool = False
    fused_names: bool = False
    windows: tuple[int | None, ...] = ()
    experts: Experts | None = None


class ReadTraits(Protocol):
    """From config.json. Raises UnsupportedModel for what is not computed, KeyError for what is not there."""

    def __call__(self, config: Mapping[str, Any]) -> Traits: ...


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the model table.

    Attributes:
        architecture: config.json's name. gguf: ``general.architecture`` of GGUF files, None where none are read.
        models: whose weights these are. features: what it adds, in words.
        traits: reads it. interleaved: its GGUF files hold the rows of q and k in neighbouring pairs.
        gpu: its kernels compute it whole.
    """

    architecture: str
    models: str
    features: str
    traits: ReadTraits = field(repr=False)
    gguf: str | None = None
    interleaved: bool = False
    gpu: str = "yes"
