"""`domicile audit export | erase | hold | dsar | restrict | rectify | read`: work on the log and its private values.

Each command opens the log beside a running gateway, as a node of its own, and is itself on record before it has effect.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from audit.cli.frame import (
    DEFAULT_DATA,
    LOG_IN_DATA,
    DataOption,
    JsonOption,
    UsageMistake,
    given_code,
    given_period,
    open_keys,
    printable,
    progress_bar,
    reporting_errors,
)
from audit.errors import AuditError, NoLog
from audit.events.commitment import FIELDS
from audit.files.new_file import replace_file
from audit.incidents.evidence import Evidence, evidence_of
from audit.incidents.incident import open_cases_of_hold
from audit.log.audit_log import AuditLog
from audit.pack.archive import require_place
from audit.pack.export import Summary, export
from audit.privacy.kept_content import reader_of
from audit.privacy.rights import answer, read, rectify, restrict
from audit.private.audit_context import AuditContext
from audit.private.certificate import open_certificate
from audit.private.deletion import holds_of
from audit.private.erasure import erase, finish, place_hold, release_hold
from audit.private.log_and_value_store import open_log_and_values
from audit.private.value_location import FILE, open_values
from audit.registers.dsar import access_page
from audit.registers.language import LANGUAGES
from audit.storage.attested_files import files_beside
from audit.storage.location import exchange_attested_files, is_there, open_reader
from audit.storage.sqlite import no_log_at
from audit.storage.tiles import TILES
from audit.witness.anchor_attestations import attestations

ACTOR = "cli"
T = TypeVar("T")

app = typer.Typer()
hold_app = typer.Typer(no_args_is_help=True, help="Legal holds: what they cover is not deleted.")
app.add_typer(hold_app, name="hold")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Whose record.")]
SubjectOption = Annotated[
    str | None, typer.Option("--subject", help="The person's identifier, as applications give it.")
]
RecordsOption = Annotated[str | None, typer.Option("--records", help="Records by number: 41 or 41-57.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="A code, no words: it goes on record.")]
BackupOption = Annotated[
    int, typer.Option("--backup-days", min=0, help="How long backups of side.db live; the certificate states it.")
]


@app.command(
    "export",
    epilog="Example:\n\n  domicile audit export acme --since 2026-01 --until 2026-04 -o q1.zip\n\n"
    "  python3 -I verify.py q1.zip        (verify.py is in the zip)",
)
def export_command(
    tenant: TenantArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="The zip to write; it must not exist.")],
    data: DataOption = None,
    since: Annotated[str | None, typer.Option("--since", help="UTC, to any precision: 2026-03-01T12.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="UTC; not included.")] = None,
    evidence: Annotated[
        Path | None,
        typer.Option("--evidence", help="JSON of registers (docs/evidence-pack.md), for the built-in ones."),
    ] = None,
    dsar: Annotated[
        list[str] | None, typer.Option("--dsar", help="Add the access package of this person. Repeatable.")
    ] = None,
    disclose: Annotated[bool, typer.Option("--disclose", help="Show kept private values, unless restricted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write an evidence pack: records, proofs, reports, and a verifier that needs nothing but Python."""
    with reporting_errors(as_json):
        require_place(output)
        begin, end = given_period(since, until)
        with progress_bar(_size(data, tenant), hidden=as_json) as advance:
            folder = data or DEFAULT_DATA
            known = evidence_of(folder, tenant) if evidence is None else Evidence.load(evidence)

            async def work(context: AuditContext) -> Summary:
                content = reader_of(folder)
                packages = [
                    await answer(context, tenant, person, actor=ACTOR, evidence=known, content=content)
                    for person in dsar or ()
                ]
                return await export(
                    context,
                    tenant,
                    output,
                    since=begin,
                    until=end,
                    disclose=disclose,
                    evidence=known,
                    attestations=attestations(files_beside((folder / LOG_IN_DATA).parent)),
                    dsar=packages,
                    actor=ACTOR,
                    progress=advance,
                )

            made = do(data, work)
        print_outcome(
            asdict(made) | {"missing": [one._asdict() for one in made.missing]}, as_json, _exported(made, output)
        )


def _exported(made: Summary, output: Path) -> str:
    lines = [
        f"{output}: {made.end - made.first} records of {made.tenant}, up to the signed checkpoint of size"
        f" {made.checkpoint_size}.",
        "Check it: unzip it, then python3 -I verify.py FOLDER_OR_ZIP --key 'YOUR KEY'",
    ]
    if made.policies_unknown:
        lines.append(
            f"NOTE: {made.policies_unknown} calls were decided by policies that are not in the pack, and"
            " verify.py will say so. The gateway's registers (--data) have them, or --evidence FILE names them."
        )
    if made.missing:
        lines.append(f"NOTE: {len(made.missing)} fields that a law asks for are empty in this pack:")
        lines += [f"  {one.field} ({one.article}): set it in {one.fix}" for one in made.missing]
    return "\n".join(map(printable, lines))


