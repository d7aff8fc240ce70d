"""What decoders have in common that are computed by the kernels of `backend.kernels`: what a step gives them and takes
from them, and the weights they take over.

Everything that varies from step to step arrives in tensors, so that a whole step can be captured in a CUDA graph. How
the layers are computed is another matter: `fused_decoder` for Llama's form, `variant_decoder` for families that depart
from it.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from backend.kernels.interface import Kernels
from backend.kernels.launching.side_stream import SideStream
from backend.models.adapters.adapted_linear import AdaptedLinear
from backend.models.decoders.decoder import Decoder
from backend.models.layer_groups import LayerGroups
from backend.models.layers.matrices import Matrices
from backend.models.rope import Rope
from backend.quantization.experts import Experts
from backend.quantization.format import Quantization
from backend.quantization.linear import BiasedLinear, Hidden, Linear
from backend.quantization.none import NONE

NARROW_MULTIPLE = 32  # of widths, for products of a few rows
LT_ROWS = (64, 128)  # see `library_for`


class CachedAttention(Protocol):
    """Attention over what the cache of `layer` holds, this step's keys and values included.

    q: [tokens, heads, head_dim]. qkv: [tokens, (heads + 2 * kv_heads) * head_dim], in which k is turned if
    ``keys_in_place``. Returns [tokens, heads * head_dim].
    """

    keys_in_place: bool

    def __call__(self, layer: int, q: Tensor, qkv: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class PagedCache:
    """keys, values: [places, blocks, block_size, kv_heads, head_dim]. FP8 ones hold value / scale, scale [layers,
    kv_heads] float32. groups: which place of which table's blocks a layer has; None: all layers share one table."""

    keys: Tensor
    values: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    groups: LayerGroups | None = None

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer."""
        place = layer if self.groups is None else self.groups.places[layer]
        return self.keys[place], self.values[place]

    def by_table(self, layer: int, several: Tensor) -> Tensor:
        """That of the layer's table, of what there is for each, [tables, …], where there are several."""
        return several if self.groups is None or len(self.groups.windows) == 1 else several[self.groups.tables[layer]]

    def scales(self, layer: int) -> dict[str, Tensor | None]:
        """Scales of one layer, as the kernels take them."""
        if self.k_scale is None or self.v_scale is None:
            return {"k_scale": None, "v_scale": None}
        return {"k_scale": self.k_scale[layer], "v_scale": self.v_scale[layer]}


