"""The marker of a database: a small file in the data folder that says where the database is, without credentials.

With it a command that lacks the URL, or has another one, ends with a sentence instead of founding or changing a second
database. `made` is set once the database exists: a SQLite file that is then missing was lost, not yet to be made.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from audit.errors import StoreError
from audit.files.secret_file import LoosePermissions, read_secret, write_secret
from audit.storage.dsn import ServerDatabase, database_of


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where a database is: in a file of the data folder (`server` is None), or on a PostgreSQL server."""

    server: ServerDatabase | None = None
    made: bool = False

    @property
    def kind(self) -> Literal["sqlite", "postgresql"]:
        return "sqlite" if self.server is None else "postgresql"


@dataclass(frozen=True, slots=True)
class NamedDatabase:
    """One database of an installation as its messages name it.

    `file` is where it would be as SQLite, `marker` where its marker is, `variable` the environment variable of its
    URL, `setting` the key of it.
    """

    what: str
    file: Path
    marker: Path
    variable: str
    setting: str


def read_marker(named: NamedDatabase) -> StoreLocation | None:
    """None if there is none. Raises StoreError if it is damaged or may be changed by others."""
    try:
        said = json.loads(read_secret(named.marker))
        server = ServerDatabase(said["host"], said["database"]) if said["kind"] == "postgresql" else None
        if said["kind"] not in ("sqlite", "postgresql"):
            raise ValueError(said["kind"])
        return StoreLocation(server, bool(said["made"]))
    except FileNotFoundError:
        return None
    except LoosePermissions as error:
        raise StoreError(str(error)) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{named.marker} cannot be read, so nothing says where the {named.what} is; "
            "remove that file and run: domicile init"
        ) from error


def write_marker(named: NamedDatabase, place: StoreLocation) -> None:
    """Durably, mode 0600. Raises StoreError."""
    said: dict[str, object] = {"kind": place.kind, "made": place.made}
    if place.server is not None:
        said |= {"host": place.server.host, "database": place.server.database}
    try:
        write_secret(named.marker, json.dumps(said, indent=1).encode() + b"\n")
    except OSError as error:
        raise StoreError(
            f"{named.marker} cannot be written ({error.strerror}); make the data folder writable for this user"
        ) from error


def location_of(named: NamedDatabase, url: str | None) -> StoreLocation | None:
    """Where the database is, from the marker and the configured `url`; None if neither says and no file is there.

    Raises StoreError, before anything is opened, if the two disagree, or if the file is gone.
    """
    kept = read_marker(named)
    wanted = None if url is None else database_of(url, named.variable)
    if kept is None:
        if wanted is not None:
            return StoreLocation(wanted)
        return StoreLocation(made=True) if named.file.exists() else None
    if kept.server is None:
        if wanted is not None:
            raise StoreError(
                f"the {named.what} of this data folder is {named.file}, but {named.variable} names {wanted}; unset "
                f"it, or move the database there and run: {MOVE}"
            )
        if kept.made and not named.file.exists():
            raise StoreError(
                f"{named.file}, the {named.what}, is missing; put it back from a backup with: domicile backup restore"
            )
        return kept
    if wanted is None:
        raise StoreError(
            f"the {named.what} of this data folder is {kept.server} (PostgreSQL), and no URL is set; set "
            f"{named.variable}, or {named.setting} in the configuration that DOMICILE_CONFIG names"
        )
    if wanted != kept.server:
        raise StoreError(
            f"the {named.what} of this data folder is {kept.server}, but {named.variable} names {wanted}; name the "
            f"right one, or, if the database was moved, run: {MOVE}"
        )
    return kept


MOVE = "domicile database move"


def mark_created(named: NamedDatabase, place: StoreLocation) -> None:
    """Remember where a database that now exists is. On a folder that cannot be written, what was kept stays."""
    kept = read_marker(named)
    if kept is None or not kept.made:
        with suppress(StoreError):
            write_marker(named, StoreLocation(place.server, made=True))
