"""Recorded model calls: list, show and prove them, and read stored content for a stated reason.

Every read is recorded too (GDPR 5(2), 32): `log.read` with the range of records shown, and `content.accessed`.
"""

from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from starlette.concurrency import run_in_threadpool

from audit.errors import AuditError
from audit.log.calls import CallFilter, call, call_line, calls, summary
from audit.log.receipt import Receipt
from audit.log.walk import checked_moment, size_of
from audit.privacy.rights import read
from audit.tree.merkle import leaf_hash
from gateway.admin.calls.access import RequirePermission
from gateway.admin.calls.idempotency import IdempotentRoute
from gateway.admin.calls.schemas import Body, Limit, Name, ResponseBody, Whole
from gateway.admin.record.reading import OnRecord, Proof, ReasonCode, Record, refusing
from gateway.database.errors import Invalid, NotFound
from gateway.identity.roles import Actor

router = APIRouter(prefix="/tenants/{tenant}/calls", tags=["record"], route_class=IdempotentRoute)
summary_router = APIRouter(tags=["record"], route_class=IdempotentRoute)

Auditor = Annotated[Actor, Depends(RequirePermission("record.read"))]
Reader = Annotated[Actor, Depends(RequirePermission("content.read"))]
Text = Annotated[str | None, Query(max_length=256)]
Outcome = Literal["completed", "aborted", "denied", "running"]
Before = Annotated[Whole | None, Query(ge=0, le=2**53 - 1, description="`before` of the page before")]
SHOWN = "console"
Commitment = Annotated[str | None, Query(pattern="^[0-9a-f]{64}$", description="`commits.subject` of a record")]


class Call(ResponseBody):
    """A call in short form. `seq`: number of its first record. `rule`: the rule that refused the call, or the reason of
    its abort."""

    seq: int
    ts: str
    request_id: str
    project: str
    key_id: str
    model: str
    endpoint: str
    outcome: Outcome
    region: str | None
    country: str | None
    rule: str | None
    status: int | None
    masked: int
    tokens_in: int | None
    tokens_out: int | None
    ttft_ms: int | None
    latency_ms: int | None


class Calls(ResponseBody):
    """A page of calls. `before`: value for the request of the next page, null if there is none."""

    items: tuple[Call, ...]
    before: int | None


class OnRecordAs(ResponseBody):
    """One record, as hashed."""

    seq: int
    record: dict[str, Any]


class WholeCall(ResponseBody):
    """All records of a call. `receipt`: receipt of the last record. `kept`: fields with stored content, by record."""

    call: Call
    records: tuple[OnRecordAs, ...]
    receipt: str
    kept: dict[int, tuple[str, ...]]


class ContentRequest(Body):
    reason: ReasonCode


class Content(ResponseBody):
    values: dict[str, Any]


class PlaceCount(ResponseBody):
    """Number of calls by place of processing and storage, controlling operator and legal basis (GDPR 44-49)."""

    region: str
    country: str
    storage_country: str
    operator: str
    parent_country: str
    basis: str
    calls: int


class Summary(ResponseBody):
    """Counts of the newest calls by outcome, rule, place and kind of masked data; times in milliseconds."""

    calls: int
    since: str | None
    outcomes: dict[str, int]
    rules: dict[str, int]
    places: tuple[PlaceCount, ...]
    masked: dict[str, int]
    latency_p50_ms: int | None
    latency_p95_ms: int | None
    ttft_p50_ms: int | None
    ttft_p95_ms: int | None


@summary_router.get("/tenants/{tenant}/calls-summary", dependencies=[Depends(RequirePermission("tenant.read"))])
def summarize_calls(record: OnRecord, tenant: str) -> Summary:
    """Return counts over the last thousand records, without individual calls."""
    record.known(tenant)
    with record.reading() as reader:
        found = summary(reader, tenant)
    places = tuple(
        PlaceCount(region=r, country=c, storage_country=s, operator=o, parent_country=p, basis=b, calls=count)
        for (r, c, s, o, p, b), count in sorted(found.places.items(), key=lambda each: -each[1])
    )
    fields = {name: getattr(found, name) for name in Summary.model_fields if name != "places"}
    return Summary(**fields, places=places)


