"""Batches of tenants, and an end to one, on an installation's own databases.

`gateway.cli.remote.batches` has the same methods over an admin API.
"""

from time import time
from typing import TYPE_CHECKING

from gateway.cli.terminal.shell import ACTOR
from gateway.database.errors import NotFound, NotReady
from gateway.installation.admin_record import recording
from gateway.records.batches import BatchRecord, BatchSummary, batch_event, summary_of
from gateway.store.batches.batches import OPEN, StoredBatches

if TYPE_CHECKING:
    from gateway.database.database import Database
    from gateway.installation.installation import Installation


class Batches:
    """All raise NotFound, DatabaseUnavailable."""

    def __init__(self, installation: "Installation", database: "Database") -> None:
        self._installation = installation
        self._inventory = installation.inventory(database)
        self._stored = StoredBatches(database, installation.cell)

    def all(self, tenant: str | None, limit: int) -> list[BatchSummary]:
        """Batches of a tenant, or of all, the newest first."""
        if tenant is not None:
            self._inventory.tenant(tenant)
        return [summary_of(batch) for batch in self._stored.all(tenant, limit)]

    def get(self, batch: str) -> BatchSummary:
        return summary_of(self._known(batch))

    def cancel(self, batch: str) -> BatchSummary:
        """Cancel a batch; that is recorded first. Raises NotReady for a batch that is over, AuditUnavailable."""
        found = self._known(batch)
        if found.status not in (*OPEN, "cancelling"):
            raise NotReady(f"the batch is {found.status} and cannot be cancelled; its files have what was done")
        if found.status in OPEN:
            with recording(self._installation) as append:
                append(batch_event("batch.cancelled", found, ACTOR))
        return summary_of(self._stored.cancel(None, batch, time()) or found)

    def _known(self, batch: str) -> BatchRecord:
        found = self._stored.get(None, batch)
        if found is None:
            raise NotFound("there is no such batch; see `domicile batch list`")
        return found
