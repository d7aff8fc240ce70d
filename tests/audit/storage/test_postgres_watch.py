"""A record in PostgreSQL that was put back under a running process: the watch and the store notice it."""

from collections.abc import Iterator

import psycopg
import pytest

from audit.errors import StoreError
from audit.storage.postgres import PostgresStore
from audit.storage.postgres_watch import RecordWatch
from audit.storage.store import LogEntry
from audit.storage.watched import StoreReplaced
from audit.tree.merkle import leaf_hash

SAVE = "CREATE TABLE domicile_audit.saved_{0} AS TABLE domicile_audit.{0}"
RESTORE = "INSERT INTO domicile_audit.{0} OVERRIDING SYSTEM VALUE SELECT * FROM domicile_audit.saved_{0}"


def entry(payload: bytes, tenant: str = "acme") -> LogEntry:
    return LogEntry(tenant, leaf_hash(payload), payload)


@pytest.fixture
def store(empty_database: str) -> Iterator[PostgresStore]:
    store = PostgresStore.open(empty_database, "gw-1", "boot-1")
    yield store
    store.close()


@pytest.fixture
def watch(empty_database: str, store: PostgresStore) -> Iterator[RecordWatch]:
    watch = RecordWatch(empty_database)
    yield watch
    watch.close()


def save(url: str) -> None:
    with psycopg.connect(url) as db:
        for table in ("tree", "leaf"):
            db.execute(SAVE.format(table))


def put_back(url: str) -> None:
    with psycopg.connect(url) as db:
        for table in ("leaf", "tree"):
            db.execute(f"DELETE FROM domicile_audit.{table}")
        for table in ("tree", "leaf"):
            db.execute(RESTORE.format(table))


def test_growth_is_no_fault(store: PostgresStore, watch: RecordWatch) -> None:
    for number in range(4):
        store.append([entry(b"%d" % number), entry(b"o%d" % number, "other")])
        watch.look_closely()


def test_a_tree_that_nothing_was_written_to_since_may_be_put_back(
    empty_database: str, store: PostgresStore, watch: RecordWatch
) -> None:
    store.append([entry(b"1")])
    watch.look_closely()
    save(empty_database)
    put_back(empty_database)
    watch.look_closely()
    store.append([entry(b"2")])
    watch.look_closely()


@pytest.mark.parametrize("after", [0, 1, 2, 3], ids=lambda count: f"{count}_records_later")
def test_a_record_that_was_put_back_is_noticed_however_far_others_have_extended_it(
    empty_database: str, store: PostgresStore, watch: RecordWatch, after: int
) -> None:
    store.append([entry(b"1")])
    save(empty_database)
    store.append([entry(b"2"), entry(b"3")])
    watch.look_closely()
    put_back(empty_database)
    other = PostgresStore.open(empty_database, "gw-2", "boot-2")
    try:
        other.append([entry(b"other %d" % number) for number in range(after)])
    finally:
        other.close()
    with pytest.raises(StoreReplaced, match=r"the audit database was put back to an older state .* of acme"):
        watch.look_closely()


def test_the_store_gives_no_number_of_a_lost_record_again(empty_database: str, store: PostgresStore) -> None:
    store.append([entry(b"1"), entry(b"1", "other")])
    save(empty_database)
    store.append([entry(b"2")])
    put_back(empty_database)
    with pytest.raises(StoreError, match="the tree of acme holds 1 records and held 2"):
        store.append([entry(b"3")])
    assert store.append([entry(b"2", "other")]).placed == [1], "of a tree that lost nothing"
