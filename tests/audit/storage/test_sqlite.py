import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from audit.errors import StoreError, StoreFull
from audit.events.base import Step
from audit.storage.sqlite import APPLICATION_ID, SqliteReader, SqliteStore
from audit.storage.store import LogEntry
from audit.tree.merkle import leaf_hash
from tests.fakes.needs import missing

ROOT = Path(__file__).parents[3]


def entry(payload: bytes, tenant: str = "acme", step: Step = Step.NONE, request: str | None = None) -> LogEntry:
    return LogEntry(tenant, leaf_hash(payload), payload, step, request)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def store(path: Path) -> SqliteStore:
    store = SqliteStore.open(path, "gw-1", "boot-1")
    yield store
    store.close()


def test_commits_are_synced_before_they_return(store: SqliteStore, path: Path) -> None:
    settings = [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]


def test_a_number_of_a_lost_record_is_not_given_again(store: SqliteStore, path: Path) -> None:
    """By SQL from another process, the file stays the same file."""
    store.append([entry(b"1"), entry(b"2"), entry(b"1", "other")])
    undo = "DELETE FROM leaf WHERE seq = 1; UPDATE tree SET size = 1 WHERE tenant = 'acme'"
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).executescript(sys.argv[2])"
    subprocess.run([sys.executable, "-c", program, path, undo], check=True)
    with pytest.raises(StoreError, match=r"the tree of acme holds 1 records and held 2: .* older state"):
        store.append([entry(b"3")])
    assert store.append([entry(b"2", "other")]).placed == [1], "of a tree that lost nothing"


def test_a_database_locked_for_too_long_is_an_error_and_not_a_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.storage.sqlite.BUSY_SECONDS", 0.05)
    store = SqliteStore.open(path, "gw-1", "boot")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        store.append([entry(b"a")])
    assert not store.consolidate()
    other.execute("ROLLBACK")
    assert store.append([entry(b"a")]).placed == [0]
    assert store.consolidate()
    other.close()
    store.close()


def test_a_file_at_its_size_limit_is_full_and_keeps_what_it_had(store: SqliteStore, path: Path) -> None:
    store.append([entry(b"a")])
    store._db.execute("PRAGMA max_page_count=20")
    with pytest.raises(StoreFull):
        store.append([entry(bytes(4000))] * 20)
    assert store.append([entry(b"b")]).placed == [1]


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b""])
def test_a_file_that_is_not_ours_is_not_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(content)
    with pytest.raises(StoreError):
        SqliteReader.open(path)


def test_another_programs_database_is_neither_read_nor_written(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    before = path.read_bytes()
    for opened in (lambda: SqliteStore.open(path, "gw-1", "boot"), lambda: SqliteReader.open(path)):
        with pytest.raises(StoreError, match="not an audit log"):
            opened()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    db.close()
    assert before[:16] == path.read_bytes()[:16]


def test_a_log_of_a_later_format_is_refused_naming_both(store: SqliteStore, path: Path) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        db.execute("PRAGMA user_version=2")
    db.close()
    with pytest.raises(StoreError, match="has format 2, this program reads format 1; start the version"):
        SqliteReader.open(path)


def test_there_is_no_log_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no audit log"):
        SqliteReader.open(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


def test_a_copy_of_a_closed_log_on_read_only_media_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "media #1"
    store = SqliteStore.open(folder / "log.db", "gw-1", "boot")
    store.append([entry(b"a")])
    store.close()
    folder.chmod(0o500)
    try:
        reader = SqliteReader.open(folder / "log.db")
        assert reader.head("acme")[0] == 1
        reader.close()
        assert {file.name for file in folder.iterdir()} <= {"log.db", "log.db-wal", "log.db-shm"}
    finally:
        folder.chmod(0o700)


DISK_FULL = """
import asyncio, sys
from contextlib import suppress
from pathlib import Path
from audit.errors import AuditUnavailable
from audit.log.audit_log import AuditSettings
from audit.log.sequencer import QueueLimits
from tests.audit.conftest import FAST, Home, accepted, completed

async def main(folder):
    home = Home(folder)
    limits = QueueLimits(heal_every_s=0.02, reserve_bytes=1 << 20)
    ballast = folder / "ballast"
    async with await home.open(settings=AuditSettings(limits=limits, cadence=FAST.cadence)) as log:
        await asyncio.gather(*(log.append(accepted(f"r{n}")) for n in range(100)))
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        refused = None
        for number in range(100, 10_000):
            try:
                await log.append(accepted(f"r{number}"))
            except AuditUnavailable as error:
                refused = number
                print("refused:", error)
                break
        await asyncio.gather(*(log.append(completed(f"r{n}")) for n in range(refused)))
        print("trouble:", log.trouble)
        try:
            await log.probe()
        except AuditUnavailable as error:
            print("probe:", error)
        ballast.unlink()
        while log.trouble is not None:
            await asyncio.sleep(0.01)
        await log.append(accepted("after"))
        await log.append(completed("after"))
    report = home.verify()
    print("ok:", report.ok, report.findings)
    print("open:", [tree.open_requests for tree in report.trees])
    print("types:", sorted(set(home.types("_system"))))

asyncio.run(main(Path(sys.argv[1])))
"""


def test_on_a_real_full_disk_running_calls_are_closed_and_the_log_gets_well_again(tmp_path: Path) -> None:
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    mount = f"mount -t tmpfs -o size=4m tmpfs {tmp_path}"
    if subprocess.run([*own_mounts, mount], capture_output=True).returncode:
        missing("a small file system cannot be mounted here")
    done = subprocess.run(
        [*own_mounts, f'{mount} && "$0" -c "$1" {tmp_path}', sys.executable, DISK_FULL],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "refused: the disk is full" in said
    assert "trouble: the disk is full: only running calls are still closed" in said
    assert "probe: the disk is full" in said
    assert "ok: True []" in said
    assert "open: [(), ()]" in said
    assert "system.audit_degraded" in said
    assert "system.audit_restored" in said


FILE_LIMIT = """
import asyncio, resource, sys
from pathlib import Path
from audit.errors import AuditUnavailable
from tests.audit.conftest import Home, accepted

async def main(folder):
    home = Home(folder)
    async with await home.open() as log:
        await log.append(accepted("r0"))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        told = []
        try:
            for number in range(1, 10_000):
                told.append(await log.append(accepted(f"r{number}")))
        except AuditUnavailable as error:
            print("failed:", error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        while log.trouble is not None:
            await asyncio.sleep(0.01)
        await log.append(accepted("after"))
    report = home.verify()
    print("ok:", report.ok, report.findings)
    events = home.events("acme")
    print("kept:", len(told) > 10 and all(events[it.seq]["request_id"] == f"r{it.seq}" for it in told))

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_write_that_the_system_refuses_fails_the_log_until_it_can_write_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "failed: the audit file cannot be used: disk I/O error" in done.stdout
    assert "ok: True []" in done.stdout
    assert "kept: True" in done.stdout
