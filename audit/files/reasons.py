"""Errors of the operating system and of SQLite as a sentence that names the fix."""

import errno
import sqlite3

_FIXES = {
    errno.EROFS: "this medium is read-only: work on a copy of the folder, or mount it writable",
    errno.EACCES: "run the command as the user that the gateway runs as",
    errno.EPERM: "run the command as the user that the gateway runs as",
    errno.ENOENT: "name a file that exists",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "name a folder, not a file",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise this user's quota",
}
_PRIMARY = 0xFF
"""Mask of the kind of error in an extended result code of SQLite (sqlite.org/rescode.html)."""


def describe_os_error(error: OSError) -> str:
    """What the system refused, of which file, and what to do where that is known."""
    fix = _FIXES.get(error.errno or 0)
    if error.strerror is None or (error.filename is None and fix is None):
        return str(error)
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror}" + (f"; {fix}" if fix else "")


def describe_sqlite_error(error: sqlite3.Error) -> str:
    """A full disk is reported as such for the database only; for the files beside it as an I/O error."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    if code == sqlite3.SQLITE_FULL:
        return f"{error}; free some space on its disk"
    if code == sqlite3.SQLITE_IOERR:
        return f"{error}; free some space on its disk, or, if it has some, replace the disk: its reads or writes fail"
    return str(error)
