"""The engine of a model that makes vectors: texts are computed as prompts are, batched and by priority, and end there.

A decoder's come in chunks, and from the prefix cache where the last token alone is asked. An encoder's come whole.
"""

from collections.abc import Callable
from functools import partial

import msgspec
import torch

from backend.engine.cache.attention import KVCache
from backend.engine.cache.sleeper import HostSleeper, Sleeper
from backend.engine.core.progress import Finish, OnStage, Progress, Stage
from backend.engine.core.runner import Launched, Runner
from backend.engine.core.sampling import NOTHING_DRAWN, SamplingParams
from backend.engine.core.sequence import Sequence, Status
from backend.engine.embedding.encoder_runner import EncoderRunner
from backend.engine.embedding.pooling_runner import Pooled, PoolingRunner
from backend.engine.engine import Engine, Team
from backend.engine_config import CacheSize, EngineConfig, size_cache
from backend.errors import ConfigError
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.direct import OnProgress
from backend.models.checkpoints.pooling import Pooling
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.encoder import Encoder
from backend.models.loader import load_encoder, load_model
from backend.quantization.none import NONE


class EmbeddingEngine(Engine):
    """``max_model_len`` is the longest text, in tokens."""

    def __init__(
        self,
        model: Decoder | Encoder,
        config: EngineConfig,
        cache: CacheSize,
        pooling: Pooling,
        *,
        runner: Runner | None = None,
        sleeper: Sleeper | None = None,
        reload: Callable[[OnProgress], Decoder | Encoder] | None = None,
    ) -> None:
        """``runner``, ``sleeper``: a GPU's; by default the plain ones, whose model sleeps if it can be had by
        ``reload``."""
        self._pooling = pooling
        if runner is None:
            plain = _plain_runner(model, config, cache, pooling)
            runner, sleeper = plain, HostSleeper(plain, reload)
        adopts = pooling is Pooling.LAST and isinstance(model, Decoder)
        prefix_cache = config.prefix_cache and adopts
        config = msgspec.structs.replace(config, prefix_cache=prefix_cache, speculation=None, window_tables=False)
        super().__init__(model, config, cache, runner=runner, sleeper=sleeper, whole=isinstance(model, Encoder))
        self.vector_size = model.config.hidden_size
        self._longest = self.max_model_len + NOTHING_DRAWN.max_tokens

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        config: EngineConfig,
        on_stage: OnStage = lambda stage, done, total: None,
        team: Team | None = None,
    ) -> "EmbeddingEngine":
        """Load and build. Raises ConfigError before loading if it cannot be as asked, ModelError while."""
        embedding = checkpoint.embedding
        assert embedding is not None  # noqa: S101 -- who calls has looked
        config = msgspec.structs.replace(config, window_tables=False)  # of a text nothing is kept for long
        if config.load_format != "auto":
            raise ConfigError(
                f"an embedding model is loaded from its weights, not as {config.load_format!r}; set load_format to auto"
            )
        if config.speculation:
            raise ConfigError(
                "an embedding model draws no tokens: speculation has nothing to guess; remove --speculation"
            )
        if config.host_cache_bytes:
            raise ConfigError("an embedding model has no prefix cache to extend; leave --host-cache-bytes out")
        if config.ranks > 1 or team is not None:
            raise ConfigError("an embedding model is not divided among cards; set --tensor-parallel-size 1")
        if config.batch_invariant and not config.device.startswith("cuda"):
            raise ConfigError("an embedding model has no batch-invariant mode on the CPU; start it without that option")
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        if config.device.startswith("cuda"):
            return cls._vectors_on_gpu(checkpoint, config, embedding.pooling, on_stage)
        if checkpoint.is_encoder:
            config, cache = _for_whole_texts(config, checkpoint.encoder_config.max_position)
        else:
            cache = size_cache(config, checkpoint.config, 4 if config.dtype == "float32" else 2)
        load = partial(_load, checkpoint, config)
        return cls(load(partial(on_stage, Stage.WEIGHTS)), config, cache, embedding.pooling, reload=load)

    @classmethod
    def _vectors_on_gpu(
        cls, checkpoint: Checkpoint, config: EngineConfig, pooling: Pooling, on_stage: OnStage
    ) -> "EmbeddingEngine":
        from backend.engine.embedding import gpu_start as gpu  # Triton is not needed elsewhere

        gpu.require_embedder(config, checkpoint)
        config = msgspec.structs.replace(config, quantization=NONE.name)
        runner: Runner
        if checkpoint.is_encoder:
            config, cache = _for_whole_texts(config, checkpoint.encoder_config.max_position)
            model = _load(checkpoint, config, partial(on_stage, Stage.WEIGHTS))
            assert isinstance(model, Encoder)  # noqa: S101
            runner, sleeper = gpu.encoder_runner(model, config, pooling, on_stage)
        else:
            model = _load(checkpoint, config, partial(on_stage, Stage.WEIGHTS))
            assert isinstance(model, Decoder)  # noqa: S101
            runner, cache, sleeper = gpu.decoder_runner(model, config, pooling, on_stage)
        return cls(model, config, cache, pooling, runner=runner, sleeper=sleeper)

    def add(
        self,
        id: int,
        prompt: list[int],
        params: SamplingParams = NOTHING_DRAWN,
        *,
        priority: int = 0,
        leader: int | None = None,
        cache_root: bytes = b"",
        project: bytes = b"",
        adapter: str = "",
        exports: int | None = None,
        fetches: bool = False,
        window: bytes = b"",
        adapter_digest: str = "",
    ) -> None:
        """As `Engine.add`, for a text; ``params`` say nothing here, and no block travels."""
        super().add(id, prompt, NOTHING_DRAWN, priority=priority, leader=leader, cache_root=cache_root, project=project)

    def _take_in(self, sequences: list[Sequence], launched: Launched) -> list[Progress]:
        assert isinstance(launched, Pooled)  # noqa: S101 -- both runners give these
        progress = []
        for sequence, vector in zip(sequences, launched.vectors, strict=True):
            if sequence.status is Status.FINISHED:
                continue
            sequence.num_pending -= 1
            if vector is None:
                progress.append(self._append(sequence, None))
                continue
            self._forget(sequence)
            cached, started = sequence.num_cached or 0, sequence.started
            progress.append(Progress(sequence.id, None, Finish.VECTOR, cached, started=started, vector=vector))
        return progress


