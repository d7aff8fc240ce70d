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
from audit.private.custody import Custody
from audit.private.deletion import Recorded, Wanted, due, expire, sweep, would_expire
from audit.private.erasure import certify, finish
from audit.private.value_store import SideStore
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


async def preview(custody: Custody, tenant: str, schedule: Schedule | None = None) -> RunReport:
    """What `run` would do now. Changes nothing, and is not recorded."""
    now = custody.now()
    over, held, oldest = await custody.at_side(lambda side: due(side, tenant, now))
    orphans = await custody.at_side(lambda side: _orphans(custody, side, tenant))
    records, floored = await custody.in_thread(lambda: _over(custody, tenant, schedule, now))
    going, held_records = await custody.at_side(lambda side: would_expire(side, tenant, now, records))
    counts = (len(orphans), len(going), held_records, floored)
    return RunReport(tenant, "", over, over - held, held, *counts, _when(oldest), None)


async def run(custody: Custody, tenant: str, schedule: Schedule | None = None) -> RunReport:
    """Delete what is over its time; without a `schedule` private values alone.

    Raises AuditUnavailable, StoreError; `audit.private.erasure.finish` then does the rest.
    """
    wanted = Wanted(custody.new_id(), tenant, "retention", None, custody.now(), custody.backup_days)
    orphans = await custody.at_side(lambda side: _orphans(custody, side, tenant))
    if orphans:
        await custody.at_side(lambda side: sweep(side, tenant, orphans))
    records, floored = await custody.in_thread(lambda: _over(custody, tenant, schedule, wanted.now))
    recorded = Recorded(partial(custody.event_ids, tenant))
    certificate, held, held_records = await custody.at_side(lambda side: expire(side, wanted, recorded, records))
    deleted = 0 if certificate is None else certificate.values
    expired = 0 if certificate is None else certificate.whole_records
    _, _, oldest = await custody.at_side(lambda side: due(side, tenant, wanted.now))
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
        await custody.record(event)
    else:
        note = await certify(custody, certificate, event)
    counts = (len(orphans), expired, held_records, floored)
    return RunReport(tenant, wanted.id, deleted + held, deleted, held, *counts, _when(oldest), note)


async def run_all(
    custody: Custody, schedule_of: Callable[[str], Schedule | None] = lambda tenant: Schedule()
) -> dict[str, RunReport]:
    """Finish interrupted deletions, then run for every tenant. Raises AuditUnavailable, StoreError.

    `schedule_of` gives a tenant's periods; None keeps its records. A tenant whose run fails does not keep the others
    from theirs; it is logged.
    """
    await finish(custody)
    with custody.reading() as reader:
        tenants = reader.tenants()
    reports: dict[str, RunReport] = {}
    for tenant in tenants:
        try:
            reports[tenant] = await run(custody, tenant, schedule_of(tenant))
        except AuditError as error:
            logger.error("retention for tenant %s could not be done: %s", tenant, error)
    return reports


def _over(custody: Custody, tenant: str, schedule: Schedule | None, now: int) -> tuple[list[tuple[int, ...]], int]:
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

    with custody.reading() as reader:
        return sorted(islice(found(reader), MAX_RECORDS)), finder.floored


def _when(expires: int | None) -> str | None:
    return None if expires is None else rfc3339(expires)


def _orphans(custody: Custody, side: SideStore, tenant: str) -> list[tuple[int, str]]:
    """Values whose place in the tree another event took; those beyond its end may be about to get theirs."""
    kept = sorted({(one.seq, one.event_id) for one in side.kept(tenant)})
    with closing(custody.open_reader()) as reader:
        return [(seq, event_id) for seq, event_id in kept if _is_orphan(reader, tenant, seq, event_id)]


def _is_orphan(reader: Reader, tenant: str, seq: int, event_id: str) -> bool:
    stored = next(reader.leaves(tenant, seq), None)
    if stored is None or stored.seq != seq:
        return False
    try:
        return decode_leaf(stored.payload).stamp.event_id != event_id
    except (CanonicalError, EventRejected):
        return False  # a damaged leaf is for the verifier to judge, not for us to act on
