"""Backup of a data folder, taken while its gateway runs, from which the cell can be restored.

<backup>/manifest.json           what it is of, when, and the SHA-256 of every other file
<backup>/manifest.note           signed note (C2SP signed-note) of the manifest, by the key that signs the record
<backup>/data/...                databases and public files, in the places they have in the data folder

Keys are not in it: a backup is read by more people than the keys above it (`gateway.installation.key_set` carries those
apart). So a backup alone opens nothing, and a subject's values in it die with their keys.

Order: control.db, then the log, then side.db. The ledger catches up from a log that is newer, and a leaf in the copy
never lacks values that were durable before it. SQLite's backup API copies each database whole, as of one instant.

A backup is an untrusted file when it comes back: only names that a backup can have are restored, links and devices are
refused, and what is copied is what the signed manifest names.
"""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from audit.errors import AuditError, NoteError
from audit.files.database_file import SIDECARS, create_database_file
from audit.files.folder_lock import FolderInUse, lock_folder_now
from audit.files.new_file import make_private_folder, new_file, sync_folder
from audit.files.reasons import describe_os_error, describe_sqlite_error
from audit.files.untrusted_file import open_untrusted, read_untrusted
from audit.keys.signer import key_of
from audit.keys.succession import FOLDER as SUCCESSION
from audit.keys.succession import with_successors
from audit.private.value_location import values_of
from audit.storage.attested_files import TIMESTAMPS, WITNESSED
from audit.tree.note import VerifierKey, open_note, sign_note
from gateway.installation.installation import Installation, InstallationError

FORMAT = "domicile-backup/2"
UNSIGNED_FORMAT = "domicile-backup/1"
LOG = "audit/log.db"
DATABASES = ("control.db", LOG, "audit/side.db")
OF_THE_KEY_SET = "audit/signer.vkey"
PUBLIC = ("catalogue.yaml", "registers.json", "ca/ca.pem", OF_THE_KEY_SET)
NOTES = re.compile(rf"audit/{SUCCESSION}/[A-Za-z0-9][A-Za-z0-9._-]*\.note", re.ASCII)
"""Successions of the log's key, without which records signed by an earlier one do not verify."""
ATTESTED = (SUCCESSION, WITNESSED, TIMESTAMPS)
ATTESTATIONS = re.compile(rf"audit/({'|'.join(ATTESTED)})/[A-Za-z0-9_][A-Za-z0-9._-]*\.(note|tsr)", re.ASCII)
"""These, and what witnesses and time-stamping authorities signed: `domicile audit verify` misses it otherwise."""
PAGES = 2000  # copied between two reports of progress; the writer continues between them
MAX_MANIFEST = 1 << 20  # bytes
MAX_PUBLIC = 16 << 20  # bytes of one file that is no database
CHUNK = 1 << 20

Progress = Callable[[int], None]
"""How many pages more are copied."""


class BackupError(Exception):
    """The backup is incomplete, unsigned, differs from its manifest, or would overwrite something."""

    fix = "take another backup"

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(f"{text}; {self.fix}" if self.fix and "; " not in text else text)