def _plain_runner(
    model: Decoder | Encoder, config: EngineConfig, cache: CacheSize, pooling: Pooling
) -> PoolingRunner | EncoderRunner:
    if isinstance(model, Encoder):
        return EncoderRunner(model, pooling)
    pages = KVCache(model.config, cache.num_blocks, config.block_size, model.embedding.dtype, config.device)
    return PoolingRunner(model, pages, pooling)


def _load(checkpoint: Checkpoint, config: EngineConfig, on_progress: OnProgress) -> Decoder | Encoder:
    if checkpoint.is_encoder:
        return load_encoder(checkpoint, config.dtype, config.device, on_progress)
    return load_model(checkpoint, config.dtype, config.device, on_progress)


def _for_whole_texts(config: EngineConfig, max_position: int) -> tuple[EngineConfig, CacheSize]:
    """A step takes at least the longest text, and there are blocks for as many of these as may run at once.

    Raises ConfigError for a length beyond the model's.
    """
    if (config.max_model_len or 0) > max_position:
        raise ConfigError(
            f"max_model_len {config.max_model_len} is beyond the model's context, {max_position}"
            f"; lower --max-model-len to {max_position}"
        )
    budget = max(config.max_num_batched_tokens, max_position)
    blocks = config.max_num_seqs * -(-max_position // config.block_size)
    return msgspec.structs.replace(config, max_num_batched_tokens=budget), CacheSize(blocks, max_position)
