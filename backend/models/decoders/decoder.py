"""The Llama-shaped decoder (Touvron et al. 2023; Grattafiori et al. 2024), for a flat batch of tokens.

One forward takes the tokens of all sequences of a step, prefill and decode mixed, as one row each: linear layers do
not care whose row it is. Attention does, and is handed in, so that the same model runs on gathered pages (CPU) or on a
paged kernel (GPU).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.models.adapters.bank import AdapterBank
from backend.models.config import ModelConfig
from backend.models.decoders.exposure import Exposure
from backend.models.layers import in_parts, vocabulary
from backend.models.layers.arithmetic import Attention
from backend.models.layers.decoder_layer import DecoderLayer
from backend.models.layers.latent_layer import LatentLayer
from backend.models.layers.linear import linear
from backend.models.layers.matrices import Matrices
from backend.models.layers.variant_layer import VariantLayer, cap, norm
from backend.models.rope import Rope
from backend.models.sharding import EMBEDDING, HEAD, layer_shares, table_share
from backend.models.tensors import Expected, part_of, require_finite
from backend.parallel.group import SINGLE, ParallelGroup
from backend.parallel.shard import Share, vocabulary_tile
from backend.quantization.format import Packed, Quantization
from backend.quantization.none import NONE

BODY = "model."
TEXT_PARTS = ("language_model.", "model.language_model.")  # as in releases, and as transformers 5 has them in memory
NORM = "model.norm.weight"
TABLES = (EMBEDDING, HEAD, NORM)
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
IMAGE_PARTS = ("vision_tower.", "multi_modal_projector.")


@dataclass(frozen=True, slots=True)
class Begun:
    """Logits and states (what the head reads) of the last stage; of another one, places for them."""

    logits: Tensor
    states: Tensor


class Decoder(nn.Module):
    """Token ids and positions in, logits of chosen rows out.

    quantization: a format that keeps weights as the checkpoint stores them has those of the layers in
    `Matrices.packed`; only the decoders of the kernels multiply by such. group: of a rank, whose `config` is its share
    (`sharding.of_rank`); its tables then have some spare rows of zeros behind its part of the vocabulary. adapters: see
    `adapt`. exposure: where hidden states are left for a head that guesses; None: nowhere.
    """

    adapters: AdapterBank | None = None
    exposure: Exposure | None = None

    cos: Tensor
    sin: Tensor
    local_cos: Tensor
    local_sin: Tensor
    row_of_token: Tensor

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        quantization: Quantization = NONE,
        group: ParallelGroup = SINGLE,
    ) -> None:
        super().__init__()
        device = torch.device(device)
        self.config = config
        self.group = group

        def table(*, held: bool) -> nn.Parameter:
            rows = vocabulary.rows(config.shard, config.vocab_size) if held else 0
            made = torch.empty(rows, config.hidden_size, dtype=dtype, device=device)
            made[len(self.tokens_of(made)) :] = 0
            return nn.Parameter(made, requires_grad=False)

        self.embedding = table(held=config.has_embedding)
        kind: type[DecoderLayer] | type[VariantLayer] = DecoderLayer if config.variant is None else VariantLayer
        if config.latent is not None:
            kind = LatentLayer
        self.layers = nn.ModuleList(
            kind(config, i, dtype, device, quantization, group) for i in range(config.num_layers)
        )
        self.norm = nn.Parameter(torch.empty(config.hidden_size, dtype=dtype, device=device), requires_grad=False)
        self.head = self.embedding if config.tie_word_embeddings else table(held=config.stage.last)
        if not group.alone:
            self.register_buffer(
                "row_of_token", vocabulary.row_of_token(config.shard, config.vocab_size, device), persistent=False
            )
        self.kv_scales: Tensor | None = None  # [layers, 2] float32 on the CPU, of an FP8 cache; None: 1
        self._tabulate("", Rope(config.rope_theta, config.rope_scaling, config.max_position))
        if config.variant is not None and config.variant.local_rope is not None:
            self._tabulate("local_", config.variant.local_rope)

    def _tabulate(self, prefix: str, rope: Rope) -> None:
        """Cosines and sines of every position, [max_position, 1, rotary_dim // 2], in buffers with that prefix."""
        device, dtype, length = self.embedding.device, self.embedding.dtype, self.config.max_position
        found = rope.scaling.frequencies(rope.theta, self.config.rotary_dim, length)
        frequencies = torch.tensor(found, dtype=torch.float32, device=device)
        angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), frequencies)
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            scaled = (table * rope.scaling.magnitude).to(dtype).unsqueeze(1)
            self.register_buffer(prefix + name, scaled, persistent=False)

    @torch.inference_mode()
    def forward(self, ids: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor) -> Tensor:
        """
        Args:
            ids, positions: [tokens], int64.
            logit_rows: [rows], int64: which tokens' next-token logits are wanted (each sequence's last, usually).
        Returns:
            [rows, vocab_size] in the model's dtype.
        """
        return self.collect(self.begin(ids, positions, attention, logit_rows))

    @torch.inference_mode()
    def begin(self, ids: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor) -> "Begun":
        """What `collect` takes. A stage does not wait here for those behind it."""
        if not self.config.stage.last:
            self.group.pipeline.send(self._through(ids, positions, attention))
            rows, place = len(logit_rows), self.embedding.new_empty
            return Begun(place(rows, self.config.vocab_size), place(rows, self.config.hidden_size))
        states = self.states(ids, positions, attention, logit_rows)
        logits = self.group.logits(self._head_of(states), self.config.vocab_size)
        variant = self.config.variant
        return Begun(logits if variant is None else cap(logits / variant.logit_scale, variant.logit_cap), states)

    @torch.inference_mode()
    def collect(self, begun: "Begun") -> Tensor:
        """The logits, on every stage."""
        return self.group.pipeline.logits(begun.logits)

    @torch.inference_mode()
    def collect_states(self, begun: "Begun") -> Tensor:
        """What the head read, on every stage: [rows, hidden_size]. All stages ask for it, or none does."""
        return self.group.pipeline.logits(begun.states)

    def _head_of(self, states: Tensor) -> Tensor:
        """Logits of this rank's tokens, [rows, rows of the head]."""
        if not self.group.ordered:
            return linear(states, self.head)
        own, height = self.tokens_of(self.head), vocabulary_tile(self.config.vocab_size)
        heights = [min(height, len(own) - at) for at in range(0, len(own), height)]
        return F.pad(in_parts.by_rows(states, own, heights), (0, len(self.head) - len(own)))

    def adapt(self, bank: AdapterBank | None) -> None:
        """Let products get what the adapters in it add; also those of the decoder that takes the weights over."""
        self.adapters = bank
        for layer in self.layers:
            assert isinstance(layer, Matrices)  # noqa: S101  (see `places`)
            layer.adapters = bank

    def arrange(self) -> None:
        """In an ordered group: lay weights out as they are multiplied by. After loading; they have no `places` then."""
        for layer in self.layers:
            assert isinstance(layer, Matrices)  # noqa: S101  (see `places`)
            layer.arrange()

    @torch.inference_mode()
    def states(self, ids: Tensor, positions: Tensor, attention: Attention, rows: Tensor) -> Tensor:
        """What the head reads: the last layer's output, normalised, of those `rows`. [rows, hidden_size]."""
        hidden = self._through(ids, positions, attention)
        if self.exposure is not None and self.exposure.last:
            states = norm(self.config.variant, hidden, self.norm, self.config.rms_norm_eps)
            self.exposure.read_by_head(states)
            return states[rows]
        return norm(self.config.variant, hidden[rows], self.norm, self.config.rms_norm_eps)

    def _through(self, ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """What this stage's layers leave, of all tokens."""
        variant, embedding = self.config.variant, self.embedding
        if self.config.stage.first:
            hidden = self._embedded(ids)
            if variant is not None:
                hidden = hidden * torch.tensor(variant.embedding_scale, dtype=hidden.dtype)  # rounded as in the release
        else:
            shape = len(ids), self.config.hidden_size
            hidden = self.group.pipeline.receive(shape, embedding.dtype, embedding.device)
        tables = {"rope": (self.cos[positions], self.sin[positions])}
        if variant is not None and variant.local_rope is not None:
            tables["local"] = self.local_cos[positions], self.local_sin[positions]
        for i, layer in enumerate(self.layers):
            if self.exposure is not None:
                self.exposure.before(i, hidden)
            cos, sin = tables.get(self.config.positions_of(i), tables["rope"])
            hidden = layer(hidden, cos, sin, attention)
        return hidden

    def _embedded(self, ids: Tensor) -> Tensor:
        if self.group.alone:
            return F.embedding(ids, self.embedding)
        return self.group.all_reduce(F.embedding(self.row_of_token[ids], self.embedding))

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Fill every parameter from Hugging Face names.

        Raises CorruptCheckpoint naming the tensor if one is missing, unknown, twice there, misshapen or not finite.
        """
        found = self.expected()
        for name, tensor in weights:
            place = found.place(name, tuple(tensor.shape))
            if place is not None:
                require_finite([(name, tensor)])
                place.copy_(part_of(tensor, found.share(name)))
        found.require_all()

    @torch.no_grad()
    def agree(self) -> None:
        """Copy random weights that all ranks hold from rank 0, and clear the tables' spare rows."""
        for table in (self.embedding, self.head):
            table[len(self.tokens_of(table)) :] = 0
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer | VariantLayer)  # noqa: S101  (see `places`)
            if isinstance(layer, DecoderLayer) and layer.experts is not None:
                self.group.broadcast(layer.experts.router)

    def expected(self) -> Expected:
        repeated = {HEAD} if self.config.tie_word_embeddings else set()
        return Expected(self.places(), repeated, self.shares(), self._elsewhere)

    def _elsewhere(self, name: str) -> bool:
        """Whether another rank holds the checkpoint's tensor of that name."""
        found, config = LAYER.match(name), self.config
        if found is None:
            return config.stage.count > 1 and name in TABLES
        layer = int(found[1]) - config.first_layer
        if not 0 <= layer < config.num_layers:
            return 0 <= int(found[1]) < (config.all_layers or config.num_layers) + config.predicting_layers
        own = self.layers[layer]
        mixture = own.experts if isinstance(own, DecoderLayer) else None
        return mixture is not None and mixture.elsewhere(found[2])

    def rebalance(self, least: int) -> bool:
        """Choose again which experts have copies, in each layer that has routed at least `least` pairs of tokens and
        experts since the last choice; all ranks at the same time. False if there is no such layer."""
        return any(
            layer.experts.rebalance(least)
            for layer in self.layers
            if isinstance(layer, DecoderLayer) and layer.experts is not None
        )

    def expert_loads(self) -> list[int]:
        """Pairs of tokens and experts that each rank has computed, of all layers; [] where experts are not held as
        wholes."""
        held = [x.experts.held for x in self.layers if isinstance(x, DecoderLayer) and x.experts is not None]
        each = [one.rank_loads() for one in held if one is not None]
        return [round(sum(ranks)) for ranks in zip(*each, strict=True)]

    def shares(self) -> dict[str, Share]:
        """By Hugging Face name: which part of a tensor goes to its place, where that is not all of it."""
        if self.config.shard.alone:
            return {}
        found = dict.fromkeys((EMBEDDING, HEAD), table_share(self.config))
        for i in range(self.config.num_layers):
            prefix = self.config.prefix_of(i)
            found |= {f"{prefix}{name}": share for name, share in layer_shares(self.config, i).items()}
        return found

    def tokens_of(self, table: Tensor) -> Tensor:
        """The rows of embedding or head that belong to tokens."""
        begin, end = self.config.shard.tokens(self.config.vocab_size)
        return table[: end - begin]

    def own_names(self, names: list[str]) -> list[str | None]:
        """As `places` spells them; see `text_names`."""
        return text_names(names)

    def places(self) -> dict[str, Tensor]:
        """Hugging Face name -> where it goes, as views into the fused weights."""
        places: dict[str, Tensor] = {}
        if self.config.has_embedding:
            places[EMBEDDING] = self.tokens_of(self.embedding)
        if self.config.stage.last:
            places[NORM] = self.norm
        if self.config.stage.last and not self.config.tie_word_embeddings:
            places[HEAD] = self.tokens_of(self.head)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer | VariantLayer)  # noqa: S101  (ModuleList forgets its element type)
            places |= {f"{self.config.prefix_of(i)}{name}": place for name, place in layer.places().items()}
        return places

    def packed_places(self) -> dict[str, Packed]:
        """The same of weights that are kept as stored."""
        places: dict[str, Packed] = {}
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, Matrices)  # noqa: S101  (see `places`)
            places |= {f"{self.config.prefix_of(i)}{name}": place for name, place in layer.packed_places().items()}
        return places


def text_names(names: list[str]) -> list[str | None]:
    """A checkpoint's names, as `Decoder.places` spells them; None for what is another model's. One that was saved
    without its head names its tensors from the body on, one that reads images, too, by its parts."""
    if any(name.startswith(TEXT_PARTS) for name in names):
        return [_of_text_part(name) for name in names]
    return list(names) if any(name.startswith(BODY) for name in names) else [BODY + name for name in names]


def _of_text_part(name: str) -> str | None:
    """What is nobody's stays as it is, so that it is found to have no place."""
    if name.startswith("language_model."):
        return name.removeprefix("language_model.")
    if name.removeprefix(BODY).startswith(IMAGE_PARTS):
        return None
    return name.replace("model.language_model.", BODY, 1)
