"""Which installation a control database belongs to: checked before it is migrated or written, written once.

The row in `installation` holds cell, name of the log and fingerprint of the log's first key, as record and value store
do (`audit.storage.installation_identity`). A database from before has none; it is ours if its tenants are of our cell
and its ledger was read from our log.
"""

from collections.abc import Mapping

from sqlalchemy import Connection, inspect, text

from audit.storage.installation_identity import ForeignDatabaseError, Identity, check_identity, fingerprint, identity_of
from audit.tree.note import VerifierKey
from gateway.database.database import Database
from gateway.database.errors import DatabaseUnavailable

WHAT = "the control database"
TABLE = "installation"
KEYS = "key_fingerprint"
_VALUES = "VALUES (:name, :fingerprint)"
LOG_NAME = 16
"""Hex digits of a key's fingerprint that name its log in the ledger's cursors."""


class StrangerDatabase(DatabaseUnavailable):
    """The control database belongs to another installation; nothing was written."""


def check_owner(database: Database, key: VerifierKey) -> None:
    """Raises StrangerDatabase unless the database is empty or of the installation whose log `key` verifies."""
    with database.connect() as connection:
        tables = set(inspect(connection).get_table_names())
        if "alembic_version" not in tables:
            if tables:
                raise StrangerDatabase(
                    f"{WHAT} holds tables of another program ({', '.join(sorted(tables)[:3])}); name an empty database"
                )
            return
        found = _read(connection) if TABLE in tables else None
        try:
            if found is not None:
                check_identity(found, key, WHAT)
            else:
                _check_content(connection, tables, key)
        except ForeignDatabaseError as error:
            raise StrangerDatabase(str(error)) from error


def claim(database: Database, key: VerifierKey) -> None:
    """Write the installation's identity into a migrated database that has none yet. Raises StrangerDatabase."""
    mine = identity_of(key)
    with database.write() as session:
        connection = session.connection()
        connection.execute(
            text(f"INSERT INTO {TABLE} (id, cell, log, key) VALUES (1, :cell, :log, :key) ON CONFLICT DO NOTHING"),  # noqa: S608
            {"cell": mine.cell, "log": mine.log, "key": mine.key},
        )
        found = _read(connection) or mine
    try:
        check_identity(found, key, WHAT)
    except ForeignDatabaseError as error:
        raise StrangerDatabase(str(error)) from error


def claim_keys(database: Database, fingerprints: Mapping[str, str]) -> list[str]:
    """Write those fingerprints of keys that the database does not have; returns the names of keys that differ."""
    with database.connect() as connection:
        known = _fingerprints(connection)
    if new := [{"name": name, "fingerprint": one} for name, one in fingerprints.items() if name not in known]:
        with database.write() as session:
            connection = session.connection()
            connection.execute(text(f"INSERT INTO {KEYS} (name, fingerprint) {_VALUES} ON CONFLICT DO NOTHING"), new)
            known = _fingerprints(connection)
    return sorted(name for name, one in fingerprints.items() if known[name] != one)


def accept_key(database: Database, name: str, fingerprint: str) -> None:
    """From now on the key `name` of the cell has that fingerprint."""
    with database.write() as session:
        session.connection().execute(
            text(
                f"INSERT INTO {KEYS} (name, fingerprint) {_VALUES}"
                " ON CONFLICT (name) DO UPDATE SET fingerprint = excluded.fingerprint"
            ),
            {"name": name, "fingerprint": fingerprint},
        )


def _fingerprints(connection: Connection) -> dict[str, str]:
    rows = connection.execute(text(f"SELECT name, fingerprint FROM {KEYS}"))  # noqa: S608
    return {name: one for name, one in rows}


def owner_of(database: Database) -> Identity | None:
    """The identity that it holds; None where it was never claimed."""
    with database.connect() as connection:
        return _read(connection) if TABLE in inspect(connection).get_table_names() else None


def check_against_record(database: Database, sizes: dict[str, int], key: VerifierKey) -> None:
    """That record and control database are of one time: `sizes` are those of the record's trees.

    Raises DatabaseUnavailable where one of the two was restored without the other.
    """
    with database.connect() as connection:
        read = text("SELECT tenant, next_seq FROM ledger_cursor WHERE log = :log AND tenant != ''")
        for public_key in key.public_keys:
            for tenant, next_seq in connection.execute(read, {"log": fingerprint(public_key)[:LOG_NAME]}):
                if next_seq > sizes.get(tenant, 0):
                    raise DatabaseUnavailable(
                        f"the control database has read {next_seq} events of {tenant}, but the record holds"
                        f" {sizes.get(tenant, 0)}: only one of the two was restored; restore both from the same backup"
                    )
        tenants = {tenant for tenant in sizes if not tenant.startswith("_")}
        if tenants and connection.execute(text("SELECT count(*) FROM tenant")).scalar_one() == 0:
            raise DatabaseUnavailable(
                f"the control database is empty, but the record holds events of {', '.join(sorted(tenants)[:3])}: only"
                " one of the two was restored; restore both from the same backup"
            )


def _read(connection: Connection) -> Identity | None:
    row = connection.execute(text(f"SELECT cell, log, key FROM {TABLE}")).first()  # noqa: S608
    return None if row is None else Identity(*row)


def _check_content(connection: Connection, tables: set[str], key: VerifierKey) -> None:
    """Raises ForeignDatabaseError."""
    mine = identity_of(key)
    if "tenant" in tables:
        for cell in connection.execute(text("SELECT DISTINCT cell FROM tenant")).scalars():
            if cell != mine.cell:
                raise ForeignDatabaseError(
                    f"{WHAT} belongs to cell {cell!r}, this data folder to cell {mine.cell!r}; name the data folder of"
                    f" cell {cell!r} by --data or DOMICILE_DATA, or set the URL of the database of cell {mine.cell!r}"
                )
    if "ledger_cursor" in tables:
        logs = set(connection.execute(text("SELECT DISTINCT log FROM ledger_cursor")).scalars())
        if logs and not logs & {fingerprint(public_key)[:LOG_NAME] for public_key in key.public_keys}:
            raise ForeignDatabaseError(
                f"{WHAT} belongs to another installation of cell {mine.cell!r}: its ledger was read from a log that"
                " another key signs; use that installation's key set (domicile init --keys), or another database"
            )
