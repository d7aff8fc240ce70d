"""A layer with multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1), in plain torch.

The key of a head is ``K @ latent`` and the rotary key that all heads share; its value is ``V @ latent``. The products
by K and V are applied to the query and to the result instead ("absorbed"): ``q · (K @ latent) = (Kᵀ @ q) · latent``.
Attention then reads the cached latents directly, with one KV head, for decode steps and for prompts.
"""

import torch
from torch import Tensor

from backend.models.config import ModelConfig
from backend.models.layers.arithmetic import Attention, rms_norm, rotate
from backend.models.layers.decoder_layer import DecoderLayer
from backend.models.layers.linear import linear


class LatentLayer(DecoderLayer):
    """``qkv`` is one matrix for the query latent (or the queries), the latent and the rotary key."""

    def make_attention(self, config: ModelConfig) -> None:
        assert config.latent is not None  # noqa: S101 -- checked by the caller
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
        """First columns of the latent and of the rotary key in the product of ``qkv``."""
        end = self.qkv.shape[0] - self.latent.rotary
        return end - self.latent.rank, end

    def halves(self) -> tuple[Tensor, Tensor]:
        """Return K and V, which map a latent to keys and values: [heads, plain, rank] and [heads, value, rank]."""
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
        """Apply the rotary embedding. The result is in the order of halves for both layouts: only the scores of query
        and key depend on it, and both use the same order."""
        if self.latent.interleaved:
            x = torch.cat((x[..., ::2], x[..., 1::2]), -1)
        return rotate(x, cos, sin)

    def attention_places(self) -> dict[str, Tensor]:
        places: dict[str, Tensor] = {
            "self_attn.kv_a_layernorm.weight": self.latent_norm,
            "self_attn.kv_b_proj.weight": self.expansion,
        }
        return places if self.query_norm is None else places | {"self_attn.q_a_layernorm.weight": self.query_norm}
