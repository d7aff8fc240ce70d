"""What only a server can do wrong: go away, lie about durability, keep the session of a process that hangs."""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from audit.errors import AuditUnavailable, StoreError, StoreFull
from audit.events.base import Step
from audit.events.private_value import Sealed
from audit.storage.postgres import PostgresReader, PostgresStore
from audit.storage.store import LogEntry, Refused
from audit.tree.merkle import leaf_hash
from tests.audit.conftest import Home, accepted, completed, eventually
from tests.fakes.needs import missing


def entry(payload: bytes, step: Step = Step.NONE, request: str | None = None) -> LogEntry:
    return LogEntry("acme", leaf_hash(payload), payload, step, request)


def with_value(payload: bytes) -> LogEntry:
    sealed = Sealed("event", "input", "c" * 64, b"salt and value", None, "content", None)
    return LogEntry("acme", leaf_hash(payload), payload, private=(sealed,))


@pytest.fixture
def url(empty_database: str) -> str:
    return empty_database


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore.open(url, "gw-1", "boot-1")
    yield store
    store.close()


def payloads(url: str) -> list[bytes]:
    reader = PostgresReader.open(url)
    try:
        return [leaf.payload for leaf in reader.leaves("acme")]
    finally:
        reader.close()


def end_session(url: str, store: PostgresStore) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(%s)", (store._db.info.backend_pid,))
        while db.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (store._db.info.backend_pid,)).fetchone():
            time.sleep(0.005)


