"""Deleting from the value store: one transaction that checks holds, deletes, and notes what is gone.

Used by erasure and by retention. A deletion is first noted (here), then recorded (a leaf), then certified; whatever was
interrupted in between is in `unfinished` and is taken up again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Literal, NamedTuple

from audit.errors import HeldError
from audit.events.privacy import Scope
from audit.events.stamp import rfc3339
from audit.private.certificate import Certificate, Recipient, spans
from audit.private.value_database import USES, ValueDatabase
from audit.private.value_store import ValueStore

DAY_MS = 86_400_000


class Hold(NamedTuple):
    """`key_id` for a subject, `first` to `last` for records, neither for the whole tenant. `placed` in ms."""

    id: str
    tenant: str
    key_id: str | None
    first: int | None
    last: int | None
    reason: str
    placed: int

    def covers(self, key_id: str, seq: int) -> bool:
        if self.key_id is not None:
            return self.key_id == key_id
        if self.first is not None and self.last is not None:
            return self.first <= seq <= self.last
        return True

    def covers_key(self, key_id: str) -> bool:
        """Whether it covers content under this key that belongs to no record."""
        return self.key_id == key_id if self.key_id is not None else self.first is None


class DueValue(NamedTuple):
    seq: int
    event_id: str
    field: str
    key_id: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the record says about a tenant's numbers: which event has each, and who was sent the calls."""

    event_ids: Callable[[Sequence[int]], Mapping[int, str]]
    recipients: Callable[[Sequence[int]], Iterable[Recipient]] = lambda seqs: ()


@dataclass(frozen=True, slots=True)
class _SortedValues:
    """Values to delete: those of records, those whose number is not on record yet, and strays, whose number another
    event has. The latter are of records that were never written: no certificate needs to cover them."""

    real: list[DueValue]
    unsettled: list[DueValue]
    strays: list[DueValue]

    @property
    def covered(self) -> list[DueValue]:
        return self.real + self.unsettled


def _sorted_values(rows: Sequence[DueValue], recorded: Recorded) -> _SortedValues:
    """In the transaction that deletes: what is written meanwhile has its values here before it has its record."""
    judged = _SortedValues([], [], [])
    events = recorded.event_ids(sorted({row.seq for row in rows}))
    for row in rows:
        found = events.get(row.seq)
        (judged.unsettled if found is None else judged.real if found == row.event_id else judged.strays).append(row)
    return judged


@dataclass(frozen=True, slots=True)
class DeletionRequest:
    """What is to be deleted and why. `now` in milliseconds, `backup_days` how long backups of the value store live."""

    id: str
    tenant: str
    cause: Literal["erasure", "retention"]
    scope: Scope | None
    now: int
    backup_days: int


def holds_of(side: ValueStore, tenant: str) -> list[Hold]:
    return [Hold(*row) for row in side.rows(_HOLDS, (tenant,))]


_HOLDS = "SELECT id, tenant, key_id, first, last, reason, placed FROM hold WHERE tenant = ? ORDER BY id"


def _holds(db: ValueDatabase, tenant: str) -> list[Hold]:
    return [Hold(*row) for row in db.execute(_HOLDS, (tenant,))]


def erase_subject(side: ValueStore, wanted: DeletionRequest, key_id: str, recorded: Recorded) -> Certificate:
    """Delete everything under one key. Raises HeldError, with nothing deleted, if any of it is on hold."""
    return _erase(side, wanted, "key_id = ?", (key_id,), recorded, keys=(key_id,))


def erase_records(side: ValueStore, wanted: DeletionRequest, first: int, last: int, recorded: Recorded) -> Certificate:
    """Delete the values of records `first` to `last`, and the keys nothing is left under. Raises HeldError."""
    return _erase(side, wanted, "seq BETWEEN ? AND ?", (first, last), recorded)


def erase_tenant(side: ValueStore, wanted: DeletionRequest, recorded: Recorded) -> Certificate:
    """Delete everything of a tenant. Raises HeldError. The tenant's own key is the caller's to destroy."""
    return _erase(side, wanted, "TRUE", (), recorded)


