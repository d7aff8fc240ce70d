"""Bytes on the card: weights, cache, activations, tables, graphs. The engine profiles all but weights at its start;
this says beforehand what it will find."""

from dataclasses import dataclass

import msgspec

from backend.engine_config import EngineConfig, block_bytes_of, groups_of, weight_format
from backend.models.adapters.places import adapter_bytes
from backend.models.config import ModelConfig
from backend.models.families.family import Experts
from backend.models.heads.head_config import HeadConfig
from backend.planner.cards import Card
from backend.quantization import chosen
from backend.quantization.format import Quantization
from backend.quantization.none import NONE

GRAPH_RESERVE = 1 << 30  # what the engine sets aside (`engine.gpu`)
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
CAPTURED_GRAPH = 5 << 20  # of CUDA's own, each
GRAPHS = 44  # of a default engine
PADDED_ROWS = 256  # that a step may have beside those of its tokens
DRAFT_SEQUENCES, DRAFT_TOKENS = 16, 2048  # that a smaller model guesses for, and those of its steps
IN_PIECES = 8e11  # bytes of a layer's weights × tokens, from which a step's work takes longer than its launches


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters by what they are: layers' products without experts, experts, the head, and the rest (embedding, norms,
    biases). taken: of the experts' parameters, those that a token is multiplied by."""

    products: int
    experts: int
    taken: int
    head: int
    rest: int

    @property
    def total(self) -> int:
        return self.products + self.experts + self.head + self.rest

    @property
    def active(self) -> int:
        """That a token has to do with."""
        return self.total - self.experts + self.taken


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `draft`: of a smaller model that guesses, with its cache, counted on each card. `blocks` is how many KV
    blocks fit; `cache` is what they take. `host`: of the host's memory, for each card, which holds `host_blocks`."""

    reserved: int
    weights: int
    activations: int
    tables: int
    graphs: int
    cache: int
    blocks: int
    draft: int = 0
    host: int = 0
    host_blocks: int = 0

    @property
    def peak(self) -> int:
        return self.reserved + self.weights + self.activations + self.tables + self.graphs + self.cache + self.draft


