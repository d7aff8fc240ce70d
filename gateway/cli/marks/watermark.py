"""``domicile mark``: which watermarks a tenant's answers had, and whether a text has one of them."""

import asyncio
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel

from gateway.cli.marks.reading import NOT_TESTED, read_text
from gateway.cli.terminal.printing import print_json, print_table
from gateway.cli.terminal.shell import ACTOR, DEFAULT_DATA, AsJson, Data, Tenant, fail, opened_database
from gateway.configuration.bounds import Bounds

if TYPE_CHECKING:
    from audit.private.audit_context import AuditContext
    from gateway.database.database import Database
    from gateway.installation.installation import Installation
    from gateway.marks.asking import Allowed, Fetch
    from gateway.marks.detection import Detected
    from gateway.upstream.client import Target
    from gateway.upstream.http1 import Peer
    from regions.fleet.fleet import Backend

mark_app = typer.Typer(name="mark", help="Marks of answers: test a text for watermarks.", no_args_is_help=True)

NOT_FOUND = 1  # as grep(1) has it (POSIX), with NOT_TESTED
TIMEOUT_S = 60.0
WORDS = {
    "marked": "The text has the watermark of {period}: of unmarked texts, fewer than {p_below:g} are said to have one.",
    "not_found": "No watermark was found. A short, edited or certain text may have lost it, or never had one.",
    "too_short": "The text is too short to say: some 100 words are needed, of an edited text twice as many.",
    "untested": "Nothing could be tested: no backend of a marked model is up; start one, or name its --weights.",
}


COLUMNS = ("period", "models", "fingerprints")


class MarkedPeriod(BaseModel):
    """A month, the models whose answers were watermarked in it, and whether its fingerprints can be searched."""

    period: str
    models: tuple[str, ...]
    fingerprints: bool


@mark_app.command("list")
def list_marks(tenant: Tenant, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """List the months with marks: models whose answers were watermarked, and whether answers can be found by text.

    Example: domicile mark list acme
    """
    from gateway.store.lookup import tenant as lookup_tenant_row
    from gateway.store.marks import AnswerSalts, MarkKeys

    with opened_database(data) as (installation, database):
        with database.read() as session:
            lookup_tenant_row(session, tenant)
        models = {key.period: key.models for key in MarkKeys(database, installation.keys).all(tenant)}
        salted = {*AnswerSalts(database, installation.keys).periods(tenant)}
    months = sorted({*models} | salted, reverse=True)
    marked = [MarkedPeriod(period=at, models=models.get(at, ()), fingerprints=at in salted) for at in months]
    print_table(marked, COLUMNS, as_json)


@mark_app.command("detect")
def detect(
    tenant: Tenant,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The text, in UTF-8.")],
    project: Annotated[str, typer.Option(help="By whose policy the text may be processed: its backends read it.")],
    weights: Annotated[
        Path | None, typer.Option(help="Test here, by the tokenizer of this folder or GGUF file, for every month.")
    ] = None,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """Test whether a text was written by the tenant's models under a policy that demands a watermark.

    The answer holds for all keys and models together. That a text was tested goes on record, without the text. Exit
    code 0: it has a mark; 1: none was found; 2: nothing could be tested.

    Example: domicile mark detect acme letter.txt --project support
    """
    from audit.cli.private_values import do
    from audit.errors import AuditError
    from gateway.database.errors import ControlError, StoreError
    from gateway.installation.installation import Installation, InstallationError
    from policy.errors import PolicyError

    text = read_text(file)
    try:
        installation = Installation.open(data)
        with closing(installation.database()) as database:
            found = do(data, lambda context: _detected(installation, database, context, tenant, project, text, weights))
    except (AuditError, ControlError, InstallationError, PolicyError, StoreError, OSError) as error:
        fail(str(error), NOT_TESTED)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(WORDS[found.verdict].format(period=found.period, p_below=found.p_below))
        if found.untested_models:
            typer.echo(f"Not tested, since no backend of theirs is up: {', '.join(found.untested_models)}.")
    if found.verdict != "marked":
        raise typer.Exit(NOT_TESTED if found.verdict == "untested" else NOT_FOUND)


async def _detected(
    installation: "Installation", database: "Database", context: "AuditContext", tenant: str, project: str, text: str,
    weights: Path | None,
) -> "Detected":  # fmt: skip
    from backend.wire import MARKS_PATH
    from gateway.installation.installation import configured
    from gateway.marks.asking import Detection
    from gateway.request.recorder import connection_of
    from gateway.store.marks import MarkKeys
    from gateway.upstream.client import Upstream

    async def connected(backend: "Backend", peer: "Peer") -> None:
        if (event := connection_of(backend, peer)) is not None:
            await context.record(event)

    keys = MarkKeys(database, installation.keys)
    async with Upstream(Bounds(configured().requests), connected, installation.find_request_signer) as upstream:

        async def fetch(backend: "Backend | None", body: bytes) -> bytes | None:
            if backend is None:
                return None
            return await upstream.fetch(_target(installation, backend), MARKS_PATH, TIMEOUT_S, body)

        if weights is None:
            detection = Detection(keys, _allowed(installation, database), fetch, context.record)
        else:
            detection = Detection(keys, lambda *_: [None], _by_folder(weights), context.record)
        return await detection(tenant, project, text, ACTOR)


def _allowed(installation: "Installation", database: "Database") -> "Allowed":
    """The backends that may read a text, whether they are up or not."""
    from gateway.directory.backend_registry import BACKEND_FIELDS
    from gateway.policies.study import PolicyStudy
    from regions.fleet.fleet import Backend

    inventory = installation.inventory(database)
    study = PolicyStudy(inventory, installation.catalogue(), installation.open_reader)

    def allowed(tenant: str, project: str, model: str) -> "list[Backend | None]":
        decision = study.explain(tenant, project, model).decision
        may = {*decision.backends, *decision.pending}  # it counts tokens there; no model reads the text
        return [
            Backend.model_validate(record.model_dump(include=BACKEND_FIELDS))
            for record in inventory.backends(tenant)
            if record.id in may and record.revoked_at is None and record.kind == "domicile"
        ]

    return allowed


def _by_folder(weights: Path) -> "Fetch":
    """The test by a tokenizer on this host. Of the engine's packages nothing is loaded before."""
    tested_by = import_module("backend.cli.marks").tested_by

    async def fetch(_: "Backend | None", body: bytes) -> bytes | None:
        answer: bytes = await asyncio.to_thread(tested_by, weights, body)
        return answer

    return fetch


def _target(installation: "Installation", backend: "Backend") -> "Target":
    from gateway.upstream.client import Target

    credentials = installation.credentials()
    tls = (lambda: credentials.context_for(backend)) if backend.url.startswith("https:") else None
    return Target(backend.id, backend.url.rstrip("/"), tls, backend)
