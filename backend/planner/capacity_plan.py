"""A plan: what fits on a card for a context and a number of requests at once, and how fast it will be."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from backend.engine_config import EngineConfig, groups_of, require_cache, weight_format
from backend.errors import ConfigError
from backend.models.config import ModelConfig
from backend.models.sharding import of_rank, possible_sizes
from backend.parallel.shard import Shard
from backend.planner.cards import GIB, Card
from backend.planner.memory import (
    Memory,
    draft_bytes,
    kv_block_bytes,
    kv_bytes_per_token,
    memory_of,
    parameters,
    room_for_cache,
    weight_bytes,
)
from backend.planner.roofline import Roofline, Step
from backend.quantization import FORMATS
from backend.quantization.format import Quantization
from backend.quantization.none import NONE

MOST_CARDS = 8  # of a host
FP8 = "fp8"  # of a card's units, for the cache


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        cards: that the model is divided among; `memory` and `kv_bytes_per_token` are of each.
        parameters, active_parameters: of the model; those that a token has to do with, which are fewer where it takes
            some experts of many.
        block_tables: of a request, each of some layers; those of layers with a window keep what it reaches.
        max_concurrency: requests of a whole `context` that the cache holds at once.
        first_token_ms: of a prompt of `prompt` tokens that comes alone. tokens_per_s: of all, with `concurrency`
            requests of `prompt` tokens in and `answer` out at once, their prompts included. step_ms: of a decode step
            with all of them half-way through their answers.
        fewest_cards: such cards, up to those of a host, that would do for this context and concurrency; None: no
            number does.
        refusal: why it cannot be, and which number would do; None if it can.
    """

    card: str
    cards: int
    calibrated: bool
    context: int
    concurrency: int
    prompt: int
    answer: int
    parameters: int
    active_parameters: int
    memory: Memory
    kv_bytes_per_token: int
    block_tables: int
    max_concurrency: int
    first_token_ms: float
    step_ms: float
    tokens_per_s: float
    fewest_cards: int | None
    refusal: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"memory": asdict(self.memory) | {"peak": self.memory.peak}}


