"""Trees that began under a key which had been replaced already, on a host that was not given the new key yet.

A rotation is recorded in every tree there is (`audit.witness.rotation`). A tree that begins later, signed by a gateway
that still has the old key, would end up under two keys without a record of the change: here it is recorded.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from audit.errors import NoteError
from audit.events.anchor import KeyRotated
from audit.keys.signer import successions_of
from audit.keys.succession import digest, open_succession
from audit.log.receipt import Receipt
from audit.log.walk import parsed
from audit.private.audit_context import AuditContext
from audit.storage.store import Reader
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import open_checkpoint, origin_of

ACTOR = "system"
RECORDED_EVERY_S = 60
"""How often a gateway looks, at least. `audit.verification.verify` allows a change that is not recorded yet for longer
than that."""
SKEW = timedelta(minutes=5)
"""By which the clocks of two hosts may differ: a tree that began so long before the rotation is looked at too."""


@dataclass(slots=True)
class LateTrees:
    """What need not be looked at again; kept from one turn to the next.

    `settled` holds trees and successions that are done with; `examined`, for each other pair, the size of the last
    checkpoint that was looked at: a gateway that still has the old key may sign a tree that began under the new one.
    """

    settled: set[tuple[str, str]] = field(default_factory=set)
    examined: dict[tuple[str, str], int] = field(default_factory=dict)


async def record_late_trees(context: AuditContext, known: LateTrees) -> list[Receipt]:
    """Record each replacement of the log's key in the trees that began after it and under the key before it."""
    notes = successions_of(context.signer)
    late = await context.in_thread(lambda: _late(context, notes, known)) if notes else []
    receipts = []
    for tenant, note in late:
        lines = note.split("\n")
        event = KeyRotated(
            tenant=tenant,
            actor=ACTOR,
            old_key=lines[1],
            new_key=lines[2],
            succession_sha256=digest(note),
            reason="accepted",
        )
        receipts.append(await context.record(event))
        known.settled.add((tenant, note))
    return receipts


def _late(context: AuditContext, notes: list[str], known: LateTrees) -> list[tuple[str, str]]:
    found = []
    with context.reading() as reader:
        for tenant in reader.tenants():
            for note in notes:
                if (tenant, note) in known.settled:
                    continue
                if _began_before(reader, tenant, note):
                    known.settled.add((tenant, note))
                elif _signed_by_the_old_key(reader, tenant, note, context.signer.name, known):
                    if _is_recorded(reader, tenant, note):
                        known.settled.add((tenant, note))
                    else:
                        found.append((tenant, note))
    return found


def _began_before(reader: Reader, tenant: str, note: str) -> bool:
    """Whether the tree began before the key was replaced, so that the rotation itself recorded it there."""
    first = next(reader.leaves(tenant), None)
    if first is None:
        return False
    at = datetime.fromisoformat(note.split("\n")[3])
    return not first.payload or datetime.fromisoformat(str(parsed(first.payload).get("ts"))) < at - SKEW


def _is_recorded(reader: Reader, tenant: str, note: str) -> bool:
    """Whether a record of the replacement is in the tree."""
    new_key = str(VerifierKey.parse(note.split("\n")[2]))
    return any(
        parsed(leaf.payload).get("new_key") == new_key
        for leaf in reader.leaves(tenant)
        if b'"log.key_rotated"' in leaf.payload
    )


def _signed_by_the_old_key(reader: Reader, tenant: str, note: str, log: str, known: LateTrees) -> bool:
    last = reader.last_checkpoint(tenant)
    seen = known.examined.get((tenant, note), -1)
    if last is None or last.size <= seen:
        return False
    before, _ = open_succession(note, log)
    for signed in reader.checkpoints(tenant):
        if signed.size > seen:
            with suppress(NoteError):
                open_checkpoint(signed.note, origin_of(log, tenant), before)
                return True
    known.examined[tenant, note] = last.size
    return False
