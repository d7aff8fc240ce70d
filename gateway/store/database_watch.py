"""A watch on a control database in PostgreSQL (`audit.watched`): the same tables, and an epoch that only grows.

In SQLite the control database is a file, which `audit.file_watch` watches.
"""

import threading

from sqlalchemy import text

from audit.watched import StoreReplaced
from gateway.store.database import Database
from gateway.store.epoch import read_epoch
from gateway.store.errors import DatabaseUnavailable

_IDENTITY = text(
    "SELECT (SELECT oid FROM pg_database WHERE datname = current_database()), to_regclass('config_epoch')::oid"
)


class ControlWatch:
    """A database that is away is no fault here: the directory notices it (`gateway.directory`)."""

    def __init__(self, database: Database, cell: str) -> None:
        """Raises DatabaseUnavailable."""
        self._database = database
        self._cell = cell
        self._lock = threading.Lock()
        self._identity, self._epoch = self._read()

    def look(self) -> None:
        """Nothing that takes microseconds tells: the closer look does."""

    def look_closely(self) -> None:
        with self._lock:
            try:
                identity, epoch = self._read()
            except DatabaseUnavailable:
                return
            if identity != self._identity:
                raise StoreReplaced(
                    "the control database was dropped or replaced while this gateway uses it; stop the gateway before"
                    " a database is restored, then start it again"
                )
            if epoch < self._epoch:
                raise StoreReplaced(
                    f"the control database was put back to an older state while this gateway uses it: it is at epoch"
                    f" {epoch} and was at {self._epoch}; stop the gateway before a database is restored, then start"
                    " it again"
                )
            self._epoch = epoch

    def close(self) -> None:
        """The connections are the database's."""

    def _read(self) -> tuple[tuple[object, ...], int]:
        with self._database.read() as session:
            identity = tuple(session.connection().execute(_IDENTITY).one())
            return identity, read_epoch(session, self._cell) if identity[1] is not None else 0
