"""Data subject rights: requests with their deadlines, access, erasure with a certificate, restriction and legal holds
(GDPR 12, 15-18).

A person is named by the identifier that applications use. It is sent in the body only and is in no URL and no log.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import Field as WireField
from pydantic import model_validator
from starlette.concurrency import run_in_threadpool

from audit.errors import AuditError
from audit.events.commitment import Field
from audit.events.stamp import rfc3339
from audit.incidents.subject_requests import Matter, extend, receive, settle
from audit.privacy.rights import answer, rectify, restrict
from audit.private.certificate import open_certificate
from audit.private.deletion import holds_of
from audit.private.erasure import certificates, erase, finish, place_hold, release_hold
from gateway.admin.calls.access import RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, ResponseBody
from gateway.admin.record.reading import Moment, OnRecord, ReasonCode, Record, Subject, refusing
from gateway.database.errors import NotFound
from gateway.identity.roles import Actor

router = APIRouter(prefix="/tenants/{tenant}/rights", tags=["rights"], route_class=IdempotentRoute)

Officer = Annotated[Actor, Depends(RequirePermission("rights.act"))]
Right = Literal["access", "rectification", "erasure", "restriction", "portability", "objection", "human_review"]
Number = Annotated[int, WireField(ge=0, le=2**53 - 1)]


class Person(Body):
    subject: Subject = WireField(repr=False)


class Scope(Body):
    """A person, or the records `first` to `last`."""

    subject: Subject | None = WireField(None, repr=False)
    first: Number | None = None
    last: Number | None = None

    @property
    def records(self) -> tuple[int, int] | None:
        return None if self.first is None or self.last is None else (self.first, self.last)

    @model_validator(mode="after")
    def _ordered(self) -> "Scope":
        if (self.first is None) != (self.last is None) or (self.records is not None and self.records[0] > self.last):  # type: ignore[operator]  # then last is given
            raise ValueError("records are a range from first to last; give both, the smaller one first")
        if self.subject is not None and self.records is not None:
            raise ValueError("both a subject and records are given; give one of the two")
        return self


class Erasure(Scope):
    """Scope of an erasure: a person or records. A whole tenant can be erased from a shell only."""

    reason: ReasonCode = "data_subject_request"

    @model_validator(mode="after")
    def _of_something(self) -> "Erasure":
        if self.subject is None and self.records is None:
            raise ValueError("nothing to erase is given; give a subject, or first and last")
        return self


class NewHold(Scope):
    """A legal hold. Without subject and records it covers the whole tenant."""

    reason: ReasonCode = "litigation"


class Restriction(Person):
    restricted: bool = True


class Correction(Body):
    """The right value of a field of record `seq`."""

    seq: Number
    field: Field
    value: Any = WireField(repr=False)


class NewRequest(Person):
    """A request of a person. `right`: what is asked for. `received_at`: RFC 3339, UTC, with milliseconds; now if it is
    not given."""

    right: Right
    received_at: Moment | None = None


class Extension(Body):
    """What the person was told: complexity or number_of_requests."""

    reason: ReasonCode


class Settlement(Body):
    """How a request ends. `act_seq`: the record of the act that answered it, with the outcome `answered` only."""

    outcome: Literal["answered", "answered_elsewhere", "refused", "withdrawn"]
    act_seq: Number | None = None
    reason: ReasonCode | None = None


class Act(ResponseBody):
    """An act on record that may answer a request."""

    seq: int
    ts: str
    type: str


class SubjectRequest(ResponseBody):
    """A request of a person, who is not named. `state`: running or overdue while it is open, else met or late.
    `records`: its own, of which the first commits to the person. `candidates`: acts since then that may answer it."""

    id: str
    right: str
    article: str
    received_at: str
    due_at: str
    state: str
    extended_at: str | None
    extension_reason: str | None
    closed_at: str | None
    outcome: str | None
    reason: str | None
    act_seq: int | None
    records: tuple[int, ...]
    candidates: tuple[Act, ...]


class HoldRecord(ResponseBody):
    id: str
    key_id: str | None
    first: int | None
    last: int | None
    reason: str
    placed: int


class HoldPlaced(ResponseBody):
    id: str


class HoldReleased(ResponseBody):
    """`open_incidents`: incidents that are not closed, and whose records the hold kept: they may be deleted now."""

    id: str
    open_incidents: tuple[str, ...]


class Certificate(ResponseBody):
    """A certificate of erasure. `note`: the signed certificate. `says`: its content."""

    note: str
    says: dict[str, Any]


class Corrected(ResponseBody):
    """Receipt of the record of a correction."""

    receipt: str


class Restricted(ResponseBody):
    restricted: bool


@router.post("/access")
async def answer_access(actor: Officer, record: OnRecord, tenant: str, person: Person) -> dict[str, Any]:
    """Return all stored data of a person, with the information of Article 15(1). The access is recorded first."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        evidence = await run_in_threadpool(record.context.evidence, tenant)
        return await answer(
            record.audit,
            tenant,
            person.subject,
            actor=actor.name,
            evidence=evidence,
            content=record.context.kept_content(),
        )


@router.post("/erase")
async def erase_values(actor: Officer, record: OnRecord, tenant: str, what: Erasure) -> Certificate:
    """Delete private values and their keys permanently. The log still verifies, and a signed certificate lists what was
    deleted."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        await finish(record.audit)
        note = await erase(
            record.audit, tenant, subject=what.subject, records=what.records, actor=actor.name, reason=what.reason
        )
    return _certificate(record, tenant, note)


@router.get("/certificates", dependencies=[Depends(RequirePermission("rights.act"))])
async def list_certificates(record: OnRecord, tenant: str) -> tuple[Certificate, ...]:
    """List the certificates of all deletions, oldest first."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        return tuple(_certificate(record, tenant, note) for note in await certificates(record.audit, tenant))


