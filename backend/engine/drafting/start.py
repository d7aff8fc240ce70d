"""Start of the draft model, or of the head, beside the target model. It runs unsharded on one rank."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from backend.engine.cache.attention import KVCache
from backend.engine.cache.sleeper import HostSleeper, Sleeper
from backend.engine.core.block_manager import BlockManager
from backend.engine.core.progress import OnStage
from backend.engine.core.speculation import GUESSES_BY_BATCH, StateDrafter
from backend.engine.cpu.head_runner import HeadModelRunner
from backend.engine.drafting.head_drafter import HeadDrafter, HeadRunner
from backend.engine.drafting.model_drafter import ModelDrafter
from backend.engine.parallel.computing import computing
from backend.engine_config import CacheSize, EngineConfig, size_cache, weight_format
from backend.errors import ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.models.checkpoints.direct import OnProgress
from backend.models.config import ModelConfig
from backend.models.heads.head_config import KINDS, MTP, HeadConfig, config_of_head
from backend.models.heads.head_decoder import HeadDecoder
from backend.models.heads.load import dummy_head, load_head
from backend.parallel.group import SINGLE

ROWS = max(size for size, _ in GUESSES_BY_BATCH)


@dataclass(frozen=True)
class DraftModel:
    """A loaded draft model or head. now: monotonic clock in seconds, used to measure its benefit."""

    drafter: ModelDrafter
    sleeper: Sleeper | None
    now: Callable[[], float] = time.monotonic

    @property
    def observer(self) -> StateDrafter | None:
        """The drafter, if it guesses from hidden states of the target model."""
        return self.drafter if isinstance(self.drafter, HeadDrafter) else None

    def sleep_beside(self, other: Sleeper, on_progress: OnProgress) -> int:
        """Put the draft model to sleep after `other`, the target model. Returns the bytes freed.

        If it fails, `other` is woken and the error is raised again, usually CannotSleep.
        """
        if self.sleeper is None:
            return 0
        try:
            return self.sleeper.sleep(on_progress)
        except Exception:
            other.wake(on_progress)
            raise

    def wake_beside(self, other: Sleeper, on_progress: OnProgress) -> None:
        """Wake the draft model after `other`, the target model.

        If it fails, `other` is put to sleep and the error is raised again, usually CannotWake or ModelError.
        """
        if self.sleeper is None:
            return
        try:
            self.sleeper.wake(on_progress)
        except Exception:
            other.sleep(on_progress)
            raise


def draft_model(checkpoint: Checkpoint, config: EngineConfig) -> DraftModel | None:
    """Load the draft model or head that `config` names. Returns None if it names none.

    Raises:
        ConfigError: it is incompatible with `checkpoint` or does not fit into memory.
        ModelError: its checkpoint cannot be loaded.
    """
    if config.speculation in KINDS:
        return _head(checkpoint, config)
    if config.speculation != "model":
        return None
    smaller = Checkpoint(resolve(config.draft_model), config.max_model_len)
    require_same_tokens(checkpoint, smaller)
    own = config_of_draft(config, smaller.config)
    made = computing(smaller, own, SINGLE, lambda stage, done, total: None)
    blocks = BlockManager(made.cache.num_blocks, own.block_size, prefix_cache=False)
    drafter = ModelDrafter(
        made.runner,
        blocks,
        rows=ROWS,
        budget=own.max_num_batched_tokens,
        longest=made.cache.max_model_len,
        vocabulary=min(smaller.config.vocab_size, checkpoint.config.vocab_size),
    )
    return DraftModel(drafter, made.sleeper)


def _head(checkpoint: Checkpoint, config: EngineConfig) -> DraftModel:
    """Load the head that guesses from hidden states of `checkpoint`. Raises what `draft_model` does."""
    kind = str(config.speculation)
    folder = checkpoint.path if kind == MTP else resolve(config.draft_model)
    shape = config_of_head(kind, folder, checkpoint.config)
    own = config_of_draft(config, shape)
    format = weight_format(own, shape)

    def load() -> HeadDecoder:
        if config.load_format == "dummy":
            return dummy_head(shape, config.dtype, config.device, quantization=format)
        return load_head(shape, folder, checkpoint, config.dtype, config.device, quantization=format)

    runner, size, sleeper = _head_runner(shape, own, load)
    blocks = BlockManager(size.num_blocks, own.block_size, prefix_cache=False)
    drafter = HeadDrafter(
        runner,
        blocks,
        rows=ROWS,
        budget=own.max_num_batched_tokens,
        longest=size.max_model_len,
        vocabulary=shape.vocab_size,
    )
    return DraftModel(drafter, sleeper)


def _head_runner(
    shape: HeadConfig, config: EngineConfig, load: Callable[[], HeadDecoder], on_stage: OnStage = lambda *_: None
) -> tuple[HeadRunner, CacheSize, Sleeper | None]:
    if config.device.startswith("cuda"):
        from backend.engine.gpu.start import gpu_head_runner  # Triton is not needed elsewhere

        return gpu_head_runner(shape, load, config, on_stage)
    size = size_cache(config, shape, 4 if config.dtype == "float32" else 2)
    head = load()
    runner = HeadModelRunner(head, KVCache(shape, size.num_blocks, config.block_size, head.embedding.dtype, "cpu"))
    return runner, size, HostSleeper(runner, lambda on_progress: load())


def config_of_draft(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """Return the engine configuration of the draft model. Raises ConfigError if its cache has room for no block."""
    block = config.block_size * model.kv_bytes_per_token(4 if config.dtype == "float32" else 2)
    if config.draft_memory < block:
        raise ConfigError(
            f"{config.draft_memory} bytes hold no block of the draft model's KV cache, which takes {block}; raise "
            "--draft-memory"
        )
    return msgspec.structs.replace(
        config,
        model=config.draft_model,
        speculation=None,
        draft_model="",
        num_blocks=config.draft_memory // block,
        max_num_seqs=ROWS,
        max_num_batched_tokens=max(ROWS, min(config.max_num_batched_tokens, 2048)),
        quantization=None,
        kv_dtype=None,
        prefix_cache=False,
        batch_invariant=False,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        expert_parallel=False,
        redundant_experts=0,
        max_adapters=0,
        adapters="",
        max_model_len=None,
        host_cache_bytes=0,
        window_tables=False,  # a draft model goes back to the first token that differs, which a window may have passed
    )


def require_same_tokens(checkpoint: Checkpoint, smaller: Checkpoint) -> None:
    """Raise ConfigError if a token id has different meanings in both models."""
    if smaller.embedding is not None:
        raise ConfigError("the draft model makes embeddings or scores; name one that writes text in --draft-model")
    if not checkpoint.has_text or not smaller.has_text:  # random weights, for benchmarks
        sizes = checkpoint.config.vocab_size, smaller.config.vocab_size
        same = sizes[0] == sizes[1]
    else:
        same = checkpoint.text.token_bytes == smaller.text.token_bytes
    if not same:
        raise ConfigError(
            "the draft model has another vocabulary, and its tokens would be read as others; name a model of the same "
            "family in --draft-model"
        )
