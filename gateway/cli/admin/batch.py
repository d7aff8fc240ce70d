"""``domicile batch``: the batches of tenants, how far they are, and an end to one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.printing import print_one, print_table
from gateway.cli.terminal.shell import (
    DEFAULT_DATA,
    AsJson,
    Data,
    OfTenant,
    opened_api,
    opened_database,
    plain_errors,
)

if TYPE_CHECKING:
    from gateway.cli.terminal.batches import Batches

batch_app = typer.Typer(name="batch", help="Batches of tenants: how far they are, and an end.", no_args_is_help=True)

Batch = Annotated[str, typer.Argument(metavar="BATCH", help="Id of the batch, as 'batch_0f3a…'.")]
COLUMNS = ("id", "tenant", "project", "status", "endpoint", "total", "completed", "failed", "created_at", "expires_at")


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
    with _opened_batches(data) as batches:
        found = batches.all(tenant, limit)
    print_table(found, COLUMNS, as_json)


@batch_app.command("show")
def show_batch(batch: Batch, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show one batch.

    Example: domicile batch show batch_0f3a9c5d2b7e4a1c8d6e0f21
    """
    with _opened_batches(data) as batches:
        found = batches.get(batch)
    print_one(found, as_json)


@batch_app.command("cancel")
def cancel_batch(batch: Batch, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Cancel a batch: no line of it begins any more, those under way are finished. It is on record first.

    Example: domicile batch cancel batch_0f3a9c5d2b7e4a1c8d6e0f21
    """
    with _opened_batches(data) as batches:
        found = batches.cancel(batch)
    print_one(found, as_json)


@contextmanager
def _opened_batches(data: Path) -> "Iterator[Batches]":
    """For a remote installation, the batches of the tenants that the user may see."""
    if (api := opened_api(data)) is not None:
        from gateway.cli.remote.batches import RemoteBatches

        with plain_errors():
            yield RemoteBatches(api)  # type: ignore[misc]  # the same methods
        return
    from gateway.cli.terminal.batches import Batches

    with opened_database(data) as (installation, database):
        yield Batches(installation, database)
