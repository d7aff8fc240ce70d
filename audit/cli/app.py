"""`domicile audit`: verify, show and prove, on a data folder or a copy of one log file, without a network."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from audit.cli.ai_act import ai_act_command
from audit.cli.command_context import (
    DEFAULT_DATA,
    LOG_IN_DATA,
    DataOption,
    JsonOption,
    SinceOption,
    UntilOption,
    UsageMistake,
    console,
    given_period,
    open_keys,
    printable,
    progress_bar,
    read_given,
    reporting_errors,
)
from audit.cli.incident import app as incident_app
from audit.cli.on_files import ACTOR, do
from audit.cli.oversight import app as oversight_app
from audit.cli.private_values import app as private_values_app
from audit.cli.retention import retention_command
from audit.cli.subject_request import app as subject_request_app
from audit.cli.witness import app as witness_app
from audit.errors import AuditError
from audit.events.privacy import LogRead
from audit.keys.owner_keys import KeyProvider
from audit.keys.succession import notes_in, with_successors
from audit.log.receipt import Receipt, verify_receipt
from audit.log.walk import between
from audit.private.audit_context import AuditContext
from audit.private.value_location import FILE, KEYS, has_values, open_values_read_only
from audit.private.value_store import ValueStore
from audit.storage.attested_files import files_beside, union
from audit.storage.location import open_reader
from audit.storage.sqlite import SqliteReader
from audit.storage.store import Reader
from audit.storage.tiles import TILES, Folder, forget, publish
from audit.tree.cosignature import WitnessKey
from audit.tree.note import VerifierKey
from audit.verification.attestations import Attestations
from audit.verification.disclosure import Chosen, account, every, none_of
from audit.verification.finding import Finding
from audit.verification.signing_delay import UNSIGNED_S
from audit.verification.verify import MAX_FINDINGS, Expected, Report, verify_log

KEY_IN_DATA = Path("audit/signer.vkey")

app = typer.Typer(no_args_is_help=True, help="The audit log: verify it, read it, prove one record.")
receipt_app = typer.Typer(no_args_is_help=True, help="Receipts: the x-domicile-receipt of an answer.")
app.add_typer(receipt_app, name="receipt")
app.add_typer(private_values_app)
app.add_typer(witness_app)
app.add_typer(incident_app)
app.add_typer(subject_request_app, name="request")
app.add_typer(oversight_app)
app.command(
    "ai-act",
    epilog="Examples:\n\n  domicile audit ai-act acme --system cv-screening --output log.jsonl\n\n"
    "  domicile audit ai-act --as-of 2026-12-03",
)(ai_act_command)
app.command("retention", epilog="Example:\n\n  domicile audit retention --dry-run")(retention_command)


LogOption = Annotated[Path | None, typer.Option("--log", help="A log file, instead of the one in the data folder.")]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--public-key", help="The log's verifier key (vkey), or a file with it (default: the one beside the log)."
    ),
]
TenantsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[TENANT]...", help="These tenants only (default: every tenant).")
]


@app.command(
    epilog="Examples:\n\n  domicile audit verify --keys\n\n"
    "  domicile audit verify --log copy.db --public-key 'domicile.local/audit+1a2b3c4d+AY…'\n\n"
    "  domicile audit verify acme --checkpoint held-since-march.txt --json"
)
def verify(
    data: DataOption = None,
    log: LogOption = None,
    tenant: TenantsArgument = None,
    public_key: KeyOption = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option("--checkpoint", help="A checkpoint you kept: shows a log that was rolled back. Repeatable."),
    ] = None,
    witness: Annotated[
        list[str] | None,
        typer.Option("--witness", help="A witness's key: it must have cosigned a checkpoint. Repeatable."),
    ] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Open every private value with the keys of the data folder; show none.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="With --keys: open those of so many records only.")
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option("--as-of", help="When the log or copy was taken, UTC: 2026-03-01T12:00:00Z (default: now)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild every tree from its records and compare it with what was signed. Exit code 0 if all holds, 1 if not."""
    with reporting_errors(as_json), _open(data, log) as (reader, path):
        key = _key(public_key, path, reader)
        opener = _opener(log, path, keys, sample)
        held = [read_given(file) for file in checkpoint or []]
        attested = union(files_beside(path.parent), reader.attested_files())
        expected = Expected(
            attestations=Attestations.read(attested, key, complete=log is None),
            witnesses=[WitnessKey.parse(text) for text in witness or []],
            now=None if as_of is None else _moment(as_of),
        )
        tenants = reader.tenants() if tenant is None else tenant
        total = sum(reader.head(name)[0] for name in tenants)
        with progress_bar(total, hidden=as_json) as advance:
            report = verify_log(
                reader, key, tenants=tenant, held=held, expected=expected, progress=lambda _, count: advance(count)
            )
        states, faults = (
            _account(path, key, tenants, SqliteReader.open if log else open_reader, opener) if report.ok else ({}, [])
        )
    ok = report.ok and not faults
    if as_json:
        private = {"private_values": states, "private_faults": faults}
        typer.echo(json.dumps({"ok": ok, "key": str(key), **report.model_dump(mode="json"), **private}, indent=2))
    else:
        _print_private_values(states, faults)
        _print_report(report, key, told=public_key is not None)
        if faults:
            typer.echo(f"FAIL: {len(faults)} private values are not accounted for; restore side.db from a backup.")
    raise typer.Exit(0 if ok else 1)


