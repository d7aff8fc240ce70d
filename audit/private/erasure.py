"""Erasure (GDPR 17) and legal holds: deletes values, keeps the tree valid, and certifies what was deleted.

    erasure.requested ─> holds checked ──held──> erasure.refused
                              └──free──> deleted ─> log of the file emptied ─> erasure.completed ─> certificate

Each step is durable before the next; `finish` takes up what a crash left between them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain

from audit.errors import AuditError, HeldError, StoreError
from audit.events.base import Event
from audit.events.event import InferenceAccepted, RoutingDecision
from audit.events.leaf import decode_leaf
from audit.events.privacy import ErasureCompleted, ErasureRefused, ErasureRequested, LegalHold, RetentionRun, Scope
from audit.private.audit_context import NEAR, AuditContext
from audit.private.certificate import Certificate, Recipient, sign_certificate
from audit.private.deletion import (
    RECORD,
    DeletionRequest,
    Hold,
    Recorded,
    certificates_of,
    erase_records,
    erase_subject,
    erase_tenant,
    holds_of,
    keep_certificate,
    unfinished,
)
from audit.private.value_store import ValueStore
from audit.storage.store import Reader, StoredLeaf
from audit.storage.tiles import Folder, forget

Routed = InferenceAccepted | RoutingDecision
"""An event that says where a call goes."""
FIRST_READ = 128
"""Records at first, of the course of a call after its intent."""
SCRUB_TRIES = 50
SCRUB_EVERY_S = 0.1


async def erase(
    context: AuditContext,
    tenant: str,
    *,
    subject: str | None = None,
    records: tuple[int, int] | None = None,
    actor: str = "system",
    reason: str = "data_subject_request",
) -> str:
    """Erase what is kept of `subject`, or of `records` (first, last), or of the whole tenant; returns the certificate.

    Raises HeldError, with nothing deleted, if a legal hold is in force; AuditError if nothing is kept of the subject or
    the records; AuditUnavailable or StoreError if it could not be completed: `finish` then does the rest.
    """
    scope: Scope = "subject" if subject is not None else "records" if records is not None else "tenant"
    key_id = None
    if subject is not None:
        key_id = await context.with_values(lambda side: side.subject_key(tenant, subject))
        if key_id is None:
            raise AuditError("nothing is kept under this subject; check the subject")
    if records is not None and not await context.with_values(lambda side: _keeps(context, side, tenant, *records)):
        raise AuditError(f"nothing is kept of records {records[0]} to {records[1]}; check the numbers of the records")
    erasure_id = context.new_id()
    requested = ErasureRequested(tenant=tenant, erasure_id=erasure_id, scope=scope, actor=actor, reason=reason)
    await context.record(requested)
    wanted = DeletionRequest(erasure_id, tenant, "erasure", scope, context.now(), context.backup_days)
    recorded = Recorded(partial(context.event_ids, tenant), partial(recipients, context, tenant))

    def delete(side: ValueStore) -> Certificate:
        if key_id is not None:
            return erase_subject(side, wanted, key_id, recorded)
        if records is not None:
            return erase_records(side, wanted, *records, recorded)
        return erase_tenant(side, wanted, recorded)

    try:
        certificate = await context.with_values(delete)
    except HeldError as error:
        await context.record(ErasureRefused(tenant=tenant, erasure_id=erasure_id, hold_ids=error.hold_ids[:64]))
        raise
    return await certify(context, certificate)


async def certify(context: AuditContext, certificate: Certificate, announcement: Event | None = None) -> str:
    """Empty the value store's log, record the deletion (as `announcement`, if given), sign and keep the certificate."""
    if certificate.scope == "tenant":
        await asyncio.to_thread(context.keys.destroy, certificate.tenant)
    await context.in_thread(partial(_prune, context, certificate))
    await _scrub(context)
    await context.record(announcement or _announcement(certificate))
    note = sign_certificate(certificate, context.origin(certificate.tenant), context.signer)
    await context.with_values(lambda side: keep_certificate(side, certificate.id, note))
    return note


async def finish(context: AuditContext) -> list[str]:
    """Carry through the deletions that were interrupted; returns their certificates."""
    return [await certify(context, certificate) for certificate in await context.with_values(unfinished)]


