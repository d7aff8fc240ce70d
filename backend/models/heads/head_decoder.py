"""A head that guesses from a model's hidden states, in plain torch: the CPU's path, and the reference of `paged_head`.

At place p it gets the token at p + 1 and the hidden state of the model at p, and guesses the token at p + 2. EAGLE-3's
layer attends from both side by side and adds to the hidden state; DeepSeek's multi-token prediction joins them by a
matrix before a layer like the model's others. For guesses further ahead the hidden state is what the head itself left
at the place before.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.errors import CorruptCheckpoint
from backend.models.config import ModelConfig
from backend.models.decoders.decoder import BODY, NORM, Begun, Decoder
from backend.models.heads.head_config import EAGLE3, HeadConfig
from backend.models.layers.arithmetic import Attention, rms_norm
from backend.models.layers.decoder_layer import DecoderLayer
from backend.models.layers.linear import linear
from backend.models.sharding import EMBEDDING, HEAD
from backend.models.tensors import Expected
from backend.parallel.group import SINGLE, ParallelGroup
from backend.quantization.format import Quantization
from backend.quantization.none import NONE

FC, TARGETS = "fc.weight", "d2t"
NOT_READ = ("t2d", "rotary_emb.inv_freq", "mask_hidden")  # follow from others, or are for drafting in parallel


class EagleLayer(DecoderLayer):
    """The layer of an EAGLE-3 head. Its input is embedding and hidden state side by side: [tokens, 2 * hidden]."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        dtype: torch.dtype,
        device: torch.device,
        quantization: Quantization,
        group: ParallelGroup = SINGLE,
    ) -> None:
        super().__init__(config, index, dtype, device, quantization, group)
        assert isinstance(config, HeadConfig)  # noqa: S101 -- made by `HeadDecoder` alone
        self.hidden_norm = self.empty(config.hidden_size)
        self.normed_residual = config.normed_residual

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        embedded, residual = hidden.chunk(2, -1)
        normed = rms_norm(residual, self.hidden_norm, self.eps)
        residual = normed if self.normed_residual else residual
        x = torch.cat((rms_norm(embedded, self.input_norm, self.eps), normed), -1)
        hidden = residual + self.attended(x, cos, sin, attention)
        return hidden + self.mixed(rms_norm(hidden, self.post_norm, self.eps))

    def places(self) -> dict[str, Tensor]:
        return super().places() | {"hidden_norm.weight": self.hidden_norm}


