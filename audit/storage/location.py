"""Where a log is: in a file of the data folder, or in the PostgreSQL database whose URL is configured.

The URL is that of DOMICILE_AUDIT_DATABASE_URL, unless a program has named another source of it (`use_urls_of`).
Signing key, value store, reserve and tiles are in the folder either way; several gateways that share a log in
PostgreSQL share that folder's `side.db` and keys only if they are on one machine. A marker beside the log says where
it is (`audit.storage.marker`), and the database says which installation it belongs to
(`audit.storage.installation_identity`): a command that disagrees with either is refused before anything is written.
"""

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from audit.errors import AuditError, NoLog, SignerError, StoreError
from audit.keys.succession import keep_notes, notes_in, open_succession
from audit.storage.attested_files import files_beside, missing
from audit.storage.installation_identity import ForeignDatabaseError, check_identity, key_beside
from audit.storage.marker import NamedDatabase, StoreLocation, location_of, mark_created
from audit.storage.sqlite import SqliteReader, SqliteStore, no_log_at
from audit.storage.store import LeafStore, Reader
from audit.storage.tiles import Folder

if TYPE_CHECKING:
    from audit.storage.postgres_watch import TreeSizes

logger = logging.getLogger(__name__)

DATABASE_VARIABLE = "DOMICILE_AUDIT_DATABASE_URL"
DATABASE_SETTING = "database.record_url"


UrlSource = Callable[[], str | None]
"""Gives the URL of the record's database; None: it is a file of the data folder."""


def _from_environment() -> str | None:
    return os.environ.get(DATABASE_VARIABLE) or None


_source: list[UrlSource] = [_from_environment]


def use_urls_of(source: UrlSource) -> None:
    """From now on in this process the URL of the record is what `source` returns; None: the file in the data folder."""
    _source[0] = source


def database_url() -> str | None:
    """Raises StoreError if the source's files cannot be read."""
    return _source[0]()


def record_of(path: Path) -> NamedDatabase:
    """The record whose file would be `path`, as messages and its marker name it."""
    return NamedDatabase("record", path, path.with_name("record.place"), DATABASE_VARIABLE, DATABASE_SETTING)


def open_store(path: Path, node: str, boot: str, source: UrlSource = database_url) -> LeafStore:
    """The store of the log whose file would be `path`. Raises StoreError or ForeignDatabaseError before anything is
    written."""
    url, named = source(), record_of(path)
    place = location_of(named, url) or StoreLocation()
    key = key_beside(path)
    create = not place.made
    store: LeafStore
    if url is None:
        store = SqliteStore.open(path, node, boot, create=create)
    else:
        store = _open_postgres(url, node, boot, create=create)
    try:
        if key is not None:
            store.claim(key)
            _exchange_successions(store, path)
            _exchange_attested_files(store, path)
            mark_created(named, place)
    except BaseException:
        store.close()
        raise
    return store


def _open_postgres(url: str, node: str, boot: str, *, create: bool) -> LeafStore:
    try:
        from audit.storage.postgres import PostgresStore  # of the extra domicile[postgres]
    except ImportError as error:
        raise StoreError(
            f"a log in PostgreSQL needs the extra domicile[postgres]: {error}; run: pip install 'domicile[postgres]'"
        ) from error
    return PostgresStore.open(url, node, boot, create=create)


def tree_sizes(source: UrlSource = database_url) -> "TreeSizes | None":
    """For a log in PostgreSQL, where opening a reader costs a connection; None for one in a file."""
    url = source()
    if url is None:
        return None
    from audit.storage.postgres_watch import TreeSizes  # of the extra domicile[postgres]

    return TreeSizes(url)


def open_reader(path: Path, source: UrlSource = database_url) -> Reader:
    """Raises NoLog if there is no log, ForeignDatabaseError if it is not of the installation that `path` is in."""
    url = source()
    location_of(record_of(path), url)
    if not path.parent.is_dir():
        raise NoLog(no_log_at(path))
    reader: Reader
    if url is None:
        reader = SqliteReader.open(path)
    else:
        try:
            from audit.storage.postgres import PostgresReader
        except ImportError as error:
            raise StoreError(
                f"a log in PostgreSQL needs the extra domicile[postgres]: {error}; run: pip install "
                "'domicile[postgres]'"
            ) from error
        reader = PostgresReader.open(url)
    try:
        _check_reader(reader, path)
    except BaseException:
        reader.close()
        raise
    return reader


def _check_reader(reader: Reader, path: Path) -> None:
    """Where the first key of the record is not the folder's own, it may be one that successions link: those that other
    hosts wrote are taken over from the record."""
    found = reader.identity()
    key = None if found is None else key_beside(path)
    if found is None or key is None:
        return
    try:
        check_identity(found, key, "the record")
    except ForeignDatabaseError:
        _learn(path, reader.successions())
        check_identity(found, key_beside(path) or key, "the record")


def learn_successions(path: Path, source: UrlSource = database_url) -> bool:
    """Take over the replacements of the log's key that other hosts wrote into the record; whether there were any.

    Raises StoreError.
    """
    reader = open_reader(path, source)
    try:
        return _learn(path, reader.successions())
    finally:
        reader.close()


def publish_succession(path: Path, node: str, note: str) -> None:
    """Write the note of a replaced key into the record, for the gateways on other hosts.

    Raises SignerError if the record has another successor of that key, StoreError.
    """
    name = note.partition(" ")[0]
    old, _ = open_succession(note, name)

    def check(notes: Sequence[str]) -> None:
        if any(open_succession(one, name)[0] == old for one in notes if one != note):
            raise SignerError(
                "the key that signs here was replaced on another host meanwhile; take that host's key set over with:"
                " domicile init --keys"
            )

    store = open_store(path, node, "")
    try:
        store.publish_succession(note, check)
    finally:
        store.close()


def _exchange_successions(store: LeafStore, path: Path) -> None:
    """The folder's notes into the record, and those of the record into the folder."""
    there, here = store.successions(), notes_in(path.parent)
    if missing := [note for note in here if note not in there]:
        store.add_successions(missing)
    _learn(path, there)


def exchange_attested_files(path: Path, source: UrlSource = database_url) -> None:
    """What other parties signed, between the folder and the record where hosts share it. Raises StoreError."""
    if source() is not None:
        node = f"exchange-{os.getpid()}-{secrets.token_hex(4)}"
        open_store(path, node, "", source).close()  # opening does it


def _exchange_attested_files(store: LeafStore, path: Path) -> None:
    there, here = store.attested_files(), files_beside(path.parent)
    store.add_attested_files(missing(here, there))
    try:
        for one in missing(there, here):
            Folder(path.parent / one.folder).write(one.name, one.content)
    except OSError as error:  # the database has them
        logger.error(
            "notes of other parties cannot be kept beside the log: %s; let this process write to the data folder", error
        )


def _learn(path: Path, notes: Sequence[str]) -> bool:
    key = key_beside(path)
    if key is None or not notes:
        return False
    try:
        return keep_notes(path.parent, key.name, notes, known=key.public_keys)
    except (AuditError, OSError) as error:
        logger.error(
            "the record's key successions cannot be kept beside the log: %s; let this process write to the data folder",
            error,
        )
        return False


def is_there(path: Path, source: UrlSource = database_url) -> bool:
    """Whether there is a log, as far as can be told without opening it.

    Raises StoreError if the configured URL and the marker of the folder disagree.
    """
    place = location_of(record_of(path), source())
    return place is not None and (path.is_file() if place.server is None else path.parent.is_dir())
