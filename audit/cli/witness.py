"""`domicile audit anchor` and `domicile audit witness`: what keeps the log honest from outside it."""

import asyncio
import json
import os
import re
import time
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from audit.cli.command_context import (
    DEFAULT_DATA,
    LOG_IN_DATA,
    DataOption,
    JsonOption,
    given_code,
    open_replacement,
    printable,
    reporting_errors,
)
from audit.cli.on_files import ACTOR, do
from audit.errors import NoLog
from audit.events.anchor import CheckpointCosigned
from audit.events.base import ANCHOR_TENANT
from audit.events.stamp import rfc3339
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog
from audit.log.receipt import Receipt
from audit.private.audit_context import AuditContext
from audit.storage.attested_files import WITNESSED
from audit.storage.location import exchange_attested_files, is_there, learn_successions, open_reader, publish_succession
from audit.storage.sqlite import no_log_at
from audit.storage.tiles import Folder
from audit.tree.cosignature import WitnessKey
from audit.tree.note import VerifierKey
from audit.verification.attestations import cosignature_of, text_digest
from audit.verification.selftest import selftest
from audit.witness.anchor import anchor
from audit.witness.late_trees import LateTrees, record_late_trees
from audit.witness.ntp import record_clock
from audit.witness.rotation import rotate
from audit.witness.timestamp import load_roots, timestamp
from audit.witness.witness import Witness
from audit.witness.witness_http import submit, witness_server


class SigningPlace(StrEnum):
    FILE = "file"
    VAULT = "vault"


app = typer.Typer()
witness_app = typer.Typer(no_args_is_help=True, help="Witnesses: a second party that cosigns what only grows.")
app.add_typer(witness_app, name="witness")


@app.command("anchor", epilog="Example:\n\n  domicile audit anchor")
def anchor_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Record the newest checkpoint of every tree in the anchor tree, whose checkpoint witnesses cosign.

    Also records replacements of the signing key in trees that began on a host which still had the old key. For a
    scheduler, every minute.
    """
    with reporting_errors(as_json):
        receipts = [str(receipt) for receipt in do(data, _anchored)]
        typer.echo(
            json.dumps({"ok": True, "receipts": receipts}) if as_json else f"{len(receipts)} checkpoints anchored."
        )


async def _anchored(context: AuditContext) -> list[Receipt]:
    await record_late_trees(context, LateTrees())
    return await anchor(context)


@app.command("clock", epilog="Example:\n\n  domicile audit clock --json")
def clock_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Put on record how right this machine's clock is, as its kernel knows it. For a scheduler, hourly."""
    with reporting_errors(as_json):
        state, _ = do(data, record_clock)
        says = "synchronised" if state.synchronised else "NOT synchronised"
        told = f"The clock is {says}, {state.offset_ms} ms off, at most {state.max_error_ms} ms."
        typer.echo(json.dumps({"ok": True, **asdict(state)}) if as_json else told)


@app.command("selftest", epilog="Example:\n\n  domicile audit selftest")
def selftest_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Test the record's safeguards: proofs, private values, erasures, a restore. For a scheduler, weekly.

    Each result is recorded. Exit code 1 if one does not pass.
    """
    with reporting_errors(as_json):
        log = (data or DEFAULT_DATA) / LOG_IN_DATA
        outcomes = do(data, lambda context: selftest(context, log if log.is_file() else None))
        passed = all(one.passed for one in outcomes)
        if as_json:
            typer.echo(json.dumps({"ok": passed, "checks": [asdict(one) for one in outcomes]}, indent=2))
        else:
            for one in outcomes:
                typer.echo(f"{'pass' if one.passed else 'FAIL'}  {one.check:15} {printable(one.says)}")
    raise typer.Exit(0 if passed else 1)


@app.command("rotate", epilog="Example:\n\n  domicile audit rotate --reason scheduled")
def rotate_command(
    data: DataOption = None,
    reason: Annotated[str, typer.Option("--reason", help="A code, not free text: it is recorded.")] = "scheduled",
    to: Annotated[
        SigningPlace | None, typer.Option("--to", help="Where the new key is kept (default: as configured).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Put a new signing key in place of the old, which introduces it in every tree. Gateways on this folder take it up.

    With secrets.vault.signing_key set, the new key is the newest version of that key in Vault; a version is made if the
    newest signs already. Moving between file and Vault works the same way: see docs/secrets.md.

    Gateways on other hosts continue with the old key until they are given the new key set: `domicile init
    --export-keys` here, `domicile init --keys` there.

    Give the new verifier key to every holder of the old one; with the succession in the data folder both verify all.
    """
    with reporting_errors(as_json):
        reason = given_code("--reason", reason)  # before the key is replaced
        log = (data or DEFAULT_DATA) / LOG_IN_DATA
        if not is_there(log):
            raise NoLog(no_log_at(log))
        learn_successions(log)
        node = f"cli-{os.getpid()}"
        opened = partial(AuditLog.open, log, node=node)
        key = asyncio.run(
            rotate(
                log.parent,
                partial(open_replacement.get(), log, None if to is None else to.value),
                lambda signer: opened(signer=signer),
                lambda: open_reader(log),
                at=rfc3339(int(time.time() * 1000)),
                actor=ACTOR,
                reason=reason,
                publish=partial(publish_succession, log, node),
            )
        )
        typer.echo(json.dumps({"ok": True, "key": str(key)}) if as_json else f"The log's key is now {key}")