@dataclass(frozen=True, slots=True)
class StepTokens:
    """ids, positions, slots: [tokens] int64; slot -1 writes no cache; slots as in `StepInputs`. last: [rows] int64, the
    tokens whose next-token logits are wanted; None: all of them. adapters: int32 [tokens], slot of each one's adapter,
    -1 for none; None where the model takes no adapters."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    last: Tensor | None
    adapters: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Attended:
    """Where the last layer has attended, and nothing is left to do that concerns more than one token.

    residual: [tokens, width]. x: [tokens, heads * head_dim], what attention found. adapters: as in `StepTokens`.
    """

    residual: Tensor
    x: Tensor
    adapters: Tensor | None = None

    def rows(self, index: Tensor) -> "Attended":
        adapters = None if self.adapters is None else self.adapters[index]
        return Attended(self.residual[index], self.x[index], adapters)


@dataclass(frozen=True, slots=True)
class Products:
    """What a layer attends with, whatever its norms and its MLP."""

    qkv: Linear
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear


class PagedDecoder(ABC):
    """Takes over the weights of `model`. quantization: the format of those of the layers; one that is made from dense
    weights quantises them one by one, and leaves `model` without."""

    layers: Sequence[Products]
    norm: Tensor

    def __init__(self, model: Decoder, kernels: Kernels, quantization: Quantization = NONE) -> None:
        self.config = config = model.config
        self.kernels = kernels
        self.quantization = quantization
        self.kv_scales = model.kv_scales
        self.group = model.group
        self.adapters = model.adapters
        self.exposure = model.exposure
        self.side = SideStream(model.embedding.device)
        self.group.reserve(config.hidden_size, model.embedding.dtype)
        self.embedding, self.head = model.embedding, model.head
        self._row_of_token = None if self.group.alone else model.row_of_token
        fits = all(width % NARROW_MULTIPLE == 0 for _, width in config.matrices.values())
        self.narrow_rows = quantization.narrow_rows if fits else 0
        self.sinks = [_sinks_of(layer) for layer in model.layers]  # float32 [heads] of each layer, None without

    @property
    def layer_bytes(self) -> int:
        """Bytes of a layer's matrices as tensor cores multiply them: what the time of a large step goes by."""
        return self.config.layer_numbers * self.quantization.operand_bytes(self.embedding.element_size())

    def weights(self) -> list[Tensor]:
        """All that it multiplies by, each once."""
        found: list[Tensor | None] = [self.embedding, self.head, self.norm, *self.sinks]
        for layer in self.layers:
            for part in (getattr(layer, f.name) for f in fields(layer)):
                if isinstance(part, Linear | Experts):
                    found += part.tensors()
                else:
                    found += part if isinstance(part, tuple) else [part]
        return list({id(tensor): tensor for tensor in found if tensor is not None}.values())

    def __call__(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Tensor:
        """[rows, vocab_size] in the model's dtype."""
        return self.logits(self.body(tokens, cache, attention))

    def body(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Hidden:
        """All layers; the rows named by ``tokens.last``."""
        return self.finish(self.attended(tokens, cache, attention), tokens.last)

    def finish(self, before: Attended, last: Tensor | None) -> Hidden:
        """The last layer from its attention on, of the tokens named by `last`, for few have a next token to draw; of a
        model of 32 layers that saves 3 % of what a prompt costs. None: of all. It may write into ``before``.

        A stage that is not the last one sends what it leaves of all tokens to the next; what comes back then is only as
        many rows."""
        if not self.config.stage.last:
            rows = before.residual if last is None else before.residual[last]
            self.group.pipeline.send(self._settled(self.finished(before)))
            return Hidden(rows)
        if self.exposure is not None and self.exposure.last:
            states = self.states(self.finished(before))
            self.exposure.read_by_head(states)
            return Hidden(states if last is None else states[last], normed=True)
        return self.finished(before if last is None else before.rows(last))

    def _expose(self, layer: int, hidden: Tensor) -> None:
        """Leave the hidden states that enter `layer` for a head that guesses, if it reads them."""
        if self.exposure is not None:
            self.exposure.before(layer, hidden)

    def _settled(self, hidden: Hidden) -> Tensor:
        """All that the layers leave, in one: [tokens, width]."""
        if hidden.added is None:
            return hidden.residual
        added = hidden.added.float() if hidden.added.dim() == 2 else hidden.added.sum(0)
        if hidden.scales is not None:
            added = added * (hidden.scales[0] * hidden.scales[1].t())
        if hidden.partial:
            added = self.group.all_reduce(added.to(hidden.residual.dtype)).float()
        return (hidden.residual.float() + added).to(hidden.residual.dtype)

    def rebalance(self, least: int) -> bool:
        """As `Decoder.rebalance`."""
        return False

    def expert_loads(self) -> list[int]:
        """As `Decoder.expert_loads`."""
        return []

    @abstractmethod
    def attended(self, tokens: StepTokens, cache: PagedCache, attention: CachedAttention) -> Attended:
        """All layers up to the attention of the last one, of all tokens."""

    @abstractmethod
    def finished(self, before: Attended) -> Hidden:
        """`finish`, of all that are given."""

    def logits(self, hidden: Hidden) -> Tensor:
        """[rows, vocab_size] in the model's dtype, on every stage."""
        if self.config.stage.last:
            return self.group.pipeline.logits(self.own_logits(hidden))
        return self.group.pipeline.logits(hidden.residual.new_empty(len(hidden.residual), self.config.vocab_size))

    @contextmanager
    def logits_leaving(self, hidden: Hidden, largest: Tensor) -> Iterator[Tensor]:
        """`logits`; behind the context the largest activations that the head reads of the last rows are in `largest`,
        on every stage. In a captured step they are sought while the head's product waits for memory, and within the
        context nothing waits for them.

        largest: int32 [rows, min(`activations.rows.MOST`, hidden_size)], see `kernels.largest_activations`.
        """
        pipeline, last = self.group.pipeline, self.config.stage.last
        if not last:
            yield self.logits(hidden)
            pipeline.logits(largest)
            return
        states = self.states(hidden)  # once: sums over ranks may write into what they add
        rows = states[len(states) - len(largest) :]
        aside = self.side.usable and self.config.stage.count == 1
        with self.side.beside() if aside else nullcontext():
            self.kernels.largest_activations(rows, largest.shape[1], largest)
        yield pipeline.logits(self.headed(states))
        if aside:
            self.side.join()
        pipeline.logits(largest)

    def own_logits(self, hidden: Hidden) -> Tensor:
        """The same as `logits`, of the last stage."""
        return self.headed(self.states(hidden))

    @abstractmethod
    def headed(self, states: Tensor) -> Tensor:
        """Logits of what the head reads, of the last stage: [rows, vocab_size]."""

    def entering(self, ids: Tensor) -> Tensor:
        """What the first layer here gets: [tokens, hidden_size]."""
        if self.config.stage.first:
            return self.embedded(ids)
        shape = len(ids), self.config.hidden_size
        return self.group.pipeline.receive(shape, self.embedding.dtype, self.embedding.device)

    def embedded(self, ids: Tensor) -> Tensor:
        """[tokens, hidden_size]."""
        if self._row_of_token is None:
            return self.embedding[ids]  # for few rows three times as fast as F.embedding
        return self.group.all_reduce(self.embedding[self._row_of_token[ids]])

    def states(self, hidden: Hidden) -> Tensor:
        """What the head reads: [rows, hidden_size]."""
        k, eps = self.kernels, self.config.rms_norm_eps
        if hidden.normed:
            return hidden.residual
        if hidden.added is None:
            return k.rms_norm(hidden.residual, self.norm, eps)
        if hidden.partial:
            return self.group.add_rms_norm(k, hidden.added, hidden.residual, self.norm, eps)[0]
        return k.add_rms_norm(hidden.added, hidden.residual, self.norm, eps, scales=hidden.scales)[0]

    def _adapt(self, slots: Tensor | None) -> None:
        """Use these adapters, by row, in all products from now on."""
        if self.adapters is not None:
            self.adapters.begin(slots)

    def _linear(self, layer: Matrices, name: str) -> Linear:
        """The product by one of a layer's matrices (`ModelConfig.matrices`)."""
        return self._adapted(layer, name, self._base(layer, name))

    def _adapted(self, layer: Matrices, name: str, base: Linear) -> Linear:
        bank = self.adapters
        adapts = bank is not None and bank.adapts(layer.index, name)
        return AdaptedLinear(base, bank, layer.index, name) if adapts and bank is not None else base

    def _base(self, layer: Matrices, name: str) -> Linear:
        packed = layer.packed.get(name)
        if packed is not None:
            return packed.format.linear(self.kernels, packed)
        format = NONE if layer.keeps(name) else self.quantization
        return format.quantised(self.kernels, getattr(layer, name))

    def _ending(self, layer: Matrices, name: str) -> Linear:
        """The same by one that ends a residual branch: in parts where the group's sums are ordered."""
        found = self._base(layer, name)
        bias = getattr(layer, f"{name}_bias", None)
        if not self.group.ordered or bias is not None:  # a model with such a bias is on one rank
            return self._adapted(layer, name, found if bias is None else BiasedLinear(found, bias))
        divided, packed = found.divided(self.config.parts), layer.packed.get(name)
        if packed is not None:
            packed.parts.clear()  # the parts are copies
        return self._adapted(layer, name, divided)

    def _turned(
        self,
        index: int,
        layer: Products,
        qkv: Tensor,
        cos_sin: Tensor,
        tokens: StepTokens,
        cache: PagedCache,
        attention: CachedAttention,
        scales: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attention of layer `index`, behind its norms of q and k and the turn by `cos_sin`."""
        keys, values = cache.of(index)
        q = self.kernels.rotary_kv(
            qkv,
            tokens.positions,
            cos_sin,
            cache.by_table(index, tokens.slots),
            keys,
            values,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=self.config.rms_norm_eps,
            keys_in_place=attention.keys_in_place,
            scales=scales,
            dtype=self.embedding.dtype,
            **cache.scales(index),
        )
        return attention(index, q, qkv)


def _sinks_of(layer: object) -> Tensor | None:
    sinks: Tensor | None = getattr(layer, "sinks", None)
    return None if sinks is None else sinks.float().contiguous()


def table_of(rope: Rope, head_dim: int, length: int, device: torch.device) -> Tensor:
    """Cosines, then sines, of every position: float32 [length, head_dim]."""
    found = rope.scaling.frequencies(rope.theta, head_dim, length)
    frequencies = torch.tensor(found, dtype=torch.float32, device=device)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies)
    return torch.cat((angles.cos(), angles.sin()), -1) * rope.scaling.magnitude


@contextmanager
def library_for(rows: int, device: torch.device) -> Iterator[None]:
    """At 128 rows cuBLAS takes a poor form for wide products that cuBLASLt does not (8B's down: 53 µs and 45 on an
    H100); elsewhere they are alike, or cuBLAS is ahead."""
    if device.type != "cuda" or not LT_ROWS[0] < rows <= LT_ROWS[1]:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*preferred_blas_library is an experimental feature")
        before = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library("cublaslt")
        try:
            yield
        finally:
            torch.backends.cuda.preferred_blas_library(before)
