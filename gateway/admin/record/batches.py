"""Batches of a tenant: how far they are, and an end to one, which is on record before it is in force."""

from time import time
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.concurrency import run_in_threadpool

from gateway.admin.calls.access import Context, RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Limit
from gateway.admin.record.reading import OnRecord
from gateway.database.errors import NotFound, NotReady
from gateway.identity.roles import Actor
from gateway.records.batches import BatchRecord, BatchSummary, batch_event, summary_of
from gateway.store.batches.batches import OPEN, StoredBatches

router = APIRouter(prefix="/tenants/{tenant}/batches", tags=["batches"], route_class=IdempotentRoute)

Reading = Depends(RequirePermission("tenant.read"))
Manager = Annotated[Actor, Depends(RequirePermission("projects.manage"))]


@router.get("", dependencies=[Reading])
def list_batches(context: Context, tenant: str, limit: Limit = 50) -> list[BatchSummary]:
    """The newest first, with the lines that are done. None of their content."""
    context.inventory.tenant(tenant)
    return [summary_of(batch) for batch in _stored(context).all(tenant, limit)]


@router.get("/{batch}", dependencies=[Reading])
def show_batch(context: Context, tenant: str, batch: str) -> BatchSummary:
    return summary_of(_batch(context, tenant, batch))


@router.post("/{batch}/cancel")
async def cancel_batch(actor: Manager, context: Context, record: OnRecord, tenant: str, batch: str) -> BatchSummary:
    """No line of it begins any more, those under way are finished. 409 for one that is over."""
    found = await run_in_threadpool(_batch, context, tenant, batch)
    if found.status not in (*OPEN, "cancelling"):
        raise NotReady(f"the batch is {found.status} and cannot be cancelled; its files have what was done")
    if found.status in OPEN:
        await record.audit.record(batch_event("batch.cancelled", found, actor.name))
    cancelled = await run_in_threadpool(_stored(context).cancel, found.owner, batch, time())
    return summary_of(cancelled or found)


def _stored(context: Context) -> StoredBatches:
    return StoredBatches(context.database, context.cell)


def _batch(context: Context, tenant: str, batch: str) -> BatchRecord:
    """Raises NotFound, also for another tenant's."""
    context.inventory.tenant(tenant)
    found = _stored(context).get(None, batch)
    if found is None or found.owner.tenant != tenant:
        raise NotFound("there is no such batch; see `domicile batch list`")
    return found