def test_a_name_is_one_live_process_s_on_all_machines(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.storage.postgres.NAME_SECONDS", 0.05)
    with pytest.raises(StoreError, match="another process already writes this log as node gw-1"):
        PostgresStore.open(url, "gw-1", "boot-2")
    PostgresStore.open(url, "gw-2", "boot-2").close()
    store.close()
    PostgresStore.open(url, "gw-1", "boot-3").close()


def test_a_session_that_the_server_ended_neither_commits_nor_keeps_its_name(url: str, store: PostgresStore) -> None:
    store.append([entry(b"a")])
    end_session(url, store)
    with pytest.raises(StoreError, match="cannot be used"):
        store.append([entry(b"b")])
    again = PostgresStore.open(url, "gw-1", "boot-2")
    assert again.append([entry(b"c")]).placed == [1]
    again.close()
    assert payloads(url) == [b"a", b"c"]


def test_a_session_that_dies_inside_a_batch_keeps_none_of_it(url: str, store: PostgresStore) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        store.append([entry(b"a"), with_value(b"b")], keep=lambda _: end_session(url, store))
    assert payloads(url) == []


def test_a_writer_that_hangs_with_the_lock_is_fenced_and_its_late_commit_fails(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.storage.postgres.HUNG_SECONDS", 0.2)
    slow, quick = PostgresStore.open(url, "gw-1", "boot-1"), PostgresStore.open(url, "gw-2", "boot-1")

    def hang(_: object) -> None:
        assert quick.append([entry(b"from the other")]).placed == [0]  # waits until the server ends the first one

    with pytest.raises(StoreError, match="cannot be used"):
        slow.append([with_value(b"late")], keep=hang)
    slow.close()
    quick.close()
    assert payloads(url) == [b"from the other"]


def test_a_lock_that_is_not_had_in_time_is_an_error_and_not_a_wait(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.storage.postgres.LOCK_SECONDS", 0.05)
    other = PostgresStore.open(url, "gw-2", "boot-1")

    def meanwhile(_: object) -> None:
        with pytest.raises(StoreError, match="lock timeout"):
            other.append([entry(b"b")])

    assert store.append([with_value(b"a")], keep=meanwhile).placed == [0]
    assert other.append([entry(b"c")]).placed == [1]
    other.close()


def test_a_full_disk_of_the_server_is_told_apart_and_keeps_nothing(url: str, store: PostgresStore) -> None:
    def full(_: object) -> None:
        raise psycopg.errors.DiskFull("could not extend file: No space left on device\nHINT: values")

    with pytest.raises(StoreFull, match=r"No space left on device; free space on the server's disk$"):
        store.append([with_value(b"a")], keep=full)
    assert payloads(url) == []


def test_a_server_that_does_not_sync_is_refused(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        if db.execute("SELECT current_setting('is_superuser')").fetchone() != ("on",):
            missing("needs a superuser to turn fsync off")
        db.execute("ALTER SYSTEM SET fsync = off")
        db.execute("SELECT pg_reload_conf()")
        try:
            deadline = time.monotonic() + 5
            while db.execute("SELECT current_setting('fsync')").fetchone() == ("on",):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            with pytest.raises(StoreError, match="runs with fsync off"):
                PostgresStore.open(url, "gw-1", "boot-1")
        finally:
            db.execute("ALTER SYSTEM RESET fsync")
            db.execute("SELECT pg_reload_conf()")
            while db.execute("SELECT current_setting('fsync')").fetchone() == ("off",):
                time.sleep(0.01)


@pytest.mark.parametrize(("given", "used"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_commits_are_synchronous_whatever_the_url_asks_for(url: str, given: str, used: str) -> None:
    store = PostgresStore.open(psycopg.conninfo.make_conninfo(url, options=f"-c synchronous_commit={given}"), "g", "b")
    assert store._db.execute("SHOW synchronous_commit").fetchone() == (used,)
    store.close()


def test_a_request_id_that_the_server_cannot_hold_is_refused_alone(store: PostgresStore) -> None:
    placed = store.append([entry(b"1", Step.OPENS, "a\0b"), entry(b"2", Step.OPENS, "ab")]).placed
    assert isinstance(placed[0], Refused)
    assert placed[1] == 0


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        ("CREATE SCHEMA domicile_audit", "is not an audit log"),
        ("CREATE SCHEMA domicile_audit; CREATE TABLE domicile_audit.format AS SELECT 2 AS version", "has format 2"),
    ],
)
def test_a_schema_that_is_not_ours_is_neither_read_nor_written(url: str, setup: str, says: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(setup)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=says):
        PostgresReader.open(url)
    with pytest.raises(StoreError, match=says):
        PostgresStore.open(url, "gw-1", "boot")


def test_there_is_no_log_where_there_is_none(url: str) -> None:
    with pytest.raises(StoreError, match="no audit log in this database"):
        PostgresReader.open(url)


def test_processes_that_start_at_once_on_an_empty_database_all_open(url: str) -> None:
    with multiprocessing.get_context("forkserver").Pool(4) as pool:
        assert pool.starmap(_start, [(url, f"gw-{number}") for number in range(8)]) == [None] * 8
    assert len(payloads(url)) == 8


def _start(url: str, node: str) -> None:
    store = PostgresStore.open(url, node, "boot")
    store.append([entry(node.encode())])
    store.close()


# --- the log above it ------------------------------------------------------------------------------------------------


async def test_without_its_server_a_log_does_not_open(tmp_path: Path) -> None:
    home = Home(tmp_path, "postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(AuditUnavailable, match="the audit database cannot be used"):
        await home.open()


async def test_a_log_that_loses_its_server_refuses_until_it_is_back(url: str, tmp_path: Path) -> None:
    home = Home(tmp_path, url)
    async with await home.open() as log:
        await log.append(accepted("r1"))
        with psycopg.connect(url, autocommit=True) as db:
            everyone = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'domicile audit'"
            )
            db.execute(everyone)
        with pytest.raises(AuditUnavailable, match="the audit database cannot be used"):
            await log.append(accepted("r2"))
        assert log.trouble is not None
        await eventually(lambda: log.trouble is None)
        await log.append(completed("r1"))
        await log.append(accepted("r3"))
        await asyncio.sleep(0.05)
    assert home.verify().ok
    kinds = [(event["type"], event.get("request_id")) for event in home.events("acme")]
    assert ("inference.accepted", "r2") not in kinds
    assert "system.audit_restored" in home.types("_system")
