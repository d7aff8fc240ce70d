"""Retention (GDPR 5(1)(e)): what is over its time is deleted, but for what is on hold, and the run is on record.

When a value is over its time was settled when it was kept (`Private.expires`), by the policy of that day.
"""

from contextlib import closing
from dataclasses import dataclass

from audit.custody import Custody
from audit.deletion import Wanted, due, expire, sweep
from audit.erasure import certify
from audit.errors import CanonicalError, EventRejected
from audit.leaf import decode_leaf
from audit.privacy_event import RetentionRun
from audit.side import SideStore
from audit.stamp import rfc3339
from audit.store import Reader


@dataclass(frozen=True, slots=True)
class RunReport:
    """Counts of values; `orphans` of leaves that never were. `oldest_expiry` of what remains, RFC 3339."""

    tenant: str
    run_id: str
    due: int
    deleted: int
    held: int
    orphans: int
    oldest_expiry: str | None
    certificate: str | None


async def preview(custody: Custody, tenant: str) -> RunReport:
    """What `run` would do now. Changes nothing, and is not recorded."""
    now = custody.now()
    over, held, oldest = await custody.at_side(lambda side: due(side, tenant, now))
    orphans = await custody.at_side(lambda side: _orphans(custody, side, tenant))
    return RunReport(tenant, "", over, over - held, held, len(orphans), _when(oldest), None)


async def run(custody: Custody, tenant: str) -> RunReport:
    """Delete what is over its time. Raises AuditUnavailable, StoreError; `audit.erasure.finish` then does the rest."""
    wanted = Wanted(custody.new_id(), tenant, "retention", None, custody.now(), custody.backup_days)
    orphans = await custody.at_side(lambda side: _orphans(custody, side, tenant))
    if orphans:
        await custody.at_side(lambda side: sweep(side, tenant, orphans))
    certificate, held = await custody.at_side(lambda side: expire(side, wanted))
    deleted = 0 if certificate is None else certificate.values
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
    )
    note = None
    if certificate is None:
        await custody.record(event)
    else:
        note = await certify(custody, certificate, event)
    return RunReport(tenant, wanted.id, deleted + held, deleted, held, len(orphans), _when(oldest), note)


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
