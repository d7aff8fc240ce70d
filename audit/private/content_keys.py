"""Data keys for content that is stored outside of the value store, such as the lines of a file of a batch.

The value store holds the keys and no byte of that content. So the content is erased where its key is: with its person
(GDPR 17), with its tenant, and in every backup and free page of the database that holds the ciphertext. The content of
a person is sealed under the same key as the person's values (`audit.private.value_store`).

A holder is what the content belongs to, by a name of the caller's choice. A key stays while a value or a holder uses
it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.errors import HeldError
from audit.private.deletion import holds_of, key_in_use
from audit.private.value_database import USES, ValueDatabase
from audit.private.value_store import LOOKED_UP, ValueStore


@dataclass(frozen=True, slots=True)
class ContentKey:
    """`id`: what to keep beside the ciphertext."""

    id: str
    cipher: AESGCM


def lend(side: ValueStore, tenant: str, holder: str, subjects: Collection[str | None]) -> dict[str | None, ContentKey]:
    """The keys of persons, made where a person has none; None stands for content of no known person, under a key of the
    holder's own. Durable when it returns. Raises KeyLost, StoreError."""
    _make_table(side)
    persons = [subject for subject in subjects if subject is not None]
    with side.transaction(adds_only=True) as db:
        keys: dict[str | None, ContentKey] = {}
        for subject, key in side.person_keys(tenant, persons).items():
            keys[subject] = ContentKey(*key)
        if None in subjects:
            keys[None] = ContentKey(*side.own_key(tenant, holder))
        _note(db, tenant, holder, [key.id for key in keys.values()])
    return keys


def share(side: ValueStore, tenant: str, holder: str, other: str) -> None:
    """`other` uses from now on the keys that `holder` uses now."""
    _make_table(side)
    with side.transaction(adds_only=True) as db:
        query = "SELECT key_id FROM key_use WHERE tenant = ? AND holder = ?"
        _note(db, tenant, other, [key for (key,) in db.execute(query, (tenant, holder)).fetchall()])


def opened(side: ValueStore, tenant: str, key_ids: Collection[str]) -> Mapping[str, AESGCM]:
    """By id. A key that was destroyed, or whose person's data is restricted (GDPR 18), is absent."""
    wanted = sorted(set(key_ids))
    known: dict[str, bytes] = {}
    for start in range(0, len(wanted), LOOKED_UP):
        some = wanted[start : start + LOOKED_UP]
        places = ",".join("?" * len(some))
        query = f"SELECT id, wrapped FROM data_key WHERE tenant = ? AND restricted = 0 AND id IN ({places})"  # noqa: S608
        known |= {key: bytes(wrapped) for key, wrapped in side.rows(query, (tenant, *some))}
    return {key: AESGCM(raw) for key, raw in zip(known, side.unwrapped(tenant, list(known.values())), strict=True)}


def of_person(side: ValueStore, tenant: str, key_id: str) -> AESGCM | None:
    """A person's data key for an access request, also where their data is restricted; None where it was destroyed."""
    rows = list(side.rows("SELECT wrapped FROM data_key WHERE tenant = ? AND id = ?", (tenant, key_id)))
    return AESGCM(side.unwrapped(tenant, [bytes(rows[0][0])])[0]) if rows else None


def release(side: ValueStore, tenant: str, holder: str) -> int:
    """Destroy the keys that nothing but `holder` uses; how many. Raises HeldError, with nothing destroyed, where a
    legal hold covers any of what it uses."""
    if not side.has_table(USES):
        return 0
    with side.transaction() as db:
        query = "SELECT key_id FROM key_use WHERE tenant = ? AND holder = ?"
        used = [key for (key,) in db.execute(query, (tenant, holder)).fetchall()]
        held = [hold.id for hold in holds_of(side, tenant) if any(hold.covers_key(key) for key in used)]
        if held:
            raise HeldError(tuple(held))
        db.execute("DELETE FROM key_use WHERE tenant = ? AND holder = ?", (tenant, holder))
        unused = [key for key in used if not key_in_use(db, key)]
        db.executemany("DELETE FROM data_key WHERE id = ?", [(key,) for key in unused])
    return len(unused)


def release_all(side: ValueStore, tenant: str, holders: Collection[str]) -> list[str]:
    """As `release` of each, in one transaction, but for those whose keys a legal hold covers; which were released."""
    if not side.has_table(USES):
        return list(holders)
    released = []
    with side.transaction() as db:
        holds = holds_of(side, tenant)
        for holder in holders:
            query = "SELECT key_id FROM key_use WHERE tenant = ? AND holder = ?"
            used = [key for (key,) in db.execute(query, (tenant, holder)).fetchall()]
            if any(hold.covers_key(key) for hold in holds for key in used):
                continue
            db.execute("DELETE FROM key_use WHERE tenant = ? AND holder = ?", (tenant, holder))
            unused = [key for key in used if not key_in_use(db, key)]
            db.executemany("DELETE FROM data_key WHERE id = ?", [(key,) for key in unused])
            released.append(holder)
    return released


def is_held(side: ValueStore, tenant: str, holder: str) -> bool:
    """Whether a legal hold covers what `holder` uses."""
    if not side.has_table(USES):
        return False
    used = side.rows("SELECT key_id FROM key_use WHERE tenant = ? AND holder = ?", (tenant, holder))
    return any(hold.covers_key(key) for hold in holds_of(side, tenant) for (key,) in used)


def _make_table(side: ValueStore) -> None:
    """In a value store from before there was one."""
    if not side.has_table(USES):
        with side.transaction() as db:
            for statement in USES_TABLE:
                db.execute(statement)


USES_TABLE = (
    "CREATE TABLE IF NOT EXISTS key_use (tenant TEXT NOT NULL, holder TEXT NOT NULL, key_id TEXT NOT NULL,"
    " PRIMARY KEY (holder, key_id))",
    "CREATE INDEX IF NOT EXISTS use_of_key ON key_use (key_id)",
)


def _note(db: ValueDatabase, tenant: str, holder: str, keys: Collection[str]) -> None:
    rows = [(tenant, holder, key) for key in sorted(keys)]
    db.executemany("INSERT INTO key_use (tenant, holder, key_id) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rows)
