"""Rights of persons: access, erasure with its certificate, restriction, legal holds (GDPR 15-18).

A person is named by the identifier that applications give, in the body alone: it is in no URL and no log.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field, model_validator
from starlette.concurrency import run_in_threadpool

from audit.errors import AuditError
from audit.privacy.rights import answer, restrict
from audit.private.certificate import open_certificate
from audit.private.deletion import holds_of
from audit.private.erasure import certificates, erase, finish, place_hold, release_hold
from gateway.admin.calls.access import RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, ResponseBody
from gateway.admin.record.reading import OnRecord, ReasonCode, Subject, refusing
from gateway.database.errors import NotFound
from gateway.identity.roles import Actor

router = APIRouter(prefix="/tenants/{tenant}/rights", tags=["rights"], route_class=IdempotentRoute)

Officer = Annotated[Actor, Depends(RequirePermission("rights.act"))]
Number = Annotated[int, Field(ge=0, le=2**53 - 1)]


class Person(Body):
    subject: Subject = Field(repr=False)


class Scope(Body):
    """Of a person, or of records `first` to `last`."""

    subject: Subject | None = Field(None, repr=False)
    first: Number | None = None
    last: Number | None = None

    @property
    def records(self) -> tuple[int, int] | None:
        return None if self.first is None or self.last is None else (self.first, self.last)

    @model_validator(mode="after")
    def _ordered(self) -> "Scope":
        if (self.first is None) != (self.last is None) or (self.records is not None and self.records[0] > self.last):  # type: ignore[operator]  # then last is given
            raise ValueError("records are named by first and last; give both, the smaller one first")
        if self.subject is not None and self.records is not None:
            raise ValueError("a subject and records are named; give one of the two")
        return self


class Erasure(Scope):
    """What is erased: one of the two. The tenant as a whole is erased from a shell alone."""

    reason: ReasonCode = "data_subject_request"

    @model_validator(mode="after")
    def _of_something(self) -> "Erasure":
        if self.subject is None and self.records is None:
            raise ValueError("nothing to erase is named; give a subject, or first and last")
        return self


class NewHold(Scope):
    """With neither subject nor records: over the tenant as a whole."""

    reason: ReasonCode = "litigation"


class Restriction(Person):
    restricted: bool = True


class HoldRecord(ResponseBody):
    id: str
    key_id: str | None
    first: int | None
    last: int | None
    reason: str
    placed: int


class HoldPlaced(ResponseBody):
    id: str


class Certificate(ResponseBody):
    """`note`: the certificate as it is signed; `says`: what it says."""

    note: str
    says: dict[str, Any]


class Restricted(ResponseBody):
    restricted: bool


@router.post("/access")
async def answer_access(actor: Officer, record: OnRecord, tenant: str, person: Person) -> dict[str, Any]:
    """All that is kept of a person, with what Article 15(1) lists; that it was answered is on record first."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        evidence = await run_in_threadpool(record.context.evidence, tenant)
        return await answer(
            record.audit, tenant, person.subject, actor=actor.name, evidence=evidence,
            content=record.context.kept_content(),
        )  # fmt: skip


@router.post("/erase")
async def erase_values(actor: Officer, record: OnRecord, tenant: str, what: Erasure) -> Certificate:
    """Delete private values with their keys, for good. The log still verifies; a signed certificate says what is
    gone."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        await finish(record.audit)
        note = await erase(
            record.audit, tenant, subject=what.subject, records=what.records, actor=actor.name, reason=what.reason
        )
    return _certificate(record, tenant, note)


@router.get("/certificates", dependencies=[Depends(RequirePermission("rights.act"))])
async def list_certificates(record: OnRecord, tenant: str) -> tuple[Certificate, ...]:
    """Of every deletion so far, the oldest first."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        return tuple(_certificate(record, tenant, note) for note in await certificates(record.audit, tenant))


@router.post("/restrict")
async def restrict_person(actor: Officer, record: OnRecord, tenant: str, asked: Restriction) -> Restricted:
    """Keep the data of a person, and refuse to show or export it (GDPR 18); or lift that."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        await restrict(record.audit, tenant, asked.subject, restricted=asked.restricted, actor=actor.name)
    return Restricted(restricted=asked.restricted)


@router.get("/holds", dependencies=[Depends(RequirePermission("rights.act"))])
async def list_holds(record: OnRecord, tenant: str) -> tuple[HoldRecord, ...]:
    """Those that stand."""
    await run_in_threadpool(record.known, tenant)
    return await _holds(record, tenant)


@router.post("/holds", status_code=201)
async def create_hold(actor: Officer, record: OnRecord, tenant: str, new: NewHold) -> HoldPlaced:
    """From now on nothing that it covers is deleted."""
    await run_in_threadpool(record.known, tenant)
    with refusing():
        hold = await place_hold(
            record.audit, tenant, subject=new.subject, records=new.records, actor=actor.name, reason=new.reason
        )
    return HoldPlaced(id=hold)


@router.post("/holds/{hold}/release")
async def end_hold(actor: Officer, record: OnRecord, tenant: str, hold: str) -> HoldPlaced:
    """What it kept may be deleted again. 404 for one that does not stand."""
    await run_in_threadpool(record.known, tenant)
    if hold not in {one.id for one in await _holds(record, tenant)}:
        raise NotFound(f"no legal hold {hold!r} stands for tenant {tenant!r}; look it up in the list of holds")
    with refusing():
        await release_hold(record.audit, tenant, hold, actor=actor.name)
    return HoldPlaced(id=hold)


async def _holds(record: OnRecord, tenant: str) -> tuple[HoldRecord, ...]:
    standing = await record.audit.with_values(lambda side: holds_of(side, tenant))
    return tuple(
        HoldRecord(**{name: value for name, value in one._asdict().items() if name != "tenant"}) for one in standing
    )


def _certificate(record: OnRecord, tenant: str, note: str) -> Certificate:
    audit = record.audit
    try:
        says = open_certificate(note, audit.origin(tenant), audit.signer.public_key)
    except AuditError:  # signed by a key before this one: it is shown as it is
        return Certificate(note=note, says={})
    return Certificate(note=note, says=says.model_dump(mode="json", exclude_none=True))