def plan(
    model: ModelConfig,
    config: EngineConfig,
    card: Card,
    *,
    concurrency: int,
    prompt: int,
    answer: int,
    draft: ModelConfig | None = None,
) -> Plan:
    """``config.max_model_len`` is the context to be promised, ``config.tensor_parallel_size`` how many such cards there
    are. draft: a smaller model that guesses, whole beside a part of this one. Raises ConfigError for lengths that
    contradict it or the model, and for a model that cannot be divided so."""
    context = config.max_model_len or model.max_position
    _require_lengths(model, context, concurrency, prompt, answer)
    _require_host_cache(model, config)
    format = weight_format(config, model)
    require_cache(config, model)
    _require_units(card, config, format)
    config, size = replace_limits(config, concurrency), config.tensor_parallel_size
    guessing, reserved = draft_bytes(config, draft), card.reserved
    card = replace(card, reserved=reserved + guessing)  # what the model cannot have
    share, weights = of_rank(model, Shard(0, size), format), parameters(model)
    memory = memory_of(share, config, card)
    pool = memory.blocks, config.max_num_batched_tokens, config.block_size
    groups = groups_of(config, share)
    tokens = groups.longest(*pool, model.max_position)
    max_concurrency = groups.at_once(memory.blocks, context, *pool[1:])
    roof = Roofline(share, config, card)
    fits = memory.blocks > 0
    step = Step(concurrency, concurrency * (prompt + answer // 2))

    def refusal_on(cards: int) -> str | None:
        part = of_rank(model, Shard(0, cards), format)
        return _refusal(part, config, card, memory_of(part, config, card), context, concurrency)

    sizes = (cards for cards in possible_sizes(model, format) if cards <= MOST_CARDS)
    fewest = next((cards for cards in sizes if refusal_on(cards) is None), None)
    seconds = roof.workload([(prompt, answer)] * concurrency) if fits and tokens >= prompt + answer else 0.0
    return Plan(
        card=card.name,
        cards=size,
        calibrated=card.calibrated and size == 1,
        context=context,
        concurrency=concurrency,
        prompt=prompt,
        answer=answer,
        parameters=weights.total,
        active_parameters=weights.active,
        memory=replace(memory, reserved=reserved, draft=guessing),
        kv_bytes_per_token=kv_bytes_per_token(share, config),
        block_tables=len(groups.windows),
        max_concurrency=max_concurrency,
        first_token_ms=roof.first_token(prompt) * 1e3 if seconds else 0.0,
        step_ms=roof.seconds(step) * 1e3,
        tokens_per_s=concurrency * answer / seconds if seconds else 0.0,
        fewest_cards=fewest,
        refusal=_refusal_of(refusal_on(size), size, fewest),
    )


def _require_units(card: Card, config: EngineConfig, format: Quantization) -> None:
    """Raises ConfigError if `card` has no units for these weights or this cache."""
    if not card.multiplies(format):
        raise ConfigError(f"{card.name} cannot multiply {format.name} weights; plan with --quantization none")
    if config.kv_dtype is not None and "fp8" not in card.units:
        raise ConfigError(f"{card.name} has no FP8 for the KV cache; plan without --kv-dtype")


def _require_lengths(model: ModelConfig, context: int, concurrency: int, prompt: int, answer: int) -> None:
    """Raises ConfigError for lengths that contradict each other or the model."""
    if context > model.max_position:
        raise ConfigError(f"context {context} is beyond the model's, {model.max_position}; lower --context")
    if concurrency < 1 or prompt < 1 or answer < 1:
        raise ConfigError("concurrency, prompt and answer must each be at least 1; raise the one that is 0 or less")
    if prompt + answer > context:
        raise ConfigError(
            f"a prompt of {prompt} and an answer of {answer} do not fit into a context of {context}"
            "; raise --context, or lower --prompt or --answer"
        )


def _require_host_cache(model: ModelConfig, config: EngineConfig) -> None:
    """Raises ConfigError for a host cache that holds no block of the whole model."""
    block = kv_block_bytes(model, config)
    if 0 < config.host_cache_bytes < block:
        raise ConfigError(
            f"{config.host_cache_bytes} bytes of host cache hold no block; set --host-cache-bytes to at least {block}, "
            "or to 0"
        )


def _refusal_of(found: str | None, here: int, fewest: int | None) -> str | None:
    """Why it cannot be on so many cards, and the smallest number of cards that would do."""
    if found is None or fewest is None or fewest <= here:
        return found
    return f"{found}; on {fewest} cards it fits (--tensor-parallel-size {fewest})"


def replace_limits(config: EngineConfig, concurrency: int) -> EngineConfig:
    """As many rows and as large a step as so many requests need."""
    import msgspec

    seqs = max(config.max_num_seqs, concurrency)
    return msgspec.structs.replace(
        config, max_num_seqs=seqs, max_num_batched_tokens=max(config.max_num_batched_tokens, seqs)
    )


def _refusal(
    model: ModelConfig, config: EngineConfig, card: Card, memory: Memory, context: int, concurrency: int
) -> str | None:
    share = int(config.gpu_memory * card.memory)
    if memory.peak > share and config.num_blocks:
        room = max(0, room_for_cache(model, config, card)) // (memory.cache // memory.blocks)
        return f"{config.num_blocks} KV blocks do not fit; {room} would"
    if memory.blocks == 0:
        weights = weight_bytes(model, config.dtype, config.quantization)
        other = _smaller_weights(model, config, card)
        return f"the weights take {gib(weights)} of the {gib(share)} that the engine may have, and leave no room{other}"
    groups, step = groups_of(config, model), (config.max_num_batched_tokens, config.block_size)
    needed = groups.blocks_of_all(concurrency, context, *step)
    if memory.blocks < needed:
        most = groups.at_once(memory.blocks, context, *step)
        longest = groups.longest(memory.blocks, *step, model.max_position, concurrency)
        offers = [f"{most} at once would do"] if most else []
        offers.append(f"a context of {longest} would do")
        if config.kv_dtype is None and FP8 in card.units and model.latent is None:
            half = memory_of(model, _with_fp8_cache(config), card)
            if half.blocks >= needed:
                offers.append("so would an FP8 cache")
        return (
            f"{concurrency} requests of {context} tokens need {needed} KV blocks of {config.block_size} tokens, and "
            f"{memory.blocks} fit; {', '.join(offers)}"
        )
    return None


def _smaller_weights(model: ModelConfig, config: EngineConfig, card: Card) -> str:
    """What the same weights take in a format that they could be brought into, in words; "" where there is none."""
    if weight_format(config, model) is not NONE:
        return ""
    offers = [
        f"; {format.name} weights take {gib(weight_bytes(model, config.dtype, format.name))}"
        for format in FORMATS
        if format is not NONE and format.from_any and card.multiplies(format)
    ]
    return "".join(offers)


def _with_fp8_cache(config: EngineConfig) -> EngineConfig:
    import msgspec

    return msgspec.structs.replace(config, kv_dtype="fp8")


def gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"


def require_room(model: ModelConfig, config: EngineConfig, card: Card, *, memory: int, used: int) -> None:
    """For a start: raises ConfigError if what is asked for will not fit on this card, naming what would.

    memory: bytes of that card; used: of them, taken already. A prediction may be a few per cent off, so only what is
    short by more than a twentieth of the card is refused; closer calls are left to the measuring start.
    """
    share = int(config.gpu_memory * memory)
    weights = weight_bytes(model, config.dtype, config.quantization)
    room = share - used
    if weights > room:
        raise ConfigError(
            f"the weights take {weights} bytes; {room} of the {memory} on the GPU are free for this engine"
        )
    present = replace(card, memory=memory, reserved=used)
    slack = memory // 20
    left = room_for_cache(model, config, present) + slack
    block, groups = kv_block_bytes(model, config), groups_of(config, model)
    step = config.max_num_batched_tokens, config.block_size
    needed = max(config.num_blocks or 0, groups.blocks_of(config.max_model_len or 1, *step)) * block
    if needed > left:
        would = max(0, left - slack) // block
        longest = groups.longest(would, *step, model.max_position)
        raise ConfigError(
            f"{needed // block} KV blocks take {needed} bytes, and about {max(0, left - slack)} will be left beside "
            f"weights, activations and graphs; {would} blocks ({longest} tokens) would fit"
        )