async def certificates(context: AuditContext, tenant: str) -> list[str]:
    return await context.with_values(lambda side: certificates_of(side, tenant))


def _keeps(context: AuditContext, side: ValueStore, tenant: str, first: int, last: int) -> bool:
    """Whether a value of one of these records is kept; those of records that were never written do not count."""
    kept = list(side.kept(tenant, start=first, end=last + 1))
    events = context.event_ids(tenant, sorted({one.seq for one in kept}))
    return any(events.get(one.seq) == one.event_id for one in kept)


def _prune(context: AuditContext, certificate: Certificate) -> None:
    """Delete the content of the records that the certificate covers whole; it may have been done before."""
    if RECORD not in certificate.covered:
        return
    spans = certificate.covered[RECORD]
    with context.reading() as reader:
        pruner = reader.pruner()
    with closing(pruner):
        for first, last in spans:
            pruner.prune(certificate.tenant, first, last)
    if context.tiles is not None:
        gone = chain.from_iterable(range(first, last + 1) for first, last in spans)
        with context.reading() as reader:
            forget(reader, certificate.tenant, Folder(context.tiles / certificate.tenant), gone)


def _announcement(certificate: Certificate) -> ErasureCompleted | RetentionRun:
    if certificate.cause == "retention":
        return RetentionRun(
            tenant=certificate.tenant,
            run_id=certificate.id,
            due=certificate.values,
            deleted=certificate.values,
            expired_records=certificate.whole_records,
            held=0,
            orphans=0,
            backups_until=certificate.backups_until,
            certificate_sha256=certificate.sha256(),
        )
    return ErasureCompleted(
        tenant=certificate.tenant,
        erasure_id=certificate.id,
        scope=certificate.scope or "records",
        records=certificate.records,
        values=certificate.values,
        keys=len(certificate.keys_destroyed),
        key_ids=certificate.keys_destroyed[:64],
        backups_until=certificate.backups_until,
        certificate_sha256=certificate.sha256(),
    )


async def _scrub(context: AuditContext) -> None:
    """A reader of the value store may hold its write-ahead log for a moment; no deletion counts until it lets go."""
    for attempt in range(SCRUB_TRIES):
        try:
            await context.with_values(ValueStore.scrub)
        except StoreError:
            if attempt == SCRUB_TRIES - 1:
                raise
            await asyncio.sleep(SCRUB_EVERY_S)
        else:
            return


def recipients(context: AuditContext, tenant: str, seqs: Sequence[int]) -> Iterable[Recipient]:
    """The backends that the calls in these records were sent to, as the records say."""
    sent: Counter[tuple[str, str, str]] = Counter()
    for event in routes(context, tenant, seqs):
        sent[event.operator_entity, event.inference_country, event.backend_id] += 1
    return [
        Recipient(operator_entity=operator, inference_country=country, backend_id=backend, calls=calls)
        for (operator, country, backend), calls in sorted(sent.items())
    ]


def routes(context: AuditContext, tenant: str, seqs: Sequence[int]) -> Iterator[Routed]:
    """Where each call among these records was sent: its intent, and every later backend up to its outcome.

    A call that moves to another backend has an event for that, which need not commit to a private value and so need not
    be among `seqs`. Raises EventRejected for one of `seqs` that is not a record.
    """
    found = [(seq, leaf.event) for seq, leaf in context.leaves(tenant, sorted(seqs))]
    intents = [(seq, event) for seq, event in found if isinstance(event, InferenceAccepted)]
    yield from (event for _, event in intents)
    calls = {event.request_id for _, event in intents}
    yield from (event for _, event in found if isinstance(event, RoutingDecision) and event.request_id not in calls)
    waiting = deque((seq, event.request_id) for seq, event in intents)
    with context.reading() as reader:
        while waiting:
            yield from _moves(_leaves_from(reader, tenant, waiting[0][0]), waiting)


def _leaves_from(reader: Reader, tenant: str, start: int) -> Iterator[StoredLeaf]:
    """As `Reader.leaves`, for who mostly wants a few: it reads more at a time the longer it is asked."""
    most, end = FIRST_READ, reader.head(tenant)[0]
    while start < end:
        yield from reader.leaves(tenant, start, start + most)
        start, most = start + most, 2 * most