def _erase(
    side: ValueStore,
    wanted: DeletionRequest,
    where: str,
    parameters: tuple[object, ...],
    recorded: Recorded,
    keys: tuple[str, ...] = (),
) -> Certificate:
    with side.transaction() as db:
        doomed = _sorted_values(_select(db, wanted.tenant, where, parameters), recorded)
        standing = _holds(db, wanted.tenant)
        used = (
            _uses(db, wanted.tenant, keys if wanted.scope == "subject" else None) if wanted.scope != "records" else []
        )
        held = [
            hold.id
            for hold in standing
            if any(hold.covers(row.key_id, row.seq) for row in doomed.covered) or any(map(hold.covers_key, used))
        ]
        if held:
            raise HeldError(tuple(held))
        db.executemany("DELETE FROM key_use WHERE key_id = ?", [(key,) for key in used])
        told = tuple(recorded.recipients(sorted({row.seq for row in doomed.real})))
        certificate = _delete(db, wanted, doomed, told, keys)
        if wanted.scope == "tenant":
            db.execute("DELETE FROM pepper WHERE tenant = ?", (wanted.tenant,))
            db.execute("DELETE FROM data_key WHERE tenant = ?", (wanted.tenant,))
    return certificate


RECORD = "record"
"""The name under which a certificate covers whole records, whose content goes while their hash stays."""


def expire(
    side: ValueStore, wanted: DeletionRequest, recorded: Recorded, over: Sequence[Sequence[int]] = ()
) -> tuple[Certificate | None, int, int]:
    """Delete the values whose time is over, and note that the content of the records `over` is to go, each group whole.

    Records stay while values of theirs are kept, or a hold covers them. Returns the certificate, None if there is
    nothing to delete, and how many values and how many records are held.
    """
    with side.transaction() as db:
        due = _select(db, wanted.tenant, "expires <= ?", (wanted.now,))
        standing = _holds(db, wanted.tenant)
        free = [row for row in due if not any(hold.covers(row.key_id, row.seq) for hold in standing)]
        gone = set(free)
        kept = [row for row in _select(db, wanted.tenant, "TRUE", ()) if row not in gone]
        going, held = _free_records(over, kept, standing)
        certificate = _delete(db, wanted, _sorted_values(free, recorded), records=going) if free or going else None
    return certificate, len(due) - len(free), held


def would_expire(side: ValueStore, tenant: str, now: int, over: Sequence[Sequence[int]]) -> tuple[list[int], int]:
    """Which of the records `over` would go at `now` (ms), and how many of them a hold keeps."""
    with side.transaction() as db:
        kept = _select(db, tenant, "(expires IS NULL OR expires > ?)", (now,))
        return _free_records(over, kept, _holds(db, tenant))


def _free_records(
    over: Sequence[Sequence[int]], kept: Sequence[DueValue], standing: Sequence[Hold]
) -> tuple[list[int], int]:
    """Those of `over` that may go, and how many a hold keeps. One record that stays keeps its group."""
    used = {row.seq for row in kept}
    by_subject = {row.seq for row in kept if any(hold.key_id == row.key_id for hold in standing)}
    going, held = list[int](), 0
    for group in over:
        if any(seq in by_subject or any(hold.covers("", seq) for hold in standing) for seq in group):
            held += len(group)
        elif used.isdisjoint(group):
            going += group
    return going, held


def sweep(side: ValueStore, tenant: str, orphans: Sequence[tuple[int, str]]) -> None:
    """Delete values of records that were never written, by (seq, event id): no caller got a receipt for them."""
    with side.transaction() as db:
        db.executemany(
            "DELETE FROM value WHERE tenant = ? AND seq = ? AND event_id = ?",
            [(tenant, seq, event_id) for seq, event_id in orphans],
        )
        unused = "DELETE FROM data_key WHERE tenant = ? AND id NOT IN (SELECT key_id FROM value)"
        if db.has_table(USES):
            unused += " AND id NOT IN (SELECT key_id FROM key_use)"
        db.execute(unused, (tenant,))


def due(side: ValueStore, tenant: str, now: int) -> tuple[int, int, int | None]:
    """How many values are over their time at `now` (ms), how many of them on hold, and when the next expires."""
    with side.transaction() as db:
        standing = _holds(db, tenant)
        over = _select(db, tenant, "expires <= ?", (now,))
        [(oldest,)] = db.execute(
            "SELECT min(expires) FROM value WHERE tenant = ? AND expires > ?", (tenant, now)
        ).fetchall()
    held = sum(any(hold.covers(row.key_id, row.seq) for hold in standing) for row in over)
    return len(over), held, oldest


