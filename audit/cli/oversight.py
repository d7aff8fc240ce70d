"""`domicile audit oversight | model | authority`: put on record what took place outside the gateway."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from audit.cli.command_context import DataOption, JsonOption, UsageMistake, describe_invalid, reporting_errors
from audit.cli.on_files import ACTOR, do
from audit.events.base import Event
from audit.events.event import ModelChanged
from audit.events.incident import AuthorityRequest, Oversight
from audit.private.audit_context import AuditContext

app = typer.Typer()
oversight_app = typer.Typer(no_args_is_help=True, help="Human oversight of AI systems, on record (AI Act 14).")
model_app = typer.Typer(no_args_is_help=True, help="Changes of what answers, on record (AI Act 12(2)).")
authority_app = typer.Typer(no_args_is_help=True, help="Requests of authorities for data, on record (GDPR 48).")
app.add_typer(oversight_app, name="oversight")
app.add_typer(model_app, name="model")
app.add_typer(authority_app, name="authority")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Whose record.")]
SystemOption = Annotated[str, typer.Option("--system", help="The ai_system_id.")]


@oversight_app.command(
    "record",
    epilog="Example:\n\n  domicile audit oversight record acme overridden --system cv-screening --request ID",
)
def oversight_command(
    tenant: TenantArgument,
    act: Annotated[str, typer.Argument(help="stopped, resumed or overridden.")],
    system: SystemOption,
    data: DataOption = None,
    request: Annotated[str | None, typer.Option("--request", help="The call that was overruled.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="A code, not free text: it is recorded.")] = "judgement",
    as_json: JsonOption = False,
) -> None:
    """Put an act of oversight on record. It stops nothing; to stop a system, use `domicile oversight stop`."""
    with reporting_errors(as_json):
        fields = {"type": f"oversight.{act}", "ai_system_id": system, "request_id": request, "reason": reason}
        _record(Oversight, data, tenant, fields, as_json)


@model_app.command(
    "record",
    epilog="Example:\n\n  domicile audit model record acme --model small --what system_prompt"
    " --system cv-screening --after SHA256 --substantial",
)
def model_command(
    tenant: TenantArgument,
    model: Annotated[str, typer.Option("--model", help="As calls name it.")],
    what: Annotated[str, typer.Option("--what", help="A code: weights, build, system_prompt, tools, guardrails.")],
    data: DataOption = None,
    system: Annotated[str | None, typer.Option("--system", help="The ai_system_id.")] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="The backend, if it concerns one.")] = None,
    before: Annotated[str | None, typer.Option("--before", help="SHA-256 of what was, in hex.")] = None,
    after: Annotated[str | None, typer.Option("--after", help="SHA-256 of what is, in hex.")] = None,
    substantial: Annotated[
        bool, typer.Option("--substantial", help="It makes a new conformity assessment due (AI Act 3(23)).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put on record that what answers is not what answered before, where the gateway cannot see it.

    Of a text that can be guessed give no digest: it would be personal data if the text is.
    """
    with reporting_errors(as_json):
        fields = {"model": model, "what": what, "ai_system_id": system, "backend_id": backend}
        fields |= {"before": before, "after": after}
        _record(ModelChanged, data, tenant, fields | {"substantial": substantial}, as_json)


@authority_app.command(
    "record",
    epilog="Example:\n\n  domicile audit authority record acme received --authority 'A court' --country US",
)
def authority_command(
    tenant: TenantArgument,
    act: Annotated[str, typer.Argument(help="received or answered.")],
    authority: Annotated[str, typer.Option("--authority", help="Who asked.")],
    country: Annotated[str, typer.Option("--country", help="Whose: two letters.")],
    data: DataOption = None,
    matter: Annotated[str | None, typer.Option("--matter", help="Id of the matter, from `received`.")] = None,
    basis: Annotated[str | None, typer.Option("--basis", help="The legal basis it cited.")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="A code: refused, redirected, complied.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put an authority's request for data, or the answer to it, on record."""
    with reporting_errors(as_json):

        async def work(context: AuditContext) -> str:
            matter_id = matter or context.new_id()
            fields: dict[str, Any] = {"type": f"authority_request.{act}", "authority": authority}
            fields |= {"matter_id": matter_id, "country": country, "legal_basis": basis, "outcome": outcome}
            await context.record(_event(AuthorityRequest, tenant, fields))
            return matter_id

        told = do(data, work, tenants=(tenant,))
        typer.echo(json.dumps({"ok": True, "matter_id": told}) if as_json else f"On record: matter {told}")


def _record(kind: type[Event], data: Path | None, tenant: str, fields: dict[str, Any], as_json: bool) -> None:
    event = _event(kind, tenant, fields)
    receipt = do(data, lambda context: context.record(event), tenants=(tenant,))
    typer.echo(json.dumps({"ok": True, "receipt": str(receipt)}) if as_json else f"On record: {receipt}")


def _event(kind: type[Event], tenant: str, fields: dict[str, Any]) -> Event:
    """Raises UsageMistake, which names the field that is wrong."""
    try:
        return kind.model_validate({"tenant": tenant, "actor": ACTOR, **fields})
    except ValidationError as error:
        raise UsageMistake(describe_invalid(error)) from error
