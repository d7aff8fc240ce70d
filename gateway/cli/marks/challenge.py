"""``domicile audit challenge``: which model gave an answer, by what the answer commits to and the client's own text.

A running backend of the tenant computes it, or this host's CPU with ``--cpu``.
"""

from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.cli.marks.input_text import NOT_TESTED, read_text
from gateway.cli.terminal.own_backends import backend_of, opened_upstream, target_of
from gateway.cli.terminal.printing import print_json
from gateway.cli.terminal.shell import ACTOR, DEFAULT_DATA, AsJson, Data, Tenant, fail, needs_folder, remote_api

if TYPE_CHECKING:
    from collections.abc import Callable

    from audit.private.audit_context import AuditContext
    from gateway.cli.remote.api import AdminApi
    from gateway.comparisons.challenge import ChallengeReport
    from gateway.comparisons.recomputation import Given
    from gateway.database.database import Database
    from gateway.installation.installation import Installation
    from gateway.policies.study import PolicyStudy
    from policy.facts import BackendFacts
    from regions.fleet.fleet import Backend

audit_app = typer.Typer(name="audit")

DIFFERENT = 1
SHOW_S = 10.0
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
    reason: Annotated[str, typer.Option("--reason", help="A code, not free text: it is recorded.")] = "challenge",
    prompt: Annotated[
        Path | None,
        typer.Option(help="What was sent: the JSON body, or the text of its one message (default: as kept)."),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="Ask this backend (default: another one than gave the answer, if there is one).")
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Ask no backend; compute on this host's CPU.")] = False,
    model: Annotated[
        Path | None,
        typer.Option(help="With --cpu: folder or GGUF file of the weights (default: those of the model's deployment)."),
    ] = None,
    choice: Annotated[int, typer.Option(min=0, help="Which of several answers, from 0.")] = 0,
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="With --cpu: what the backend computes in, whose roundings are allowed."),
    ] = "bfloat16",
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Compute an answer's activations again from the client's own text, and compare them with what the record holds.

    The call's policy must have had `models: {commitments: activations}`. A running backend that the policy allows
    prefills both texts and says whether the answer came from its weights in this form and from this prompt, for each 32
    tokens; texts with something that the policy redacts are not sent. With --cpu (or --model) this host computes. That
    the commitment is read goes on record first, and what came of it afterwards; the texts do not. Exit code 0: matched;
    1: it did not; 2: nothing could be compared.

    Example: domicile audit challenge acme req-5f3a0c6be1d2498877a0b1c2 --text answer.txt --prompt request.json
    """
    from audit.cli.command_context import UsageMistake, given_code
    from audit.errors import AuditError
    from gateway.comparisons.recomputation import CHALLENGE_TIMEOUT_S, Given
    from gateway.database.errors import ControlError, StoreError
    from gateway.installation.installation import Installation, InstallationError
    from policy.errors import PolicyError

    cpu = _is_here(cpu or model is not None, backend, data)
    given = Given(read_text(text), None if prompt is None else read_text(prompt), choice, backend)
    try:
        given_code("--reason", reason)
        if (api := remote_api(data, deadline_s=CHALLENGE_TIMEOUT_S)) is not None:
            found = _by_gateway(api, tenant, request, given, reason)
        elif cpu:
            found = _on_this_host(Installation.open(data), data, tenant, request, given, model, dtype, reason)
        else:
            found = _by_backend(Installation.open(data), data, tenant, request, given, reason)
    except UsageMistake as error:
        fail(str(error), NOT_TESTED)
    except (AuditError, ControlError, InstallationError, PolicyError, StoreError, OSError) as error:
        fail(str(error), NOT_TESTED)
    _end(found, as_json)


def _is_here(cpu: bool, backend: str | None, data: Path) -> bool:
    """Whether this host computes. Ends the command where it cannot, or is told two things."""
    if cpu and backend is not None:
        fail("--backend is given with --cpu or --model; ask a backend, or compute here", NOT_TESTED)
    if cpu:
        needs_folder(data)
    return cpu


def _by_gateway(api: "AdminApi", tenant: str, request: str, given: "Given", reason: str) -> "ChallengeReport":
    from gateway.comparisons.challenge import ChallengeReport

    asked = {
        "request_id": request, "text": given.text, "prompt": given.prompt, "choice": given.choice,
        "backend": given.backend, "reason": reason,
    }  # fmt: skip
    return ChallengeReport.model_validate(api.post("tenants", tenant, "answers", "challenge", body=asked))


def _by_backend(
    installation: "Installation", data: Path, tenant: str, request: str, given: "Given", reason: str
) -> "ChallengeReport":
    """As a gateway does, over the same connections. Backends show their weights; of hardware, which only a gateway
    keeps asking for, nothing is known, so a policy that asks for it allows none."""
    from audit.cli.on_files import do
    from backend.wire import CHALLENGE_PATH, WEIGHTS_PATH
    from gateway.comparisons.recomputation import CHALLENGE_TIMEOUT_S, Fleet, Recomputation
    from gateway.content.inspection import Inspection
    from gateway.directory.shown import shown_weights

    async def work(context: "AuditContext", database: "Database") -> "ChallengeReport":
        registered = _registered(installation, database)
        async with opened_upstream(installation, context) as upstream, Inspection() as inspection:

            async def ask(backend: "Backend", body: bytes) -> tuple[int, bytes | None]:
                return await upstream.ask(target_of(installation, backend), CHALLENGE_PATH, CHALLENGE_TIMEOUT_S, body)

            async def facts(study: "PolicyStudy", tenant: str, model: str) -> "tuple[BackendFacts, ...]":
                shown = {
                    each.id: shown_weights(await upstream.fetch(target_of(installation, each), WEIGHTS_PATH, SHOW_S))
                    for each in registered(tenant, model)
                    if each.kind == "domicile"
                }
                found = study.candidates(tenant, model)
                return tuple(
                    one.model_copy(update=shown[one.backend_id].facts) if one.backend_id in shown else one
                    for one in found
                )

            fleet = Fleet(lambda: _study(installation, database), registered, ask, facts)
            recompute = Recomputation(fleet, inspection)
            return await recompute(context, tenant, request, given, actor=ACTOR, reason=reason)

    with closing(installation.database()) as database:
        return do(data, lambda context: work(context, database))


def _study(installation: "Installation", database: "Database") -> "PolicyStudy":
    from gateway.policies.study import PolicyStudy

    return PolicyStudy(installation.inventory(database), installation.catalogue(), installation.open_reader)


def _registered(installation: "Installation", database: "Database") -> "Callable[[str, str], list[Backend]]":
    def registered(tenant: str, model: str) -> "list[Backend]":
        return [
            backend_of(record)
            for record in installation.inventory(database).backends(tenant)
            if record.revoked_at is None and model in record.models
        ]

    return registered


def _on_this_host(
    installation: "Installation",
    data: Path,
    tenant: str,
    request: str,
    given: "Given",
    model: Path | None,
    dtype: str,
    reason: str,
) -> "ChallengeReport":
    from audit.cli.on_files import do
    from backend.wire import Challenged
    from gateway.comparisons.challenge import ChallengeReport, committed, record_challenge

    async def work(context: "AuditContext") -> "ChallengeReport":
        kept = await committed(context, tenant, request, actor=ACTOR, reason=reason)
        body = kept.request(given.prompt, given.text, given.choice).model_dump_json().encode()
        weights = model if model is not None else _weights(installation, tenant, kept.model)
        found = Challenged.model_validate_json(await context.in_thread(lambda: _by_folder(weights, body, dtype)))
        await record_challenge(context, kept, given.choice, found, actor=ACTOR, reason=reason)
        return ChallengeReport.of(kept, found)

    return do(data, work)


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


def _end(found: "ChallengeReport", as_json: bool) -> None:
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _tell(found)
    if found.verdict != "matched":
        raise typer.Exit(NOT_TESTED if found.verdict == "not_compared" else DIFFERENT)


def _tell(found: "ChallengeReport") -> None:
    typer.echo(WORDS[found.verdict])
    if found.backend is not None:
        typer.echo(f"Computed by {found.backend} in {found.region}.")
    if found.gave_answer:
        typer.echo("It gave the answer itself: that it repeats its own states does not prove which weights it has.")
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
    if found.same_weights is not None:
        typer.echo(
            f"The record names {'these' if found.same_weights else 'other'} weights: "
            + (found.recorded_weights_sha256 or "")[:16]
            + ("" if found.same_weights else f", and not {found.weights_sha256[:16]}")
        )
    if found.redacted:
        typer.echo(
            "The call was redacted: the backend got placeholders in place of values, and the client's text may have "
            "values where the backend wrote placeholders. Compared is what the backend got and wrote."
        )
    if found.respelled:
        typer.echo("The model spelled the text in other tokens than its tokenizer, which were found by their digests.")
