"""A copy of a data folder from which the cell can go on, taken while its gateway runs.

<backup>/manifest.json           what it is of, when, and the SHA-256 of every other file
<backup>/data/...                databases and public files, in the places they have in the data folder

Keys are not in it: a backup is read by more people than the keys above it (`gateway.key_set` carries those apart). So a
backup alone opens nothing, and a subject's values in it die with their keys.

Order: control.db, then the log, then side.db. The ledger catches up from a log that is newer, and a leaf in the copy
never lacks values that were durable before it. SQLite's backup API copies each database whole, as of one instant.
"""

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.installation import Installation, InstallationError

FORMAT = "domicile-backup/1"
DATABASES = ("control.db", "audit/log.db", "audit/side.db")
PUBLIC = ("catalogue.yaml", "registers.json", "ca/ca.pem", "audit/signer.vkey")
PAGES = 2000  # copied between two looks at the clock of whoever watches; the writer goes on between them

Progress = Callable[[int], None]
"""How many pages more are copied."""


class BackupError(Exception):
    """The backup is not whole, not what its manifest says, or would overwrite something."""


class Manifest(BaseModel):
    """`files`: SHA-256 in hex by path under ``data/``. `elsewhere`: what is in PostgreSQL and backed up there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = FORMAT
    cell: str
    made_at: datetime
    files: dict[str, str]
    elsewhere: tuple[str, ...] = ()


def create(installation: Installation, target: Path, progress: Progress = lambda pages: None) -> Manifest:
    """Copy into `target`, which must not exist or be empty. Raises BackupError, with nothing left in `target`."""
    if target.exists() and any(target.iterdir()):
        raise BackupError(f"{target} is not empty: name a new folder")
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        data = target / "data"
        for name in DATABASES:
            if (installation.data / name).exists():
                _copy_database(installation.data / name, data / name, progress)
        for name in PUBLIC:
            if (installation.data / name).exists():
                (data / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                shutil.copyfile(installation.data / name, data / name)
        manifest = Manifest(
            cell=installation.cell,
            made_at=datetime.now(UTC),
            files={str(file.relative_to(data)): _sha256(file) for file in _files(data)},
            elsewhere=tuple(n for n in ("DOMICILE_DATABASE_URL", "DOMICILE_AUDIT_DATABASE_URL") if os.environ.get(n)),
        )
        (target / "manifest.json").write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except (OSError, sqlite3.Error) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise BackupError(f"the backup could not be made: {error}") from error
    return manifest


def check(backup: Path) -> Manifest:
    """Raises BackupError, naming the file, unless each is there, as it was, and each database is sound."""
    manifest = _manifest(backup)
    data = backup / "data"
    found = {str(file.relative_to(data)) for file in _files(data)}
    if missing := manifest.files.keys() - found:
        raise BackupError(f"{data / min(missing)} is missing")
    if strange := found - manifest.files.keys():
        raise BackupError(f"{data / min(strange)} is not in the manifest")
    for name, sha256 in manifest.files.items():
        if _sha256(data / name) != sha256:
            raise BackupError(f"{data / name} is not what it was when the backup was made")
        if name in DATABASES:
            with closing(sqlite3.connect(f"{(data / name).absolute().as_uri()}?immutable=1", uri=True)) as database:
                ((said,),) = database.execute("PRAGMA integrity_check(1)").fetchall()
            if said != "ok":
                raise BackupError(f"{data / name} is damaged: {said}")
    return manifest


def restore(backup: Path, data: Path) -> Manifest:
    """Make the data folder `data`, which must hold no database yet, from `backup`. Its keys are put there apart.

    Raises BackupError before anything is written.
    """
    manifest = check(backup)
    for name in manifest.files:
        if (data / name).exists():
            raise BackupError(f"{data / name} is there: restore into a folder that holds nothing of its own")
    try:
        Installation.create(data, manifest.cell)
        for name in manifest.files:
            (data / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(data / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as to, (backup / "data" / name).open("rb") as source:
                shutil.copyfileobj(source, to, 1 << 20)
                to.flush()
                os.fsync(to.fileno())
    except InstallationError as error:
        raise BackupError(str(error)) from error
    return manifest


def _manifest(backup: Path) -> Manifest:
    try:
        manifest = Manifest.model_validate(json.loads((backup / "manifest.json").read_bytes()))
    except FileNotFoundError:
        raise BackupError(f"{backup} is no backup: it has no manifest.json") from None
    except (ValueError, ValidationError) as error:
        raise BackupError(f"{backup / 'manifest.json'} cannot be read: {error}") from error
    if manifest.format != FORMAT:
        raise BackupError(f"{backup} is of the form {manifest.format!r}; this version reads {FORMAT!r}")
    return manifest


def _copy_database(source: Path, target: Path, progress: Progress) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as running,
        closing(sqlite3.connect(target)) as copy,
    ):
        # One read transaction around the copy: a busy writer would else make it begin again and again.
        running.execute("BEGIN")
        running.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        done = 0

        def tell(_status: int, left: int, total: int) -> None:
            nonlocal done
            progress(total - left - done)
            done = total - left

        running.backup(copy, pages=PAGES, progress=tell)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, and no -wal that could be forgotten
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