def _moves(leaves: Iterable[StoredLeaf], waiting: deque[tuple[int, str]]) -> Iterator[RoutingDecision]:
    """Later backends of the first calls of `waiting` (number of the intent, request), up to a record at which none of
    them runs any more. The calls that were looked at are taken out of `waiting`."""
    running: set[str] = set()
    for stored in leaves:
        while waiting and waiting[0][0] <= stored.seq:
            running.add(waiting.popleft()[1])
        if not running:
            if waiting and waiting[0][0] - stored.seq <= NEAR:
                continue
            return
        if any(kind in stored.payload for kind in _AFTER_AN_INTENT):
            event = decode_leaf(stored.payload).event
            if event.request_id not in running:
                continue
            if isinstance(event, RoutingDecision):
                yield event
            else:
                running.discard(event.request_id)
    waiting.clear()


_AFTER_AN_INTENT = (b'"type":"routing.decision"', b'"type":"inference.completed"', b'"type":"inference.aborted"')
"""Texts in the canonical form of the records that follow an intent."""


# --- legal holds -----------------------------------------------------------------------------------------------------


async def place_hold(
    context: AuditContext,
    tenant: str,
    *,
    subject: str | None = None,
    records: tuple[int, int] | None = None,
    actor: str = "system",
    reason: str = "litigation",
) -> str:
    """From now on nothing of the subject, of the records (first, last) or of the tenant is deleted; returns its id.

    It takes effect before it is recorded, so that a crash in between deletes nothing. Raises AuditError if
    nothing is kept of the subject, or if not all of the records are on record.
    """
    if records is not None:
        await context.in_thread(lambda: _require_on_record(context, tenant, *records))
    hold_id = context.new_id()
    key_id = None
    if subject is not None:
        key_id = await context.with_values(lambda side: side.subject_key(tenant, subject))
        if key_id is None:
            raise AuditError("nothing is kept under this subject; check the subject")
    first, last = records or (None, None)
    hold = Hold(hold_id, tenant, key_id, first, last, reason, context.now())
    await context.with_values(partial(_stand, hold=hold))
    try:
        await context.record(_hold_event("legal_hold.placed", hold, actor))
    except AuditError:
        await context.with_values(partial(_fall, hold_id=hold_id))
        raise
    return hold_id


async def release_hold(context: AuditContext, tenant: str, hold_id: str, *, actor: str = "system") -> None:
    """Raises AuditError if no such hold is in force."""
    standing = {hold.id: hold for hold in await context.with_values(lambda side: holds_of(side, tenant))}
    if hold_id not in standing:
        raise AuditError(f"no legal hold {hold_id} is in force for tenant {tenant}; see `domicile audit hold list`")
    await context.record(_hold_event("legal_hold.released", standing[hold_id], actor))
    await context.with_values(partial(_fall, hold_id=hold_id))


def _require_on_record(context: AuditContext, tenant: str, first: int, last: int) -> None:
    """A hold on numbers that no record has yet would look like one on what was meant, and keep what comes later."""
    with context.reading() as reader:
        size, _ = reader.head(tenant)
    if not 0 <= first <= last < size:
        there = f"its records are 0 to {size - 1}" if size else "it has no record"
        raise AuditError(
            f"tenant {tenant} has no records {first} to {last}: {there}; check the numbers with `domicile audit show`"
        )


def _hold_event(kind: str, hold: Hold, actor: str) -> LegalHold:
    scope = "subject" if hold.key_id is not None else "records" if hold.first is not None else "tenant"
    return LegalHold.model_validate(
        {
            "type": kind,
            "tenant": hold.tenant,
            "hold_id": hold.id,
            "scope": scope,
            "actor": actor,
            "reason": hold.reason,
            "key_ids": (hold.key_id,) if hold.key_id else (),
            "first": hold.first,
            "last": hold.last,
        }
    )


def _stand(side: ValueStore, hold: Hold) -> None:
    with side.transaction() as db:
        db.execute(
            "INSERT INTO hold (id, tenant, key_id, first, last, reason, placed) VALUES (?, ?, ?, ?, ?, ?, ?)", hold
        )


def _fall(side: ValueStore, hold_id: str) -> None:
    with side.transaction() as db:
        db.execute("DELETE FROM hold WHERE id = ?", (hold_id,))
