"""Switching a new file to the write-ahead log waits for others who do so, and not for ever."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from audit.files.wal import PAUSE_S, switch_to_wal


def test_one_that_is_held_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        threading.Timer(0.2, lambda: other.execute("COMMIT")).start()
        with closing(sqlite3.connect(file, timeout=0)) as db:
            switch_to_wal(db, 10)
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_one_that_stays_held_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("audit.files.wal.sleep", slept.append)
    monkeypatch.setattr("audit.files.wal.monotonic", lambda: sum(slept))
    file = tmp_path / "new.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with closing(sqlite3.connect(file, timeout=0)) as db, pytest.raises(sqlite3.OperationalError, match="locked"):
            switch_to_wal(db, 0.1)
        assert 0.1 < sum(slept) < 0.1 + 2 * PAUSE_S, "it tried again until the time was over, and no longer"
        other.execute("ROLLBACK")


def test_another_fault_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "no.db"
    file.write_bytes(b"this is no database, and longer than a header " * 100)
    with closing(sqlite3.connect(file)) as db, pytest.raises(sqlite3.DatabaseError, match="not a database"):
        switch_to_wal(db, 60)
