"""Incidents: opened, kept from deletion, notified and closed, each step on record; and what is due for each.

GDPR 33 and 34; AI Act 73 (whose logs are frozen by a legal hold); DORA 17 to 19; NIS2 23.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from audit.errors import AuditError
from audit.events.incident import Incident
from audit.events.stamp import rfc3339
from audit.incidents.timeline import check_moments
from audit.law.deadlines import ClockTable, Deadline, deadlines
from audit.log.walk import parsed, records
from audit.private.audit_context import AuditContext
from audit.private.erasure import place_hold, release_hold
from audit.storage.store import Reader

OF_INCIDENTS = b'"type":"incident.'
KINDS = ("incident.opened", "incident.updated", "incident.notified", "incident.closed")


@dataclass(slots=True)
class Case:
    """An incident as its events have it so far; moments in RFC 3339. `met` is when which clock was first met, `renewed`
    when last: a final report is due from the latest intermediate one (RTS 2025/301 Art. 5(1)(c))."""

    incident_id: str
    tenant: str
    opened: str
    laws: tuple[str, ...] = ()
    severity: str | None = None
    ai_system_id: str | None = None
    since: str | None = None
    until: str | None = None
    moments: dict[str, str] = field(default_factory=dict)
    met: dict[str, str] = field(default_factory=dict)
    renewed: dict[str, str] = field(default_factory=dict)
    hold_ids: tuple[str, ...] = ()
    closed: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)

    def deadlines(self, clocks: ClockTable) -> list[Deadline]:
        return deadlines(clocks, self.laws, self.moments, self.met, self.severity, self.renewed)

    def take(self, seq: int, event: dict[str, Any]) -> None:
        self.events.append({"seq": seq, **event})
        self.laws = tuple(dict.fromkeys((*self.laws, *event.get("laws", ()))))
        self.hold_ids = (*self.hold_ids, *event.get("hold_ids", ()))
        for name in ("severity", "ai_system_id", "since", "until"):
            if name in event:
                setattr(self, name, event[name])
        for name in ("detected", "aware", "classified"):
            if f"{name}_at" in event:
                self.moments[name] = event[f"{name}_at"]
        if event["type"] == "incident.notified" and "clock" in event:
            self.met.setdefault(event["clock"], event["ts"])
            self.renewed[event["clock"]] = event["ts"]
        if event["type"] == "incident.closed":
            self.closed = event["ts"]


def cases(reader: Reader, tenant: str) -> list[Case]:
    """The incidents of a tenant, in the order in which they were opened."""
    found: dict[str, Case] = {}
    take_records(found, reader, tenant)
    return list(found.values())


def take_records(found: dict[str, Case], reader: Reader, tenant: str, start: int = 0, end: int | None = None) -> None:
    """Add what the records from `start` to before `end` say to the cases by id in `found`."""
    for leaf in reader.leaves(tenant, start, end):
        if OF_INCIDENTS not in leaf.payload:
            continue  # parsing a million records of calls would take a minute
        seq, event = leaf.seq, parsed(leaf.payload)
        if event.get("type") in KINDS and "ts" in event:
            known = found.setdefault(event["incident_id"], Case(event["incident_id"], tenant, event["ts"]))
            known.take(seq, event)


def case_of(reader: Reader, tenant: str, incident_id: str) -> Case:
    """Raises AuditError if there is no such incident."""
    for case in cases(reader, tenant):
        if case.incident_id == incident_id:
            return case
    raise AuditError(f"tenant {tenant} has no incident {incident_id}; see `domicile audit incident list`")


def open_cases_of_hold(reader: Reader, tenant: str, hold_id: str) -> list[Case]:
    """The open incidents whose records the hold keeps."""
    return [case for case in cases(reader, tenant) if case.closed is None and hold_id in case.hold_ids]


async def open_incident(
    context: AuditContext,
    tenant: str,
    *,
    laws: Sequence[str],
    actor: str = "system",
    detected_at: str | None = None,
    aware_at: str | None = None,
    classified_at: str | None = None,
    severity: str | None = None,
    ai_system_id: str | None = None,
    since: str | None = None,
    until: str | None = None,
    freeze: bool = True,
) -> str:
    """Put an incident on record and, with `freeze`, keep the records concerned from every deletion; returns its id.

    The hold is over the records from `since` to `until`, without either over the tenant's whole log. Moments in
    RFC 3339 UTC with milliseconds. Raises AuditError, with nothing on record, for moments in the future or out of
    order. Unless it is said when it was detected, that was when it was known at the latest.
    """
    now = rfc3339(context.now())
    moments = {"detected": detected_at, "aware": aware_at, "classified": classified_at}
    known = {name: moment for name, moment in moments.items() if moment is not None}
    check_moments(known, now, since, until)
    hold_ids: tuple[str, ...] = ()
    if freeze:
        span = await context.in_thread(lambda: _span(context, tenant, since, until))
        hold_ids = (await place_hold(context, tenant, records=span, actor=actor, reason="incident"),)
    incident_id = context.new_id()
    opened = Incident.model_validate(
        {
            "type": "incident.opened",
            "tenant": tenant,
            "incident_id": incident_id,
            "actor": actor,
            "laws": tuple(laws),
            "severity": severity,
            "ai_system_id": ai_system_id,
            "detected_at": min([now, *known.values()]) if detected_at is None else detected_at,
            "aware_at": aware_at,
            "classified_at": classified_at,
            "since": since,
            "until": until,
            "hold_ids": hold_ids,
        }
    )
    await context.record(opened)
    return incident_id


def _span(context: AuditContext, tenant: str, since: str | None, until: str | None) -> tuple[int, int] | None:
    if since is None and until is None:
        return None
    with context.reading() as reader:
        seqs = [seq for seq, _ in records(reader, tenant, since, until)]
    if not seqs:
        raise AuditError("there is no record in that period, so nothing could be kept; give another --since or --until")
    return seqs[0], seqs[-1]


async def update(
    context: AuditContext,
    tenant: str,
    incident_id: str,
    *,
    actor: str = "system",
    known: Case | None = None,
    **changed: Any,
) -> None:
    """New facts of an incident: aware_at, classified_at, severity, laws, reason. `known` as in `notify`. Raises
    AuditError."""
    await _go_on(context, tenant, incident_id, "incident.updated", actor, changed, known)


async def notify(
    context: AuditContext,
    tenant: str,
    incident_id: str,
    *,
    clock: str,
    authority: str,
    actor: str = "system",
    known: Case | None = None,
) -> None:
    """An authority was informed, as `clock` requires. `known`: the incident as it is now; without it the whole log is
    read. Raises AuditError."""
    told = {"clock": clock, "authority": authority}
    await _go_on(context, tenant, incident_id, "incident.notified", actor, told, known)


async def close(
    context: AuditContext,
    tenant: str,
    incident_id: str,
    *,
    reason: str,
    release: bool = False,
    actor: str = "system",
    known: Case | None = None,
) -> None:
    """The incident is over; with `release` its records may be deleted again. `known` as in `notify`. Raises
    AuditError."""
    case = await _go_on(context, tenant, incident_id, "incident.closed", actor, {"reason": reason}, known)
    if release:
        for hold_id in case.hold_ids:
            await release_hold(context, tenant, hold_id, actor=actor)


async def _go_on(
    context: AuditContext,
    tenant: str,
    incident_id: str,
    kind: str,
    actor: str,
    fields: dict[str, Any],
    known: Case | None = None,
) -> Case:
    def find() -> Case:
        with context.reading() as reader:
            return case_of(reader, tenant, incident_id)

    case = await context.in_thread(find) if known is None else known
    if case.closed is not None:
        raise AuditError(f"the incident {incident_id} was closed at {case.closed}; create a new one, if it continues")
    given = {name: fields[f"{name}_at"] for name in ("aware", "classified") if fields.get(f"{name}_at") is not None}
    check_moments(case.moments | given, rfc3339(context.now()), case.since, case.until)
    common = {"type": kind, "tenant": tenant, "incident_id": incident_id, "actor": actor}
    await context.record(Incident.model_validate(common | fields))
    return case