class HeadDecoder(Decoder):
    """Tokens and hidden states in, logits of the model's vocabulary out.

    It has tables of its own: read from its checkpoint, or else from the model's, so that neither a model that is
    divided among cards nor one that sleeps is needed for a guess.

    Attributes:
        features: [tokens, hidden_size], hidden states that enter with the tokens of the next step.
        outputs: [rows, hidden_size], what the last step left of the rows that had logits.
        targets: int64 [draft_vocab], the model's token of each that the head guesses.
    """

    config: HeadConfig

    def __init__(
        self,
        config: HeadConfig,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        quantization: Quantization = NONE,
    ) -> None:
        super().__init__(config, dtype, device, quantization)
        self.found: set[str] = set()  # names in the checkpoint, once they are known
        device, hidden = torch.device(device), config.hidden_size

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, dtype=dtype, device=device), requires_grad=False)

        self.head = empty(config.draft_vocab, hidden)
        self.targets = nn.Parameter(torch.arange(config.draft_vocab, device=device), requires_grad=False)
        self.features = torch.zeros(0, hidden, dtype=dtype, device=device)
        self.outputs = self.features
        if config.kind == EAGLE3:
            self.layers = nn.ModuleList([EagleLayer(config, 0, dtype, device, quantization)])
            self.join = empty(hidden, config.read_size)
        else:
            self.join = empty(hidden, 2 * hidden)
            self.embedding_norm, self.state_norm = empty(hidden), empty(hidden)

    def combined(self, states: Tensor) -> Tensor:
        """The hidden states that enter the head, of what it reads of the model's: [tokens, hidden_size]."""
        return linear(states, self.join) if self.config.kind == EAGLE3 else states

    def begin(self, ids: Tensor, positions: Tensor, attention: Attention, logit_rows: Tensor) -> Begun:
        hidden = self._through(ids, positions, attention)[logit_rows]
        normed = rms_norm(hidden, self.norm, self.config.rms_norm_eps)
        self.outputs = hidden if self.config.kind == EAGLE3 else normed
        return Begun(of_all_tokens(linear(normed, self.head), self.chosen, self.config.vocab_size), normed)

    def _through(self, ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        embedded, features = F.embedding(ids, self.embedding), self.features[: len(ids)]
        if self.config.kind == EAGLE3:
            entering = torch.cat((embedded, features), -1)
        else:
            eps = self.config.rms_norm_eps
            parts = rms_norm(embedded, self.embedding_norm, eps), rms_norm(features, self.state_norm, eps)
            entering = linear(torch.cat(parts, -1), self.join)
        found: Tensor = self.layers[0](entering, self.cos[positions], self.sin[positions], attention)
        return found

    @property
    def chosen(self) -> Tensor | None:
        """`targets`; None where it guesses any token."""
        every = TARGETS not in self.found and self.config.draft_vocab == self.config.vocab_size
        return None if every else self.targets

    # Its checkpoint

    def own_names(self, names: list[str]) -> list[str | None]:
        """As `places` spells them. An EAGLE-3 head's layer is ``midlayer`` or ``layers.0``, with or without ``model.``
        before it; layers for multi-token prediction are among those of the model, the rest of which is not read."""
        found = [self._own_name(name) for name in names]
        self.found = {name for name in found if name is not None}
        return found

    def _own_name(self, name: str) -> str | None:
        if self.config.kind != EAGLE3:
            return name if name.startswith(self.config.prefix_of(0)) else None
        name = name.removeprefix(BODY)
        if name.startswith(NOT_READ) or name.endswith(NOT_READ):
            return None
        if name in (HEAD, FC, TARGETS):
            return name
        return BODY + name.replace("midlayer.", "layers.0.", 1)

    @property
    def tables(self) -> dict[str, Tensor]:
        """Embedding and head under the checkpoint's names for them, whether they are there or not."""
        if self.config.kind == EAGLE3:
            return {EMBEDDING: self.embedding, HEAD: self.head}
        prefix = self.config.prefix_of(0)
        return {f"{prefix}embed_tokens.weight": self.embedding, f"{prefix}shared_head.head.weight": self.head}

    def places(self) -> dict[str, Tensor]:
        prefix, layer = self.config.prefix_of(0), self.layers[0]
        assert isinstance(layer, DecoderLayer)  # noqa: S101  (ModuleList forgets its element type)
        places = {f"{prefix}{name}": place for name, place in layer.places().items()}
        places |= {name: table for name, table in self.tables.items() if name in self.found}
        if self.config.kind == EAGLE3:
            targets: dict[str, Tensor] = {TARGETS: self.targets} if TARGETS in self.found else {}
            return places | {NORM: self.norm, FC: self.join} | targets
        return places | {
            f"{prefix}enorm.weight": self.embedding_norm, f"{prefix}hnorm.weight": self.state_norm,
            f"{prefix}eh_proj.weight": self.join, f"{prefix}shared_head.norm.weight": self.norm,
        }  # fmt: skip

    def expected(self) -> Expected:
        return Expected(self.places(), set())

    @torch.no_grad()
    def settle_targets(self) -> None:
        """Make tokens of the differences that ``d2t`` holds. Raises CorruptCheckpoint for one that the
        model lacks, or that is there twice."""
        if TARGETS not in self.found:
            return
        self.targets.add_(torch.arange(len(self.targets), device=self.targets.device))
        least, most = (int(x) for x in self.targets.aminmax())
        if least < 0 or most >= self.config.vocab_size:
            raise CorruptCheckpoint(
                f"tensor {TARGETS} names token {most if least >= 0 else least} of a model that has tokens 0 to "
                f"{self.config.vocab_size - 1}; download the head again, or name the one of this model"
            )
        if len(set(self.targets.tolist())) < len(self.targets):
            raise CorruptCheckpoint(f"tensor {TARGETS} names a token twice; download the head again")


def of_all_tokens(logits: Tensor, targets: Tensor | None, vocabulary: int) -> Tensor:
    """[rows, vocabulary]: the logits of the tokens that a head guesses, and -inf of the others. targets: which tokens
    they are; None: all."""
    if targets is None:
        return logits
    return logits.new_full((len(logits), vocabulary), float("-inf")).index_copy_(1, targets, logits)
