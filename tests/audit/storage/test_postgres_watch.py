"""A record in PostgreSQL that was put back under a running process: the watch and the store notice it."""

from collections.abc import Iterator

import psycopg
import pytest

from audit.errors import StoreError
from audit.storage.postgres import PostgresStore
from audit.storage.postgres_watch import RecordWatch, TreeSizes
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


@pytest.fixture
def sizes(empty_database: str, store: PostgresStore) -> Iterator[TreeSizes]:
    sizes = TreeSizes(empty_database)
    yield sizes
    sizes.close()


def connections(url: str) -> set[int]:
    """Of all processes on that database but this function's own."""
    with psycopg.connect(url) as db:
        rows = db.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return {pid for (pid,) in rows}


def test_sizes_are_those_of_now_and_one_connection_asks_for_them(
    empty_database: str, store: PostgresStore, sizes: TreeSizes
) -> None:
    assert sizes.read() == {}
    open_then = connections(empty_database)
    for number in range(3):
        store.append([entry(b"%d" % number), entry(b"o%d" % number, "other")])
        assert sizes.read() == {"acme": number + 1, "other": number + 1}
    assert connections(empty_database) <= open_then, "others may still be closing"


def test_no_transaction_stays_open_between_two_questions(empty_database: str, sizes: TreeSizes) -> None:
    sizes.read()
    with psycopg.connect(empty_database) as db:
        states = db.execute("SELECT state FROM pg_stat_activity WHERE datname = current_database()").fetchall()
    assert not any("in transaction" in (state or "") for (state,) in states)


def test_after_its_connection_was_ended_the_question_fails_once_and_then_is_answered(
    empty_database: str, store: PostgresStore, sizes: TreeSizes
) -> None:
    store.append([entry(b"1")])
    before = connections(empty_database)
    sizes.read()
    own = connections(empty_database) - before
    assert len(own) == 1
    with psycopg.connect(empty_database, autocommit=True) as db:
        for pid in own:
            db.execute("SELECT pg_terminate_backend(%s)", (pid,))
    with pytest.raises(StoreError, match="does not answer"):
        sizes.read()
    assert sizes.read() == {"acme": 1}


def test_a_server_that_is_away_is_said_in_words() -> None:
    with pytest.raises(StoreError, match=r"check database\.record_url"):
        TreeSizes("postgresql://nobody@127.0.0.1:1/none").read()
