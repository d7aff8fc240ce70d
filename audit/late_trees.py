"""Trees that began under a key which had been replaced already, on a host that was not given the new key yet.

A rotation is recorded in every tree there is (`audit.rotation`). A tree that begins later, signed by a gateway that
still has the old key, would end up under two keys without a record of the change: here it is recorded.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from audit.anchor_event import KeyRotated
from audit.checkpoint import open_checkpoint, origin_of
from audit.custody import Custody
from audit.errors import NoteError
from audit.note import VerifierKey
from audit.receipt import Receipt
from audit.signer import successions_of
from audit.store import Reader
from audit.succession import digest, open_succession
from audit.walk import parsed

ACTOR = "system"
SKEW = timedelta(minutes=5)
"""By which the clocks of two hosts may differ: a tree that began so long before the rotation is looked at too."""


@dataclass(slots=True)
class LateTrees:
    """Which trees need not be looked at again; kept from one turn to the next."""

    settled: set[tuple[str, str]] = field(default_factory=set)


async def tell_late_trees(custody: Custody, known: LateTrees) -> list[Receipt]:
    """Record each replacement of the log's key in the trees that began after it and under the key before it."""
    notes = successions_of(custody.signer)
    late = await custody.in_thread(lambda: _late(custody, notes, known)) if notes else []
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
        receipts.append(await custody.record(event))
        known.settled.add((tenant, note))
    return receipts


def _late(custody: Custody, notes: list[str], known: LateTrees) -> list[tuple[str, str]]:
    found = []
    with custody.reading() as reader:
        for tenant in reader.tenants():
            for note in notes:
                if (tenant, note) in known.settled:
                    continue
                match _needs_telling(reader, tenant, note, custody.signer.name):
                    case True:
                        found.append((tenant, note))
                    case False:
                        known.settled.add((tenant, note))
    return found


def _needs_telling(reader: Reader, tenant: str, note: str, log: str) -> bool | None:
    """None while it cannot be said: the tree is not signed yet."""
    first = next(reader.leaves(tenant), None)
    if first is None or not first.payload:
        return None if first is None else False
    at = datetime.fromisoformat(note.split("\n")[3])
    if datetime.fromisoformat(str(parsed(first.payload).get("ts"))) < at - SKEW:
        return False
    signed = next(reader.checkpoints(tenant), None)
    if signed is None:
        return None
    before, _ = open_succession(note, log)
    with suppress(NoteError):
        open_checkpoint(signed.note, origin_of(log, tenant), before)
        new_key = str(VerifierKey.parse(note.split("\n")[2]))
        return not any(
            parsed(leaf.payload).get("new_key") == new_key
            for leaf in reader.leaves(tenant)
            if b'"log.key_rotated"' in leaf.payload
        )
    return False
