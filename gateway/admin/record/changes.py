"""Recorded changes: who changed what in a tenant, or in the installation; list, show and prove them.

Every read is recorded too, as that of a call (`gateway.admin.record.calls`).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from starlette.concurrency import run_in_threadpool

from audit.errors import AuditError
from audit.events.base import SYSTEM_TENANT
from audit.log.changes import ChangeFilter, ChangeLine, change, changes, types_of
from audit.log.receipt import Receipt
from audit.log.walk import checked_moment
from audit.tree.merkle import leaf_hash
from gateway.admin.calls.access import RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Limit, ResponseBody, Whole
from gateway.admin.people import Changer, changer
from gateway.admin.record.reading import OnRecord, Proof, Record
from gateway.database.errors import Invalid, NotFound
from gateway.identity.roles import Actor, Permission
from gateway.records.control import PersonRecord
from gateway.store.reports.actors import actors_of, persons_behind

SHOWN = "console"
Kind = Literal[
    "policies",
    "keys",
    "people",
    "projects",
    "limits",
    "fleet",
    "rights",
    "oversight",
    "incidents",
    "record",
    "sessions",
]
Text = Annotated[str | None, Query(max_length=256)]
Who = Annotated[str | None, Query(max_length=80, description="id of a person, or `actor` of a change")]
Before = Annotated[Whole | None, Query(ge=0, le=2**53 - 1, description="`before` of the page before")]


class ChangeShown(ResponseBody):
    """A change in short form. `actor`: as recorded; empty where the gateway acted by itself."""

    seq: int
    ts: str
    type: str
    kind: Kind
    actor: str
    person: Changer | None
    what: str
    project: str | None
    reason: str | None
    more: dict[str, str]


class Changes(ResponseBody):
    """A page of changes, newest first. `before`: value for the request of the next page, null if there is none."""

    items: tuple[ChangeShown, ...]
    before: int | None


class WholeChange(ResponseBody):
    """A change, its record as hashed, and the receipt of that."""

    change: ChangeShown
    record: dict[str, Any]
    receipt: str


def _in_the_path(tenant: str) -> str:
    return tenant


def _of_the_installation() -> str:
    return SYSTEM_TENANT


def _routes(prefix: str, permission: Permission, owner: Callable[..., str]) -> APIRouter:
    """The same routes for a tenant's record and the installation's."""
    router = APIRouter(prefix=f"{prefix}/changes", tags=["record"], route_class=IdempotentRoute)
    reading, whose = Depends(RequirePermission(permission)), Depends(owner)

    @router.get("")
    async def list_changes(
        actor: Annotated[Actor, reading],
        record: OnRecord,
        tenant: Annotated[str, whose],
        kind: Kind | None = None,
        who: Who = None,
        since: Text = None,
        until: Text = None,
        before: Before = None,
        limit: Limit = 50,
    ) -> Changes:
        """List changes, newest first; sign-ins only by their kind. A page reads a bounded part of the log."""
        return await _list(actor, record, tenant, (kind, who, since, until), before, limit)

    @router.get("/{change_number}")
    async def show_change(
        actor: Annotated[Actor, reading],
        record: OnRecord,
        tenant: Annotated[str, whose],
        change_number: int,
    ) -> WholeChange:
        """Return the change with this record. 404 if there is none."""
        return await _show(actor, record, tenant, change_number)

    @router.get("/{change_number}/proof")
    async def prove_change(
        actor: Annotated[Actor, reading],
        record: OnRecord,
        tenant: Annotated[str, whose],
        change_number: int,
    ) -> Proof:
        """Prove that the record is included in the log under a signed checkpoint. 422 if the proof fails or the next
        checkpoint is not signed yet."""
        return await _prove(actor, record, tenant, change_number)

    return router


Asked = tuple[Kind | None, str | None, str | None, str | None]


async def _list(actor: Actor, record: Record, tenant: str, asked: Asked, before: int | None, limit: int) -> Changes:
    kind, who, since, until = asked
    try:
        begin, end = (checked_moment(moment) if moment else None for moment in (since, until))
    except AuditError as error:
        raise Invalid(str(error)) from error

    def find() -> tuple[Any, Mapping[str, PersonRecord]]:
        _known(record, tenant)
        database = record.context.database
        actors = None if who is None else {who, *actors_of(database, who)}
        wanted = ChangeFilter(types_of(kind), actors, begin, end)
        with record.reading() as reader:
            page = changes(reader, tenant, wanted, record.context.changes, before=before, limit=limit)
        return page, persons_behind(database, {one.actor for one in page.changes})

    page, persons = await run_in_threadpool(find)
    await record.note_read(tenant, page.first, page.end, actor.name, SHOWN)
    return Changes(items=tuple(_shown(one, persons, actor, tenant) for one in page.changes), before=page.before)


async def _show(actor: Actor, record: Record, tenant: str, number: int) -> WholeChange:
    (line, event), receipt = await run_in_threadpool(_found, record, tenant, number)
    persons = await run_in_threadpool(persons_behind, record.context.database, [line.actor])
    await record.note_read(tenant, number, number + 1, actor.name, SHOWN)
    return WholeChange(change=_shown(line, persons, actor, tenant), record=event, receipt=str(receipt))


async def _prove(actor: Actor, record: Record, tenant: str, number: int) -> Proof:
    def prove() -> Proof:
        return record.prove(_found(record, tenant, number)[1])

    proven = await run_in_threadpool(prove)
    await record.note_read(tenant, number, number + 1, actor.name, "proof")
    return proven


def _known(record: Record, tenant: str) -> None:
    if tenant != SYSTEM_TENANT:
        record.known(tenant)


def _found(record: Record, tenant: str, number: int) -> tuple[tuple[ChangeLine, dict[str, Any]], Receipt]:
    """Return the change and its receipt. Raises NotFound."""
    _known(record, tenant)
    with record.reading() as reader:
        found = change(reader, tenant, number)
        leaf = next(iter(reader.leaves(tenant, number, number + 1)), None) if found else None
    if found is None or leaf is None:
        raise NotFound(f"record {number} is no change; look it up in the list of changes")
    return found, Receipt(tenant, number, leaf_hash(leaf.payload))


def _shown(line: ChangeLine, persons: Mapping[str, PersonRecord], reader: Actor, tenant: str) -> ChangeShown:
    fields = asdict(line)
    return ChangeShown(**fields, person=changer(persons.get(line.actor), reader, tenant))


router = _routes("/tenants/{tenant}", "record.read", _in_the_path)
installation_router = _routes("/operator", "staff.read", _of_the_installation)
