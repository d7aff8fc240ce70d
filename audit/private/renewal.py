"""A new key for an owner: everything under the old one is wrapped under the new one, then the old one is destroyed.

Each step may be repeated after a crash: a renewal that has begun is gone on with, rows that are done are left alone.
"""

from collections.abc import Callable

from audit.keys.owner_keys import KeyRing, generation_of
from audit.private.value_store import ValueStore

BATCH = 500


def waiting(side: ValueStore, tenant: str, generation: int) -> int:
    """How many data keys of a tenant are wrapped under an older key than `generation`."""
    return sum(generation_of(wrapped) < generation for _, _, wrapped in _rows(side, tenant))


def renew(
    side: ValueStore, ring: KeyRing, tenant: str, progress: Callable[[int], None] = lambda count: None
) -> tuple[int, int]:
    """Carry a renewal through; returns the generation now in force, and how many data keys were rewrapped.

    The gateway keeps running meanwhile: from the first step on it wraps under the new key. Raises KeyLost if the
    tenant's key was destroyed, KeyProviderError, StoreError.
    """
    generation = ring.begin_renewal(tenant)
    done = 0
    while due := [row for row in _rows(side, tenant) if generation_of(row[2]) < generation]:
        for start in range(0, len(due), BATCH):
            batch = due[start : start + BATCH]
            renewed = [(ring.wrap(tenant, ring.unwrap(tenant, old)), key, old) for _, key, old in batch]
            with side.transaction() as db:
                for (table, _, _), (new, key, old) in zip(batch, renewed, strict=True):
                    db.execute(_UPDATE[table], (new, key, old))  # not if it was erased meanwhile
            progress(len(batch))
            done += len(batch)
    with side.transaction():  # no writer is between wrapping under the old key and storing the result
        if not waiting(side, tenant, generation):
            ring.end_renewal(tenant)
    return generation, done


def _rows(side: ValueStore, tenant: str) -> list[tuple[str, str, bytes]]:
    return [
        (table, key, bytes(wrapped))
        for table, key, wrapped in side.rows(
            "SELECT 'data_key', id, wrapped FROM data_key WHERE tenant = ?"
            " UNION ALL SELECT 'pepper', tenant, wrapped FROM pepper WHERE tenant = ?",
            (tenant, tenant),
        )
    ]


_UPDATE = {
    "data_key": "UPDATE data_key SET wrapped = ? WHERE id = ? AND wrapped = ?",
    "pepper": "UPDATE pepper SET wrapped = ? WHERE tenant = ? AND wrapped = ?",
}
