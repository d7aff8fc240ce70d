"""Notifications of changes as they are committed, where the database has them (PostgreSQL's LISTEN and NOTIFY).

It only makes the directory look sooner: what is missed here, because a connection broke or a pooler does not pass
notifications on, is seen by its poll.
"""

import logging
from collections.abc import Callable
from threading import Event, Thread

from sqlalchemy import exc

from gateway.database.database import Database
from gateway.database.epoch import CHANNEL

log = logging.getLogger(__name__)

RETRY_S = 1.0
WAIT_S = 0.5  # how long `close` waits at most for the thread to notice


class EpochListener:
    """Calls `on_news`, in a thread of its own, after each change of `cell`. Use as a context manager."""

    def __init__(self, database: Database, cell: str, on_news: Callable[[], None]) -> None:
        self._database = database
        self._cell = cell
        self._on_news = on_news
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="epoch-listener", daemon=True)

    def start(self) -> None:
        """Does nothing where the database has no notifications."""
        if self._database.notifies_changes:
            self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except (exc.DBAPIError, exc.TimeoutError, self._database.driver_error, OSError) as error:
                log.warning(
                    "the control database cannot be listened to: %s"
                    "; check database.url and the server, it is tried again",
                    type(error).__name__,
                )
                self._stopped.wait(RETRY_S)

    def _listen(self) -> None:
        with self._database.engine.connect() as pooled:
            pooled.detach()  # for good: it never goes back into the pool
            connection = pooled.connection.dbapi_connection
            assert connection is not None  # noqa: S101  # just connected
            connection.autocommit = True
            try:
                connection.execute(f"LISTEN {CHANNEL}")
                self._on_news()  # what changed before we listened
                while not self._stopped.is_set():
                    if any(note.payload == self._cell for note in connection.notifies(timeout=WAIT_S)):
                        self._on_news()
            except self._database.driver_error:
                connection.close()
                pooled.invalidate()  # else the pool would roll back on what is broken, and log how that fails
                raise