@app.command("timestamp", epilog="Example:\n\n  domicile audit timestamp --url https://tsa.example --ca root.pem")
def timestamp_command(
    url: Annotated[str, typer.Option("--url", help="Of the time-stamping authority (RFC 3161 over HTTP).")],
    ca: Annotated[Path, typer.Option("--ca", help="The roots to trust, PEM.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have the anchor's last checkpoint time-stamped, and keep the token beside the log. For a scheduler, daily."""
    with reporting_errors(as_json):
        folder = ((data or DEFAULT_DATA) / LOG_IN_DATA).parent
        roots = load_roots(ca)
        event = do(data, lambda context: timestamp(context, folder, url, roots))
        told = {"ok": True, **event.model_dump(mode="json", exclude_none=True)}
        says = f"{event.tsa} stamped the anchor of size {event.size} at {event.gen_time}."
        typer.echo(json.dumps(told) if as_json else says)


@witness_app.command(
    "serve",
    epilog="Example:\n\n  domicile audit witness serve --folder /var/lib/witness --name acme.example/witness"
    " --log 'domicile.local/audit/acme+1a2b3c4d+AY…'",
)
def serve_command(
    folder: Annotated[Path, typer.Option("--folder", help="Holds the witness's key and what it saw.")],
    name: Annotated[str, typer.Option("--name", help="The witness's name; a key that exists keeps its own.")],
    log: Annotated[
        list[str], typer.Option("--log", help="Verifier key of a tree to watch, by its origin. Repeatable.")
    ],
    host: Annotated[str, typer.Option("--host")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8470,
) -> None:
    """Cosign checkpoints of the logs given, as long as each only grows. Runs until interrupted."""
    with reporting_errors(as_json=False):
        signer = FileSigner.open(folder / "witness.key", name=name)
        logs = {key.name: key for key in map(VerifierKey.parse, log)}
        witness = Witness(folder / "seen.db", signer.name, signer, logs)
        with witness_server(witness, host, port) as server:
            typer.echo(f"Witness {WitnessKey(signer.name, signer.public_key)}")
            typer.echo(f"listens on http://{host}:{server.server_address[1]}")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                pass
            finally:
                witness.close()


@witness_app.command("submit", epilog="Example:\n\n  domicile audit witness submit --url URL --key WITNESS_KEY")
def submit_command(
    url: Annotated[str, typer.Option("--url", help="Where the witness listens.")],
    key: Annotated[str, typer.Option("--key", help="The witness's key, as `serve` printed it.")],
    data: DataOption = None,
    tenant: Annotated[
        str, typer.Argument(metavar="[TENANT]", help="Whose tree (default: the anchor's).")
    ] = ANCHOR_TENANT,
    as_json: JsonOption = False,
) -> None:
    """Have the last checkpoint of a tree cosigned, and store it beside the log. Exit code 1 if the witness refuses."""
    with reporting_errors(as_json):
        path = (data or DEFAULT_DATA) / LOG_IN_DATA
        reader = open_reader(path)
        try:
            log = VerifierKey.parse(path.with_name("signer.vkey").read_text(encoding="utf-8"))
            witness = WitnessKey.parse(key)
            note, when = submit(reader, log, tenant, url, witness)
        finally:
            reader.close()
        kept = f"{tenant}-{re.sub(r'[^A-Za-z0-9.]+', '-', witness.name)}.note"
        Folder(path.with_name(WITNESSED)).write(kept, note.encode())
        exchange_attested_files(path)
        cosigned = CheckpointCosigned(
            tenant=tenant,
            size=int(note.splitlines()[1]),
            checkpoint_sha256=text_digest(note),
            witness=witness.name,
            cosignature=cosignature_of(note, witness),
        )
        do(data, lambda context: context.record(cosigned))
        said = f"{printable(witness.name)} cosigned {note.splitlines()[0]} at size {note.splitlines()[1]}."
        typer.echo(json.dumps({"ok": True, "time": when, "note": note}) if as_json else said)
