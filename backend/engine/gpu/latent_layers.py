"""Latent attention of one step over the paged cache: as `paged_layers`, of latents and rotary keys."""

from typing import Any

import torch
from torch import Tensor

from backend.engine.gpu.paged_layers import PagedLayers
from backend.kernels.attention.workspace import DecodeWorkspace
from backend.kernels.latent.interface import latent_kernels_for
from backend.kernels.latent.reference import decode_workspace
from backend.models.config import ModelConfig


class LatentLayers(PagedLayers):
    """`models.paged_decoder.CachedAttention` of one step, whose shape has no dense prompts and no shared prefix."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._ops = latent_kernels_for(self.cache.keys.device)

    def __call__(self, layer: int, q: Tensor, qkv: Tensor, out: Tensor | None = None) -> Tensor:
        """q: [tokens, heads, rank + rotary]. Returns [tokens, heads * rank]; others as in `PagedLayers`."""
        latents, keys, shape = self.cache.keys[layer], self.cache.values[layer], self.shape
        if self.batch_invariant:
            found: Tensor = self._ops.latent_attention(
                q,
                latents,
                keys,
                self.block_tables,
                self.chunk_start,
                self.seq_lens,
                scale=self.scale,
                batch_invariant=True,
                out=out,
            )
            return found.view(len(q), -1)
        if out is None:
            out = q.new_empty(*q.shape[:2], latents.shape[3])
            out[shape.tokens :] = 0
        decodes, chunks = shape.decodes, shape.chunks
        if decodes:
            tables, lengths = self.block_tables[:decodes], self.seq_lens[:decodes]
            self._ops.latent_decode(
                q[:decodes], latents, keys, tables, lengths, self.workspace, scale=self.scale, out=out[:decodes]
            )
        if chunks:
            rows = slice(decodes, decodes + shape.chunk_rows)
            tables, lengths = self.block_tables[decodes:][:chunks], self.seq_lens[decodes:][:chunks]
            self._ops.latent_attention(
                q[rows], latents, keys, tables, self.chunk_start, lengths, scale=self.scale, out=out[rows]
            )
        return out.view(len(q), -1)


def layers_of(config: ModelConfig) -> type[PagedLayers]:
    """What attends in a step of such a model."""
    return PagedLayers if config.latent is None else LatentLayers


def workspace_of(config: ModelConfig, device: torch.device, sequences: int) -> DecodeWorkspace:
    """Scratch of its decode kernel, for every batch of up to so many sequences."""
    if config.latent is None:
        return DecodeWorkspace.allocate(device, sequences, config.num_heads, config.num_kv_heads, config.head_dim)
    return decode_workspace(device, sequences, config.num_heads, config.latent.rank)
