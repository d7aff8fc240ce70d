"""A rank's share of a model is a model with fewer heads and a narrower MLP (Shoeybi et al. 2019, Megatron-LM).

Query heads go to the ranks in order, each with its KV head; where there are fewer KV heads than ranks, neighbours hold
the same one. The MLP's inner columns, and those within each expert, are divided; norms, the router, and the latents of
latent attention are on every rank.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from backend.errors import ConfigError
from backend.models.config import ModelConfig
from backend.parallel.expert_placement import Placement
from backend.parallel.shard import SAME, WHOLE, Shard, Share, Stage, Stretch, of_columns, of_rows
from backend.quantization.format import Quantization
from backend.quantization.none import NONE

if TYPE_CHECKING:
    from backend.parallel.group import ParallelGroup

LARGEST = 16  # sizes that are offered
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def share_of(model: ModelConfig, group: "ParallelGroup", format: Quantization) -> ModelConfig:
    """`of_rank` of this group's rank."""
    stage = group.pipeline.stage
    return of_rank(model, group.shard, format, ordered=group.ordered, stage=stage, spare=group.spare)


def of_rank(
    model: ModelConfig,
    shard: Shard,
    format: Quantization = NONE,
    *,
    ordered: bool = False,
    stage: Stage = WHOLE,
    spare: int | None = None,
) -> ModelConfig:
    """The part of a whole model that a rank computes. ordered, spare: as in its group. Raises ConfigError, naming the
    sizes that would do, if the model, or its weights in that format, cannot be divided so."""
    if spare is not None and model.experts is None:
        raise ConfigError("this model has no experts to divide among ranks; leave --expert-parallel out")
    parts = parts_of_rank(model, shard.size, format) if ordered else 1
    if not shard.alone:
        _require_divisible(model, shard.size, format, whole_experts=spare is not None)
    experts = model.experts
    if experts is not None:
        experts = replace(experts, shared_size=experts.shared_size // shard.size)
    if experts is not None and spare is not None and not shard.alone:
        placement = Placement.even(experts.count, shard.size, spare)
        experts = replace(experts, placement=placement, parts=parts_of_rank(model, 1, format) if ordered else 1)
    elif experts is not None:
        experts = replace(experts, intermediate_size=experts.intermediate_size // shard.size, parts=parts)
    model = of_stage(replace(model, experts=experts), stage)
    if shard.alone:
        return replace(model, parts=parts)
    return replace(
        model,
        num_heads=model.num_heads // shard.size,
        num_kv_heads=max(1, model.num_kv_heads // shard.size),
        intermediate_size=model.intermediate_size // shard.size,
        shard=shard,
        kv_copies=max(1, shard.size // model.num_kv_heads),
        parts=parts,
    )


def _require_divisible(model: ModelConfig, size: int, format: Quantization, *, whole_experts: bool) -> None:
    """Raises ConfigError as `of_rank`."""
    if reason := _obstacle(model, size, format, whole_experts=whole_experts):
        sizes = possible_sizes(model, format, whole_experts=whole_experts)
        offer = f"choose {_listed(sizes)}" if len(sizes) > 1 else "this model runs on one card"
        raise ConfigError(f"{reason}; {offer} for --tensor-parallel-size")


def of_stage(model: ModelConfig, stage: Stage) -> ModelConfig:
    """Some layers of a whole model. Raises ConfigError if there is none for each stage."""
    if stage == WHOLE:
        return model
    if stage.count > model.num_layers:
        raise ConfigError(f"{model.num_layers} layers do not make {stage.count} stages; lower --pipeline-parallel-size")
    begin, end = stage.layers(model.num_layers)
    experts, variant = model.experts, model.variant
    if experts is not None:
        dense = frozenset(layer - begin for layer in experts.dense_layers if begin <= layer < end)
        experts = replace(experts, dense_layers=dense)
    if variant is not None:
        variant = replace(variant, positions=variant.positions[begin:end])
    return replace(
        model,
        num_layers=end - begin,
        windows=model.windows[begin:end],
        experts=experts,
        variant=variant,
        stage=stage,
        first_layer=begin,
        all_layers=model.num_layers,
    )


def parts_of_rank(model: ModelConfig, size: int, format: Quantization) -> int:
    """In how many parts each of `size` ranks computes a model whose tokens are not to depend on that number: as many
    as make the largest power of two up to SAME that the model divides into. 1 for a number that does not divide it,
    whose tokens are those of that number alone, and for latent attention, whose products are not cut so."""
    if model.latent is not None:
        return 1
    most = max(parts for parts in (1, 2, 4, SAME) if _obstacle(model, parts, format) is None)
    return most // size if most % size == 0 else 1


def possible_sizes(model: ModelConfig, format: Quantization = NONE, *, whole_experts: bool = False) -> list[int]:
    """Numbers of ranks up to LARGEST that a model divides into. whole_experts: each rank holds some as wholes."""
    every = range(1, LARGEST + 1)
    return [size for size in every if _obstacle(model, size, format, whole_experts=whole_experts) is None]


def _obstacle(model: ModelConfig, size: int, format: Quantization, *, whole_experts: bool = False) -> str | None:
    """Why a model is not divided among so many ranks."""
    if size > 1 and model.experts is not None and model.experts.clamp is not None:
        return "experts that a checkpoint stores in one tensor are not divided"
    return _remainder(model, size, format, whole_experts=whole_experts)


def _remainder(model: ModelConfig, size: int, format: Quantization, *, whole_experts: bool) -> str | None:
    """What of a model does not divide."""
    if model.num_heads % size:
        return f"{model.num_heads} heads do not divide among {size} ranks"
    if model.num_kv_heads % size and size % model.num_kv_heads:
        return f"{model.num_kv_heads} KV heads neither divide among {size} ranks nor go to equally many each"
    if model.experts is not None and whole_experts and model.experts.count < size:
        return f"{model.experts.count} experts are fewer than {size} ranks"
    widths = _inner_widths(model, whole_experts=whole_experts)
    for name, width in widths.items():
        if width % size:
            return f"{name}, {width}, does not divide among {size} ranks"
    if size == 1:
        return None
    widths["the width of all heads"] = model.q_width
    for name, width in widths.items():
        if (width // size) % format.width_multiple:
            return (
                f"{name}, {width}, leaves {width // size} to each of {size} ranks, and {format.name} weights need "
                f"multiples of {format.width_multiple}"
            )
    return None


def _inner_widths(model: ModelConfig, *, whole_experts: bool) -> dict[str, int]:
    """What is divided behind attention, by name."""
    widths = {"the MLP's inner width": model.intermediate_size} if has_dense_layers(model) else {}
    experts = model.experts
    if experts is not None and not whole_experts:
        widths["the experts' inner width"] = experts.intermediate_size
    if experts is not None and experts.shared_size:
        widths["the shared experts' inner width"] = experts.shared_size
    return widths


def has_dense_layers(model: ModelConfig) -> bool:
    """Whether any layer has an ordinary MLP."""
    return model.experts is None or bool(model.experts.dense_layers)


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:-1])) + f" or {sizes[-1]}"


def table_share(model: ModelConfig) -> Share:
    """Share of embedding and head."""
    return of_rows((model.vocab_size, model.hidden_size), model.shard.tokens(model.vocab_size))


def layer_shares(model: ModelConfig, layer: int) -> dict[str, Share]:
    """By the checkpoint's names, behind the layer's own prefix: the tensors that a rank holds a part of. The rows of a
    part follow one another as in `ModelConfig.modules`. model: as `of_rank` makes it."""
    shard = model.shard
    whole_q, q = _part(model.q_width, shard)
    whole_kv, kv = _part(model.kv_width, Shard(shard.rank // model.kv_copies, shard.size // model.kv_copies))
    whole_inner, inner = _part(model.intermediate_size, shard)
    hidden = model.hidden_size
    if model.fused_names:
        rows = whole_q + 2 * whole_kv
        shares = {
            "self_attn.qkv_proj.weight": of_rows(
                (rows, hidden), q, _behind(kv, whole_q), _behind(kv, whole_q + whole_kv)
            ),
            "mlp.gate_up_proj.weight": of_rows((2 * whole_inner, hidden), inner, _behind(inner, whole_inner)),
        }
    else:
        shares = {
            "self_attn.q_proj.weight": of_rows((whole_q, hidden), q),
            "self_attn.k_proj.weight": of_rows((whole_kv, hidden), kv),
            "self_attn.v_proj.weight": of_rows((whole_kv, hidden), kv),
            "mlp.gate_proj.weight": of_rows((whole_inner, hidden), inner),
            "mlp.up_proj.weight": of_rows((whole_inner, hidden), inner),
        }
    shares |= {
        "self_attn.o_proj.weight": of_columns((hidden, whole_q), q),
        "mlp.down_proj.weight": of_columns((hidden, whole_inner), inner),
        "self_attn.q_proj.bias": of_rows((whole_q,), q),
        "self_attn.k_proj.bias": of_rows((whole_kv,), kv),
        "self_attn.v_proj.bias": of_rows((whole_kv,), kv),
    }
    if model.variant is not None and model.variant.wide_qk_norm:
        shares |= {
            "self_attn.q_norm.weight": of_rows((whole_q,), q),
            "self_attn.k_norm.weight": of_rows((whole_kv,), kv),
        }
    return shares | _latent_shares(model) | _shared_shares(model, layer) | _expert_shares(model, layer)


def _latent_shares(model: ModelConfig) -> dict[str, Share]:
    """Shares of latent attention: heads are divided; latents and rotary keys are on every rank."""
    latent = model.latent
    if latent is None:
        return {}
    whole, part = _part(model.num_heads * latent.query, model.shard)
    both, own = _part(model.num_heads * (latent.plain + latent.value), model.shard)
    name, width = ("q_proj", model.hidden_size) if latent.query_rank is None else ("q_b_proj", latent.query_rank)
    return {
        f"self_attn.{name}.weight": of_rows((whole, width), part),
        "self_attn.kv_b_proj.weight": of_rows((both, latent.rank), own),
    }


def _shared_shares(model: ModelConfig, layer: int) -> dict[str, Share]:
    """Shares of experts that every token takes: divided as an MLP is, wherever the others are."""
    experts = model.experts
    if experts is None or layer in experts.dense_layers or not experts.shared_size:
        return {}
    whole, part = _part(experts.shared_size, model.shard)
    wide = of_rows((whole, model.hidden_size), part)
    place = "mlp.shared_experts."
    return {
        f"{place}gate_proj.weight": wide, f"{place}up_proj.weight": wide,
        f"{place}down_proj.weight": of_columns((model.hidden_size, whole), part),
    }  # fmt: skip


def _expert_shares(model: ModelConfig, layer: int) -> dict[str, Share]:
    experts = model.experts
    if experts is None or layer in experts.dense_layers or experts.placement is not None:
        return {}
    whole, part = _part(experts.intermediate_size, model.shard)
    wide, narrow = of_rows((whole, model.hidden_size), part), of_columns((model.hidden_size, whole), part)
    shares: dict[str, Share] = {}
    for expert in range(experts.count):
        shares |= {experts.names.gate.format(expert): wide, experts.names.up.format(expert): wide}
        shares[experts.names.down.format(expert)] = narrow
    return shares


def _part(width: int, shard: Shard) -> tuple[int, Stretch]:
    """The whole of which a rank has `width`, and the place of its part."""
    return width * shard.size, shard.stretch(width * shard.size)


def _behind(stretch: Stretch, offset: int) -> Stretch:
    return stretch[0] + offset, stretch[1] + offset