@router.get("")
async def list_calls(
    actor: Auditor,
    record: OnRecord,
    tenant: str,
    project: Name | None = None,
    outcome: Outcome | None = None,
    region: Name | None = None,
    model: Text = None,
    request: Text = None,
    since: Text = None,
    until: Text = None,
    subject: Commitment = None,
    before: Before = None,
    limit: Limit = 50,
) -> Calls:
    """List calls, newest first. A page reads a bounded part of the log. `subject`: the commitment in a record, not the
    identifier of a person."""
    try:
        begin, end = (checked_moment(moment) if moment else None for moment in (since, until))
    except AuditError as error:
        raise Invalid(str(error)) from error
    wanted = CallFilter(project, outcome, region, model, request, begin, end, subject)

    def find() -> Any:
        record.known(tenant)
        with record.reading() as reader:
            return calls(reader, tenant, wanted, before=before, limit=limit)

    page = await run_in_threadpool(find)
    await record.note_read(tenant, page.first, page.end, actor.name, SHOWN)
    return Calls(items=tuple(Call(**asdict(one)) for one in page.calls), before=page.before)


@router.get("/{record_number}")
async def show_call(actor: Auditor, record: OnRecord, tenant: str, record_number: int) -> WholeCall:
    """Return the call that begins with this record. 404 if there is none."""
    found, last = await run_in_threadpool(_records_of, record, tenant, record_number)
    end = found[-1][0] + 1
    await record.note_read(tenant, record_number, end, actor.name, SHOWN)
    kept: dict[int, tuple[str, ...]] = {}
    for value in await record.audit.with_values(lambda side: list(side.kept(tenant, start=record_number, end=end))):
        if value.seq in {seq for seq, _ in found}:
            kept[value.seq] = (*kept.get(value.seq, ()), value.field)
    ended = found[-1][1] if len(found) > 1 else {}
    line = call_line(record_number, found[0][1], ended)
    return WholeCall(
        call=Call(**asdict(line)),
        records=tuple(OnRecordAs(seq=seq, record=event) for seq, event in found),
        receipt=str(last),
        kept=kept,
    )


@router.get("/{record_number}/proof")
async def prove_call(actor: Auditor, record: OnRecord, tenant: str, record_number: int) -> Proof:
    """Prove that the call's last record is included in the log under a signed checkpoint. 422 if the proof fails or the
    next checkpoint is not signed yet."""

    def prove() -> Proof:
        _, receipt = _records_of(record, tenant, record_number)
        return record.prove(receipt)

    proven = await run_in_threadpool(prove)
    await record.note_read(tenant, record_number, record_number + 1, actor.name, "proof")
    return proven


@router.post("/{record_number}/content")
async def read_content(
    actor: Reader, record: OnRecord, tenant: str, record_number: int, asked: ContentRequest
) -> Content:
    """Return the stored content of one record. The access, its actor and reason are recorded before the response."""

    def check() -> None:
        record.known(tenant)
        with record.reading() as reader:
            if record_number >= size_of(reader, tenant):
                raise NotFound(f"tenant {tenant!r} has no record {record_number}; check the number of the record")

    await run_in_threadpool(check)
    with refusing():
        shown = await read(record.audit, tenant, record_number, actor=actor.name, reason=asked.reason)
    return Content(values={one.kept.field: one.value for one in shown})


def _records_of(record: Record, tenant: str, seq: int) -> tuple[list[tuple[int, dict[str, Any]]], Receipt]:
    """Return the records of the call that begins with `seq`, and the receipt of the last one. Raises NotFound."""
    record.known(tenant)
    with record.reading() as reader:
        found = call(reader, tenant, seq)
        last = next(reader.leaves(tenant, found[-1][0], found[-1][0] + 1), None) if found else None
    if last is None:
        raise NotFound(f"no call begins with record {seq} of tenant {tenant!r}; look it up in the list of calls")
    return found, Receipt(tenant, last.seq, leaf_hash(last.payload))
