"""Bringing an embedding model up on a GPU: weights, then what the largest step takes, then cache for the rest.

An encoder has no cache. Nothing is captured, and both sleep as a model that writes text does (`card_sleeper`).
"""

from functools import partial

import torch

from backend.engine.cache.attention import KVCache
from backend.engine.cache.sleeper import Sleeper
from backend.engine.core.progress import OnStage, Stage
from backend.engine.embedding.encoder_runner import EncoderRunner
from backend.engine.embedding.gpu_pooling import GpuPoolingRunner
from backend.engine.gpu.memory import GpuMemory, supported
from backend.engine.gpu.sleeper import GpuSleeper, move_to_pool
from backend.engine.gpu.start import cache_after_weights, measured, paged, require_cuda, require_gpu
from backend.engine_config import CacheSize, EngineConfig
from backend.errors import ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.pooling import Pooling
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.encoder import Encoder

SLACK = 256 << 20  # of the card, for libraries' workspaces and what the allocator rounds up


def require_embedder(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """What can be known before anything is loaded. Raises ConfigError."""
    for name in ("quantization", "kv_dtype"):
        if getattr(config, name):
            raise ConfigError(
                f"an embedding model is computed in its dtype: no {name} {getattr(config, name)}; remove the option"
            )
    if not checkpoint.is_encoder:
        require_gpu(config, checkpoint.config)
    elif config.batch_invariant:
        raise ConfigError(
            "batch_invariant is a mode of decoders: an encoder's products depend on the batch; remove --batch-invariant"
        )
    else:
        require_cuda(config)


def decoder_runner(
    model: Decoder, config: EngineConfig, pooling: Pooling, on_stage: OnStage
) -> tuple[GpuPoolingRunner, CacheSize, Sleeper | None]:
    """As `gpu.gpu_runner`. Raises ConfigError, naming the number, if one text does not fit."""
    device, dtype = model.embedding.device, model.embedding.dtype
    decoder = paged(model, config)
    memory = (GpuMemory(device), GpuMemory(device)) if supported(device) else None
    weights = move_to_pool(decoder.weights(), memory[0]) if memory else []

    def runner_of(blocks: int, pages: GpuMemory | None = None) -> GpuPoolingRunner:
        allocate = pages.empty if pages else None
        cache = KVCache(model.config, blocks, config.block_size, dtype, config.device, allocate)
        return GpuPoolingRunner(decoder, cache, pooling, batch_invariant=config.batch_invariant)

    on_stage(Stage.KERNELS, 0, 1)
    activations = measured(lambda: runner_of(1).profile_run(config.max_num_batched_tokens))
    on_stage(Stage.KERNELS, 1, 1)
    size = cache_after_weights(activations + SLACK, config, model.config, dtype)
    runner = runner_of(size.num_blocks, memory[1] if memory else None)
    runner.profile_run(config.max_num_batched_tokens)  # its memory is the allocator's from now on
    torch.cuda.synchronize()
    cache = (runner.cache.keys, runner.cache.values)
    return runner, size, GpuSleeper(runner, memory[0], weights, memory[1], cache) if memory else None


def encoder_runner(
    model: Encoder, config: EngineConfig, pooling: Pooling, on_stage: OnStage
) -> tuple[EncoderRunner, Sleeper | None]:
    device = model.words.device
    memory = (GpuMemory(device), GpuMemory(device)) if supported(device) else None
    weights = move_to_pool(model.parameters(), memory[0]) if memory else []
    runner = EncoderRunner(model, pooling)
    longest = model.config.max_position
    profile_run = partial(runner.profile_run, [longest] * max(1, config.max_num_batched_tokens // longest))
    on_stage(Stage.KERNELS, 0, 1)
    profile_run()
    on_stage(Stage.KERNELS, 1, 1)
    return runner, GpuSleeper(runner, memory[0], weights, memory[1], ()) if memory else None
