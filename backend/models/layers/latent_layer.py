"""A layer with multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1), in plain torch.

A head's key is ``K @ latent`` beside the rotary key that all heads share, its value ``V @ latent``. The products by K
and V are moved to the query and to the result ("absorbed"): ``q · (K @ latent) = (Kᵀ @ q) · latent``. Attention then
runs over what the cache holds, with one KV head, for decode steps and prompts alike.
"""

import torch
from torch import Tensor

from backend.models.config import ModelConfig
from backend.models.layers.arithmetic import Attention, rms_norm, rotate
from backend.models.layers.decoder_layer import DecoderLayer
from backend.models.layers.linear import linear


class LatentLayer(DecoderLayer):
    """``qkv`` is one matrix of the query's latent, or of the queries, and of latent and rotary key."""

    def make_attention(self, config: ModelConfig) -> None:
        assert config.latent is not None  # noqa: S101 -- who builds it has looked
        self.latent = latent = config.latent
        self.qkv_bias = self.q_norm = self.k_norm = self.out_bias = self.sinks = None
        self.qkv, self.out = self.matrix("qkv"), self.matrix("out")
        self.query_norm = None if latent.query_rank is None else self.empty(latent.query_rank)
        if latent.query_rank is not None:
            self.q_b = self.matrix("q_b")
        self.latent_norm = self.empty(latent.rank)
        self.expansion = self.empty(self.heads * (latent.plain + latent.value), latent.rank)

    @property
    def cuts(self) -> tuple[int, int]:
        """Columns of ``qkv``'s product where the latent and the rotary key begin."""
        end = self.qkv.shape[0] - self.latent.rotary
        return end - self.latent.rank, end

    def halves(self) -> tuple[Tensor, Tensor]:
        """What makes keys and values of a latent: [heads, plain, rank] and [heads, value, rank]."""
        each = self.expansion.view(self.heads, self.latent.plain + self.latent.value, self.latent.rank)
        return each[:, : self.latent.plain], each[:, self.latent.plain :]

    def attended(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        tokens, shape = len(x), self.latent
        own, latent, key = self._adapted("qkv", x, linear(x, self.qkv)).tensor_split(self.cuts, 1)
        if self.query_norm is not None:
            own = rms_norm(own, self.query_norm, self.eps)
            own = self._adapted("q_b", own, linear(own, self.q_b))
        plain, turned = own.reshape(tokens, self.heads, shape.query).tensor_split((shape.plain,), 2)
        keys, values = self.halves()
        absorbed = torch.bmm(plain.transpose(0, 1), keys).transpose(0, 1)
        q = torch.cat((absorbed, self._turned(turned, cos, sin)), 2)
        latent = rms_norm(latent, self.latent_norm, self.eps)
        found = attention(self.index, q, latent[:, None], self._turned(key[:, None], cos, sin))
        found = torch.bmm(found.transpose(0, 1), values.transpose(1, 2)).transpose(0, 1)
        return self.branch(found.reshape(tokens, -1), self.out)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """By the position, in the order of halves either way: query and key agree, and no one else looks."""
        if self.latent.interleaved:
            x = torch.cat((x[..., ::2], x[..., 1::2]), -1)
        return rotate(x, cos, sin)

    def attention_places(self) -> dict[str, Tensor]:
        places: dict[str, Tensor] = {
            "self_attn.kv_a_layernorm.weight": self.latent_norm, "self_attn.kv_b_proj.weight": self.expansion,
        }  # fmt: skip
        return places if self.query_norm is None else places | {"self_attn.q_a_layernorm.weight": self.query_norm}
