"""Bringing an engine up on a GPU: what fits is measured, not guessed.

Weights first. Then the largest step runs once on a cache of one block, and shows what activations take. What is left of
the engine's share of the card, less room for the graphs, becomes KV cache; then the graphs are captured.
"""

import gc
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import triton

from backend.engine.cache.attention import Allocate, KVCache
from backend.engine.cache.sleeper import Sleeper
from backend.engine.core.progress import OnStage, Stage
from backend.engine.gpu.captures import graph_sizes, piece_size
from backend.engine.gpu.graph_runner import GraphRunner
from backend.engine.gpu.head_runner import HeadGraphRunner
from backend.engine.gpu.memory import GpuMemory, supported
from backend.engine.gpu.paged_layers import DENSE_STEP
from backend.engine.gpu.sleeper import GpuSleeper, move_to_pool
from backend.engine_config import (
    CacheSize,
    EngineConfig,
    block_bytes_of,
    groups_of,
    of_all_stages,
    require_cache,
    size_cache_within,
    weight_format,
)
from backend.errors import ConfigError
from backend.kernels.interface import kernels_for
from backend.kernels.latent.reference import MOST_RANK, MOST_ROTARY
from backend.kernels.launching import tuning
from backend.kernels.launching.launch import FP8
from backend.kernels.launching.self_tuning import CardChoices, choices_of_host, first_start
from backend.models.config import ModelConfig
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.decoder_kinds import kind_of
from backend.models.decoders.paged_decoder import PagedDecoder
from backend.models.heads.head_config import HeadConfig
from backend.models.heads.head_decoder import HeadDecoder
from backend.models.heads.paged_head import PagedHead, paged_head
from backend.parallel.group import SINGLE, ParallelGroup
from backend.planner.capacity_plan import require_room
from backend.planner.cards import CARDS, H100
from backend.quantization.format import Quantization

GRAPH_MEMORY = 1 << 30  # graphs share the activations of the largest; the rest is CUDA's own, a few MiB each
LARGEST_GRAPH = 512
OLDEST = (8, 0)  # that Triton compiles bfloat16 for
UNITS = {"fp8": (8, 9), "int8": (7, 5)}  # from which compute capability on tensor cores have them
CHOICES = Path(__file__).parents[2] / "kernels" / "choices.json"  # measured by bench/kernels/gpu_tune.py


def require_cuda(config: EngineConfig) -> None:
    """Raises ConfigError if there is no GPU."""
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device {config.device!r} was asked for, and there is no CUDA device"
            "; set --device cpu, or install the CUDA driver"
        )


def require_gpu(config: EngineConfig, model: ModelConfig) -> None:
    """What can be known before anything is loaded.

    Raises ConfigError if there is no GPU, if its kernels cannot serve this model so configured, or if it will not fit
    (`planner`), naming the numbers.
    """
    require_cuda(config)
    if config.block_size < 16 or config.block_size & (config.block_size - 1):
        raise ConfigError(
            f"block_size {config.block_size} cannot be used on a GPU; set --block-size to a power of two of at least 16"
        )
    require_heads(model)
    require_cache(config, model)
    widths: tuple[int, ...] = (model.hidden_size, model.intermediate_size, model.q_width)
    if model.experts is not None:
        widths += (model.experts.intermediate_size,)
    if model.latent is not None and model.latent.query_rank is not None:
        widths += (model.latent.query_rank,)
    format = weight_format(config, model)
    format.require_model(widths, config.dtype)
    require_units(format, config, torch.cuda.get_device_capability())
    free, total = torch.cuda.mem_get_info()
    card = next((card for card in CARDS.values() if card.name == torch.cuda.get_device_name()), H100)
    require_room(model, config, card, memory=total, used=max(total - free, card.reserved))


def require_heads(model: ModelConfig) -> None:
    """Raises ConfigError for attention that the kernels do not compute."""
    latent = model.latent
    if latent is not None and (latent.rank > MOST_RANK or latent.rotary > MOST_ROTARY):
        raise ConfigError(
            f"latent attention of a rank of {latent.rank} with {latent.rotary} rotary dimensions cannot be computed on "
            f"a GPU; use a model with at most {MOST_RANK} and {MOST_ROTARY}, or --device cpu"
        )
    if latent is None and not 16 <= model.head_dim <= 256:
        raise ConfigError(
            f"heads {model.head_dim} wide cannot be computed on a GPU; use a model with heads of 16 to 256, "
            "or --device cpu"
        )


def require_units(format: Quantization, config: EngineConfig, capability: tuple[int, int]) -> None:
    """Raises ConfigError for what a card of this compute capability does not compute."""
    if capability < OLDEST:
        raise ConfigError(
            f"a card of compute capability {'.'.join(map(str, capability))} cannot run the kernels; use one of "
            f"{'.'.join(map(str, OLDEST))} (A100) or later, or --device cpu"
        )
    if capability < UNITS.get(format.unit or "", (0, 0)):
        raise ConfigError(f"this card cannot multiply {format.name} weights; choose --quantization none")
    if config.kv_dtype is not None and capability < UNITS["fp8"]:
        raise ConfigError("this card has no FP8, which the KV cache was to be kept in; leave --kv-dtype out")


