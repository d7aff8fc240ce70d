"""The encoder that `bert` describes, for a flat batch of whole texts, in plain torch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.models.bert import EncoderConfig
from backend.models.linear import linear
from backend.models.tensors import Expected

WRAPPERS = ("bert.", "roberta.")  # what a release with a head, or one that lost it, puts before every name
NOT_NEEDED = {  # of a head, and tables that follow from config.json
    "pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids", "embeddings.token_type_ids",
}  # fmt: skip


class Affine(nn.Module):
    """A matrix or a norm's scale, and its bias."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(shape[0], dtype=dtype), requires_grad=False)

    def places(self, name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": self.weight, f"{name}.bias": self.bias}


class EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads, self.eps = config.num_heads, config.eps
        self.qkv = Affine((3 * hidden, hidden), dtype)
        self.out, self.out_norm = Affine((hidden, hidden), dtype), Affine((hidden,), dtype)
        self.up, self.down = Affine((inner, hidden), dtype), Affine((hidden, inner), dtype)
        self.down_norm = Affine((hidden,), dtype)

    def forward(self, hidden: Tensor, lengths: list[int]) -> Tensor:
        attended = linear(self._attended(hidden, lengths), self.out.weight, self.out.bias)
        hidden = layer_norm(hidden + attended, self.out_norm, self.eps)
        inner = F.gelu(linear(hidden, self.up.weight, self.up.bias))
        return layer_norm(hidden + linear(inner, self.down.weight, self.down.bias), self.down_norm, self.eps)

    def _attended(self, hidden: Tensor, lengths: list[int]) -> Tensor:
        tokens, width = hidden.shape
        qkv = linear(hidden, self.qkv.weight, self.qkv.bias).view(tokens, 3, self.heads, width // self.heads)
        found = []
        for own in qkv.split_with_sizes(lengths):
            q, k, v = own.permute(1, 2, 0, 3)[:, None]
            found.append(F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).reshape(-1, width))
        return torch.cat(found)

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


class Encoder(nn.Module):
    """Token ids of whole texts in, their last hidden states out."""

    def __init__(self, config: EncoderConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size

        def table(rows: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(rows, hidden, dtype=dtype), requires_grad=False)

        self.words = table(config.vocab_size)
        self.positions = table(config.table_rows)
        self.types = table(config.type_vocab_size)
        self.norm = Affine((hidden,), dtype)
        self.layers = nn.ModuleList(EncoderLayer(config, dtype) for _ in range(config.num_layers))

    @torch.inference_mode()
    def forward(self, texts: list[list[int]]) -> list[Tensor]:
        """texts: of at least one token each. Of each [tokens, hidden_size], in the model's dtype."""
        lengths = [len(text) for text in texts]
        ids = torch.tensor([token for text in texts for token in text])
        places = torch.cat([torch.arange(length) for length in lengths]) + self.config.first_position
        hidden = F.embedding(ids, self.words) + self.types[0] + F.embedding(places, self.positions)
        hidden = layer_norm(hidden, self.norm, self.config.eps)
        for layer in self.layers:
            hidden = layer(hidden, lengths)
        return list(hidden.split_with_sizes(lengths))

    def expected(self) -> Expected:
        return Expected(self.places(), NOT_NEEDED)

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
        return places


def layer_norm(x: Tensor, norm: Affine, eps: float) -> Tensor:
    return F.layer_norm(x, norm.bias.shape, norm.weight, norm.bias, eps)
