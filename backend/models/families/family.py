"""What a family of models adds to the Llama-shaped decoder, and how its checkpoints say so."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from backend.errors import CorruptCheckpoint
from backend.kernels.moe.rule import Routing
from backend.models.rope import Rope
from backend.parallel.expert_placement import Placement


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of a layer's tensors under ``model.layers.N.``: the router, and of expert E its three products. correction:
    the bias of the choice, where there is one."""

    router: str
    gate: str
    up: str
    down: str
    correction: str = ""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP (Shazeer et al. 2017): each token takes `per_token` of `count`.

    ``intermediate_size`` is one expert's. ``normalised``: the weights of those taken add up to 1. ``dense_layers`` keep
    an ordinary MLP. ``placement``: where ranks hold experts as wholes, who holds which; None: each holds a part of all.
    ``parts``: as in `ModelConfig`. ``clamp``: the gate is gpt-oss's: of gate and up by turns, clamped to it, with
    ``slope`` in the sigmoid, up + 1, and biases at the router and each product; the checkpoint has all experts of a
    layer in one tensor. None: SiLU(gate) * up, without biases.

    ``sigmoid``, ``scale``, ``groups``, ``groups_taken``: as in `Routing`. ``corrected``: the router has a bias for the
    choice alone (``names.correction``). ``shared_size``: inner width of an MLP that every token takes as well
    (``shared_experts``); 0: there is none.
    """

    count: int
    per_token: int
    intermediate_size: int
    names: ExpertNames
    normalised: bool = True
    dense_layers: frozenset[int] = frozenset()
    placement: Placement | None = None
    parts: int = 1
    clamp: float | None = None
    slope: float = 1.0
    sigmoid: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_taken: int = 1
    corrected: bool = False
    shared_size: int = 0

    def held(self, rank: int) -> tuple[int, ...]:
        """The experts that a rank holds, or holds parts of, in the order of its slots."""
        return tuple(range(self.count)) if self.placement is None else self.placement.slots[rank]

    @property
    def routing(self) -> Routing:
        return Routing(
            self.per_token,
            self.count,
            sigmoid=self.sigmoid,
            normalised=self.normalised,
            scale=self.scale,
            groups=self.groups,
            groups_taken=self.groups_taken,
        )

    def __post_init__(self) -> None:
        if self.count <= 0 or self.intermediate_size <= 0 or not 0 < self.per_token <= self.count:
            raise CorruptCheckpoint(
                f"{self.per_token} of {self.count} experts, {self.intermediate_size} wide, cannot be"
            )
        if self.shared_size < 0 or not 0 < self.groups_taken <= self.groups or self.count % self.groups:
            raise CorruptCheckpoint(
                f"{self.count} experts in {self.groups} groups, {self.groups_taken} taken, beside shared ones "
                f"{self.shared_size} wide, cannot be"
            )
        if self.per_token > self.count // self.groups * self.groups_taken:
            raise CorruptCheckpoint(f"{self.per_token} experts a token are more than {self.groups_taken} groups have")


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): a token leaves a latent vector and a
    rotary key, which all heads share; a head's keys and values are linear in the latent.

    Attributes:
        rank: of the latent. query_rank: of the query's latent; None: queries come from the hidden state itself.
        plain, rotary: of a query and key, dimensions without a position and with one. value: of a head's value.
        interleaved: neighbouring dimensions turn together, not those of two halves.
    """

    rank: int
    query_rank: int | None
    plain: int
    rotary: int
    value: int
    interleaved: bool = True

    def __post_init__(self) -> None:
        sizes = self.rank, self.plain, self.rotary, self.value
        if min(sizes) <= 0 or (self.query_rank is not None and self.query_rank <= 0) or self.rotary % 2:
            raise CorruptCheckpoint(
                f"latent attention of rank {self.rank} ({self.query_rank} for queries), with {self.plain} plain, "
                f"{self.rotary} rotary and {self.value} value dimensions, cannot be"
            )

    @property
    def stored(self) -> int:
        """Numbers that a token leaves in the cache of a layer."""
        return self.rank + self.rotary

    @property
    def query(self) -> int:
        """Dimensions of a head's query."""
        return self.plain + self.rotary


SILU, GELU_TANH = "silu", "gelu_pytorch_tanh"  # transformers' words
Positions = Literal["rope", "local", "none"]


@dataclass(frozen=True, slots=True)
class Variant:
    """What a family's layers compute otherwise than Llama's. See `variant_layer`, and on a GPU `variant_decoder`.

    Attributes:
        norm_before, norm_after: whether attention and MLP each have an RMSNorm on what goes in, and on what comes out
            before it is added.
        norm_from_one: norms multiply by 1 + weight, in float32.
        wide_qk_norm: q and k are normalised over all heads at once, not head by head.
        gelu: the MLP's gate is GELU (tanh form), not SiLU.
        attention_scale: what q · k is multiplied by; None: head_dim ** -0.5.
        attention_cap, logit_cap: x becomes cap * tanh(x / cap) (Gemma Team 2024); None: it stays.
        embedding_scale, residual_scale: multiply what comes out of the embedding, and what each attention and MLP
            adds. logit_scale: divides logits.
        local_rope: positions of layers that are "local" in ``positions``. positions: by layer; empty: "rope" in all.
    """

    norm_before: bool = True
    norm_after: bool = False
    norm_from_one: bool = False
    wide_qk_norm: bool = False
    gelu: bool = False
    attention_scale: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    local_rope: Rope | None = None
    positions: tuple[Positions, ...] = ()

    def __post_init__(self) -> None:
        for name in (
            "attention_scale",
            "attention_cap",
            "logit_cap",
            "embedding_scale",
            "residual_scale",
            "logit_scale",
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise CorruptCheckpoint(f"{name} is {value}; it must be positive")


@dataclass(frozen=True, slots=True)
class Traits:
    """Fields of `ModelConfig` that distinguish families. ``fused_names``: q, k and v are one tensor in the
    checkpoint, and so are gate and up. ``out_bias``: attention ends with a bias. ``sinks``: each head has a score that
    takes its part of the softmax and has no value (Xiao et al. 2024). ``variant``: None for layers that are Llama's.
    ``latent``: what takes the place of grouped-query attention. ``attention_scale``: what q · k is multiplied by; None:
    the variant's, or head_dim ** -0.5. ``predicting_layers``: that a checkpoint has behind the others."""

    qkv_bias: bool = False
    qk_norm: bool = False
    out_bias: bool = False
    sinks: bool = False
    fused_names: bool = False
    windows: tuple[int | None, ...] = ()
    experts: Experts | None = None
    variant: Variant | None = None
    latent: LatentAttention | None = None
    attention_scale: float | None = None
    predicting_layers: int = 0


class ReadTraits(Protocol):
    """From config.json. Raises UnsupportedModel for what is not computed, KeyError for what is not there."""

    def __call__(self, config: Mapping[str, Any]) -> Traits: ...


def _as_it_is(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the model table.

    Attributes:
        architecture: config.json's name. gguf: ``general.architecture`` of GGUF files, None where none are read.
        models: whose weights these are. features: what it adds, in words.
        traits: reads it. spelling: config.json with what its release leaves unsaid, under the names that all share.
        activation: the MLP's, in transformers' words. interleaved: its GGUF files hold the rows of q and k in
            neighbouring pairs.
        gpu: its kernels compute it whole.
    """

    architecture: str
    models: str
    features: str
    traits: ReadTraits = field(repr=False)
    spelling: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default=_as_it_is, repr=False)
    activation: str = SILU
    gguf: str | None = None
    interleaved: bool = False
    gpu: str = "yes"
