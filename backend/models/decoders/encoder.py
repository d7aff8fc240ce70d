"""The encoder that `bert` describes, for a flat batch of whole texts, in plain torch."""

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.models.bert import EncoderConfig, segments
from backend.models.layers.linear import linear
from backend.models.tensors import Expected

WRAPPERS = ("bert.", "roberta.")  # what a release with a head, or one that lost it, puts before every name
NOT_NEEDED = {  # of a head, and tables that follow from config.json
    "pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids", "embeddings.token_type_ids",
}  # fmt: skip


class Affine(nn.Module):
    """A matrix or a norm's scale, and its bias."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(shape[0], dtype=dtype, device=device), requires_grad=False)

    def places(self, name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": self.weight, f"{name}.bias": self.bias}


class EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads, self.eps = config.num_heads, config.eps

        def affine(*shape: int) -> Affine:
            return Affine(shape, dtype, device)

        self.qkv = affine(3 * hidden, hidden)
        self.out, self.out_norm = affine(hidden, hidden), affine(hidden)
        self.up, self.down = affine(inner, hidden), affine(hidden, inner)
        self.down_norm = affine(hidden)

    def forward(self, hidden: Tensor, texts: "BatchLayout") -> Tensor:
        attended = linear(self._attended(hidden, texts), self.out.weight, self.out.bias)
        hidden = layer_norm(hidden + attended, self.out_norm, self.eps)
        inner = F.gelu(linear(hidden, self.up.weight, self.up.bias))
        return layer_norm(hidden + linear(inner, self.down.weight, self.down.bias), self.down_norm, self.eps)

    def _attended(self, hidden: Tensor, texts: "BatchLayout") -> Tensor:
        tokens, width = hidden.shape
        qkv = linear(hidden, self.qkv.weight, self.qkv.bias).view(tokens, 3, self.heads, width // self.heads)
        attend = together if hidden.device.type == "cuda" else one_by_one
        return attend(qkv, texts).view(tokens, width)

    def places(self) -> dict[str, Tensor]:
        """The checkpoint's names, behind the layer's own prefix, and where their tensors go."""
        places: dict[str, Tensor] = {}
        for name, weight, bias in zip(
            ("query", "key", "value"), self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True
        ):
            places |= {f"attention.self.{name}.weight": weight, f"attention.self.{name}.bias": bias}
        places |= self.out.places("attention.output.dense") | self.out_norm.places("attention.output.LayerNorm")
        places |= self.up.places("intermediate.dense") | self.down.places("output.dense")
        return places | self.down_norm.places("output.LayerNorm")


@dataclass(frozen=True, slots=True)
class PaddedGroup:
    """Texts of a batch that are padded to one length. rows, places: [tokens] int64, where their tokens are in the batch
    and in ``count`` × ``longest``. seen: [count, 1, 1, longest], whether there is a token; None if everywhere."""

    rows: Tensor
    places: Tensor
    count: int
    longest: int
    seen: Tensor | None


class BatchLayout:
    """Places of the texts of a batch. `groups`: by length, so that no padding is longer than its text."""

    def __init__(self, lengths: list[int], device: torch.device) -> None:
        self.lengths = lengths
        starts = [0, *accumulate(lengths)]
        of_size: dict[int, list[int]] = {}
        for text, length in enumerate(lengths):
            of_size.setdefault((length - 1).bit_length(), []).append(text)
        self.groups = []
        for group in of_size.values():
            longest = max(lengths[text] for text in group)
            inside = torch.arange(longest) < torch.tensor([lengths[text] for text in group])[:, None]
            rows = torch.cat([torch.arange(starts[text], starts[text + 1]) for text in group])
            seen = None if inside.all() else inside[:, None, None].to(device)
            places = inside.view(-1).nonzero().squeeze(1)
            self.groups.append(PaddedGroup(rows.to(device), places.to(device), len(group), longest, seen))


def one_by_one(qkv: Tensor, texts: BatchLayout) -> Tensor:
    """Attention of each text over itself. qkv: [tokens, 3, heads, head_dim]; returns [tokens, heads, head_dim]."""
    found = []
    for own in qkv.split_with_sizes(texts.lengths):
        q, k, v = own.permute(1, 2, 0, 3)[:, None]
        found.append(F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1))
    return torch.cat(found)


def together(qkv: Tensor, texts: BatchLayout) -> Tensor:
    """The same in one call for all that are alike: a card waits longer for launches than it computes in vain."""
    found = qkv.new_empty(len(qkv), *qkv.shape[2:])
    for group in texts.groups:
        padded = qkv.new_zeros(group.count * group.longest, *qkv.shape[1:])
        padded.index_copy_(0, group.places, qkv[group.rows])
        q, k, v = padded.view(group.count, group.longest, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=group.seen)
        found[group.rows] = out.transpose(1, 2).flatten(0, 1)[group.places]
    return found


class Encoder(nn.Module):
    """Token ids of whole texts in, their last hidden states out."""

    def __init__(
        self, config: EncoderConfig, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__()
        self.config = config
        on = torch.device(device)
        hidden = config.hidden_size

        def table(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(rows, hidden, dtype=dtype, device=on), requires_grad=False)

        self.words = table(config.vocab_size)
        self.positions = table(config.table_rows)
        self.types = table(config.type_vocab_size)
        self.norm = Affine((hidden,), dtype, on)
        self.layers = nn.ModuleList(EncoderLayer(config, dtype, on) for _ in range(config.num_layers))
        self.dense = Affine((hidden, hidden), dtype, on) if config.scores else None
        self.out = Affine((1, hidden), dtype, on) if config.scores else None

    @torch.inference_mode()
    def forward(self, texts: list[list[int]]) -> list[Tensor]:
        """texts: of at least one token each. Of each [tokens, hidden_size], in the model's dtype."""
        lengths = [len(text) for text in texts]
        device = self.words.device
        batch = BatchLayout(lengths, device)
        ids = torch.tensor([token for text in texts for token in text], device=device)
        places = torch.cat([torch.arange(length) for length in lengths]).to(device) + self.config.first_position
        hidden = F.embedding(ids, self.words) + self._segments(texts) + F.embedding(places, self.positions)
        hidden = layer_norm(hidden, self.norm, self.config.eps)
        for layer in self.layers:
            hidden = layer(hidden, batch)
        return list(hidden.split_with_sizes(lengths))

    def _segments(self, texts: list[list[int]]) -> Tensor:
        """The embeddings of the tokens' segments, or of the one that all are in."""
        if self.config.separator is None:
            return self.types[0]
        kinds = [kind for text in texts for kind in segments(text, self.config.separator)]
        return F.embedding(torch.tensor(kinds, device=self.types.device), self.types)

    @torch.inference_mode()
    def score(self, first: Tensor) -> Tensor:
        """first: [hidden_size], the state of a pair's first token. Of the head [1], in the model's dtype."""
        if self.dense is None or self.out is None:
            raise AssertionError("this model has no head")
        return F.linear(torch.tanh(F.linear(first, self.dense.weight, self.dense.bias)), self.out.weight, self.out.bias)

    def expected(self) -> Expected:
        places = self.places()
        return Expected(places, NOT_NEEDED - places.keys())

    def own_names(self, names: list[str]) -> list[str | None]:
        """As `places` spells them."""
        for wrapper in WRAPPERS:
            names = [name.removeprefix(wrapper) for name in names]
        return list(names)

    def places(self) -> dict[str, Tensor]:
        """Hugging Face name -> where it goes, as views into the fused weights."""
        places: dict[str, Tensor] = {
            "embeddings.word_embeddings.weight": self.words,
            "embeddings.position_embeddings.weight": self.positions,
            "embeddings.token_type_embeddings.weight": self.types,
        }
        places |= self.norm.places("embeddings.LayerNorm")
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, EncoderLayer)  # noqa: S101  (ModuleList forgets its element type)
            places |= {f"encoder.layer.{i}.{name}": place for name, place in layer.places().items()}
        if self.dense is not None and self.out is not None:
            names = (
                ("pooler.dense", "classifier")
                if self.config.has_pooler
                else ("classifier.dense", "classifier.out_proj")
            )
            places |= self.dense.places(names[0]) | self.out.places(names[1])
        return places


def layer_norm(x: Tensor, norm: Affine, eps: float) -> Tensor:
    return F.layer_norm(x, norm.bias.shape, norm.weight, norm.bias, eps)
