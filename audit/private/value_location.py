"""Location of the value store and its wrapped keys: files beside the log, or a PostgreSQL database.

The URL is that of DOMICILE_VALUES_DATABASE_URL, unless a program has named another source of it (`use_values_url_of`).
A marker beside the log says where it is (`audit.storage.marker`), as for the record.
"""

import os
from contextlib import closing
from pathlib import Path
from types import ModuleType

from audit.errors import StoreError
from audit.keys.key_files import KeyFolder, WrappedKeys
from audit.keys.owner_keys import KeyProvider, NoKeys
from audit.private.value_store import ValueStore, value_store_errors
from audit.storage.location import UrlSource
from audit.storage.marker import NamedDatabase, StoreLocation, location_of, mark_created, read_marker
from audit.tree.note import VerifierKey

VALUES_VARIABLE = "DOMICILE_VALUES_DATABASE_URL"
VALUES_SETTING = "database.values_url"
FILE, KEYS = "side.db", "keys"
"""Names beside the log, where no URL is set."""


def _from_environment() -> str | None:
    return os.environ.get(VALUES_VARIABLE) or None


_source: list[UrlSource] = [_from_environment]


def use_values_url_of(source: UrlSource) -> None:
    """From now on in this process the URL of the value store is what `source` returns; None: it is a file."""
    _source[0] = source


def values_url() -> str | None:
    """Raises StoreError if the source's files cannot be read."""
    return _source[0]()


def values_of(side: Path) -> NamedDatabase:
    """The value store whose file would be `side`, as messages and its marker name it."""
    return NamedDatabase("value store", side, side.with_name("side.place"), VALUES_VARIABLE, VALUES_SETTING)


def require_place(side: Path, source: UrlSource = values_url) -> None:
    """Raises StoreError if the marker and the URL disagree, or the file is missing; nothing is opened."""
    location_of(values_of(side), source())


def open_values(side: Path, keys: KeyProvider, source: UrlSource = values_url) -> ValueStore:
    """The value store of a record, made if there never was one. Raises StoreError, also for one that is missing."""
    url = source()
    place = location_of(values_of(side), url) or StoreLocation()
    return open_values_at(url, side, keys, create=not place.made)


def open_values_at(url: str | None, side: Path, keys: KeyProvider, *, create: bool) -> ValueStore:
    """Without a look at the marker. Raises StoreError."""
    if url is None:
        return ValueStore.open(side, keys, create=create)
    with value_store_errors():
        return ValueStore(_postgres().PostgresValues.open(url, create=create), keys)


def open_claimed_values(side: Path, keys: KeyProvider, key: VerifierKey | None, source: UrlSource) -> ValueStore:
    """As `open_values`, once it is known to be of the log of `key`, which it then says itself."""
    url = source()
    place = location_of(values_of(side), url) or StoreLocation()
    opened = open_values(side, keys, lambda: url)
    try:
        if key is not None:
            opened.claim(key)
            mark_created(values_of(side), place)
    except BaseException:
        opened.close()
        raise
    return opened


def open_values_read_only(side: Path, keys: KeyProvider | None = None, source: UrlSource = values_url) -> ValueStore:
    """For reading what is there; without `keys` nothing of it can be opened. Raises StoreError if there is none."""
    if (url := source()) is None:
        return ValueStore.open_read_only(side, keys)
    location_of(values_of(side), url)
    with value_store_errors():
        return ValueStore(_postgres().PostgresValues.open(url, create=False), keys or NoKeys())


def has_values(side: Path, source: UrlSource = values_url) -> bool:
    """Whether there is a value store, as far as can be told without opening it. Raises StoreError."""
    return source() is not None or side.is_file()


def wrapped_keys(folder: Path, source: UrlSource = values_url) -> WrappedKeys:
    """Those above the values, in the same place: a folder of this machine, or the database. Raises StoreError."""
    url = source()
    if url is None:
        return KeyFolder(folder)
    kept = read_marker(values_of(folder.with_name(FILE)))  # which may name another place while the store is moved
    keys: WrappedKeys = _postgres().KeyTable(url, create=kept is None or kept.server is None or not kept.made)
    return keys


def move_values(side: Path, folder: Path, url: str) -> tuple[int, int]:
    """Copy values and wrapped keys out of the files into the empty database at `url`; how many of each.

    In one transaction of the database; the files stay. Nothing is copied where the files hold nothing or the database
    holds it already. Raises StoreError, also if it holds something else; KeyProviderError.
    """
    postgres, old = _postgres(), KeyFolder(folder)
    keys = [(owner, content) for owner in old.owners() if (content := old.read(owner)) is not None]
    with value_store_errors(), closing(ValueStore.open_read_only(side)) as source:
        if not keys and not source.rows("SELECT 1 FROM deletion LIMIT 1"):
            return 0, 0
        copied: tuple[int, int] = postgres.copy_into(url, source, keys)
        return copied


def _postgres() -> ModuleType:
    try:
        from audit.private import postgres_values  # of the extra domicile[postgres]
    except ImportError as error:
        raise StoreError(
            f"a value store in PostgreSQL needs the extra domicile[postgres]: {error}; run: pip install "
            "'domicile[postgres]'"
        ) from error
    return postgres_values
