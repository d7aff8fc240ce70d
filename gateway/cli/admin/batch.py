"""``domicile batch``: the batches of tenants, how far they are, and an end to one."""

from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel

from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import (
    ACTOR,
    DEFAULT_DATA,
    AsJson,
    Data,
    OfTenant,
    fail,
    opened_database,
)

if TYPE_CHECKING:
    from gateway.records.batches import BatchRecord

batch_app = typer.Typer(name="batch", help="Batches of tenants: how far they are, and an end.", no_args_is_help=True)

Batch = Annotated[str, typer.Argument(metavar="BATCH", help="Id of the batch, as 'batch_0f3a…'.")]
COLUMNS = ("id", "tenant", "project", "status", "endpoint", "total", "completed", "failed", "created_at", "expires_at")


class BatchSummary(BaseModel):
    """A batch without its content: metadata and errors are sealed for its project."""

    id: str
    tenant: str
    project: str
    key_id: str
    status: str
    endpoint: str
    input_file: str
    output_file: str | None
    error_file: str | None
    total: int
    completed: int
    failed: int
    created_at: datetime
    in_progress_at: datetime | None
    cancelling_at: datetime | None
    ended_at: datetime | None
    expires_at: datetime


@batch_app.command("list")
def list_batches(
    tenant: OfTenant = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the newest first.")] = 50,
    data: Data = DEFAULT_DATA,
    as_json: AsJson = False,
) -> None:
    """List batches, the newest first, with the lines that are done.

    Example: domicile batch list acme
    """
    from gateway.store.batches.batches import StoredBatches

    with opened_database(data) as (installation, database):
        found = StoredBatches(database, installation.cell).all(tenant, limit)
    print_table([_summary(batch) for batch in found], COLUMNS, as_json)


@batch_app.command("show")
def show_batch(batch: Batch, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show one batch.

    Example: domicile batch show batch_0f3a9c5d2b7e4a1c8d6e0f21
    """
    from gateway.store.batches.batches import StoredBatches

    with opened_database(data) as (installation, database):
        found = StoredBatches(database, installation.cell).get(None, batch)
    print_one(_summary(found or _unknown()), as_json)


@batch_app.command("cancel")
def cancel_batch(batch: Batch, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Cancel a batch: no line of it begins any more, those under way are finished. It is on record first.

    Example: domicile batch cancel batch_0f3a9c5d2b7e4a1c8d6e0f21
    """
    from gateway.batches.batches import batch_event
    from gateway.installation.admin_record import recording
    from gateway.store.batches.batches import OPEN, StoredBatches

    with opened_database(data) as (installation, database):
        stored = StoredBatches(database, installation.cell)
        found = stored.get(None, batch) or _unknown()
        if found.status not in (*OPEN, "cancelling"):
            fail(f"the batch is {found.status} and cannot be cancelled; its files have what was done")
        if found.status in OPEN:
            with recording(installation) as append:
                append(batch_event("batch.cancelled", found, ACTOR))
        found = stored.cancel(None, batch, time()) or _unknown()
    print_one(_summary(found), as_json)


def _unknown() -> "BatchRecord":
    fail("there is no such batch; see `domicile batch list`")


def _summary(batch: "BatchRecord") -> BatchSummary:
    same = {name: getattr(batch, name) for name in BatchSummary.model_fields if hasattr(batch, name)}
    times = {name: _at(value) for name, value in same.items() if name.endswith("_at")}
    return BatchSummary(tenant=batch.owner.tenant, project=batch.owner.project, **{**same, **times})


def _at(instant: float | None) -> datetime | None:
    return None if instant is None else datetime.fromtimestamp(instant, UTC)
