"""``domicile plan``: will it fit, and how fast will it be?"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from backend.cli.errors import USAGE, fail
from backend.quantization import FORMATS

if TYPE_CHECKING:
    from backend.planner.capacity_plan import Plan

QUANTIZATION_HELP = "Format of the layers' weights; default: as the checkpoint stores them, else none. " + " ".join(
    f"{format.name}: {format.summary}." for format in FORMATS
)


Speculation = Annotated[
    str | None, typer.Option(help="model, eagle3 or mtp: who guesses; default: model, with --draft-model.")
]


Gpu = Annotated[
    str, typer.Option(help="A card's name: h100, h200, a100-80gb, l40s, rtx-4090, b200; a wrong one lists all.")
]


def plan(
    model: Annotated[str, typer.Option(help="GGUF file, folder with config.json (weights not needed), or 'demo'.")],
    gpu: Gpu = "h100",
    context: Annotated[int | None, typer.Option(min=1, help="Tokens a request may have; default: the model's.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 32,
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens in; default: 512, or half the context.")] = None,
    answer: Annotated[int | None, typer.Option(min=1, help="Tokens out; default: 256, or what is left.")] = None,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="Cards that the model is divided among.")] = 1,
    quantization: Annotated[str | None, typer.Option(help=QUANTIZATION_HELP)] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="fp8: half the KV cache.")] = None,
    speculation: Speculation = None,
    draft_model: Annotated[str, typer.Option(help="A smaller model or a head that drafts tokens for it.")] = "",
    draft_memory: Annotated[float, typer.Option(help="Its KV cache, in GiB.")] = 1.0,
    gpu_memory: Annotated[float, typer.Option(help="Share of the card that the engine may take.")] = 0.92,
    host_cache_bytes: Annotated[int, typer.Option(min=0, help="Host memory for KV blocks, for each card.")] = 0,
    block_size: Annotated[int, typer.Option(help="Tokens a KV block holds.")] = 16,
    max_adapters: Annotated[int, typer.Option(min=0, help="Places for LoRA adapters.")] = 0,
    max_adapter_rank: Annotated[int, typer.Option(min=1, help="The highest rank of one.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
) -> None:
    """Predict memory and speed of a model on a card, from its configuration alone. Ends with 1 if it cannot be.

    Example: domicile plan --model ./Llama-3.1-8B-Instruct --gpu h100 --context 8192 --concurrency 64
    """
    from backend.engine_config import EngineConfig
    from backend.errors import BackendError, ConfigError
    from backend.models.checkpoints.checkpoint import Checkpoint, resolve
    from backend.planner.capacity_plan import plan as make
    from backend.planner.cards import CARDS
    from backend.planner.drafts import draft_of

    try:
        if gpu not in CARDS:
            fail(f"there is no card {gpu!r}; name one of {', '.join(CARDS)}", USAGE)
        checkpoint = Checkpoint(resolve(model), context)
        if checkpoint.embedding is not None:
            raise ConfigError("this model makes embeddings or scores; plans are of models that write text")
        shape = checkpoint.config
        length = context or shape.max_position
        tokens_in = prompt or min(512, max(1, length // 2))
        try:
            config = EngineConfig(
                model=model,
                device="cuda",
                dtype="bfloat16",
                quantization=quantization,
                kv_dtype=kv_dtype,
                gpu_memory=gpu_memory,
                block_size=block_size,
                max_model_len=length,
                max_num_seqs=256,
                max_num_batched_tokens=8192,
                tensor_parallel_size=tensor_parallel_size,
                max_adapters=max_adapters,
                max_adapter_rank=max_adapter_rank,
                adapters="." if max_adapters else "",
                speculation=speculation or ("model" if draft_model else None),
                draft_model=draft_model,
                draft_memory=int(draft_memory * 2**30),
                host_cache_bytes=host_cache_bytes,
            )
        except ConfigError as error:
            fail(error, USAGE)
        made = make(
            shape,
            config,
            CARDS[gpu],
            concurrency=concurrency,
            prompt=tokens_in,
            answer=answer or max(1, min(256, length - tokens_in)),
            draft=draft_of(config, checkpoint),
        )
    except BackendError as error:
        fail(error)
    typer.echo(json.dumps(made.as_dict(), indent=1) if as_json else table(made))
    raise typer.Exit(1 if made.refusal else 0)


def start(
    model: Annotated[str, typer.Option(help="GGUF file, or folder with config.json.")],
    gpu: Annotated[str, typer.Option(help="A card's name, or cpu.")],
    host_memory: Annotated[int | None, typer.Option(help="Bytes of the machine, for cpu.")] = None,
    replicas: Annotated[int, typer.Option(min=1, help="How many are to run on that machine, for cpu.")] = 1,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="Cards that the model is divided among.")] = 1,
) -> None:
    """Say as JSON why a backend could not start with a model on a card: ``{"refusal": null}`` if it could."""
    from backend.errors import BackendError
    from backend.models.checkpoints.checkpoint import Checkpoint, resolve
    from backend.planner.start import start_refusal

    try:
        checkpoint = Checkpoint(resolve(model))
        refusal = start_refusal(checkpoint, gpu, host_memory, replicas, tensor_parallel_size)
        if refusal is None:
            checkpoint.require_files()
    except BackendError as error:
        refusal = str(error)
    typer.echo(json.dumps({"refusal": refusal}))


def parameters_in_words(total: int, active: int) -> str:
    """A token is multiplied by some of a mixture's experts alone."""
    return f"{total / 1e9:.2f} billion" + ("" if active == total else f", of which {active / 1e9:.2f} for each token")


