"""``domicile audit challenge``: which model gave an answer, by what the answer commits to and the client's own text."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.cli.marks.reading import NOT_TESTED, read_text
from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import ACTOR, DEFAULT_DATA, AsJson, Data, Tenant, fail, needs_folder

if TYPE_CHECKING:
    from audit.private.audit_context import AuditContext
    from backend.wire import Challenged
    from gateway.evidence.challenge import Committed
    from gateway.installation.installation import Installation

audit_app = typer.Typer(name="audit")

DIFFERENT = 1
WORDS = {
    "matched": "matched: the answer came from these weights, in the same form, and from this prompt.",
    "other_quantisation": "other quantisation: the answer came from this model in another form, as with quantised "
    "weights or cache, in a coarser dtype than --dtype, or from a near relative of it.",
    "other_model": "other model: prompt and text are those of the call, and these weights do not give what it commits "
    "to.",
    "other_prompt": "other prompt: this prompt is not the one that the answer was given to, so nothing was computed.",
    "other_text": "other text: this is not the answer's text, or not all of it, from the tokens named below on.",
    "not_compared": "not compared: the text ends before 32 tokens of the answer do.",
}


@audit_app.command("challenge")
def challenge(
    tenant: Tenant,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Its x-request-id, as 'req-1f0c…'.")],
    text: Annotated[Path, typer.Option("--text", help="The answer's text as its client has it, in UTF-8.")],
    reason: Annotated[str, typer.Option("--reason", help="A code, no words: it goes on record.")] = "challenge",
    prompt: Annotated[
        Path | None,
        typer.Option(help="What was sent: the JSON body, or the text of its one message (default: as kept)."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder or GGUF file of the weights (default: those of the model's deployment)."),
    ] = None,
    choice: Annotated[int, typer.Option(min=0, help="Which of several answers, from 0.")] = 0,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="What the backend computes in, whose roundings are allowed.")
    ] = "bfloat16",
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Compute an answer's activations again from the client's own text, and compare them with what the record holds.

    The call's policy must have had `models: {commitments: activations}`. One prefill on this host's CPU says whether
    the answer came from these weights in this form and from this prompt, for each 32 tokens. That the commitment is
    read goes on record first, and what came of it afterwards; the texts do not. Exit code 0: matched; 1: it did not;
    2: nothing could be compared.

    Example: domicile audit challenge acme req-5f3a0c6be1d2498877a0b1c2 --text answer.txt --prompt request.json
    """
    from audit.cli.frame import UsageMistake, given_code
    from audit.cli.private_values import do
    from audit.errors import AuditError
    from gateway.database.errors import StoreError
    from gateway.installation.installation import Installation, InstallationError

    needs_folder(data)
    said, asked = read_text(text), None if prompt is None else read_text(prompt)
    try:
        given_code("--reason", reason)
        installation = Installation.open(data)

        async def work(context: "AuditContext") -> "tuple[Committed, Challenged]":
            return await _challenged(installation, context, tenant, request, said, asked, model, choice, dtype, reason)

        kept, found = do(data, work)
    except UsageMistake as error:
        fail(str(error), NOT_TESTED)
    except (AuditError, InstallationError, StoreError, OSError) as error:
        fail(str(error), NOT_TESTED)
    _tell(kept, found, as_json)
    if found.verdict != "matched":
        raise typer.Exit(NOT_TESTED if found.verdict == "not_compared" else DIFFERENT)


async def _challenged(
    installation: "Installation", context: "AuditContext", tenant: str, request: str, text: str, prompt: str | None,
    model: Path | None, choice: int, dtype: str, reason: str,
) -> "tuple[Committed, Challenged]":  # fmt: skip
    from backend.wire import Challenged
    from gateway.evidence.challenge import committed, record_challenge

    kept = await committed(context, tenant, request, actor=ACTOR, reason=reason)
    body = kept.request(prompt, text, choice).model_dump_json().encode()
    weights = model if model is not None else _weights(installation, tenant, kept.model)
    found = Challenged.model_validate_json(await context.in_thread(lambda: _by_folder(weights, body, dtype)))
    await record_challenge(context, kept, choice, found, actor=ACTOR, reason=reason)
    return kept, found


def _by_folder(weights: Path, body: bytes, dtype: str) -> bytes:
    """The engine's packages are imported only here."""
    errors = import_module("backend.errors")
    try:
        found: bytes = import_module("backend.cli.challenge").challenged_by(weights, body, dtype)
    except errors.BackendError as error:
        fail(str(error), NOT_TESTED)
    return found


def _weights(installation: "Installation", tenant: str, model: str) -> Path:
    """The weights of the deployment that serves the model."""
    from contextlib import closing

    from gateway.store.reports.fleet_inventory import deployments_in

    with closing(installation.database()) as database:
        named = [one.weights for one in deployments_in(database, tenant).items if one.model == model]
    if not named:
        fail(f"{tenant} has no deployment of {model}; name its weights with --model", NOT_TESTED)
    folder: Path = installation.models() / named[0]
    if not folder.exists():
        fail(f"the weights of {model} are not at {folder}; name their folder with --model", NOT_TESTED)
    return folder


def _tell(kept: "Committed", found: "Challenged", as_json: bool) -> None:
    same = None if kept.weights_sha256 is None else kept.weights_sha256 == found.weights_sha256
    if as_json:
        print_json(
            {
                "request_id": kept.request_id,
                **found.model_dump(mode="json"),
                "recorded_weights_sha256": kept.weights_sha256,
                "same_weights": same,
                "redacted": kept.redacted,
            }
        )
        return
    typer.echo(WORDS[found.verdict])
    steps = "" if found.steps is None else f", mean distance {found.steps:.2f} steps of bfloat16"
    match, same_model = found.limits
    typer.echo(
        f"{found.compared} of {found.tokens} tokens compared{steps} (a match up to {match:g} for {found.dtype}, "
        f"another quantisation up to {same_model:g})"
    )
    for part in found.parts:
        figures = ""
        if part.steps is not None:
            figures = (
                f"  {part.exponents} of {part.values} exponents equal, mantissas differ by {part.mean:.2f} on average, "
                f"{part.median:g} in the median, distance {part.steps:.2f}"
            )
        typer.echo(f"  tokens {part.first}-{part.last}: {part.verdict.replace('_', ' ')}{figures}")
    if same is not None:
        typer.echo(
            f"The record names {'these' if same else 'other'} weights: {(kept.weights_sha256 or '')[:16]}"
            + ("" if same else f", and not {found.weights_sha256[:16]}")
        )
    if kept.redacted:
        typer.echo(
            "The call was redacted: the backend got placeholders in place of values, and the client's text may have "
            "values where the backend wrote placeholders. Compared is what the backend got and wrote."
        )
    if found.respelled:
        typer.echo("The model spelled the text in other tokens than its tokenizer, which were found by their digests.")
