"""States of answers as servers of several kinds compute them, for what they would commit to.

A server that is not the claimed one reads the claimed one's answer, token by token known: its own answer would read
less likely to the claimed model, so this is the harder case.
"""

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from backend.activations.answer_commitment import Commitment, Committer
from backend.activations.largest_activations import Words, row_of
from backend.engine.cache.attention import KVCache
from backend.engine.core.sampling import SamplingParams
from backend.engine.cpu.model_runner import packed
from backend.engine.cpu.prefill import rows_behind
from backend.engine.engine import Engine
from backend.engine.gpu.paged_layers import PagedLayers, StepShape
from backend.engine_config import EngineConfig, size_cache
from backend.kernels.attention.workspace import DecodeWorkspace
from backend.kernels.interface import kernels_for
from backend.kernels.launching.launch import FP8
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.fused_decoder import FusedDecoder
from backend.models.decoders.paged_decoder import PagedCache, StepTokens
from backend.models.loader import load_model
from backend.quantization.fp8 import FP8 as FP8_WEIGHTS
from backend.quantization.none import NONE

CHUNK, BLOCK_SIZE = 128, 16
Rows = Callable[[Sequence[int], Sequence[int]], list[Words]]
"""Of a prompt and an answer: the rows that the answer's tokens are drawn from."""


@lru_cache(maxsize=4)
def model(name: str, dtype: str) -> Decoder:
    return load_model(Checkpoint(resolve(name)), dtype)


def plain(decoder: Decoder) -> Rows:
    return lambda prompt, answer: rows_behind(decoder, prompt, answer, len(answer))


def by_twins(decoder: Decoder, *, fp8: bool, fp8_cache: bool) -> Rows:
    """As on a GPU, by the kernels' twins, with the same roundings; FP8 weights are quantised as the loader does."""
    config, kernels = decoder.config, kernels_for(torch.device("cpu"))
    fused = FusedDecoder(copy.deepcopy(decoder) if fp8 else decoder, kernels, FP8_WEIGHTS if fp8 else NONE)

    def rows(prompt: Sequence[int], answer: Sequence[int]) -> list[Words]:
        ids = torch.tensor([*prompt, *answer[:-1]])
        blocks = -(-len(ids) // BLOCK_SIZE)
        pages = KVCache(config, blocks, BLOCK_SIZE, FP8 if fp8_cache else decoder.embedding.dtype, "cpu")
        scale = torch.ones(config.num_layers, config.num_kv_heads) if fp8_cache else None
        cache = PagedCache(pages.keys, pages.values, scale, scale)
        workspace = DecodeWorkspace.allocate(ids.device, 1, config.num_heads, config.num_kv_heads, config.head_dim)
        table = torch.arange(blocks, dtype=torch.int32).unsqueeze(0)
        states = []
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            at = torch.arange(start, start + len(part))
            ends = torch.tensor([start + len(part)], dtype=torch.int32)
            starts = torch.tensor([0, len(part)], dtype=torch.int32)
            shape = StepShape(0, chunks=1, chunk_rows=len(part))
            attention = PagedLayers(config, kernels, cache, workspace, shape, table, ends, starts)
            states.append(fused.states(fused.body(StepTokens(part, at, at, None), cache, attention)))
        return [row_of(row) for row in packed(torch.cat(states)[len(prompt) - 1 :])]

    return rows


def changed(decoder: Decoder, change: Callable[[Tensor], Tensor]) -> Decoder:
    """With each matrix of its layers changed."""
    made = copy.deepcopy(decoder)
    for layer in made.layers:
        for parameter in layer.parameters():
            if parameter.dim() == 2:
                parameter.data = change(parameter.data.float()).to(parameter.dtype)
    return made


def int8(weight: Tensor) -> Tensor:
    """Rounded to INT8 with a scale for each output."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale


def with_noise(weight: Tensor) -> Tensor:
    """As after some further training: each weight moved by 2 % of their spread."""
    return weight + 0.02 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))


def without_a_layer(decoder: Decoder) -> Decoder:
    made = copy.deepcopy(decoder)
    last = len(made.layers) - 2
    made.layers = nn.ModuleList(layer for at, layer in enumerate(made.layers) if at != last)
    return made


def answered(
    decoder: Decoder,
    prompts: list[list[int]],
    tokens: int,
    temperature: float,
    *,
    commits: bool = True,
    finish: bool = True,
) -> list[tuple[list[int], Commitment]]:
    """Answers of the engine, in one batch, and what they commit to; of neither without ``finish``."""
    config = EngineConfig(model="", num_blocks=1 + len(prompts) * -(-(tokens + 64) // 16), max_num_seqs=len(prompts))
    size = 4 if decoder.embedding.dtype == torch.float32 else 2
    engine = Engine(decoder, config, size_cache(config, decoder.config, size), frozenset())
    committers = [Committer(prompt, decoder.config.hidden_size) for prompt in prompts]
    said: list[list[int]] = [[] for _ in prompts]
    for id, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=tokens, temperature=temperature, ignore_eos=True, seed=id, commits=commits)
        engine.add(id, prompt, params)
    while engine.has_work:
        for item in engine.step():
            assert item.token is not None
            if finish and item.activations is not None:
                said[item.id].append(item.token)
                committers[item.id].add(item.token, item.activations)
    return [(own, one.finish()) for own, one in zip(said, committers, strict=True)] if finish else []