def _select(db: ValueDatabase, tenant: str, where: str, parameters: tuple[object, ...]) -> list[DueValue]:
    query = f"SELECT seq, event_id, field, key_id FROM value WHERE tenant = ? AND {where} ORDER BY seq"  # noqa: S608
    return [DueValue(*row) for row in db.execute(query, (tenant, *parameters))]


def _delete(
    db: ValueDatabase,
    wanted: DeletionRequest,
    doomed: _SortedValues,
    recipients: tuple[Recipient, ...] = (),
    keys: tuple[str, ...] = (),
    records: Sequence[int] = (),
) -> Certificate:
    rows = doomed.covered + doomed.strays
    db.executemany(
        "DELETE FROM value WHERE tenant = ? AND seq = ? AND event_id = ? AND field = ?",
        [(wanted.tenant, row.seq, row.event_id, row.field) for row in rows],
    )
    emptied = sorted(key_id for key_id in {*keys, *(row.key_id for row in rows)} if not key_in_use(db, key_id))
    db.executemany("DELETE FROM data_key WHERE id = ?", [(key_id,) for key_id in emptied])
    covered = {field: spans(row.seq for row in of_field) for field, of_field in _by_field(doomed.real)}
    if records:
        covered[RECORD] = spans(records)
    unsettled = {
        field: tuple(sorted((row.seq, row.event_id) for row in of_field))
        for field, of_field in _by_field(doomed.unsettled)
    }
    certificate = Certificate(
        id=wanted.id,
        cause=wanted.cause,
        tenant=wanted.tenant,
        scope=wanted.scope,
        deleted_at=rfc3339(wanted.now),
        covered=covered,
        unsettled=unsettled or None,
        records=len({row.seq for row in doomed.covered}.union(records)),
        values=len(doomed.covered),
        keys_destroyed=tuple(emptied),
        backups_until=rfc3339(wanted.now + wanted.backup_days * DAY_MS),
        recipients=recipients,
    )
    db.execute(
        "INSERT INTO deletion (id, tenant, body) VALUES (?, ?, ?)",
        (wanted.id, wanted.tenant, certificate.body().decode()),
    )
    return certificate


def _by_field(rows: Sequence[DueValue]) -> Iterator[tuple[str, Iterator[DueValue]]]:
    return groupby(sorted(rows, key=attrgetter("field")), key=attrgetter("field"))


def key_in_use(db: ValueDatabase, key_id: str) -> bool:
    """Whether a value, or content that is stored elsewhere, is sealed under the key."""
    if db.execute("SELECT 1 FROM value WHERE key_id = ? LIMIT 1", (key_id,)).fetchone() is not None:
        return True
    if not db.has_table(USES):
        return False
    return db.execute("SELECT 1 FROM key_use WHERE key_id = ? LIMIT 1", (key_id,)).fetchone() is not None


def _uses(db: ValueDatabase, tenant: str, keys: Sequence[str] | None) -> list[str]:
    """Those of `keys` that content stored elsewhere is sealed under; None: of all the tenant's."""
    if not db.has_table(USES):
        return []
    found = {key for (key,) in db.execute("SELECT DISTINCT key_id FROM key_use WHERE tenant = ?", (tenant,))}
    return sorted(found if keys is None else found.intersection(keys))


def unfinished(side: ValueStore, tenant: str | None = None) -> list[Certificate]:
    """Deletions that took place but are not certified yet."""
    query = (
        "SELECT body FROM deletion WHERE certificate IS NULL AND (CAST(? AS TEXT) IS NULL OR tenant = ?) ORDER BY id"
    )
    return [Certificate.parse(body.encode()) for (body,) in side.rows(query, (tenant, tenant))]


def deletions_of(side: ValueStore, tenant: str) -> tuple[set[str], set[str]]:
    """The ids of a tenant's deletions: those certified, and those that are not yet."""
    rows = side.rows("SELECT id, certificate IS NULL FROM deletion WHERE tenant = ?", (tenant,))
    return {name for name, open_ in rows if not open_}, {name for name, open_ in rows if open_}


def keep_certificate(side: ValueStore, certificate_id: str, note: str) -> None:
    with side.transaction() as db:
        db.execute("UPDATE deletion SET certificate = ? WHERE id = ?", (note, certificate_id))


def certificates_of(side: ValueStore, tenant: str) -> list[str]:
    """The signed notes of a tenant's certificates, oldest first."""
    query = "SELECT certificate FROM deletion WHERE tenant = ? AND certificate IS NOT NULL ORDER BY id"
    return [note for (note,) in side.rows(query, (tenant,))]
