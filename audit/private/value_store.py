"""The value store: the values that leaves commit to, in a database that forgets (`audit.private.value_database`).

Each value is stored encrypted (AES-256-GCM) together with its salt under a data key: one a subject, or one a record
where no subject is known. Data keys are stored here wrapped under the tenant's key (`audit.keys.owner_keys`). A person
is found by ``HMAC(pepper, identifier)``, the pepper a random key of the tenant, wrapped like the others.

Deleted content leaves the database's files before a deletion counts, as far as the database does that. It is to be
backed up apart from the log, with a short horizon that every certificate states.
"""

import hmac
import json
import os
import sqlite3
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.errors import CommitmentError, KeyLost, KeyProviderError, KeysOutOfReach, StoreError
from audit.events.canonical import MAX_INTEGER
from audit.events.commitment import SALT_SIZE, verify_commitment
from audit.events.private_value import Sealed
from audit.events.stamp import uuid7
from audit.files.reasons import describe_os_error, describe_sqlite_error
from audit.keys.master import KEY_SIZE
from audit.keys.owner_keys import KeyProvider, NoKeys
from audit.private.value_database import SqliteValues, ValueDatabase
from audit.storage.installation_identity import ForeignDatabaseError, Identity, check_identity, identity_of
from audit.storage.store import Refused
from audit.tree.note import VerifierKey

NONCE_SIZE = 12
LOOKED_UP = 256  # persons in one statement; SQLite takes 999 parameters everywhere


class StoredValue(NamedTuple):
    """One value in the store, closed. `expires` in milliseconds since the epoch."""

    tenant: str
    seq: int
    event_id: str
    field: str
    commitment: str
    key_id: str
    retention_class: str
    expires: int | None


@dataclass(frozen=True, slots=True)
class Disclosed:
    """One value opened and checked against its commitment; `jcs` is its canonical form."""

    kept: StoredValue
    salt: bytes
    value: Any
    jcs: bytes


@contextmanager
def value_store_errors() -> Iterator[None]:
    """Errors of the file and of the keys as StoreError; KeyLost passes, being about one tenant and not the store."""
    try:
        yield
    except KeyLost:
        raise
    except KeyProviderError as error:
        raise KeysOutOfReach(
            f"the value store cannot be used: {error}; make the keys reachable (secrets.provider)"
        ) from error
    except sqlite3.Error as error:
        raise StoreError(
            f"the value store cannot be used: {describe_sqlite_error(error)}; check the file side.db and its disk"
        ) from error
    except OSError as error:
        raise StoreError(
            f"the value store cannot be used: {describe_os_error(error)}; check the file side.db and its disk"
        ) from error