def gpu_runner(
    model: Decoder, config: EngineConfig, on_stage: OnStage
) -> tuple[GraphRunner, CacheSize, Sleeper | None]:
    """A runner with all the cache it may have, and what sends it to sleep, if the card can do that.

    Raises ConfigError, naming the number, if one sequence does not fit.
    """
    device = model.embedding.device
    dtype = FP8 if config.kv_dtype else model.embedding.dtype
    fused = paged(model, config)
    memory = (GpuMemory(device), GpuMemory(device)) if supported(device) else None
    weights = move_to_pool(fused.weights(), memory[0]) if memory else []
    on_stage(Stage.KERNELS, 0, 1)
    activations = _activations(fused, dtype, config)
    on_stage(Stage.KERNELS, 1, 1)
    size = cache_after_weights(activations + GRAPH_MEMORY, config, model.config, dtype, model.group)
    size = of_all_stages(size, config, model.config, model.group.pipeline.least, dtype.itemsize)
    runner = _runner(fused, dtype, config, size, memory[1].empty if memory else None)
    tuned = partial(on_stage, Stage.TUNING)
    with first_start(card_choices(), tuned, enabled=may_tune(config)):
        if config.captures:
            runner.capture(graph_sizes(min(config.max_num_seqs, LARGEST_GRAPH)), partial(on_stage, Stage.GRAPHS))
        runner.profile_run()  # its memory is the allocator's from now on, and its kernels are compiled
    torch.cuda.synchronize()
    cache = (runner.cache.keys, runner.cache.values)
    return runner, size, GpuSleeper(runner, memory[0], weights, memory[1], cache) if memory else None


@cache
def card_choices() -> CardChoices:
    """The launch choices of this process's card, read once."""
    return CardChoices.load(CHOICES, choices_of_host(), torch.cuda.get_device_name(), triton.__version__)


def gpu_head_runner(
    shape: HeadConfig, load: Callable[[], HeadDecoder], config: EngineConfig, on_stage: OnStage
) -> tuple[HeadGraphRunner, CacheSize, Sleeper | None]:
    """The same for a head of that shape. Raises ConfigError as `require_gpu` and `gpu_runner` do."""
    require_cuda(config)
    require_heads(shape)
    runner, size, sleeper = gpu_runner(load(), config, on_stage)
    assert isinstance(runner, HeadGraphRunner)  # noqa: S101 -- see `_runner`
    return runner, size, sleeper


def may_tune(config: EngineConfig) -> bool:
    """Whether launch choices may be this host's own: those of several ranks, or in deterministic mode, may not."""
    return config.self_tuning and config.ranks == 1 and not config.batch_invariant


def paged(model: Decoder, config: EngineConfig) -> PagedDecoder:
    """The form of `model` that runs on its card; takes over its weights."""
    tuning.use(card_choices().in_use)
    if isinstance(model, HeadDecoder):
        head = paged_head(model, kernels_for(model.embedding.device), weight_format(config, model.config))
        head.reserve(step_rows(config))
        return head
    kind = kind_of(model.config, batch_invariant=config.batch_invariant)
    return kind(model, kernels_for(model.embedding.device), weight_format(config, model.config))


def step_rows(config: EngineConfig) -> int:
    """Rows of the largest step, padding included."""
    return piece_size(config.max_num_batched_tokens + DENSE_STEP)


def cache_after_weights(
    others: int, config: EngineConfig, model: ModelConfig, dtype: torch.dtype, group: ParallelGroup = SINGLE
) -> CacheSize:
    """Of the engine's share of the card, less what is taken and `others`, in bytes: of the rank that has least left.

    Raises ConfigError, naming the number, if one sequence or the blocks that were asked for do not fit.
    """
    free, total = torch.cuda.mem_get_info()
    room = group.least(int(config.gpu_memory * total) - (total - free) - others)
    size = size_cache_within(room, config, model, dtype.itemsize)
    block_bytes = block_bytes_of(config, model, dtype.itemsize)
    if size.num_blocks * block_bytes > room:
        raise ConfigError(
            f"{size.num_blocks} KV blocks take {size.num_blocks * block_bytes} bytes, and {room} are left beside the "
            f"weights; {max(0, room) // block_bytes} would fit"
        )
    return size


def measured(profile_run: Callable[[], None]) -> int:
    """Bytes that a rehearsal takes at its peak, beside what is taken already; nothing of it stays."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    profile_run()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    gc.collect()
    torch.cuda.empty_cache()
    return peak


def _activations(model: PagedDecoder, dtype: torch.dtype, config: EngineConfig) -> int:
    """Of the largest step; what a runner keeps between steps counts too."""
    length = min(config.max_model_len or model.config.max_position, model.config.max_position)
    return measured(lambda: _runner(model, dtype, config, CacheSize(1, length)).profile_run())


def _runner(
    model: PagedDecoder, dtype: torch.dtype, config: EngineConfig, size: CacheSize, allocate: Allocate | None = None
) -> GraphRunner:
    groups = groups_of(config, model.config)
    cache = KVCache(model.config, size.num_blocks, config.block_size, dtype, config.device, allocate, groups)
    limits: dict[str, Any] = {
        "max_num_seqs": config.max_num_seqs, "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": size.max_model_len, "speculates": config.speculation is not None,
        "batch_invariant": config.batch_invariant,
    }  # fmt: skip
    if isinstance(model, PagedHead):
        return HeadGraphRunner(model, cache, **limits)
    return GraphRunner(model, cache, **limits)