def cards_in_words(made: "Plan") -> str:
    if made.cards > 1:
        return f"{made.cards} × {made.card}, memory of each; speed by a model of sums over cards"
    return made.card + ("" if made.calibrated else " (scaled from an H100, not measured)")


def cache_in_words(made: "Plan") -> str:
    from backend.planner.capacity_plan import gib

    held = f"{gib(made.memory.cache)}: {made.memory.blocks} blocks, {made.kv_bytes_per_token} bytes a token"
    if made.block_tables == 1:
        return held
    return f"{held} in {made.block_tables} tables, of which those of windows keep what these reach"


def host_cache_in_words(made: "Plan") -> str:
    from backend.planner.capacity_plan import gib

    memory = made.memory
    each = " for each card" if made.cards > 1 else ""
    tokens = memory.host // made.kv_bytes_per_token
    return f"{gib(memory.host)} of the host's memory{each}: {memory.host_blocks} blocks, {tokens} tokens"


def table(made: "Plan") -> str:
    from backend.planner.capacity_plan import gib

    memory = made.memory
    rows = [
        ("card", cards_in_words(made)),
        ("weights", gib(memory.weights)),
        ("parameters", parameters_in_words(made.parameters, made.active_parameters)),
        ("activations", gib(memory.activations)),
        ("tables and graphs", gib(memory.tables + memory.graphs)),
        ("CUDA and libraries", gib(memory.reserved)),
        *(
            [("draft model", f"{gib(memory.draft)}, its cache included; the rates are without it")]
            if memory.draft
            else []
        ),
        ("KV cache", cache_in_words(made)),
        *([("host cache", host_cache_in_words(made))] if memory.host else []),
        ("peak", gib(memory.peak)),
        ("requests at once", f"{made.max_concurrency} of {made.context} tokens; asked for {made.concurrency}"),
        ("first token", f"{made.first_token_ms:.1f} ms for a prompt of {made.prompt}"),
        ("step", f"{made.step_ms:.2f} ms with {made.concurrency} answers on their way"),
        ("output", f"{made.tokens_per_s:,.0f} tokens/s, {made.prompt} in and {made.answer} out"),
        ("fewest cards", "none would do" if made.fewest_cards is None else str(made.fewest_cards)),
        ("verdict", "it fits" if made.refusal is None else f"refused: {made.refusal}"),
    ]
    return "\n".join(f"{name:20s} {value}" for name, value in rows)
