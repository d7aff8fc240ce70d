"""Public keys of managed services that were seen or accepted by an administrator, as SHA-256 of their SPKI."""

from datetime import datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session

from gateway.database.database import Database
from gateway.database.tables.control import BackendKeyRow

_KEY: Any = BackendKeyRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass


def known_keys(database: Database, backend: str) -> list[str]:
    """Return the known keys in the order in which they were seen. Raises DatabaseUnavailable."""
    query = select(_KEY.c.key_sha256).where(_KEY.c.backend == backend).order_by(_KEY.c.seen_at)
    with database.read() as session:
        return list(session.connection().execute(query).scalars())


def remember_key(database: Database, backend: str, key_sha256: str, at: datetime) -> None:
    """Store a key that was seen. Raises DatabaseUnavailable."""
    with database.write() as session:
        add_key(session, backend, key_sha256, at)


def add_key(session: Session, backend: str, key_sha256: str, at: datetime) -> None:
    """Add a key. A known key is left unchanged."""
    connection = session.connection()
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(_KEY)
    row = {"backend": backend, "key_sha256": key_sha256, "seen_at": at}
    connection.execute(insert.on_conflict_do_nothing(), row)


def forget_keys(session: Session, backend: str) -> None:
    """Delete all keys, so that the next key seen counts as the first."""
    session.connection().execute(delete(_KEY).where(_KEY.c.backend == backend))
