"""What a rank computes with: its share of the model, a runner and its cache. The same on all ranks, in the same order,
for loading, measuring and capturing run the group's operations."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from backend.engine.adapter_places import OwnPlaces
from backend.engine.cache.attention import KVCache
from backend.engine.cache.host_pages import HostPages
from backend.engine.cache.pinned_pages import PinnedPages
from backend.engine.cache.sleeper import HostSleeper, Sleeper
from backend.engine.core.progress import OnStage, Stage
from backend.engine.core.runner import Runner
from backend.engine.core.speculation import MAX_ROWS, HiddenStates
from backend.engine.cpu.model_runner import ModelRunner
from backend.engine.cpu.tokenwise_runner import TokenwiseRunner
from backend.engine.gpu.sleeper import HOST_RESERVE, available_host_memory
from backend.engine_config import CacheSize, EngineConfig, groups_of, of_all_stages, size_cache, weight_format
from backend.errors import ConfigError
from backend.models.adapters.bank import AdapterBank
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.models.checkpoints.direct import OnProgress
from backend.models.decoders.decoder import Decoder
from backend.models.decoders.exposure import Exposure
from backend.models.heads.head_config import KINDS, config_of_head
from backend.models.loader import dummy_model, load_model
from backend.models.sharding import share_of
from backend.parallel.group import ParallelGroup


@dataclass(frozen=True)
class Computing:
    """eos_ids: tokens that end the model's answers; none of random weights without a tokenizer. places: of adapters;
    None: the engine takes none. host: slots of the host tier, if it has one. exposed: hidden states of the runner's
    last step."""

    model: Decoder
    eos_ids: frozenset[int]
    runner: Runner
    cache: CacheSize
    sleeper: Sleeper | None
    expert_loads: Callable[[], list[int]] = list
    places: OwnPlaces | None = None
    host: HostPages | None = None
    exposed: Callable[[], HiddenStates | None] = lambda: None


def computing(checkpoint: Checkpoint, config: EngineConfig, group: ParallelGroup, on_stage: OnStage) -> Computing:
    """Load and build. Raises ConfigError before loading if model, cache or cards are not as asked, ModelError while."""
    require_host_memory(config)
    load = partial(loaded, checkpoint, config, group)
    format = weight_format(config, checkpoint.config)
    share = share_of(checkpoint.config, group, format)
    if config.device.startswith("cuda"):
        from backend.engine.gpu.start import gpu_runner, require_gpu, step_rows  # Triton is not needed elsewhere

        require_gpu(config, share)
        model, eos_ids = load(partial(on_stage, Stage.WEIGHTS))
        places = adapter_places(model, config)
        model.exposure = exposure_for_head(model, checkpoint, config, step_rows(config))
        gpu, cache, sleeper = gpu_runner(model, config, on_stage)
        host = PinnedPages(gpu.cache, cache.host_blocks) if cache.host_blocks else None
        return Computing(model, eos_ids, gpu, cache, sleeper, gpu.model.expert_loads, places, host, gpu.exposed)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    cache = size_cache(config, share, 4 if config.dtype == "float32" else 2)
    cache = of_all_stages(cache, config, share, group.pipeline.least, 4 if config.dtype == "float32" else 2)
    model, eos_ids = load(partial(on_stage, Stage.WEIGHTS))
    places = adapter_places(model, config)
    rows = max(MAX_ROWS, config.max_num_batched_tokens)
    model.exposure = exposure_for_head(model, checkpoint, config, rows)
    pages = KVCache(
        share,
        cache.num_blocks,
        config.block_size,
        model.embedding.dtype,
        config.device,
        groups=groups_of(config, share),
    )
    runner = (TokenwiseRunner if config.batch_invariant else ModelRunner)(model, pages)

    def reload(on_progress: OnProgress) -> Decoder:
        again = load(on_progress)[0]
        again.adapt(None if places is None else places.bank)
        again.exposure = model.exposure
        return again

    sleeper = HostSleeper(runner, reload)
    own = HostPages(pages, cache.host_blocks) if cache.host_blocks else None
    return Computing(
        model, eos_ids, runner, cache, sleeper, lambda: runner.model.expert_loads(), places, own, runner.exposed
    )


def require_host_memory(config: EngineConfig) -> None:
    """Raises ConfigError if the host has no room for the host tiers of all ranks."""
    asked = config.host_cache_bytes * config.ranks
    if asked and asked + HOST_RESERVE > (room := available_host_memory()):
        raise ConfigError(
            f"the host cache takes {asked} bytes, and of {room} that are available {HOST_RESERVE} are left to others"
            f"; set --host-cache-bytes to at most {max(0, room - HOST_RESERVE) // config.ranks}"
        )


def exposure_for_head(model: Decoder, checkpoint: Checkpoint, config: EngineConfig, rows: int) -> Exposure | None:
    """Where `model` leaves the hidden states of at most so many tokens of a step for the head that guesses; None if
    there is no such head. The same on all ranks, which compute the same, though the first alone reads them."""
    if config.speculation not in KINDS:
        return None
    head = config_of_head(config.speculation, resolve(config.draft_model), checkpoint.config)
    table = model.embedding
    return Exposure(head.reads, rows, checkpoint.config.hidden_size, table.dtype, table.device)


def adapter_places(model: Decoder, config: EngineConfig) -> OwnPlaces | None:
    """Places for adapters of `model`, which gets what they add; None if it takes none."""
    if not config.max_adapters:
        return None
    table = model.embedding
    bank = AdapterBank(
        model.config,
        config.max_adapters,
        config.max_adapter_rank,
        table.dtype,
        table.device,
        batch_invariant=config.batch_invariant,
    )
    model.adapt(bank)
    return OwnPlaces(bank, model.config, Path(config.adapters))


def loaded(
    checkpoint: Checkpoint, config: EngineConfig, group: ParallelGroup, on_progress: OnProgress | None
) -> tuple[Decoder, frozenset[int]]:
    """The model, or a rank's share of it, and the ids that end its answers; random weights without a tokenizer have no
    such ids."""
    format = weight_format(config, checkpoint.config)
    if config.load_format == "dummy":
        eos_ids = checkpoint.text.eos_ids if checkpoint.has_text else frozenset[int]()
        made = dummy_model(checkpoint.config, config.dtype, config.device, quantization=format, group=group)
        if group.ordered and not config.device.startswith("cuda"):
            made.arrange()
        return made, eos_ids
    eos_ids = checkpoint.text.eos_ids
    model = load_model(checkpoint, config.dtype, config.device, on_progress, quantization=format, group=group)
    if group.ordered and not config.device.startswith("cuda"):
        model.arrange()
    return model, eos_ids
