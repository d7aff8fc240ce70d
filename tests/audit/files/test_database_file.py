"""Database files: created once with the right mode, never opened by hand while SQLite has them open."""

import ast
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from audit.files.database_file import connect_existing, create_database_file
from audit.files.wal import switch_to_wal
from audit.keys.owner_keys import FileKeyProvider
from audit.keys.signer import FileSigner
from audit.private.value_store import ValueStore
from audit.storage.sqlite import SqliteStore
from audit.witness.witness import Witness
from gateway.database.database import Database
from tests.fakes.open_guard import OpenedByHand

TREE = Path(__file__).parents[3]

# What a command beside a gateway does: it opens, writes and closes, and takes itself for the last if it sees no lock.
OTHER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("CREATE TABLE IF NOT EXISTS other (x)")
db.execute("INSERT INTO other VALUES (1)")
db.close()
"""


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def open_values(path: Path) -> Callable[[], None]:
    return ValueStore.open(path, FileKeyProvider.open(path.parent / "keys")).close


def open_log(path: Path) -> Callable[[], None]:
    return SqliteStore.open(path, "gw-1", "boot").close


def open_control(path: Path) -> Callable[[], None]:
    database = Database.open(path.parent)
    with database.read() as session:
        session.connection()
    return database.close


def open_witness(path: Path) -> Callable[[], None]:
    signer = FileSigner.open(path.parent / "witness.key", name="w")
    witness = Witness(path, "w", signer, {})
    witness._db.execute("SELECT * FROM seen").fetchall()
    return witness.close


OPENERS = {
    "side.db": open_values,
    "log.db": open_log,
    "control.db": open_control,
    "seen.db": open_witness,
}


@pytest.mark.parametrize("name", ["side.db", "log.db", "control.db"])
def test_opening_a_database_again_in_a_process_keeps_the_locks_of_the_first(tmp_path: Path, name: str) -> None:
    path, opener = tmp_path / name, OPENERS[name]
    first = opener(path)
    opener(path)()
    wal = os.stat(f"{path}-wal").st_ino
    subprocess.run([sys.executable, "-c", OTHER, str(path)], check=True)
    assert os.stat(f"{path}-wal").st_ino == wal, "the other process did not take itself for the last"
    first()


@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_new_database_and_what_is_beside_it_are_for_the_owner_alone(tmp_path: Path, name: str, mask: int) -> None:
    folder = tmp_path / "new" / "folder"
    with umask(mask):
        close = OPENERS[name](folder / name)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.glob(f"{name}*")}
    close()
    assert modes[name] == 0o600
    assert set(modes.values()) == {0o600}
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)} == {0o700}


@pytest.mark.parametrize("name", OPENERS)
def test_an_existing_database_keeps_its_mode_and_content(tmp_path: Path, name: str) -> None:
    OPENERS[name](tmp_path / name)()
    (tmp_path / name).chmod(0o640)
    OPENERS[name](tmp_path / name)()
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640


@pytest.mark.parametrize("name", OPENERS)
@pytest.mark.parametrize("sidecar", ["", "-wal", "-shm"])
def test_a_link_in_place_of_a_database_is_refused_by_name(tmp_path: Path, name: str, sidecar: str) -> None:
    OPENERS[name](tmp_path / name)()
    elsewhere = tmp_path / "elsewhere"
    place = tmp_path / f"{name}{sidecar}"
    if place.exists():
        place.rename(elsewhere)
    else:
        elsewhere.write_bytes(b"")
    place.symlink_to(elsewhere)
    with pytest.raises(Exception, match=f"{place.name} is a symbolic link"):
        OPENERS[name](tmp_path / name)
    assert elsewhere.exists()


@pytest.mark.parametrize("name", OPENERS)
def test_a_dangling_link_creates_nothing_at_its_end(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="is a symbolic link"):
        OPENERS[name](tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", OPENERS)
def test_a_database_with_two_names_is_refused(tmp_path: Path, name: str) -> None:
    OPENERS[name](tmp_path / name)()
    os.link(tmp_path / name, tmp_path / "second")
    with pytest.raises(Exception, match=f"{name} has 2 names"):
        OPENERS[name](tmp_path / name)


@pytest.mark.parametrize("name", OPENERS)
def test_a_pipe_or_folder_in_place_of_a_database_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(Exception, match="is not a regular file"):
        OPENERS[name](tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(Exception, match="is not a regular file"):
        OPENERS[name](tmp_path / name)


def test_a_connection_to_a_file_that_is_gone_does_not_create_it(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        connect_existing(tmp_path / "gone.db", timeout=0)
    assert not (tmp_path / "gone.db").exists()


def test_a_path_with_signs_of_a_uri_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "what?mode=memory#50%25" / "a.db"
    create_database_file(path)
    with closing(connect_existing(path, timeout=0)) as db:
        db.execute("CREATE TABLE t (x)")
    assert path.stat().st_size > 0


def test_threads_that_open_a_new_database_at_once_all_keep_their_locks(tmp_path: Path) -> None:
    path, connections = tmp_path / "new.db", []
    start = threading.Barrier(8)

    def connect() -> None:
        start.wait()
        create_database_file(path)
        db = connect_existing(path, timeout=5, check_same_thread=False)
        switch_to_wal(db, 5)
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        connections.append(db)

    threads = [threading.Thread(target=connect) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wal = os.stat(f"{path}-wal").st_ino
    subprocess.run([sys.executable, "-c", OTHER, str(path)], check=True)
    assert os.stat(f"{path}-wal").st_ino == wal
    for db in connections:
        db.close()


# --- no new place opens a database by hand ---------------------------------------------------------------------------

LOW_LEVEL_OPENS = {
    "audit/files/database_file.py": 1,  # creation with O_EXCL
    "audit/files/folder_lock.py": 1,  # a folder, for its lock
    "audit/log/node.py": 1,  # the lock file of a node, to see whether it is held
    "audit/files/new_file.py": 4,  # locks, logs, the reserve; a draft with O_EXCL; a folder, to make names durable
    "audit/files/secret_file.py": 2,  # secrets
    "audit/keys/signer.py": 1,  # the draft of a key
    "audit/files/untrusted_file.py": 1,  # files of a backup, a key set or a bundle, which no process serves from
    "gateway/cli/remote/credentials.py": 2,  # the lock and the draft of a file of tokens
    "audit/pack_verifier/archive.py": 1,  # files of an unpacked pack, checked for being regular files
    "policy/cli.py": 1,  # a policy document that the caller names
    "backend/process/grammar_sandbox.py": 1,  # /dev/null
    "backend/server/heartbeat.py": 1,  # the file that a probe looks at
    "backend/models/checkpoints/direct.py": 1,  # weights
    "backend/engine/cache/windows.py": 1,  # memory of another backend, in a process that opens no database
    "backend/fetch/cache.py": 2,  # in the cache of models: a lock, and the folder, to make names durable
    "backend/fetch/download.py": 1,  # a part of a file on its way into that cache
}
"""Calls of `os.open` by module. Each was looked at: it cannot be handed the path of a live database."""

CONNECTS = {
    "audit/files/database_file.py": 1,
    "audit/storage/sqlite.py": 1,
    "audit/private/value_database.py": 1,
    "audit/verification/selftest.py": 2,
    "gateway/installation/backup.py": 3,
}
"""Calls of `sqlite3.connect` by module; all other modules use `connect_existing` or a store."""


def calls(function: str) -> dict[str, int]:
    module, _, name = function.partition(".")
    found: dict[str, int] = {}
    for package in ("gateway", "regions", "policy", "audit", "backend"):
        for file in (TREE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == name
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id == module
                ):
                    place = str(file.relative_to(TREE))
                    found[place] = found.get(place, 0) + 1
    return found


def test_every_low_level_open_of_the_product_was_looked_at() -> None:
    assert calls("os.open") == LOW_LEVEL_OPENS


def test_every_connection_to_sqlite_is_made_where_the_rules_for_its_file_are_kept() -> None:
    assert calls("sqlite3.connect") == CONNECTS


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_the_guard_of_this_suite_catches_an_open_by_hand(tmp_path: Path) -> None:
    close = open_values(tmp_path / "side.db")
    for harm in (
        lambda: os.close(os.open(tmp_path / "side.db", os.O_RDWR | os.O_CREAT, 0o600)),
        lambda: (tmp_path / "side.db-wal").read_bytes(),
    ):
        with pytest.raises(OpenedByHand):
            harm()
    close()
    (tmp_path / "side.db").read_bytes()


class _MadeMeanwhile(type(Path())):  # type: ignore[misc]  # the class of this system's paths
    """A database that another process makes between the first look for it and the look for its write-ahead log."""

    def with_name(self, name: str) -> Path:
        for made in (Path(self), Path(self).with_name(f"{self.name}-wal")):
            made.touch(mode=0o600)
        return Path(self).with_name(name)


def test_a_database_that_another_process_makes_between_two_looks_is_used(tmp_path: Path) -> None:
    create_database_file(_MadeMeanwhile(tmp_path / "log.db"))
    assert (tmp_path / "log.db").is_file()


@pytest.mark.parametrize("name", ["side.db", "log.db", "control.db"])
def test_no_database_is_created_beside_the_write_ahead_log_of_one_that_was_moved_away(
    tmp_path: Path, name: str
) -> None:
    path, opener = tmp_path / name, OPENERS[name]
    close = opener(path)
    with closing(sqlite3.connect(path)) as user:
        user.execute("SELECT * FROM sqlite_master").fetchall()
        path.rename(tmp_path / "elsewhere")
        log = path.with_name(f"{name}-wal")
        before = (log.stat().st_ino, log.stat().st_size)
        with pytest.raises(
            Exception, match=f"{name} is missing, but .*{name}-wal is there and holds.*put the file back"
        ):
            opener(path)
        assert not path.exists()
        assert (log.stat().st_ino, log.stat().st_size) == before, "nothing of what was last written is lost"
        (tmp_path / "elsewhere").rename(path)
        opener(path)()
    close()
