"""Location and owner of an installation's databases, and how a move is recorded in the data folder."""

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from audit.errors import NoLog, StoreError
from audit.private.value_location import (
    KEYS,
    has_values,
    move_values,
    open_values_at,
    open_values_read_only,
    values_of,
)
from audit.storage.dsn import database_of
from audit.storage.installation_identity import Identity, check_identity
from audit.storage.marker import NamedDatabase, StoreLocation, read_marker, write_marker
from audit.storage.sqlite import SqliteReader
from audit.storage.store import Reader
from gateway.database.database import Database
from gateway.database.ownership import check_owner, owner_of
from gateway.installation.installation import Installation, InstallationError


@dataclass(frozen=True, slots=True)
class DatabaseLocation:
    """`place` in words; `owner` None: the database was not made yet."""

    what: str
    place: str
    owner: Identity | None


def database_locations(installation: Installation) -> list[DatabaseLocation]:
    """Control database, record and value store. Raises StoreError, DatabaseUnavailable."""
    (control, control_url), (record, record_url) = installation.stores()
    found = [
        DatabaseLocation(
            control.what,
            _location_text(control, control_url),
            _owner_of_control(installation, control.file, control_url),
        ),
        DatabaseLocation(record.what, _location_text(record, record_url), _owner_of_record(record.file, record_url)),
    ]
    values = values_of(installation.side_store)
    side = _owner_of_values(installation) if has_values(installation.side_store, installation.values_url) else None
    return [*found, DatabaseLocation(values.what, _location_text(values, installation.values_url()), side)]


def remember(installation: Installation) -> tuple[int, int]:
    """Write the configured places into the folder's markers, once each database there is known to be this one's.

    The value store and the keys above it are copied from their files into a database that is empty; how many values and
    keys were. Raises InstallationError for another that is empty or not there, DatabaseUnavailable or StoreError for
    one that is of another installation or out of reach; then nothing was remembered.
    """
    owner = installation.owner
    (control, control_url), (record, record_url) = installation.stores()
    found = _owner_of_control(installation, control.file, control_url)
    record_owner = _owner_of_record(record.file, record_url)
    for named, url, identity in ((control, control_url, found), (record, record_url, record_owner)):
        if identity is None:
            raise InstallationError(
                f"{_location_text(named, url)} holds no {named.what} of this installation; move the content there"
                f" first, or set {named.variable} to where it is"
            )
        check_identity(identity, owner, f"the {named.what}")
    values, values_url = values_of(installation.side_store), installation.values_url()
    copied = _copy_values(installation, values, values_url)
    if has_values(values.file, lambda: values_url):
        with closing(open_values_at(values_url, values.file, installation.keys, create=False)) as side:
            side.claim(owner)
    for named, url in ((control, control_url), (record, record_url), (values, values_url)):
        write_marker(named, StoreLocation(None if url is None else database_of(url, named.variable), made=True))
    return copied


def _copy_values(installation: Installation, values: NamedDatabase, url: str | None) -> tuple[int, int]:
    """Nothing where they were there before, or this folder never kept any: that of a second host."""
    kept = read_marker(values)
    if url is None or (kept is not None and kept.server is not None) or not values.file.exists():
        return 0, 0
    folder = installation.audit_log.with_name(KEYS)
    return move_values(values.file, folder, url)


def _owner_of_values(installation: Installation) -> Identity | None:
    with closing(open_values_read_only(installation.side_store, None, installation.values_url)) as opened:
        return opened.identity()


def _location_text(named: NamedDatabase, url: str | None) -> str:
    return str(named.file) if url is None else str(database_of(url, named.variable))


def _owner_of_control(installation: Installation, file: Path, url: str | None) -> Identity | None:
    if url is None and not file.exists():
        return None
    database = Database(url or f"sqlite:///{file}")
    try:
        check_owner(database, installation.owner)
        return owner_of(database)
    finally:
        database.close()


def _owner_of_record(file: Path, url: str | None) -> Identity | None:
    with suppress(NoLog), closing(_reader(file, url)) as reader:
        return reader.identity()
    return None


def _reader(file: Path, url: str | None) -> Reader:
    if url is None:
        return SqliteReader.open(file)
    try:
        from audit.storage.postgres import PostgresReader
    except ImportError as error:
        raise StoreError(
            f"a log in PostgreSQL needs the extra domicile[postgres]: {error}; run: pip install 'domicile[postgres]'"
        ) from error
    return PostgresReader.open(url)