class ValueStore:
    """One thread's connection to the values. Every method may raise StoreError."""

    def __init__(self, db: ValueDatabase, keys: KeyProvider) -> None:
        self._db = db
        self._keys = keys

    @classmethod
    def open(cls, path: Path, keys: KeyProvider, *, create: bool = True) -> "ValueStore":
        """Open the file at `path`, or create it, mode 0600."""
        with value_store_errors():
            return cls(SqliteValues.open(path, create=create), keys)

    @classmethod
    def open_read_only(cls, path: Path, keys: KeyProvider | None = None) -> "ValueStore":
        """For reading what is there, on any media; without `keys` nothing of it can be opened. Raises StoreError if
        there is no such file."""
        with value_store_errors():
            return cls(SqliteValues.open_read_only(path), keys or NoKeys())

    def claim(self, key: VerifierKey) -> Identity:
        """Check that the file is of the log of `key`, and write that into it if it does not say so yet.

        A file from before it carried an identity is ours if its peppers open under our keys. Raises
        ForeignDatabaseError, with nothing written; KeysOutOfReach if that cannot be decided now.
        """
        with value_store_errors():
            if (found := _identity(self._db)) is None:
                with self.transaction() as db:
                    if (found := _identity(db)) is None:
                        self._check_ours(db)
                        found = identity_of(key)
                        db.execute(
                            "CREATE TABLE IF NOT EXISTS identity (cell TEXT NOT NULL, log TEXT NOT NULL, key TEXT NOT"
                            " NULL)"
                        )
                        db.execute("INSERT INTO identity VALUES (?, ?, ?)", (found.cell, found.log, found.key))
        check_identity(found, key, "the value store")
        return found

    def identity(self) -> Identity | None:
        """Which installation the file says it is of; None if it was never claimed."""
        with value_store_errors():
            return _identity(self._db)

    def _check_ours(self, db: ValueDatabase) -> None:
        """By the peppers: a tenant's may not open because its key was destroyed, but not those of all tenants."""
        lost = 0
        for tenant, wrapped in db.execute("SELECT tenant, wrapped FROM pepper").fetchall():
            try:
                self._keys.unwrap(tenant, wrapped)
            except KeyLost as error:
                lost += "destroyed" not in str(error)
                continue
            return
        if lost:
            raise ForeignDatabaseError(
                "the value store belongs to another installation: none of its tenants' keys open under the keys in"
                " audit/keys; put back the value store of this installation, or the key set it was written with"
            )

    def rows(self, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        """What a query finds, all of it at once."""
        with value_store_errors():
            return self._db.execute(query, parameters).fetchall()

    def all_rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """What a query finds, one row after the other."""
        with value_store_errors():
            yield from self._db.execute(query)

    @contextmanager
    def transaction(self, *, adds_only: bool = False) -> Iterator[ValueDatabase]:
        """A writing transaction: committed and durable at the end, undone on an error. One at a time, but for those
        that only add (`ValueDatabase.transaction`)."""
        with value_store_errors(), self._db.transaction(adds_only=adds_only):
            yield self._db

    def close(self) -> None:
        with value_store_errors():
            self._db.close()

    # --- writing -----------------------------------------------------------------------------------------------------

    def closed(self, tenants: set[str]) -> dict[str, Refused]:
        """Those of `tenants` that nothing can be kept for: their key was destroyed, or is out of reach for now."""
        refused = {}
        for tenant in tenants:
            try:
                with value_store_errors():
                    self._pepper(tenant)
            except KeyLost:
                refused[tenant] = Refused("the key of its tenant was destroyed, so its values cannot be kept")
            except KeysOutOfReach as error:
                refused[tenant] = Refused(str(error), for_now=True)
        return refused

    def put(self, values: Sequence[tuple[str, int, Sealed]]) -> None:
        """Keep values of (tenant, seq), durably. All or nothing."""
        owned: dict[str, dict[str | bytes, list[tuple[int, Sealed]]]] = {}
        with self.transaction(adds_only=True) as db:
            for tenant, group in groupby(sorted(values, key=itemgetter(0)), key=itemgetter(0)):
                owned[tenant] = self._by_owner(tenant, [(seq, value) for _, seq, value in group])
            rows: list[tuple[object, ...]] = []
            for tenant, owners in owned.items():
                ciphers = self._data_keys(tenant, owners)
                for owner, theirs in owners.items():
                    key_id, cipher = ciphers[owner]
                    for seq, value in theirs:
                        nonce = os.urandom(NONCE_SIZE)
                        bound = _bound(tenant, seq, value.field, value.commitment)
                        sealed = cipher.encrypt(nonce, value.plaintext, bound)
                        named = tenant, seq, value.event_id, value.field, value.commitment, key_id
                        rows.append((*named, value.retention_class, value.expires, nonce, sealed))
            db.executemany(
                "INSERT INTO value (tenant, seq, event_id, field, commitment, key_id, class, expires, nonce,"
                " ciphertext) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )

    def _by_owner(
        self, tenant: str, values: Sequence[tuple[int, Sealed]]
    ) -> dict[str | bytes, list[tuple[int, Sealed]]]:
        """Under the index of their person, or under the id of their event where there is none."""
        index: dict[str, bytes] = {}
        owners: dict[str | bytes, list[tuple[int, Sealed]]] = {}
        pepper = b""
        for seq, value in values:
            owner: str | bytes = value.event_id
            if value.subject is not None:
                if value.subject not in index:
                    pepper = pepper or self._pepper(tenant)
                    index[value.subject] = _index(pepper, value.subject)
                owner = index[value.subject]
            owners.setdefault(owner, []).append((seq, value))
        return owners

    def _data_keys(self, tenant: str, owners: Iterable[str | bytes]) -> dict[str | bytes, tuple[str, AESGCM]]:
        """Those of persons that have one, new ones for the others. Never cached: another process may erase one."""
        known = self._known_keys(tenant, [owner for owner in owners if isinstance(owner, bytes)])
        fresh = sorted(
            (owner for owner in owners if owner not in known), key=repr
        )  # in one order everywhere: no deadlock
        opened = self._keys.unwrap_all(tenant, [wrapped for _, wrapped in known.values()]) if known else []
        ciphers = {
            owner: (key_id, AESGCM(key)) for (owner, (key_id, _)), key in zip(known.items(), opened, strict=True)
        }
        return ciphers | self._new_keys(tenant, fresh) if fresh else ciphers

    def _new_keys(self, tenant: str, owners: Sequence[str | bytes]) -> dict[str | bytes, tuple[str, AESGCM]]:
        now = int(time.time() * 1000)
        made = [(uuid7(now), os.urandom(KEY_SIZE)) for _ in owners]
        wrapped = self._keys.wrap_all(tenant, [key for _, key in made])
        added = self._db.executemany(
            "INSERT INTO data_key (id, tenant, subject, wrapped) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [
                (key_id, tenant, owner if isinstance(owner, bytes) else None, closed)
                for owner, (key_id, _), closed in zip(owners, made, wrapped, strict=True)
            ],
        )
        ciphers = {owner: (key_id, AESGCM(key)) for owner, (key_id, key) in zip(owners, made, strict=True)}
        if added < len(owners):  # a gateway on another host made a person's key a moment ago: that one is used
            ciphers |= self._data_keys(tenant, [owner for owner in owners if isinstance(owner, bytes)])
        return ciphers

    def _known_keys(self, tenant: str, persons: Sequence[bytes]) -> dict[str | bytes, tuple[str, bytes]]:
        """Id and wrapped key of each that has one, in a few statements for any number."""
        known: dict[str | bytes, tuple[str, bytes]] = {}
        for start in range(0, len(persons), LOOKED_UP):
            some = persons[start : start + LOOKED_UP]
            places = ",".join("?" * len(some))
            query = f"SELECT subject, id, wrapped FROM data_key WHERE tenant = ? AND subject IN ({places})"  # noqa: S608
            for subject, key_id, wrapped in self._db.execute(query, (tenant, *some)):
                known[subject] = key_id, wrapped
        return known

    def _pepper(self, tenant: str) -> bytes:
        query = "SELECT wrapped FROM pepper WHERE tenant = ?"
        row = self._db.execute(query, (tenant,)).fetchone()
        if row is None:
            # Wrapped and written in one transaction, lest the tenant's key be replaced between the two.
            with nullcontext(self._db) if self._db.in_transaction else self.transaction(adds_only=True) as db:
                made = self._keys.wrap(tenant, os.urandom(KEY_SIZE))
                db.execute("INSERT INTO pepper VALUES (?, ?) ON CONFLICT DO NOTHING", (tenant, made))
                row = db.execute(query, (tenant,)).fetchone()
        if row is None:
            raise StoreError(f"the pepper of tenant {tenant} was deleted a moment ago; try again")
        return self._keys.unwrap(tenant, row[0])

    # --- keys of content that is stored elsewhere (`audit.private.content_keys`) -----------------------------------

    def person_keys(self, tenant: str, persons: Sequence[str]) -> dict[str, tuple[str, AESGCM]]:
        """Id and data key of each person, made where there is none. Inside of a transaction that adds."""
        if not persons:
            return {}
        pepper = self._pepper(tenant)
        index = {person: _index(pepper, person) for person in persons}
        ciphers = self._data_keys(tenant, sorted(set(index.values())))
        return {person: ciphers[place] for person, place in index.items()}

    def own_key(self, tenant: str, holder: str) -> tuple[str, AESGCM]:
        """Id and data key of what `holder` uses for content of no known person. Inside of a transaction that adds."""
        row = self._db.execute(
            "SELECT id, wrapped FROM data_key WHERE tenant = ? AND subject IS NULL"
            " AND id IN (SELECT key_id FROM key_use WHERE holder = ?)",
            (tenant, holder),
        ).fetchone()
        if row is not None:
            return row[0], AESGCM(self._keys.unwrap(tenant, bytes(row[1])))
        return self._new_keys(tenant, [holder])[holder]

    def unwrapped(self, tenant: str, wrapped: Sequence[bytes]) -> list[bytes]:
        """Data keys, opened. Raises KeyLost if the tenant's key is another one or was destroyed."""
        with value_store_errors():
            return self._keys.unwrap_all(tenant, wrapped) if wrapped else []

    def has_table(self, name: str) -> bool:
        with value_store_errors():
            return self._db.has_table(name)

    # --- reading -----------------------------------------------------------------------------------------------------

    def subject_index(self, tenant: str, subject: str) -> bytes:
        """Where a person is filed (32 bytes); the same for spellings that Unicode or letter case alone tell apart."""
        with value_store_errors():
            return _index(self._pepper(tenant), subject)

    def subject_key(self, tenant: str, subject: str) -> str | None:
        """The id of a person's data key, None if nothing is kept of the person."""
        index = self.subject_index(tenant, subject)
        with value_store_errors():
            row = self._db.execute(
                "SELECT id FROM data_key WHERE tenant = ? AND subject = ?", (tenant, index)
            ).fetchone()
        return row[0] if row else None

    def kept(
        self, tenant: str, *, key_id: str | None = None, start: int = 0, end: int = MAX_INTEGER
    ) -> Iterator[StoredValue]:
        """What is kept of records `start` up to but not including `end`, or of them under one key, in order of seq."""
        query = (
            "SELECT tenant, seq, event_id, field, commitment, key_id, class, expires FROM value"
            " WHERE tenant = ? AND seq >= ? AND seq < ? AND (CAST(? AS TEXT) IS NULL OR key_id = ?)"
            " ORDER BY seq, field"
        )
        with value_store_errors():
            yield from map(StoredValue._make, self._db.execute(query, (tenant, start, end, key_id, key_id)))

    def disclose(self, kept: StoredValue) -> Disclosed:
        """Open a value. Raises KeyLost if its key or it is gone, CommitmentError if it is not what was committed to."""
        with value_store_errors():
            row = self._db.execute(
                "SELECT nonce, ciphertext, wrapped FROM value JOIN data_key ON data_key.id = key_id"
                " WHERE value.tenant = ? AND seq = ? AND event_id = ? AND field = ?",
                kept[:4],
            ).fetchone()
            if row is None:
                raise KeyLost(
                    f"{kept.field} of record {kept.seq} is not kept any more; what was deleted cannot be read again"
                )
            nonce, ciphertext, wrapped = row
            cipher = AESGCM(self._keys.unwrap(kept.tenant, wrapped))
        try:
            plaintext = cipher.decrypt(nonce, ciphertext, _bound(kept.tenant, kept.seq, kept.field, kept.commitment))
        except InvalidTag as error:
            raise CommitmentError(f"{kept.field} of record {kept.seq} was changed in the value store") from error
        salt, jcs = plaintext[:SALT_SIZE], plaintext[SALT_SIZE:]
        value = json.loads(jcs)
        verify_commitment(kept.commitment, salt, kept.tenant, kept.event_id, kept.field, value)
        return Disclosed(kept, salt, value, jcs)

    def keyless(self, tenant: str) -> set[str]:
        """The ids of data keys that values of a tenant are encrypted under and that are not in the store."""
        query = (
            "SELECT DISTINCT key_id FROM value WHERE tenant = ?"
            " AND NOT EXISTS (SELECT 1 FROM data_key WHERE data_key.id = value.key_id)"
        )
        return {key_id for (key_id,) in self.rows(query, (tenant,))}

    def restricted(self, key_id: str) -> bool:
        """Whether the data under this key may be kept but not used (GDPR 18)."""
        with value_store_errors():
            row = self._db.execute("SELECT restricted FROM data_key WHERE id = ?", (key_id,)).fetchone()
        return bool(row and row[0])

    def scrub(self) -> None:
        """Take what was deleted out of the database's files. Raises StoreError while readers hold it."""
        with value_store_errors():
            self._db.scrub()


def _identity(db: ValueDatabase) -> Identity | None:
    row = db.execute("SELECT cell, log, key FROM identity").fetchone() if db.has_table("identity") else None
    return None if row is None else Identity(*row)


def _index(pepper: bytes, subject: str) -> bytes:
    return hmac.digest(pepper, unicodedata.normalize("NFKC", subject).strip().casefold().encode(), "sha256")


def _bound(tenant: str, seq: int, field: str, commitment: str) -> bytes:
    return f"{tenant}|{seq}|{field}|{commitment}".encode()
