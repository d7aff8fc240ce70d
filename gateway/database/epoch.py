"""The configuration epoch: one number a cell that every change raises, so that a gateway sees that there is news."""

from sqlalchemy import text
from sqlmodel import Session

CHANNEL = "domicile_epoch"
"""PostgreSQL's channel for changes; the payload is the cell."""

# As text, since it is read several times a second: through the mapped class it takes three times as long.
_READ = text("SELECT value FROM config_epoch WHERE cell = :cell")
# Understood by SQLite (from 3.35) and PostgreSQL alike.
_BUMP = text(
    "INSERT INTO config_epoch (cell, value) VALUES (:cell, 1) "
    "ON CONFLICT (cell) DO UPDATE SET value = config_epoch.value + 1 RETURNING value"
)


def read_epoch(session: Session, cell: str) -> int:
    """0 before the first change."""
    return int(session.connection().execute(_READ, {"cell": cell}).scalar_one_or_none() or 0)


def bump_epoch(session: Session, cell: str) -> int:
    """The next epoch. The row stays locked until the commit, so epochs are committed in order."""
    connection = session.connection()
    if connection.dialect.name == "postgresql":  # delivered with the commit
        connection.execute(text("SELECT pg_notify(:channel, :cell)"), {"channel": CHANNEL, "cell": cell})
    return int(connection.execute(_BUMP, {"cell": cell}).scalar_one())
