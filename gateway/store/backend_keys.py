"""Public keys that managed services have shown, or that an administrator accepted before: SHA-256 of their SPKI."""

from datetime import datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session

from gateway.database.database import Database
from gateway.database.tables.control import BackendKeyRow

_KEY: Any = BackendKeyRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass


def known_keys(database: Database, backend: str) -> list[str]:
    """In the order in which they were seen. Raises DatabaseUnavailable."""
    query = select(_KEY.c.key_sha256).where(_KEY.c.backend == backend).order_by(_KEY.c.seen_at)
    with database.read() as session:
        return list(session.connection().execute(query).scalars())


def remember_key(database: Database, backend: str, key_sha256: str, at: datetime) -> None:
    """Raises DatabaseUnavailable."""
    with database.write() as session:
        add_key(session, backend, key_sha256, at)


def add_key(session: Session, backend: str, key_sha256: str, at: datetime) -> None:
    """One that is known already stays as it is."""
    connection = session.connection()
    insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(_KEY)
    row = {"backend": backend, "key_sha256": key_sha256, "seen_at": at}
    connection.execute(insert.on_conflict_do_nothing(), row)


def forget_keys(session: Session, backend: str) -> None:
    """The next one is then the first."""
    session.connection().execute(delete(_KEY).where(_KEY.c.backend == backend))
