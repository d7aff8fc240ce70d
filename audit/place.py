"""Where a log is: in a file of the data folder, or in the PostgreSQL database that DOMICILE_AUDIT_DATABASE_URL names.

Signing key, side store, reserve and tiles lie in the folder either way; several gateways that share a log in PostgreSQL
share that folder's `side.db` and keys only if they are on one machine.
"""

import os
from pathlib import Path

from audit.errors import StoreError
from audit.sqlite import SqliteReader, SqliteStore
from audit.store import LeafStore, Reader

DATABASE_VARIABLE = "DOMICILE_AUDIT_DATABASE_URL"


def database_url() -> str | None:
    return os.environ.get(DATABASE_VARIABLE) or None


def open_store(path: Path, node: str, boot: str) -> LeafStore:
    """The store of the log whose file would be `path`. Raises StoreError."""
    if (url := database_url()) is None:
        return SqliteStore.open(path, node, boot)
    try:
        from audit.postgres import PostgresStore  # of the extra domicile[postgres]
    except ImportError as error:
        raise StoreError(f"a log in PostgreSQL needs the extra domicile[postgres]: {error}") from error
    return PostgresStore.open(url, node, boot)


def open_reader(path: Path) -> Reader:
    """Raises StoreError if there is no log."""
    if (url := database_url()) is None:
        return SqliteReader.open(path)
    try:
        from audit.postgres import PostgresReader
    except ImportError as error:
        raise StoreError(f"a log in PostgreSQL needs the extra domicile[postgres]: {error}") from error
    return PostgresReader.open(url)


def is_there(path: Path) -> bool:
    """Whether there is a log, as far as can be told without opening it."""
    return database_url() is not None or path.is_file()
