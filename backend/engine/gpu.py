"""Bringing an engine up on a GPU: what fits is measured, not guessed.

Weights first. Then the largest step runs once on a cache of one block, and shows what activations take. What is left of
the engine's share of the card, less room for the graphs, becomes KV cache; then the graphs are captured.
"""

import gc

import torch

from backend.engine.attention import KVCache
from backend.engine.config import CacheSize, EngineConfig, size_cache_within
from backend.engine.graph_runner import GraphRunner, graph_sizes
from backend.errors import ConfigError
from backend.models.decoder import Decoder

GRAPH_MEMORY = 1 << 30  # graphs share the activations of the largest; the rest is CUDA's own, a few MiB each
LARGEST_GRAPH = 256


def require_gpu(config: EngineConfig) -> None:
    """Raises ConfigError if there is no GPU, or its kernels cannot serve this configuration."""
    if not torch.cuda.is_available():
        raise ConfigError(f"device {config.device!r} was asked for, and there is no CUDA device")
    if config.block_size < 16 or config.block_size & (config.block_size - 1):
        raise ConfigError(f"on a GPU block_size is a power of two, at least 16, not {config.block_size}")


def gpu_runner(model: Decoder, config: EngineConfig) -> tuple[GraphRunner, CacheSize]:
    """A runner with all the cache it may have. Raises ConfigError, naming the number, if one sequence does not fit."""
    element_size = model.embedding.dtype.itemsize
    activations = _activations(model, config)
    free, total = torch.cuda.mem_get_info()
    room = int(config.gpu_memory * total) - (total - free) - activations - GRAPH_MEMORY
    size = size_cache_within(room, config, model.config, element_size)
    runner = _runner(model, config, size)
    if config.graphs:
        runner.capture(graph_sizes(min(config.max_num_seqs, LARGEST_GRAPH)))
    runner.rehearse()  # its memory is the allocator's from now on, and its kernels are compiled
    torch.cuda.synchronize()
    return runner, size


def _activations(model: Decoder, config: EngineConfig) -> int:
    """Bytes that the largest step takes beside weights and cache; what a runner keeps between steps counts too."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    length = min(config.max_model_len or model.config.max_position, model.config.max_position)
    runner = _runner(model, config, CacheSize(1, length))
    runner.rehearse()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    del runner
    gc.collect()
    torch.cuda.empty_cache()
    return peak


def _runner(model: Decoder, config: EngineConfig, size: CacheSize) -> GraphRunner:
    cache = KVCache(model.config, size.num_blocks, config.block_size, model.embedding.dtype, config.device)
    return GraphRunner(
        model, cache, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=size.max_model_len,
    )  # fmt: skip