@dataclass(frozen=True, slots=True)
class _Opener:
    """The keys to open private values with, None to open none; and of one record in how many, None of each."""

    keys: KeyProvider | None = None
    sample: int | None = None

    def chosen(self, side: ValueStore, tenant: str) -> Chosen:
        """A sample differs from run to run."""
        if self.keys is None:
            return none_of
        if self.sample is None:
            return every
        query = "SELECT seq FROM (SELECT DISTINCT seq FROM value WHERE tenant = ?) AS kept ORDER BY random() LIMIT ?"
        return frozenset(seq for (seq,) in side.rows(query, (tenant, self.sample))).__contains__


def _opener(log: Path | None, path: Path, keys: bool, sample: int | None) -> _Opener:
    """Raises AuditError where there are no keys: opening a key ring would make them."""
    if not keys and sample is None:
        return _Opener()
    if not keys:
        raise UsageMistake("--sample needs --keys, which opens the private values; give both")
    if log is not None:
        raise UsageMistake("--keys opens the private values of a data folder; give --data instead of --log")
    if not has_values(path.with_name(FILE)) or not path.with_name(KEYS).is_dir():
        raise AuditError(f"there are no private values and keys beside {path}; leave --keys out")
    return _Opener(open_keys.get()(path)[0], sample)


def _moment(text: str) -> int:
    """Milliseconds since the epoch. Raises AuditError."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageMistake(f"--as-of {text!r} is no moment; write it as 2026-03-01T12:00:00Z") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _account(
    log: Path, key: VerifierKey, tenants: Iterable[str], opened: Callable[[Path], Reader], opener: _Opener
) -> tuple[dict[str, int], list[dict[str, object]]]:
    """What became of the private values of a log that holds, if their store is beside it."""
    path = log.with_name(FILE)
    if not has_values(path):
        return {}, []
    total: Counter[str] = Counter()
    faults: list[dict[str, object]] = []
    with closing(open_values_read_only(path, opener.keys)) as side:
        for tenant in tenants:
            states, wrong = account(lambda: opened(log), side, key, tenant, opener.chosen(side, tenant))
            total.update(states)
            faults += [{"tenant": tenant, **asdict(one)} for one in wrong]
    return dict(total), faults


@app.command(epilog="Examples:\n\n  domicile audit show acme --limit 50\n\n  domicile audit show --json | jq .type")
def show(
    data: DataOption = None,
    log: LogOption = None,
    tenant: TenantsArgument = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The last so many of each tenant.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List the latest events, oldest first. With --json one object a line: the record as it was hashed, and its seq.

    --since and --until bound the period; of what is in it, the last --limit are listed.

    Reading the log of a data folder is recorded first; reading a copy (--log) is not.
    """
    with reporting_errors(as_json):
        with _open(data, log) as (reader, _):
            begin, until_then = given_period(since, until)
            names = reader.tenants() if tenant is None else tenant
            for name in names:
                reader.head(name)  # raises for a tenant that has no log
            trees = [(name, *_last(*between(reader, name, begin, until_then), limit)) for name in names]
        if log is None:  # no snapshot is held meanwhile: the store would wait for its end to fold its journal in
            do(data, lambda context: _log_reads(context, trees))
        table = _table("tenant", "seq", "time (UTC)", "event", "request", "what")
        with _open(data, log) as (reader, _):
            for name, first, end in trees:
                for leaf in islice(reader.leaves(name, first), end - first):
                    record = _record(leaf.payload)
                    if as_json:
                        typer.echo(json.dumps({"seq": leaf.seq, **record}))
                    else:
                        said = (str(record.get(field, "")) for field in ("ts", "type", "request_id"))
                        table.add_row(*map(_cell, (name, str(leaf.seq), *said, _summary(record))))
        if not as_json:
            console().print(table)


