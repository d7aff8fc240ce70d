"""SQLite's write-ahead log, also where several processes open a new file at the same moment.

To switch a file to it needs the file alone, and SQLite answers "locked" to all others at once instead of waiting as it
does elsewhere (sqlite.org, WAL-mode). A file that is switched already is only read.
"""

import sqlite3
from time import monotonic, sleep

PAUSE_S = 0.01


def switch_to_wal(db: sqlite3.Connection, within_s: float) -> None:
    """Raises sqlite3.OperationalError if others hold the file for longer than that."""
    until = monotonic() + within_s
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > until:
                raise
            sleep(PAUSE_S)
