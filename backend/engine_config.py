"""Engine configuration."""

import math
from collections.abc import Callable

import msgspec

from backend.errors import ConfigError
from backend.models.config import ModelConfig
from backend.models.layer_groups import LayerGroups, grouped, one_table
from backend.quantization import chosen, of_name
from backend.quantization.format import Quantization
from backend.quantization.none import NONE

DEFAULT_KV_MEMORY = 1 << 30
LOAD_FORMATS = ("auto", "dummy")
SPECULATIONS = ("ngram", "model", "eagle3", "mtp")
MOST_ADAPTERS, MOST_RANK = 511, 256  # what `kernels.adapters` takes; that module imports torch


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data, so that it crosses the process border as it is.

    Attributes:
        model: path of a GGUF file or Hugging Face folder.
        block_size: tokens a KV block holds.
        dtype: of weights, activations and, unless `kv_dtype` says otherwise, the KV cache.
        load_format: "auto", or "dummy": random weights of the shape in config.json, for measuring.
        quantization: format of the layers' weights, by its name (`backend.quantization`); None: as the checkpoint
            stores them if its format is multiplied as stored, else `dtype`.
        kv_dtype: "fp8" halves the KV cache, on a GPU; None: `dtype`.
        num_blocks: KV blocks; None: on the CPU as many as `kv_memory` bytes hold, on a GPU what is left of
            `gpu_memory`, its share of the card, beside weights, activations and graphs.
        graphs: capture decode steps as CUDA graphs, unless there are several stages.
        speculation: how tokens are guessed, several of which are checked in a step (`speculation`): "ngram": from the
            text so far; "model": by `draft_model`, a smaller model of the same vocabulary; "eagle3": by `draft_model`,
            an EAGLE-3 head of the model; "mtp": by the layer for multi-token prediction of the model itself. Their
            cache has `draft_memory` bytes. On several ranks the first has it.
        batch_invariant: a sequence's tokens do not depend on the other sequences of its batch; slower. On the CPU a
            prompt is then computed one token at a time.
        window_tables: layers with a window keep the blocks that it reaches, not those of the whole sequence, unless
            there are several stages.
        max_model_len: prompt plus answer, in tokens; None: the model's context, or what the KV cache holds if less.
        host_cache_bytes: of the host's memory, for prefix blocks that the KV cache evicts and for sequences that are
            preempted; of each rank; 0: they are computed again.
        max_num_batched_tokens: the token budget of one step; longer prompts run in chunks.
        step_latency_ms: that a step of running answers is to take at most, which prompts are cut for
            (`backend.engine.pacing`); 0: they take the whole budget. Not in batch-invariant mode.
        max_num_seqs: sequences running at once. max_waiting: further ones that may queue. max_per_project: sequences
            of one project, running or queued; None: no such bound.
        tensor_parallel_size: ranks that the model is divided among, each a process with a card of its own, or with a
            share of the CPU. `kv_memory` and `gpu_memory` are of each.
        pipeline_parallel_size: stages of consecutive layers, each on `tensor_parallel_size` ranks of its own.
        expert_parallel: of a mixture each rank of a stage holds some experts as wholes, not a part of each.
            redundant_experts: and slots for so many copies of those of others that are taken most often.
        self_tuning: on a card without shipped launch choices, the first start measures them
            (`backend.kernels.launching.self_tuning`).
        peer_memory: cards sum small tensors by reading each other's memory, not through NCCL.
        step_timeout_s: a step that takes longer counts as a hang.
        threads: torch's intra-op threads; None: torch's choice.
        max_adapters: LoRA adapters that may be loaded at a time, each of at most `max_adapter_rank`; 0: none.
        adapters: folder of the adapters.
        cache_salt: secret root of the prefix cache's hash chains.
    """

    model: str
    device: str = "cpu"
    dtype: str = "float32"
    load_format: str = "auto"
    quantization: str | None = None
    kv_dtype: str | None = None
    block_size: int = 16
    num_blocks: int | None = None
    kv_memory: int = DEFAULT_KV_MEMORY
    gpu_memory: float = 0.92
    host_cache_bytes: int = 0
    graphs: bool = True
    window_tables: bool = True
    max_model_len: int | None = None
    max_num_batched_tokens: int = 512
    step_latency_ms: float = 0.0
    max_num_seqs: int = 32
    max_waiting: int = 256
    max_per_project: int | None = None
    prefix_cache: bool = True
    speculation: str | None = None
    draft_model: str = ""
    draft_memory: int = DEFAULT_KV_MEMORY
    batch_invariant: bool = False
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel: bool = False
    redundant_experts: int = 0
    self_tuning: bool = True
    peer_memory: bool = True
    step_timeout_s: float = 120.0
    threads: int | None = None
    max_adapters: int = 0
    max_adapter_rank: int = 16
    adapters: str = ""
    cache_salt: bytes = b""

    @property
    def ranks(self) -> int:
        """Processes that compute the model, each with a card of its own."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def captures(self) -> bool:
        """Whether steps are captured: one that waits for another stage is not."""
        return self.graphs and self.pipeline_parallel_size == 1

    @property
    def spare_experts(self) -> int | None:
        """As in `ParallelGroup.spare`."""
        return self.redundant_experts if self.expert_parallel else None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_choices()
        self._check_combinations()

    def _check_numbers(self) -> None:
        """Raises ConfigError for a number outside its range."""
        for name in (
            "block_size",
            "max_num_batched_tokens",
            "max_num_seqs",
            "kv_memory",
            "draft_memory",
            "step_timeout_s",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "max_adapter_rank",
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} {getattr(self, name)} is not positive; set it above 0")
        if not 0 < self.gpu_memory <= 1:
            raise ConfigError(
                f"gpu_memory {self.gpu_memory} is not a share of the card; set --gpu-memory above 0 and up to 1"
            )
        if not 0 <= self.step_latency_ms < math.inf:
            raise ConfigError(
                f"step_latency_ms {self.step_latency_ms:g} is no time; set --step-latency-ms to 0 (no limit) or more"
            )
        if self.redundant_experts < 0:
            raise ConfigError(
                f"redundant_experts {self.redundant_experts} is negative; set --redundant-experts to at least 0"
            )
        if self.max_waiting < 0:
            raise ConfigError(f"max_waiting {self.max_waiting} is negative; set --max-waiting to at least 0")
        if self.host_cache_bytes < 0:
            raise ConfigError(
                f"host_cache_bytes {self.host_cache_bytes} is negative; set --host-cache-bytes to at least 0"
            )
        for name in ("num_blocks", "max_model_len", "threads", "max_per_project"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} {value} is not positive; set it to at least 1, or leave it out")

    def _check_choices(self) -> None:
        """Raises ConfigError for a name that is not one of those known."""
        if self.load_format not in LOAD_FORMATS:
            raise ConfigError(
                f"load_format {self.load_format!r} is not one of {', '.join(LOAD_FORMATS)}"
                "; set load_format to one of them"
            )
        if self.quantization is not None:
            of_name(self.quantization)
        if self.kv_dtype not in (None, "fp8"):
            raise ConfigError(f"kv_dtype {self.kv_dtype!r} is not known; set --kv-dtype fp8, or leave it out")
        if self.speculation not in (None, *SPECULATIONS):
            raise ConfigError(
                f"speculation {self.speculation!r} is not known; set --speculation to one of "
                f"{', '.join(SPECULATIONS)}, or leave it out"
            )
        if (self.speculation in ("model", "eagle3")) != bool(self.draft_model):
            raise ConfigError(
                "guesses by a model need both --speculation model and --draft-model, and those by an EAGLE-3 head both "
                "--speculation eagle3 and --draft-model; add the one that is missing, or leave --draft-model out"
            )

    def _check_combinations(self) -> None:
        """Raises ConfigError for values that do not go together."""
        on_gpu = self.device.startswith("cuda")
        if self.kv_dtype and not on_gpu:
            raise ConfigError(f"kv_dtype {self.kv_dtype} needs a GPU; this is {self.device!r}")
        if self.host_cache_bytes and not self.prefix_cache:
            raise ConfigError(
                "the host cache holds blocks of the prefix cache; leave --no-prefix-cache or --host-cache-bytes out"
            )
        self._check_ranks()
        self._check_adapters()
        if self.quantization is not None:
            format = of_name(self.quantization)
            if format.gpu_only and not on_gpu:
                raise ConfigError(f"quantization {format.name} needs a GPU; this is {self.device!r}")
            require_invariant(self, format)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below max_num_seqs "
                f"({self.max_num_seqs}), so not all running sequences could take a step; raise the first or lower "
                "the second"
            )

    def _check_adapters(self) -> None:
        """Raises ConfigError for adapters that cannot be had so."""
        if not 0 <= self.max_adapters <= MOST_ADAPTERS:
            raise ConfigError(f"max_adapters {self.max_adapters}; set --max-adapters from 0 to {MOST_ADAPTERS}")
        if self.max_adapter_rank > MOST_RANK:
            raise ConfigError(
                f"max_adapter_rank {self.max_adapter_rank}; set --max-adapter-rank to at most {MOST_RANK}"
            )
        if self.max_adapters and not self.adapters:
            raise ConfigError("adapters need a folder; add --adapters FOLDER")
        if self.max_adapters and self.batch_invariant and self.ranks > 1:
            raise ConfigError(
                "with adapters, tokens of several ranks are not those of one; leave --deterministic or --max-adapters "
                "out"
            )

    def _check_ranks(self) -> None:
        """Raises ConfigError for ways of dividing a model that do not go together."""
        if self.ranks > 1 and ":" in self.device:
            raise ConfigError(
                f"device {self.device!r} names one card of {self.ranks}; set --device cuda, and choose cards with "
                "CUDA_VISIBLE_DEVICES"
            )
        if self.speculation in ("eagle3", "mtp") and self.pipeline_parallel_size > 1:
            raise ConfigError(
                f"speculation {self.speculation} reads hidden states, which are spread over the stages; leave "
                "--pipeline-parallel-size or --speculation out"
            )
        if self.expert_parallel and self.tensor_parallel_size == 1:
            raise ConfigError(
                "expert_parallel divides experts among the ranks of --tensor-parallel-size, which is 1; raise it, or "
                "leave --expert-parallel out"
            )
        if self.redundant_experts and not self.expert_parallel:
            raise ConfigError(
                "redundant_experts are copies on ranks that hold experts as wholes; add --expert-parallel, or leave "
                "--redundant-experts out"
            )


