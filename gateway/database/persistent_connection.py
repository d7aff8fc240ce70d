"""One connection to PostgreSQL out of the database's pool, kept, for who asks it all day long.

It speaks to the driver itself, without the layers that make SQL out of objects, and sends several statements at once
(PostgreSQL's simple query protocol): a transaction is two round trips, regardless of its statements.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from gateway.database.database import Database
from gateway.database.errors import DatabaseUnavailable

Statement = tuple[str, Sequence[Any]]
"""SQL with ``%s`` for its values, which the driver quotes."""

_BEGIN: Statement = ("BEGIN", ())
_COMMIT: Statement = ("COMMIT", ())


@dataclass(slots=True)
class Transaction:
    """`read`: the rows of each statement that it began with. `write`: what goes with its commit."""

    read: list[list[Any]]
    write: list[Statement] = field(default_factory=list)


class PersistentConnection:
    """For one thread at a time. Opened when first asked, and again after it broke; close it when done."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pooled: Connection | None = None
        self._cursor: Any = None

    def ask(self, *statements: Statement) -> list[list[Any]]:
        """The rows of each, all in one transaction of their own, unless one is open. Raises DatabaseUnavailable."""
        sql = "; ".join(text for text, _ in statements)
        values = [value for _, given in statements for value in given]
        try:
            cursor = self._cursor or self._open()
            cursor.execute(sql, values)
            rows = [_rows(cursor)]
            while cursor.nextset():
                rows.append(_rows(cursor))
        except self._database.driver_error as error:
            self.close()
            raise DatabaseUnavailable(
                f"the control database failed: {type(error).__name__}; check database.url and the server"
            ) from error
        return rows

    @contextmanager
    def transaction(self, *statements: Statement) -> Iterator[Transaction]:
        """Committed when the block ends. Raises DatabaseUnavailable; from its end, it is not known whether it was made.

        A connection that turns out to have ended meanwhile is replaced once: before a commit nothing is done.
        """
        kept = self._cursor is not None
        try:
            _, *read = self.ask(_BEGIN, *statements)
        except DatabaseUnavailable:
            if not kept:
                raise
            _, *read = self.ask(_BEGIN, *statements)
        step = Transaction(read)
        try:
            yield step
        except BaseException:
            self.close()  # and with it what was begun
            raise
        self.ask(*step.write, _COMMIT)

    def close(self) -> None:
        pooled, self._pooled, self._cursor = self._pooled, None, None
        if pooled is not None:
            pooled.invalidate()  # it is not as the pool's others are
            pooled.close()

    def _open(self) -> Any:
        from psycopg import ClientCursor  # of the extra domicile[postgres]

        self._pooled = self._database.connect()
        connection: Any = self._pooled.connection.dbapi_connection
        connection.autocommit = True  # the driver is not to begin anything by itself
        self._cursor = ClientCursor(connection)
        return self._cursor


def _rows(cursor: Any) -> list[Any]:
    return list(cursor.fetchall()) if cursor.description else []
