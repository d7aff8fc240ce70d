"""`domicile audit export | erase | hold | dsar | restrict | rectify | read`: work on the log and its private values."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from audit.cli.command_context import (
    DEFAULT_DATA,
    LOG_IN_DATA,
    DataOption,
    JsonOption,
    UsageMistake,
    given_code,
    given_period,
    printable,
    progress_bar,
    reporting_errors,
)
from audit.cli.on_files import ACTOR, Row, do
from audit.cli.over_api import OverApi, opened_record
from audit.events.commitment import FIELDS
from audit.files.new_file import replace_file
from audit.incidents.pack_inputs import Evidence, evidence_of
from audit.log.receipt import Receipt
from audit.pack.archive import require_place
from audit.pack.export import Summary, export
from audit.privacy.kept_content import reader_of
from audit.privacy.rights import answer
from audit.private.audit_context import AuditContext
from audit.registers.dsar import access_page
from audit.registers.language import LANGUAGES
from audit.storage.attested_files import files_beside
from audit.storage.location import open_reader
from audit.witness.anchor_attestations import attestations

app = typer.Typer()
hold_app = typer.Typer(no_args_is_help=True, help="Legal holds: what they cover is not deleted.")
app.add_typer(hold_app, name="hold")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Whose record.")]
SubjectOption = Annotated[
    str | None, typer.Option("--subject", help="The person's identifier, as applications give it.")
]
RecordsOption = Annotated[str | None, typer.Option("--records", help="Records by number: 41 or 41-57.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="A code, not free text: it is recorded.")]
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
        record, folder = opened_record(data), data or DEFAULT_DATA
        if isinstance(record, OverApi):
            if evidence is not None or dsar or disclose:
                raise UsageMistake(
                    "packs over the admin API hold no private values, and the gateway's own registers; leave"
                    " --evidence, --dsar and --disclose out, or run the command on the installation's own host"
                )
            with progress_bar(record.size(tenant), hidden=as_json) as advance:
                pack = record.export(tenant, output, since=begin, until=end, advance=advance)
            print_outcome({"tenant": tenant, **pack}, as_json, _exported({"tenant": tenant, **pack}, output))
            return
        known = evidence_of(folder, tenant) if evidence is None else Evidence.load(evidence)
        with progress_bar(_size(data, tenant), hidden=as_json) as advance:
            options: dict[str, Any] = {
                "since": begin,
                "until": end,
                "disclose": disclose,
                "evidence": known,
                "progress": advance,
            }
            made = do(data, partial(_export, folder=folder, tenant=tenant, output=output, people=dsar or (), **options))
        missing = tuple(f"{one.field} ({one.article}): set it in {one.fix}" for one in made.missing)
        print_outcome(
            asdict(made) | {"missing": [one._asdict() for one in made.missing]},
            as_json,
            _exported(asdict(made) | {"missing": missing}, output),
        )


async def _export(
    context: AuditContext, *, folder: Path, tenant: str, output: Path, people: Sequence[str], **options: Any
) -> Summary:
    """A pack of the record in `folder`, with the access packages of `people`; `options` as those of `export`."""
    known, content = options["evidence"], reader_of(folder)
    packages = [
        await answer(context, tenant, person, actor=ACTOR, evidence=known, content=content) for person in people
    ]
    attested = attestations(files_beside((folder / LOG_IN_DATA).parent))
    return await export(context, tenant, output, attestations=attested, dsar=packages, actor=ACTOR, **options)


def _exported(made: Row, output: Path) -> str:
    lines = [
        f"{output}: {made['end'] - made['first']} records of {made['tenant']}, up to the signed checkpoint of size"
        f" {made['checkpoint_size']}.",
        "Check it: unzip it, then python3 -I verify.py FOLDER_OR_ZIP --key 'YOUR KEY'",
    ]
    if made["policies_unknown"]:
        lines.append(
            f"NOTE: {made['policies_unknown']} calls were decided by policies that are not in the pack, and"
            " verify.py will say so. The gateway's registers (--data) have them, or --evidence FILE names them."
        )
    if made["missing"]:
        lines.append(f"NOTE: {len(made['missing'])} fields that a law asks for are empty in this pack:")
        lines += [f"  {one}" for one in made["missing"]]
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
    backup_days: Annotated[
        int | None,
        typer.Option(
            "--backup-days", min=0, help="How long backups of side.db live (default: 30), on the certificate."
        ),
    ] = None,
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

        note, said = opened_record(data).erase(
            tenant, subject=subject, records=span, reason=reason, backup_days=backup_days
        )
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
        hold = opened_record(data).place_hold(tenant, subject=subject, records=span, reason=reason)
        print_outcome({"hold_id": hold}, as_json, f"Hold {hold} is in force.")


@hold_app.command(
    "release", epilog="Example:\n\n  domicile audit hold release acme 01a21faa-0c27-76a6-b43d-f0713b4b3c3e"
)
def hold_release(tenant: TenantArgument, hold_id: str, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Let what the hold kept be deleted again. Warns where an incident that needs it is still open."""
    with reporting_errors(as_json):
        still_open = opened_record(data).release_hold(tenant, hold_id)
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
    """List the holds in force."""
    with reporting_errors(as_json):
        standing = opened_record(data).holds(tenant)
        lines = [f"{hold['id']}  {hold['reason']}  {_covered(hold)}" for hold in standing]
        print_outcome({"holds": standing}, as_json, "\n".join(lines) or "No hold is in force.")


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
    """Export all stored data of a person with the information of GDPR 15(1), as JSON or as a page."""
    with reporting_errors(as_json=False):
        if html is not None and html not in LANGUAGES:
            raise UsageMistake(f"there is no page in {html!r}; name one of {', '.join(LANGUAGES)}")
        package = opened_record(data).access(tenant, subject)
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
        opened_record(data).restrict(tenant, subject, restricted=not lift)
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
    """Record a corrected value; the wrong one is kept next to it (GDPR 16)."""
    with reporting_errors(as_json):
        try:
            right = json.loads(value)
        except ValueError:
            right = value
        receipt = opened_record(data).rectify(tenant, seq, field, right)  # type: ignore[arg-type]  # checked there
        print_outcome({"receipt": receipt}, as_json, f"Corrected by record {Receipt.parse(receipt).seq}: {receipt}")


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
        values = opened_record(data).read(tenant, seq, reason=given_code("--reason", reason))
        print_outcome(
            values, as_json, "\n".join(f"{name}: {printable(json.dumps(one))}" for name, one in values.items())
        )


# --- what they share -------------------------------------------------------------------------------------------------


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


def _covered(hold: Row) -> str:
    if hold["key_id"]:
        return f"key {hold['key_id']}"
    return "all" if hold["first"] is None else f"{hold['first']}-{hold['last']}"


def print_outcome(answer: dict[str, Any], as_json: bool, sentence: str) -> None:
    typer.echo(json.dumps({"ok": True, **answer}, indent=2) if as_json else sentence)