def weight_format(config: EngineConfig, model: ModelConfig) -> Quantization:
    """The format in which an engine so configured keeps the layers' weights of this model. On the CPU: none.

    Raises ConfigError for one that the checkpoint's weights cannot be brought into, or that does not go with the mode.
    """
    if not config.device.startswith("cuda"):
        return NONE
    format = chosen(config.quantization, model.stored_weights)
    require_invariant(config, format)
    return format


def require_invariant(config: EngineConfig, format: Quantization) -> None:
    """Raises ConfigError if the engine is to be batch-invariant and products by such weights are not."""
    if config.batch_invariant and not format.batch_invariant:
        raise ConfigError(
            f"batch_invariant does not go with {format.name}: products of {format.name} weights depend on the batch; "
            f"choose --quantization none"
        )


def require_cache(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ConfigError if a GPU's kernels do not keep such a cache for this model."""
    if model.latent is not None and config.kv_dtype is not None:
        raise ConfigError("latents in FP8 are not computed; leave --kv-dtype out")


def groups_of(config: EngineConfig, model: ModelConfig) -> LayerGroups:
    """Which layers of this model, or of a rank's share of it, share a block table. Stages have unlike layers and the
    tables of the first, so all of theirs share one."""
    if not config.window_tables or config.pipeline_parallel_size > 1:
        return one_table(model.num_layers)
    return grouped(model)


def block_bytes_of(config: EngineConfig, model: ModelConfig, element_size: int) -> int:
    """Bytes of a KV block, of whichever table."""
    return config.block_size * groups_of(config, model).depth * model.kv_bytes_of_layer(element_size)


class CacheSize(msgspec.Struct, frozen=True):
    """KV blocks, the longest sequence they are promised to hold, and blocks that the host has room for beside. Layers
    with a window have blocks of their own (`LayerGroups`)."""

    num_blocks: int
    max_model_len: int
    host_blocks: int = 0


def size_cache(config: EngineConfig, model: ModelConfig, element_size: int) -> CacheSize:
    """How many blocks, and how long a sequence may be.

    Raises ConfigError, naming the number that would do, if one sequence of `max_model_len` does not fit, or if
    `max_model_len` is beyond the model's context.
    """
    return size_cache_within(config.kv_memory, config, model, element_size)


def size_cache_within(memory: int, config: EngineConfig, model: ModelConfig, element_size: int) -> CacheSize:
    """`size_cache` for ``memory`` bytes of KV cache."""
    groups, block_bytes = groups_of(config, model), block_bytes_of(config, model, element_size)
    num_blocks = config.num_blocks or max(0, memory) // block_bytes
    if num_blocks == 0:
        raise ConfigError(f"{memory} bytes of KV cache hold no block; one takes {block_bytes}")
    host_blocks = config.host_cache_bytes // block_bytes
    if config.host_cache_bytes and host_blocks == 0:
        raise ConfigError(
            f"{config.host_cache_bytes} bytes of host cache hold no block; set --host-cache-bytes to at least "
            f"{block_bytes}, or to 0"
        )
    step = config.max_num_batched_tokens
    room = groups.longest(num_blocks, step, config.block_size, model.max_position)
    if config.max_model_len is None and room:
        return CacheSize(num_blocks, room, host_blocks)
    if config.max_model_len is None:
        needed = groups.blocks_of(1, step, config.block_size)
        raise ConfigError(
            f"a sequence needs {needed} KV blocks at least ({needed * block_bytes} bytes), there are {num_blocks}; "
            "raise kv_blocks or kv_memory"
        )
    if config.max_model_len > model.max_position:
        raise ConfigError(
            f"max_model_len {config.max_model_len} is beyond the model's context, {model.max_position}"
            "; lower --max-model-len"
        )
    if config.max_model_len > room:
        needed = groups.blocks_of(config.max_model_len, step, config.block_size)
        raise ConfigError(
            f"max_model_len {config.max_model_len} needs {needed} KV blocks ({needed * block_bytes} bytes), there are "
            f"{num_blocks}; raise kv_blocks or kv_memory, or lower max_model_len to {room}"
        )
    return CacheSize(num_blocks, config.max_model_len, host_blocks)


def of_all_stages(
    size: CacheSize, config: EngineConfig, model: ModelConfig, least: Callable[[int], int], element_size: int
) -> CacheSize:
    """What every stage has room for: they have unlike numbers of layers. least: the smallest of all stages' numbers."""
    blocks = least(size.num_blocks)
    host_blocks = least(size.host_blocks) if config.host_cache_bytes else 0
    size = size_cache(msgspec.structs.replace(config, num_blocks=blocks), model, element_size)
    return msgspec.structs.replace(size, host_blocks=host_blocks)