def _last(first: int, end: int, count: int) -> tuple[int, int]:
    return max(first, end - count), end


async def _log_reads(context: AuditContext, trees: Iterable[tuple[str, int, int]]) -> None:
    for tenant, first, end in trees:
        await context.record(LogRead(tenant=tenant, actor=ACTOR, first=first, end=end, reason="show"))


@app.command("publish", epilog="Example:\n\n  domicile audit publish -o /srv/www/log")
def publish_command(
    data: DataOption = None,
    log: LogOption = None,
    tenant: TenantsArgument = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the tiles, one a tenant below it (default: beside the log)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write each tree as static files (C2SP tlog-tiles), up to its last checkpoint. Again: what was added.

    The content of records that have expired since they were published is taken out.
    """
    done = {}
    with reporting_errors(as_json):
        with _open(data, log) as (reader, path):
            base = output or path.with_name(TILES)
            for name in reader.tenants() if tenant is None else tenant:
                last = reader.last_checkpoint(name)
                if last is not None:
                    read = publish(reader, name, last.note, Folder(base / name))
                    done[name] = {"size": last.size, "read": read}
        with _open(data, log) as (reader, _):  # a new snapshot: some may have expired while they were written
            for name, told in done.items():
                forget(reader, name, Folder(base / name), reader.expired(name, told["size"]))
    if as_json:
        typer.echo(json.dumps({"ok": True, "trees": done}))
    for name, told in done.items():
        if not as_json:
            typer.echo(f"{printable(name)}: {told['size']} records, {told['read']} of them read now")


@receipt_app.command("verify", epilog="Example:\n\n  domicile audit receipt verify acme/41/9f86d0…")
def verify_receipt_command(
    receipt: Annotated[str, typer.Argument(help="tenant/seq/hash, as the header x-domicile-receipt gave it.")],
    data: DataOption = None,
    log: LogOption = None,
    public_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prove that the record of a receipt is in the log, under a signed checkpoint. Exit code 0 if so, 1 if not."""
    with reporting_errors(as_json), _open(data, log) as (reader, path):
        wanted = Receipt.parse(receipt)
        tiles = Folder(path.with_name(TILES) / wanted.tenant)
        found = verify_receipt(reader, _key(public_key, path, reader), wanted, tiles)
    if as_json:
        answer = {
            "ok": True,
            "record": json.loads(found.leaf.payload) if found.leaf.payload else None,
            "checkpoint": {"origin": found.checkpoint.origin, "size": found.checkpoint.size},
            "proof": [node.hex() for node in found.proof],
        }
        typer.echo(json.dumps(answer, indent=2))
        return
    typer.echo(printable(found.leaf.payload.decode()) or "Its content has expired; its hash is kept.")
    typer.echo(
        f"The record is number {found.leaf.seq} of {found.checkpoint.origin}, proven by {len(found.proof)} hashes"
        f" up to the signed checkpoint of size {found.checkpoint.size}."
    )


# --- what the commands share -----------------------------------------------------------------------------------------


@contextmanager
def _open(data: Path | None, log: Path | None) -> Iterator[tuple[Reader, Path]]:
    path = log or (data or DEFAULT_DATA) / LOG_IN_DATA
    if not path.name:
        raise UsageMistake("--log names no file; name the log's")
    reader = open_reader(path) if log is None else SqliteReader.open(path)
    try:
        yield reader, path
    finally:
        reader.close()


def _key(given: str | None, log: Path, reader: Reader) -> VerifierKey:
    """The key that was given, itself or in a file, else the one beside the log; with those of its succession, whose
    notes are beside the log and in the record."""
    if given is None:
        beside = log.with_name(KEY_IN_DATA.name)
        if not beside.is_file():
            raise AuditError(f"there is no verifier key beside {log.name}; give one with --public-key")
        given = str(beside)
    key = VerifierKey.parse(read_given(Path(given)) if os.path.exists(given) else given)
    return with_successors(key, dict.fromkeys([*notes_in(log.parent), *reader.successions()]))


def _print_private_values(states: Mapping[str, int], faults: Sequence[Mapping[str, object]]) -> None:
    """The first MAX_FINDINGS faults, a line each, and how many private values are in each state."""
    for fault in faults[:MAX_FINDINGS]:
        typer.echo(f"error: {fault['tenant']}, record {fault['seq']}: {fault['field']}: {fault['because']}")
    if states:
        typer.echo("Private values: " + ", ".join(f"{count} {name}" for name, count in sorted(states.items())) + ".")


def _print_report(report: Report, key: VerifierKey, *, told: bool) -> None:
    table = _table("tenant", "records", "signed", "checkpoints", "open calls", "verdict")
    for tree in report.trees:
        verdict = "[green]holds[/]" if tree.ok else f"[red]{tree.errors} faults[/]"
        calls = str(len(tree.open_requests))
        table.add_row(_cell(tree.tenant), str(tree.records), str(tree.signed), str(tree.checkpoints), calls, verdict)
    console().print(table)
    for finding in report.findings:
        typer.echo(printable(_sentence(finding)))
    unlisted = report.errors - sum(f.severity == "error" for f in report.findings)
    if unlisted:
        typer.echo(f"... and {unlisted} more of the same kinds.")
    unsigned = sum(tree.records - tree.signed for tree in report.trees)
    if report.ok and unsigned:
        typer.echo(
            f"{unsigned} records are not under a checkpoint yet: they fit the tree, but no signature covers them. "
            f"After {UNSIGNED_S} s without a signature, verification fails."
        )
    if not told:
        typer.echo(
            "The key was taken from beside the log; to rely on it alone, keep it elsewhere and pass --public-key."
        )
    remedy = "" if report.ok else "; keep it as it is, and compare it with a backup and with receipts"
    typer.echo(f"{'The log holds' if report.ok else 'FAIL: the log does not hold'} under the key {key}{remedy}.")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1])
    return table


def _sentence(finding: Finding) -> str:
    where = finding.tenant if finding.seq is None else f"{finding.tenant}, record {finding.seq}"
    return f"{finding.severity}: {where}: {finding.says}"


def _cell(text: str) -> str:
    return escape(printable(text))


def _record(payload: bytes) -> dict[str, object]:
    """The fields of a record, unchecked: what is not one is shown as such, `verify` says why."""
    if not payload:
        return {"type": "(expired)"}
    try:
        record = json.loads(payload)
    except (ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) else {"type": "(not a record)"}


def _summary(record: dict[str, object]) -> str:
    """The few fields that tell one event of a type from another."""
    said = (
        *("decision", "region", "backend_id", "model_requested", "status", "finish_reason", "reason"),
        *("actor", "target", "project", "epoch", "detail", "scope", "due", "deleted", "records", "values", "key_id"),
    )
    parts = []
    for name in said:
        value = record.get(name)
        if isinstance(value, dict):
            value = value.get("outcome") or ",".join(f"{key}:{said}" for key, said in sorted(value.items()))
        if value is not None and value != "":
            parts.append(f"{name}={value}")
    return " ".join(parts)
