"""What was refused is said with what to do about it, on a full disk, a read-only medium and without permission."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from audit.errors import StoreError
from audit.files.reasons import describe_os_error, describe_sqlite_error
from audit.private.value_store import value_store_errors
from audit.storage.sqlite import _store_errors


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.ENOENT])
def test_a_refusal_of_the_system_names_the_file_and_the_fix(number: int) -> None:
    said = describe_os_error(OSError(number, os.strerror(number), "audit/tiles"))
    assert said.startswith(f"audit/tiles: {os.strerror(number)}; ")
    assert "[Errno" not in said


def test_a_full_disk_has_its_fix_also_where_no_file_is_named() -> None:
    assert describe_os_error(OSError(errno.ENOSPC, "No space left on device")) == (
        "No space left on device; free some space"
    )
    assert describe_os_error(OSError("its own sentence")) == "its own sentence"


def failed(code: int, text: str) -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


IOERR_SHMSIZE = sqlite3.SQLITE_IOERR | 19 << 8
"""What SQLite reports where there is no room for the index of a write-ahead log."""


@pytest.mark.parametrize(
    ("code", "text"), [(sqlite3.SQLITE_FULL, "database or disk is full"), (IOERR_SHMSIZE, "disk I/O error")]
)
def test_a_database_on_a_full_disk_says_that_space_is_to_be_freed(code: int, text: str) -> None:
    assert describe_sqlite_error(failed(code, text)).startswith(f"{text}; free some space")
    for errors in (_store_errors, value_store_errors()):
        with pytest.raises(StoreError, match=f"{text}; free some space"), errors:
            raise failed(code, text)


def test_other_errors_of_a_database_are_passed_on_as_they_are() -> None:
    assert describe_sqlite_error(failed(sqlite3.SQLITE_CORRUPT, "malformed")) == "malformed"
    assert describe_sqlite_error(sqlite3.ProgrammingError("closed")) == "closed"


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(OSError) as refused:
        (tmp_path / "x" / "y").mkdir()
    assert str(tmp_path / "x") in describe_os_error(refused.value)
