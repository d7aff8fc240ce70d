"""Incidents and their legal reporting deadlines (AI Act 73, NIS2 23, DORA 19, GDPR 33)."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from audit.events.stamp import rfc3339
from audit.incidents.incident import Case, close, notify, open_incident, update
from audit.law.deadlines import ClockTable, as_rows, load_clocks
from audit.log.walk import checked_moment
from gateway.admin.calls.access import RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, ResponseBody
from gateway.admin.record.reading import Moment, OnRecord, ReasonCode, Record, refusing
from gateway.database.errors import Invalid, NotFound
from gateway.identity.roles import Actor

router = APIRouter(prefix="/tenants/{tenant}/incidents", tags=["record"], route_class=IdempotentRoute)

Officer = Annotated[Actor, Depends(RequirePermission("rights.act"))]


class NewIncident(Body):
    """A new incident. `laws`: codes from `clocks.json`. Times are RFC 3339, UTC, with milliseconds. With `freeze`, none
    of the tenant's records from `since` to before `until` (RFC 3339 UTC, or a prefix: ``2026-03``), by default none at
    all, is deleted until the incident is closed with `release`."""

    laws: Annotated[tuple[ReasonCode, ...], Field(min_length=1, max_length=8)]
    aware_at: Moment | None = None
    classified_at: Moment | None = None
    severity: ReasonCode | None = None
    ai_system_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    since: Annotated[str, Field(max_length=32)] | None = None
    until: Annotated[str, Field(max_length=32)] | None = None
    freeze: bool = True


class NewFacts(Body):
    """What became known of an incident: further `laws`, since when it is known or classified, and its severity. What is
    left out stays as it is."""

    laws: Annotated[tuple[ReasonCode, ...], Field(max_length=8)] = ()
    aware_at: Moment | None = None
    classified_at: Moment | None = None
    severity: ReasonCode | None = None


class Told(Body):
    """A notification of an authority that the deadline `clock` requires."""

    clock: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$")]
    authority: Annotated[str, Field(min_length=1, max_length=200)]


class Closing(Body):
    reason: ReasonCode
    release: bool = False


class IncidentCase(ResponseBody):
    """An incident. `deadlines`: deadline of the notification of each authority, and whether it was made."""

    id: str
    opened: str
    closed: str | None
    laws: tuple[str, ...]
    severity: str | None
    ai_system_id: str | None
    moments: dict[str, str]
    hold_ids: tuple[str, ...]
    deadlines: tuple[dict[str, Any], ...]


@router.get("", dependencies=[Depends(RequirePermission("record.read"))])
def list_incidents(record: OnRecord, tenant: str) -> tuple[IncidentCase, ...]:
    """List all incidents in the order in which they were opened."""
    return tuple(_shown(record, case) for case in _cases(record, tenant))


@router.post("", status_code=201)
async def create_incident(actor: Officer, record: OnRecord, tenant: str, new: NewIncident) -> IncidentCase:
    """Record an incident. Its deadlines count from the time when someone became aware of it."""
    await run_in_threadpool(record.known, tenant)
    _check(load_clocks(), new.laws, new.severity)
    with refusing():
        period = {name: checked_moment(at) if at else None for name, at in (("since", new.since), ("until", new.until))}
        made = await open_incident(record.audit, tenant, actor=actor.name, **new.model_dump() | period)
    return await _one(record, tenant, made)


@router.post("/{incident}/update")
async def update_incident(actor: Officer, record: OnRecord, tenant: str, incident: str, new: NewFacts) -> IncidentCase:
    """Put new facts on record. Deadlines that count from them begin to run."""
    known, clocks = await _case(record, tenant, incident), load_clocks()
    changed = {name: value for name, value in new.model_dump().items() if value}
    if not changed:
        raise Invalid("nothing is changed; give laws, aware_at, classified_at or severity")
    _check(clocks, (*known.laws, *new.laws), new.severity)
    with refusing():
        await update(record.audit, tenant, incident, actor=actor.name, known=known, **changed)
    return await _one(record, tenant, incident)


@router.post("/{incident}/notify")
async def notify_incident(actor: Officer, record: OnRecord, tenant: str, incident: str, told: Told) -> IncidentCase:
    known = await _case(record, tenant, incident)
    names = sorted(one.name for one in load_clocks().clocks if one.law in known.laws)
    if told.clock not in names:
        raise Invalid(f"{told.clock} is not a deadline of this incident's laws; name one of {', '.join(names)}")
    with refusing():
        await notify(record.audit, tenant, incident, **told.model_dump(), actor=actor.name, known=known)
    return await _one(record, tenant, incident)


@router.post("/{incident}/close")
async def close_incident(actor: Officer, record: OnRecord, tenant: str, incident: str, how: Closing) -> IncidentCase:
    """Close an incident. With `release` its records may be deleted again."""
    known = await _case(record, tenant, incident)
    with refusing():
        await close(record.audit, tenant, incident, **how.model_dump(), actor=actor.name, known=known)
    return await _one(record, tenant, incident)


def _check(clocks: ClockTable, laws: Sequence[str], severity: str | None) -> None:
    """Raise Invalid for a law without deadlines, and for a severity that none of the laws defines."""
    if unknown := set(laws) - clocks.laws:
        raise Invalid(f"no deadlines are known for {', '.join(sorted(unknown))}; use {', '.join(sorted(clocks.laws))}")
    names = clocks.severity_names(laws)
    if severity is not None and severity not in names:
        raise Invalid(f"these laws do not define the severity {severity}; use one of {', '.join(names)}")


def _cases(record: Record, tenant: str) -> list[Case]:
    record.known(tenant)
    with refusing(), record.reading() as reader:
        return record.context.cases.of(reader, tenant)


async def _one(record: Record, tenant: str, incident: str) -> IncidentCase:
    return _shown(record, await _case(record, tenant, incident))


async def _case(record: Record, tenant: str, incident: str) -> Case:
    for case in await run_in_threadpool(_cases, record, tenant):
        if case.incident_id == incident:
            return case
    raise NotFound(f"tenant {tenant!r} has no incident {incident!r}; look it up in the list of incidents")


def _shown(record: Record, case: Case, clocks: ClockTable | None = None) -> IncidentCase:
    due = as_rows(case.deadlines(clocks or load_clocks()), rfc3339(record.audit.now()))
    return IncidentCase(
        id=case.incident_id,
        opened=case.opened,
        closed=case.closed,
        laws=case.laws,
        severity=case.severity,
        ai_system_id=case.ai_system_id,
        moments=case.moments,
        hold_ids=case.hold_ids,
        deadlines=tuple(due),
    )