@router.post("/restrict")
async def restrict_person(actor: Officer, record: OnRecord, tenant: str, asked: Restriction) -> Restricted:
    """Restrict the data of a person: it is stored, but not shown or exported (GDPR 18). Or lift the restriction."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        await restrict(record.audit, tenant, asked.subject, restricted=asked.restricted, actor=actor.name)
    return Restricted(restricted=asked.restricted)


@router.post("/rectify", status_code=201)
async def rectify_value(actor: Officer, record: OnRecord, tenant: str, right: Correction) -> Corrected:
    """Record a corrected value beside the wrong one, which stays (GDPR 16)."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        receipt = await rectify(record.audit, tenant, right.seq, right.field, right.value, actor=actor.name)
    return Corrected(receipt=str(receipt))


@router.get("/holds", dependencies=[Depends(RequirePermission("rights.act"))])
async def list_holds(record: OnRecord, tenant: str) -> tuple[HoldRecord, ...]:
    """List the active legal holds."""
    await run_in_threadpool(record.known, tenant)
    return await _holds(record, tenant)


@router.post("/holds", status_code=201)
async def create_hold(actor: Officer, record: OnRecord, tenant: str, new: NewHold) -> HoldPlaced:
    """Place a legal hold. Data that it covers is not deleted from now on."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        hold = await place_hold(
            record.audit, tenant, subject=new.subject, records=new.records, actor=actor.name, reason=new.reason
        )
    return HoldPlaced(id=hold)


@router.post("/holds/{hold}/release")
async def end_hold(actor: Officer, record: OnRecord, tenant: str, hold: str) -> HoldReleased:
    """End a legal hold. Its data may be deleted again. 404 if the hold is not active."""
    await run_in_threadpool(record.known, tenant)
    if hold not in {one.id for one in await _holds(record, tenant)}:
        raise NotFound(f"tenant {tenant!r} has no active legal hold {hold!r}; look it up in the list of holds")
    with refusing():
        await release_hold(record.audit, tenant, hold, actor=actor.name)
    return HoldReleased(id=hold, open_incidents=await run_in_threadpool(_open_incidents, record, tenant, hold))


@router.get("/requests", dependencies=[Depends(RequirePermission("rights.act"))])
def list_requests(record: OnRecord, tenant: str) -> tuple[SubjectRequest, ...]:
    """List the requests of persons in the order in which they were recorded, with their deadlines (GDPR 12(3))."""
    return tuple(_shown(record, one) for one in _matters(record, tenant))


@router.post("/requests", status_code=201)
async def create_request(actor: Officer, record: OnRecord, tenant: str, new: NewRequest) -> SubjectRequest:
    """Record that a person made a request. It has to be answered within one month of its receipt."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        made = await receive(
            record.audit, tenant, right=new.right, subject=new.subject, received_at=new.received_at, actor=actor.name
        )
    return _shown(record, await _matter(record, tenant, made))


@router.post("/requests/{matter}/extend")
async def extend_request(actor: Officer, record: OnRecord, tenant: str, matter: str, how: Extension) -> SubjectRequest:
    """Record that the person was told that the answer takes up to two months longer, and why."""
    known = await _matter(record, tenant, matter)
    with refusing():
        await extend(record.audit, known, reason=how.reason, actor=actor.name)
    return _shown(record, await _matter(record, tenant, matter))


@router.post("/requests/{matter}/close")
async def close_request(actor: Officer, record: OnRecord, tenant: str, matter: str, how: Settlement) -> SubjectRequest:
    """Close a request: answered by the act of record `act_seq`, answered elsewhere, refused with a reason, or
    withdrawn."""
    known = await _matter(record, tenant, matter)
    with refusing():
        await settle(record.audit, known, **how.model_dump(), actor=actor.name)
    return _shown(record, await _matter(record, tenant, matter))


def _matters(record: Record, tenant: str) -> list[Matter]:
    record.known(tenant)
    with refusing(), record.reading() as reader:
        return record.context.requests.of(reader, tenant)


async def _matter(record: Record, tenant: str, matter_id: str) -> Matter:
    for one in await run_in_threadpool(_matters, record, tenant):
        if one.matter_id == matter_id:
            return one
    raise NotFound(f"tenant {tenant!r} has no request {matter_id!r}; look it up in the list of requests")


def _shown(record: Record, one: Matter) -> SubjectRequest:
    return SubjectRequest.model_validate(one.as_row(rfc3339(record.audit.now())))


def _open_incidents(record: Record, tenant: str, hold: str) -> tuple[str, ...]:
    with record.reading() as reader:
        known = record.context.cases.of(reader, tenant)
    return tuple(case.incident_id for case in known if case.closed is None and hold in case.hold_ids)


async def _holds(record: OnRecord, tenant: str) -> tuple[HoldRecord, ...]:
    standing = await record.audit.with_values(lambda side: holds_of(side, tenant))
    return tuple(
        HoldRecord(**{name: value for name, value in one._asdict().items() if name != "tenant"}) for one in standing
    )


def _certificate(record: OnRecord, tenant: str, note: str) -> Certificate:
    audit = record.audit
    try:
        says = open_certificate(note, audit.origin(tenant), audit.signer.public_key)
    except AuditError:  # signed by an earlier key: shown unverified
        return Certificate(note=note, says={})
    return Certificate(note=note, says=says.model_dump(mode="json", exclude_none=True))