class Manifest(BaseModel):
    """`made_at`: when the log was copied. `files`: SHA-256 in hex by path under ``data/``. `elsewhere`: what is in
    PostgreSQL and backed up there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: str = FORMAT
    cell: str
    made_at: datetime
    files: dict[str, str]
    elsewhere: tuple[str, ...] = ()


def create(installation: Installation, target: Path, progress: Progress = lambda pages: None) -> Manifest:
    """Copy into `target`, which must not exist or be empty. Raises BackupError, with nothing left in `target`."""
    try:
        make_private_folder(target)
        with lock_folder_now(target):
            if any(target.iterdir()):
                raise BackupError(f"the folder {target} is not empty; name a new folder")
            try:
                return _create(installation, target, progress)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
    except FolderInUse as error:
        raise BackupError(f"another backup is being made in {target}; name a new folder") from error
    except (OSError, sqlite3.Error, AuditError) as error:
        raise BackupError(
            f"the backup could not be made: {_reason(error)}; free space, and let this process write there"
        ) from error


def _create(installation: Installation, target: Path, progress: Progress) -> Manifest:
    data = target / "data"
    made_at = datetime.now(UTC)
    servers = _on_servers(installation)
    for name in DATABASES:
        if name not in servers and (installation.data / name).exists():
            _copy_named(installation.data / name, data / name, progress)
            made_at = datetime.now(UTC) if name == LOG else made_at  # its last records may not be signed yet
    for name in _public_files(installation.data):
        make_private_folder((data / name).parent)
        with open_untrusted(installation.data / name) as source, new_file(data / name) as copy:
            shutil.copyfileobj(source, copy, CHUNK)
    manifest = Manifest(
        cell=installation.cell,
        made_at=made_at,
        files={name: _sha256(data / name) for name in _files(data)},
        elsewhere=tuple(servers.values()),
    )
    written = manifest.model_dump_json(indent=2).encode() + b"\n"
    signer = installation.signer()
    note = sign_note(_statement(written), signer.name, signer)
    for name, content in (("manifest.json", written), ("manifest.note", note.encode())):
        with new_file(target / name) as file:
            file.write(content)
    return manifest


def _on_servers(installation: Installation) -> dict[str, str]:
    """The databases that are on a server and not in the folder, each with the variable that names its server."""
    stores = [*installation.stores(), (values_of(installation.side_store), installation.values_url())]
    return {str(one.file.relative_to(installation.data)): one.variable for one, url in stores if url is not None}


def _reason(error: Exception) -> str:
    if isinstance(error, sqlite3.Error):
        return describe_sqlite_error(error)
    return describe_os_error(error) if isinstance(error, OSError) else str(error)


def check(backup: Path, key: VerifierKey | None = None, *, unsigned: bool = False) -> Manifest:
    """Raises BackupError, naming the file, unless each is there, as it was signed, and each database is sound.

    `key` is the log's verifier key, as its holder knows it. Without one the key in the backup is taken, which shows
    damage but not who made the backup. `unsigned` accepts a backup of the format that knew no signature.
    """
    try:
        return _check(backup, key, unsigned)
    except OSError as error:
        raise BackupError(f"the backup cannot be read: {error}; let this process read it") from error


def restore(backup: Path, data: Path, key: VerifierKey, *, unsigned: bool = False) -> Manifest:
    """Make the data folder `data`, which must hold no database yet, from `backup`. Its keys are put there apart.

    `key`: as for `check`. Raises BackupError before anything is written, or with what was written removed.
    """
    manifest = check(backup, key, unsigned=unsigned)
    require_space(manifest, data, key)
    written: list[Path] = []
    try:
        Installation.create(data, manifest.cell)
        for name, sha256 in manifest.files.items():
            if _stays(data / name, name, sha256, key):
                continue
            written.append(data / name)
            _restore_file(backup / "data" / name, data / name, sha256)
    except (InstallationError, OSError, BackupError) as error:
        for file in written:
            with suppress(OSError):
                file.unlink()
        raise BackupError(str(error)) from error
    return manifest


def require_space(manifest: Manifest, data: Path, key: VerifierKey) -> None:
    """Raises BackupError if `data` holds a file of the backup, or a write-ahead log that SQLite would put into one.

    What came with the key set stays: the same successions, and a verifier key that may be of a newer generation.
    """
    for name, sha256 in manifest.files.items():
        if _stays(data / name, name, sha256, key):
            continue
        for end in ("", *SIDECARS) if name in DATABASES else ("",):
            if os.path.lexists(place := data / f"{name}{end}"):
                raise BackupError(f"the file {place} is there; restore into an empty folder")
        if not (data / name).parent.resolve().is_relative_to(data.resolve()):
            raise BackupError(f"the path {data / name} leads out of {data}; remove the link on the way")


def _stays(place: Path, name: str, sha256: str, key: VerifierKey) -> bool:
    """Whether a file of the backup is there already, as the key set brought it."""
    if name in DATABASES or place.is_symlink() or not place.is_file():
        return False
    content = read_untrusted(place, MAX_PUBLIC)
    if hashlib.sha256(content).hexdigest() == sha256:
        return True
    try:
        return name == OF_THE_KEY_SET and VerifierKey.parse(content.decode("ascii").strip()).name == key.name
    except (NoteError, UnicodeDecodeError):
        return False


def _check(backup: Path, key: VerifierKey | None, unsigned: bool) -> Manifest:
    written = _read_manifest(backup)
    manifest = _parse(backup, written, unsigned)
    data = backup / "data"
    for name in manifest.files:
        if name not in DATABASES and name not in PUBLIC and not ATTESTATIONS.fullmatch(name):
            raise BackupError(f"{backup / 'manifest.json'} names {name!r}, which no backup holds: it was changed")
    found = set(_files(data))
    if missing := manifest.files.keys() - found:
        raise BackupError(f"{data / min(missing)} is missing")
    if strange := found - manifest.files.keys():
        raise BackupError(f"{data / min(strange)} is not in the manifest")
    for name, sha256 in manifest.files.items():
        if _sha256(data / name) != sha256:
            raise BackupError(f"{data / name} is not what it was when the backup was made")
    if manifest.format == FORMAT:
        _check_signature(backup, written, manifest, key)
    for name in manifest.files:
        if name in DATABASES:
            _check_database(data / name)
    return manifest


def _check_signature(backup: Path, written: bytes, manifest: Manifest, key: VerifierKey | None) -> None:
    data = backup / "data"
    try:
        if key is None:
            key = VerifierKey.parse(read_untrusted(data / "audit/signer.vkey", MAX_PUBLIC).decode())
        notes = [name for name in manifest.files if NOTES.fullmatch(name)]
        trusted = with_successors(key, (read_untrusted(data / name, MAX_PUBLIC).decode() for name in notes))
        note = read_untrusted(backup / "manifest.note", MAX_MANIFEST).decode()
        text = open_note(note, [VerifierKey(trusted.name, one) for one in trusted.public_keys])
    except FileNotFoundError as error:
        raise BackupError(f"{error.filename} is missing: the backup is not signed") from None
    except (NoteError, UnicodeDecodeError) as error:
        raise BackupError(f"{backup} is not signed by the key of this record: {error}") from error
    if text != _statement(written):
        raise BackupError(f"{backup / 'manifest.json'} is not the one that was signed")


def _check_database(file: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)) as database:
            ((result,),) = database.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.Error as error:
        result = str(error)
    if result != "ok":
        raise BackupError(f"{file} is damaged: {result}")


def _restore_file(source: Path, target: Path, sha256: str) -> None:
    make_private_folder(target.parent)
    digest = hashlib.sha256()
    with open_untrusted(source) as file, new_file(target) as copy:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            copy.write(chunk)
        if digest.hexdigest() != sha256:
            raise BackupError(f"{source} was changed while it was restored")


def _read_manifest(backup: Path) -> bytes:
    try:
        return read_untrusted(backup / "manifest.json", MAX_MANIFEST)
    except FileNotFoundError:
        raise BackupError(
            f"the folder {backup} is no backup, since it has no manifest.json; name the folder of a backup"
        ) from None


def _parse(backup: Path, written: bytes, unsigned: bool) -> Manifest:
    try:
        manifest = Manifest.model_validate(json.loads(written))
    except (ValueError, ValidationError, RecursionError) as error:
        raise BackupError(f"{backup / 'manifest.json'} cannot be read: {error}") from error
    if manifest.format == UNSIGNED_FORMAT and not unsigned:
        raise BackupError(
            f"{backup} is of an earlier version and not signed: anybody may have changed it; if you know where it comes"
            " from, pass --unsigned"
        )
    if manifest.format not in (FORMAT, UNSIGNED_FORMAT):
        raise BackupError(f"{backup} is of the form {manifest.format!r}; this version reads {FORMAT!r}")
    return manifest


def _statement(manifest: bytes) -> str:
    return f"{FORMAT}\n{hashlib.sha256(manifest).hexdigest()}\n"


def signing_key(installation: Installation) -> VerifierKey:
    """The key of the record of `installation`, with those of its succession. Raises AuditError, OSError."""
    return key_of(installation.signer())


def _public_files(data: Path) -> list[str]:
    there = [name for name in PUBLIC if (data / name).is_file()]
    attested = (str(file.relative_to(data)) for folder in ATTESTED for file in (data / "audit" / folder).glob("*"))
    return there + sorted(name for name in attested if ATTESTATIONS.fullmatch(name))


def _copy_named(source: Path, target: Path, progress: Progress) -> None:
    """Copy, with the file in the message where SQLite reports only that it could not open one.

    Raises OSError for that, sqlite3.Error for what else SQLite refuses.
    """
    try:
        _copy_database(source, target, progress)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        raise OSError(
            f"{source} cannot be opened: to read a database that has a write-ahead log, SQLite must be able to write to"
            " its folder; mount the folder writable, or make the backup where the gateway runs"
        ) from error


def _copy_database(source: Path, target: Path, progress: Progress) -> None:
    create_database_file(target)
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as running,
        closing(sqlite3.connect(target)) as copy,
    ):
        # One read transaction around the copy: a busy writer would else make it begin again and again.
        running.execute("BEGIN")
        running.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        done = 0

        def report(_status: int, left: int, total: int) -> None:
            nonlocal done
            progress(total - left - done)
            done = total - left

        running.backup(copy, pages=PAGES, progress=report)
        copy.execute("PRAGMA synchronous=FULL")
        copy.execute("PRAGMA journal_mode=DELETE")  # one file, and no -wal that could be forgotten
    with open_untrusted(target) as closed:  # by now no connection of this process has it open
        os.fsync(closed.fileno())
    sync_folder(target.parent)


def _files(folder: Path) -> Iterator[str]:
    """Paths of the regular files under `folder`. Raises BackupError for anything else but folders."""
    if folder.is_symlink():
        raise BackupError(f"the path {folder} is a link or a device; put a plain folder there")
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            kind = os.lstat(path := os.path.join(place, name)).st_mode
            if stat.S_ISREG(kind):
                yield str(Path(path).relative_to(folder))
            elif not stat.S_ISDIR(kind):
                raise BackupError(f"the path {path} is a link or a device; put a plain file there")


def _sha256(file: Path) -> str:
    with open_untrusted(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
