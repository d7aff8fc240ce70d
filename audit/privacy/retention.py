"""Retention (GDPR 5(1)(e)): what is over its time is deleted, but for what is on hold, and the run is on record.

When a private value is over its time was settled when it was kept (`Private.expires`), by the policy of that day. When
a record is, follows from its class (`audit.privacy.schedule`): its content goes, its hash stays, and every proof still
holds.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice

from audit.errors import AuditError, CanonicalError, EventRejected
from audit.events.leaf import decode_leaf
from audit.events.privacy import RetentionRun
from audit.events.stamp import rfc3339
from audit.log.walk import parsed, timestamp
from audit.privacy.schedule import DAY_MS, Due, Schedule
from audit.private.audit_context import AuditContext
from audit.private.deletion import DeletionRequest, Recorded, due, expire, sweep, would_expire
from audit.private.erasure import certify, finish
from audit.private.value_store import ValueStore
from audit.storage.store import Reader

logger = logging.getLogger(__name__)

MAX_RECORDS = 200_000
"""Records whose content one run deletes; what is left is for the next. It bounds the certificate."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """Counts of values, and of whole records; `orphans` are values of leaves that never were.

    `floored` calls were kept for six months although a lower period was set for them: they are of high risk.
    `oldest_expiry` of the values that remain, RFC 3339.
    """

    tenant: str
    run_id: str
    due: int
    deleted: int
    held: int
    orphans: int
    expired_records: int
    held_records: int
    floored: int
    oldest_expiry: str | None
    certificate: str | None


async def preview(context: AuditContext, tenant: str, schedule: Schedule | None = None) -> RunReport:
    """What `run` would do now. Changes nothing, and is not recorded."""
    now = context.now()
    over, held, oldest = await context.with_values(lambda side: due(side, tenant, now))
    orphans = await context.with_values(lambda side: _orphans(context, side, tenant))
    records, floored = await context.in_thread(lambda: _over(context, tenant, schedule, now))
    going, held_records = await context.with_values(lambda side: would_expire(side, tenant, now, records))
    counts = (len(orphans), len(going), held_records, floored)
    return RunReport(tenant, "", over, over - held, held, *counts, _when(oldest), None)


async def run(context: AuditContext, tenant: str, schedule: Schedule | None = None) -> RunReport:
    """Delete what is over its time; without a `schedule` private values alone.

    Raises AuditUnavailable, StoreError; `audit.private.erasure.finish` then does the rest.
    """
    wanted = DeletionRequest(context.new_id(), tenant, "retention", None, context.now(), context.backup_days)
    orphans = await context.with_values(lambda side: _orphans(context, side, tenant))
    if orphans:
        await context.with_values(lambda side: sweep(side, tenant, orphans))
    records, floored = await context.in_thread(lambda: _over(context, tenant, schedule, wanted.now))
    recorded = Recorded(partial(context.event_ids, tenant))
    certificate, held, held_records = await context.with_values(lambda side: expire(side, wanted, recorded, records))
    deleted = 0 if certificate is None else certificate.values
    expired = 0 if certificate is None else certificate.whole_records
    _, _, oldest = await context.with_values(lambda side: due(side, tenant, wanted.now))
    event = RetentionRun(
        tenant=tenant,
        run_id=wanted.id,
        due=deleted + held,
        deleted=deleted,
        held=held,
        orphans=len(orphans),
        oldest_expiry=_when(oldest),
        backups_until=None if certificate is None else certificate.backups_until,
        certificate_sha256=None if certificate is None else certificate.sha256(),
        expired_records=expired,
        held_records=held_records,
    )
    note = None
    if certificate is None:
        await context.record(event)
    else:
        note = await certify(context, certificate, event)
    counts = (len(orphans), expired, held_records, floored)
    return RunReport(tenant, wanted.id, deleted + held, deleted, held, *counts, _when(oldest), note)


async def run_all(
    context: AuditContext, schedule_of: Callable[[str], Schedule | None] = lambda tenant: Schedule()
) -> dict[str, RunReport]:
    """Finish interrupted deletions, then run for every tenant. Raises AuditUnavailable, StoreError.

    `schedule_of` gives a tenant's periods; None keeps its records. A tenant whose run fails does not keep the others
    from theirs; it is logged.
    """
    await finish(context)
    with context.reading() as reader:
        tenants = reader.tenants()
    reports: dict[str, RunReport] = {}
    for tenant in tenants:
        try:
            reports[tenant] = await run(context, tenant, schedule_of(tenant))
        except AuditError as error:
            logger.error(
                "retention for tenant %s could not be done: %s; remove this cause, the next run tries again",
                tenant,
                error,
            )
    return reports


def _over(context: AuditContext, tenant: str, schedule: Schedule | None, now: int) -> tuple[list[tuple[int, ...]], int]:
    """The first calls and other records whose time is over, at most MAX_RECORDS; and how many calls a floor kept."""
    if schedule is None:
        return [], 0
    finder = Due(schedule, now)

    def found(reader: Reader) -> Iterator[tuple[int, ...]]:
        for stored in reader.leaves(tenant):
            ts = timestamp(stored.payload)
            if not ts:
                continue  # it has expired before
            taken_at = round(datetime.fromisoformat(ts).timestamp() * 1000)
            if taken_at + DAY_MS > now:
                return  # no period is shorter than a day
            yield from finder.take(stored.seq, parsed(stored.payload), taken_at)

    with context.reading() as reader:
        return sorted(islice(found(reader), MAX_RECORDS)), finder.floored


def _when(expires: int | None) -> str | None:
    return None if expires is None else rfc3339(expires)


def _orphans(context: AuditContext, side: ValueStore, tenant: str) -> list[tuple[int, str]]:
    """Values whose place in the tree another event took; those beyond its end may be about to get theirs."""
    kept = sorted({(one.seq, one.event_id) for one in side.kept(tenant)})
    with closing(context.open_reader()) as reader:
        return [(seq, event_id) for seq, event_id in kept if _is_orphan(reader, tenant, seq, event_id)]


def _is_orphan(reader: Reader, tenant: str, seq: int, event_id: str) -> bool:
    stored = next(reader.leaves(tenant, seq, seq + 1), None)
    if stored is None or stored.seq != seq:
        return False
    try:
        return decode_leaf(stored.payload).stamp.event_id != event_id
    except (CanonicalError, EventRejected):
        return False  # a damaged leaf is for the verifier to judge, not for us to act on