@app.command(
    "erase",
    epilog="Examples:\n\n  domicile audit erase acme --subject alice@example.com -o certificate.note\n\n"
    "  domicile audit erase acme --records 41-57\n\n  domicile audit erase acme --all --yes",
)
def erase_command(
    tenant: TenantArgument,
    data: DataOption = None,
    subject: SubjectOption = None,
    records: RecordsOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All private values of the tenant, for good.")] = False,
    reason: ReasonOption = "data_subject_request",
    backup_days: BackupOption = 30,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the signed certificate goes.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete private values with their keys. The log still verifies; a signed certificate says what is gone."""
    with reporting_errors(as_json):
        if sum((subject is not None, records is not None, everything)) != 1:
            raise UsageMistake("nothing to erase is named, or two things; give one of --subject, --records, --all")
        span, reason = _span(records), given_code("--reason", reason)
        if not yes:
            typer.confirm("What is erased cannot be restored. Go on?", abort=True, err=True)

        async def work(context: AuditContext) -> tuple[str, dict[str, Any]]:
            await finish(context)
            note = await erase(context, tenant, subject=subject, records=span, actor=ACTOR, reason=reason)
            opened = open_certificate(note, context.origin(tenant), context.signer.public_key)
            return note, opened.model_dump(mode="json", exclude_none=True)

        note, said = do(data, work, backup_days)
        if output is not None:
            replace_file(output, note.encode())
        print_outcome(
            {"certificate": said, "note": note},
            as_json,
            f"{said['values']} values of {said['records']} records are gone, and {len(said['keys_destroyed'])} keys."
            f" Backups may hold them until {said['backups_until']}.\n{note}",
        )


@hold_app.command("create", epilog="Example:\n\n  domicile audit hold create acme --records 41-57")
def hold_place(
    tenant: TenantArgument,
    data: DataOption = None,
    subject: SubjectOption = None,
    records: RecordsOption = None,
    reason: ReasonOption = "litigation",
    as_json: JsonOption = False,
) -> None:
    """From now on delete nothing of a person, of some records, or (with neither) of the tenant."""
    with reporting_errors(as_json):
        if subject is not None and records is not None:
            raise UsageMistake("a hold covers a subject or records, not both; give one of --subject and --records")
        span, reason = _span(records), given_code("--reason", reason)
        hold = do(
            data,
            lambda context: place_hold(context, tenant, subject=subject, records=span, actor=ACTOR, reason=reason),
        )
        print_outcome({"hold_id": hold}, as_json, f"Hold {hold} stands.")


@hold_app.command(
    "release", epilog="Example:\n\n  domicile audit hold release acme 01a21faa-0c27-76a6-b43d-f0713b4b3c3e"
)
def hold_release(tenant: TenantArgument, hold_id: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Let what the hold kept be deleted again. Warns where an incident that needs it is still open."""

    async def work(context: AuditContext) -> list[str]:
        def find() -> list[str]:
            with context.reading() as reader:
                return [case.incident_id for case in open_cases_of_hold(reader, tenant, hold_id)]

        concerned = await context.in_thread(find)
        await release_hold(context, tenant, hold_id, actor=ACTOR)
        return concerned

    with reporting_errors(as_json):
        still_open = do(data, work)
        print_outcome(
            {"hold_id": hold_id, "open_incidents": still_open},
            as_json,
            f"Hold {printable(hold_id)} is released.",
        )
        for incident in still_open:
            typer.echo(
                f"WARNING: incident {incident} is still open, and its records may now be deleted (AI Act 73, DORA 17); "
                f"to keep them: domicile audit hold create {printable(tenant)}",
                err=True,
            )


@hold_app.command("list", epilog="Example:\n\n  domicile audit hold list acme")
def hold_list(tenant: TenantArgument, data: DataOption = None, as_json: JsonOption = False) -> None:
    """The holds that stand."""
    with reporting_errors(as_json):
        standing = do(data, lambda context: context.with_values(lambda side: holds_of(side, tenant)))
        lines = [
            f"{hold.id}  {hold.reason}  "
            + (f"key {hold.key_id}" if hold.key_id else "all" if hold.first is None else f"{hold.first}-{hold.last}")
            for hold in standing
        ]
        print_outcome({"holds": [hold._asdict() for hold in standing]}, as_json, "\n".join(lines) or "No hold stands.")


@app.command(
    "dsar",
    epilog="Examples:\n\n  domicile audit dsar acme --subject alice@example.com\n\n"
    "  domicile audit dsar acme --subject alice@example.com --html de > auskunft.html",
)
def dsar_command(
    tenant: TenantArgument,
    subject: Annotated[str, typer.Option("--subject")],
    data: DataOption = None,
    html: Annotated[str | None, typer.Option("--html", help="A page for the person instead: en or de.")] = None,
) -> None:
    """Everything that is kept of a person and what GDPR 15(1) lists beside it, as JSON or as a page."""
    with reporting_errors(as_json=False):
        if html is not None and html not in LANGUAGES:
            raise UsageMistake(f"there is no page in {html!r}; name one of {', '.join(LANGUAGES)}")
        known = evidence_of(data or DEFAULT_DATA, tenant)
        content = reader_of(data or DEFAULT_DATA)

        def work(context: AuditContext) -> Awaitable[dict[str, Any]]:
            return answer(context, tenant, subject, actor=ACTOR, evidence=known, content=content)

        package = do(data, work)
        typer.echo(json.dumps(package, indent=2) if html is None else access_page(package, LANGUAGES[html]))
        for name in package["article_15"]["missing"]:
            typer.echo(f"NOTE: missing in the registers: {printable(name)}", err=True)


@app.command("restrict", epilog="Example:\n\n  domicile audit restrict acme --subject alice@example.com")
def restrict_command(
    tenant: TenantArgument,
    subject: Annotated[str, typer.Option("--subject")],
    data: DataOption = None,
    lift: Annotated[bool, typer.Option("--lift", help="Allow use again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep the data of a person, but refuse to show or export it (GDPR 18)."""
    with reporting_errors(as_json):
        do(data, lambda context: restrict(context, tenant, subject, restricted=not lift, actor=ACTOR))
        print_outcome({"restricted": not lift}, as_json, "The restriction is lifted." if lift else "Restricted.")


@app.command("rectify", epilog="Example:\n\n  domicile audit rectify acme --seq 41 --field output --value TEXT")
def rectify_command(
    tenant: TenantArgument,
    seq: Annotated[int, typer.Option("--seq", min=0)],
    field: Annotated[str, typer.Option("--field", help=f"One of {', '.join(FIELDS)}.")],
    value: Annotated[str, typer.Option("--value", help="The right value; JSON, or else plain text.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a corrected value on record beside the wrong one, which stays (GDPR 16)."""
    with reporting_errors(as_json):
        try:
            right = json.loads(value)
        except ValueError:
            right = value
        receipt = do(data, lambda context: rectify(context, tenant, seq, field, right, actor=ACTOR))  # type: ignore[arg-type]
        print_outcome({"receipt": str(receipt)}, as_json, f"Corrected by record {receipt.seq}: {receipt}")


@app.command("read", epilog="Example:\n\n  domicile audit read acme --seq 41 --reason complaint")
def read_command(
    tenant: TenantArgument,
    seq: Annotated[int, typer.Option("--seq", min=0)],
    data: DataOption = None,
    reason: ReasonOption = "support",
    as_json: JsonOption = False,
) -> None:
    """Show the private values of one record; the access is recorded first."""
    with reporting_errors(as_json):
        reason = given_code("--reason", reason)
        shown = do(data, lambda context: read(context, tenant, seq, actor=ACTOR, reason=reason))
        values = {one.kept.field: one.value for one in shown}
        print_outcome(
            values, as_json, "\n".join(f"{name}: {printable(json.dumps(one))}" for name, one in values.items())
        )


# --- what they share -------------------------------------------------------------------------------------------------


def do(data: Path | None, work: Callable[[AuditContext], Awaitable[T]], backup_days: int = 30) -> T:
    """What `work` returns, done on the log and value store of a data folder."""
    log = (data or DEFAULT_DATA) / LOG_IN_DATA
    if not is_there(log):
        raise NoLog(no_log_at(log))
    if not any(log.with_name(name).is_file() for name in ("signer.key", "signer.vkey")):
        raise AuditError(
            f"{log.with_name('signer.key')}, which signs this log, is missing; use the original data folder, or put the"
            " key set back with: domicile init --keys KEY_SET"
        )

    async def inside() -> T:
        async with _audit_context(log, backup_days) as context:
            return await work(context)

    return asyncio.run(inside())


@asynccontextmanager
async def _audit_context(log: Path, backup_days: int) -> AsyncIterator[AuditContext]:
    keys, signer = open_keys.get()(log)
    side = log.with_name(FILE)
    opened = open_log_and_values(side, keys)
    async with await AuditLog.open(log, signer=signer, node=f"cli-{os.getpid()}", open_store=opened) as audit_log:
        yield AuditContext(
            audit_log,
            open_values=lambda: open_values(side, keys),
            open_reader=lambda: open_reader(log),
            keys=keys,
            signer=signer,
            backup_days=backup_days,
            tiles=log.with_name(TILES),
            exchange=partial(exchange_attested_files, log),
        )


def _size(data: Path | None, tenant: str) -> int:
    reader = open_reader((data or DEFAULT_DATA) / LOG_IN_DATA)
    try:
        return reader.head(tenant)[0]
    finally:
        reader.close()


def _span(records: str | None) -> tuple[int, int] | None:
    if records is None:
        return None
    first, dash, last = records.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or not dash)) or int(first) > int(last or first):
        raise UsageMistake(f"--records {records!r} is not a range; write 41 or 41-57")
    return int(first), int(last or first)


def print_outcome(answer: dict[str, Any], as_json: bool, sentence: str) -> None:
    typer.echo(json.dumps({"ok": True, **answer}, indent=2) if as_json else sentence)