def parameters(model: ModelConfig) -> Weights:
    q, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    hidden = model.hidden_size
    layers = range(model.num_layers)
    sizes = (matrices_of(model, layer).values() for layer in layers)
    products = sum(outputs * width for each in sizes for outputs, width in each)
    products += model.num_layers * model.expansion_numbers
    one, count, held, taken = 0, 0, 0, 0
    if model.experts is not None:
        experts = model.experts
        one, count, held = 3 * hidden * experts.intermediate_size, experts.count, _held(experts)
        taken = -(-experts.per_token * held // count)
    mixed = len(mixed_layers(model))
    small = _norms(model, q, kv) + (q + 2 * kv) * model.qkv_bias + hidden * model.out_bias
    small += model.num_heads * model.sinks
    table = model.shard.most_tokens(model.vocab_size) * hidden
    return Weights(
        products=products + mixed * (hidden * count + _corrections(model)),
        experts=mixed * one * held,
        taken=mixed * one * taken,
        head=table,
        rest=model.num_layers * small + hidden + (0 if model.tie_word_embeddings else table),
    )


def mixed_layers(model: ModelConfig) -> list[int]:
    """Those with a mixture of experts in the place of the MLP."""
    if model.experts is None:
        return []
    return [layer for layer in range(model.num_layers) if layer not in model.experts.dense_layers]


def matrices_of(model: ModelConfig, layer: int) -> dict[str, tuple[int, int]]:
    """A layer's matrices beside its experts, (outputs, width) each."""
    if model.experts is None or layer in model.experts.dense_layers:
        return model.matrices
    own = {name: size for name, size in model.matrices.items() if name not in ("gate_up", "down")}
    return own | model.shared_matrices


def _corrections(model: ModelConfig) -> int:
    """Biases of a layer's choice of experts."""
    return model.experts.count if model.experts is not None and model.experts.corrected else 0


def _norms(model: ModelConfig, q: int, kv: int) -> int:
    """Bytes of the norms of one layer."""
    variant = model.variant
    before, after = (True, False) if variant is None else (variant.norm_before, variant.norm_after)
    heads = q + kv if variant is not None and variant.wide_qk_norm else 2 * model.head_dim
    if model.latent is not None:
        return 2 * model.hidden_size + model.latent.rank + (model.latent.query_rank or 0)
    return 2 * model.hidden_size * (before + after) + heads * model.qk_norm


def places_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes of all places for adapters."""
    return config.max_adapters * adapter_bytes(model, config.max_adapter_rank, BYTES[config.dtype])


def weight_bytes(model: ModelConfig, dtype: str, quantization: str | None) -> int:
    """Once loaded on a GPU; a tied head counts once. Raises ConfigError as `quantization.chosen` does."""
    format, size = chosen(quantization, model.stored_weights), BYTES[dtype]
    weights = parameters(model)
    products = sum(
        _format_of(model, layer, matrix, format).matrix_bytes(outputs, width, size)
        for layer in range(model.num_layers)
        for matrix, (outputs, width) in matrices_of(model, layer).items()
    )
    products += model.num_layers * model.expansion_numbers * size
    return products + _expert_bytes(model, format, size) + (weights.head + weights.rest) * size


def _expert_bytes(model: ModelConfig, format: Quantization, size: int) -> int:
    """Bytes of all experts and routers."""
    if model.experts is None:
        return 0
    hidden, inner, total = model.hidden_size, model.experts.intermediate_size, 0
    for layer in mixed_layers(model):
        kept = NONE if model.keeps_experts(layer) else format
        one = kept.expert_bytes(2 * inner, hidden, size) + kept.expert_bytes(hidden, inner, size)
        biases = 0 if model.experts.clamp is None else 1 + 2 * inner + hidden
        total += _held(model.experts) * one + model.experts.count * (hidden + biases) * size + 4 * _corrections(model)
    return total


def _held(experts: Experts) -> int:
    """Experts of which a rank has all, or a part."""
    return len(experts.held(0))


def _format_of(model: ModelConfig, layer: int, matrix: str, format: Quantization) -> Quantization:
    """Format of one matrix: what the checkpoint has in higher precision stays so."""
    return NONE if model.keeps(layer, matrix) else format


def kv_bytes_per_token(model: ModelConfig, config: EngineConfig) -> int:
    return model.kv_bytes_per_token(1 if config.kv_dtype else BYTES[config.dtype])


def kv_block_bytes(model: ModelConfig, config: EngineConfig) -> int:
    return block_bytes_of(config, model, 1 if config.kv_dtype else BYTES[config.dtype])


def activation_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Activation bytes of the largest step: the widest moment of a layer, in the MLP, beside what all of it carries
    along."""
    logits = config.max_num_seqs * model.vocab_size * BYTES[config.dtype]
    if not model.shard.alone:  # a rank's own, all ranks', and those in the order of tokens
        logits = 2 * logits + logits // model.shard.size
    format, size = weight_format(config, model), BYTES[config.dtype]
    scratch = max(format.scratch_bytes(outputs, width, size) for outputs, width in model.matrices.values())
    return _step_bytes(model, config, config.max_num_batched_tokens) + logits + scratch


def _step_bytes(model: ModelConfig, config: EngineConfig, tokens: int) -> int:
    size = BYTES[config.dtype]
    if model.latent is not None:  # queries as they come, as they meet the cache, and what attention gives
        tokens_of = model.num_heads * (model.latent.query + model.latent.stored + model.latent.rank)
        latent = tokens * (tokens_of + model.matrices["qkv"][0] + 2 * model.hidden_size) * size
        return max(latent, tokens * _widest_mlp(model, config, size))
    return tokens * _widest_mlp(model, config, size)


def _widest_mlp(model: ModelConfig, config: EngineConfig, size: int) -> int:
    """Bytes of a token, at the widest moment of an MLP or a mixture."""
    if model.experts is not None:
        return _mixture_bytes(model, config, size)
    gate = 3 if model.variant is None or not model.variant.gelu else 4  # GELU and its product are two passes
    width = model.hidden_size * 3 + gate * model.intermediate_size
    return width * size + weight_format(config, model).activation_bytes(model.intermediate_size)


def _mixture_bytes(model: ModelConfig, config: EngineConfig, size: int) -> int:
    """Bytes of a token at the widest moment of a mixture: what its experts made of it within, and what each adds."""
    assert model.experts is not None  # noqa: S101 -- who calls has looked
    inner = model.experts.intermediate_size
    pair = (inner + model.hidden_size) * size + weight_format(config, model).activation_bytes(inner)
    widest = max(model.hidden_size * 3 * size + model.experts.per_token * pair, 3 * model.intermediate_size * size)
    return widest + model.experts.count * (size + 4)


def table_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """Rows of requests, sines and cosines of each kind of positions (in both forms), scratch of split attention."""
    length = min(config.max_model_len or model.max_position, model.max_position)
    blocks = -(-length // config.block_size)
    tables = len(groups_of(config, model).windows)
    rows = config.max_num_seqs * (length + 2 * tables * blocks + 16) * 4
    kinds = 1 if model.variant is None or model.variant.local_rope is None else 2
    rotary = kinds * model.max_position * model.rotary_dim * (4 + BYTES[config.dtype])
    scratch = 2048 * 16 * (model.attended_dim + 2) * 4
    return rows + rotary + scratch


def graph_bytes(model: ModelConfig, config: EngineConfig) -> int:
    """CUDA's own, and the activations of the largest captured step: graphs keep theirs to themselves."""
    if not config.graphs:
        return 0
    operand = weight_format(config, model).operand_bytes(BYTES[config.dtype])
    layer = model.layer_numbers * operand
    tokens = min(config.max_num_batched_tokens, int(IN_PIECES / layer))
    return GRAPHS * CAPTURED_GRAPH + _step_bytes(model, config, tokens)


def draft_bytes(config: EngineConfig, draft: ModelConfig | None) -> int:
    """Bytes of a smaller model or a head that guesses: weights, cache, its largest step, graphs."""
    if draft is None:
        return 0
    # As `engine.drafting.start` has it: few sequences, prompts in shorter chunks.
    tokens = min(config.max_num_batched_tokens, DRAFT_TOKENS)
    own = msgspec.structs.replace(
        config,
        quantization=None,
        kv_dtype=None,
        max_num_seqs=DRAFT_SEQUENCES,
        max_num_batched_tokens=tokens,
        tensor_parallel_size=1,
        max_adapters=0,
        adapters="",
    )
    weights = weight_bytes(draft, config.dtype, None)
    if isinstance(draft, HeadConfig):
        weights += head_bytes(draft, config)
    step = activation_bytes(draft, own) + table_bytes(draft, own) + graph_bytes(draft, own)
    return weights + step + config.draft_memory


def head_bytes(head: HeadConfig, config: EngineConfig) -> int:
    """What a head has beside a layer and one table: the table of what it guesses, the matrix that joins, the hidden
    states of the model's largest step, and those of its own, in and out."""
    own = head.draft_vocab * head.hidden_size + head.joined_numbers
    rows = config.max_num_batched_tokens + PADDED_ROWS
    own_rows = min(config.max_num_batched_tokens, DRAFT_TOKENS) + PADDED_ROWS
    states = rows * head.read_size + 2 * own_rows * head.hidden_size
    return (own + states) * BYTES[config.dtype]


def room_for_cache(model: ModelConfig, config: EngineConfig, card: Card) -> int:
    """Bytes left of the engine's share of the card; below zero where the rest does not fit."""
    fixed = (
        card.reserved
        + weight_bytes(model, config.dtype, config.quantization)
        + places_bytes(model, config)
        + activation_bytes(model, config)
        + table_bytes(model, config)
        + GRAPH_RESERVE
    )
    return int(config.gpu_memory * card.memory) - fixed


def memory_of(model: ModelConfig, config: EngineConfig, card: Card) -> Memory:
    """At the engine's peak, with the cache it will have: `num_blocks`, or what fits."""
    block = kv_block_bytes(model, config)
    blocks = config.num_blocks or max(0, room_for_cache(model, config, card)) // block
    return Memory(
        reserved=card.reserved,
        weights=weight_bytes(model, config.dtype, config.quantization) + places_bytes(model, config),
        activations=activation_bytes(model, config),
        tables=table_bytes(model, config),
        graphs=graph_bytes(model, config),
        cache=blocks * block,
        blocks=blocks,
        host=config.host_cache_bytes // block * block,
        host_blocks=config.host_cache_bytes // block,
    )
