"""Cache of models on this host: one folder per content digest, moved into place when complete and verified.

ROOT/NAME-DIGEST/          a model: regular files, no links
ROOT/.models/DIGEST.json   what each has to consist of, and its folder
ROOT/.index/DIGEST         names, listings and digests of weights, each with the model that it led to
ROOT/.incoming/DIGEST/     parts of what is on its way, by listing
ROOT/.locks/DIGEST         held by the process that fetches it
"""

import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.errors import FetchError
from backend.fetch.download import Download
from backend.fetch.model_manifest import Manifest, ManifestFile
from backend.fetch.patience import Patience
from backend.fetch.progress import Shown
from backend.fetch.source import Listing, RemoteFile
from backend.fetch.transport import Transport

log = logging.getLogger(__name__)

AT_ONCE = 4
SPARE = 256 << 20
"""Bytes of the disk that are left free."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,119}$")
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Kept:
    """A model in the cache. `folder`: of its files."""

    folder: Path
    manifest: Manifest

    @property
    def path(self) -> Path:
        """What `Checkpoint` takes: the folder, or the GGUF file in it."""
        return self.folder / self.manifest.gguf if self.manifest.gguf else self.folder

    def require_intact(self, *, read: bool) -> None:
        """Raises FetchError where its files are not the manifest's, by name, kind and size; `read`: and digest."""
        changed = _first_difference(self.folder, self.manifest, read=read)
        if changed is not None:
            raise FetchError(f"{changed} in {self.folder} was changed; delete that folder, and fetch the model again")


class Cache:
    """Several processes may use one at a time."""

    def __init__(self, root: Path) -> None:
        """Raises FetchError where the folder cannot be made."""
        self._root = root
        try:
            for name in (".models", ".index", ".incoming", ".locks"):
                (root / name).mkdir(parents=True, exist_ok=True)
                if (root / name).is_symlink():
                    raise FetchError(f"{root / name} is a link; name another folder for models")
        except OSError as error:
            raise FetchError(f"{root} cannot keep models: {error.strerror}; name another folder") from None

    def by_name(self, name: str) -> Kept | None:
        """What the name led to the last time."""
        return self._indexed(f"name {name}")

    def by_weights(self, sha256: str) -> Kept | None:
        """A model whose weights have that digest."""
        return self._indexed(f"weights {sha256}")

    def bring(
        self, name: str, short: str, listing: Listing, transport: Transport, patience: Patience, *, quiet: bool
    ) -> Kept:
        """The model of the listing, fetched unless it is here. A second process waits for the first, then takes what it
        downloaded or continued where it was cut. Raises FetchError."""
        try:
            with self._locked(listing.key):
                kept = self._indexed(f"listing {listing.key}")
                if kept is None:
                    kept = self._fetched(short, listing, transport, patience, quiet)
                    self._note(f"listing {listing.key}", kept)
                    self._note(f"weights {kept.manifest.sha256}", kept)
                self._note(f"name {name}", kept)
                return kept
        except OSError as error:
            raise FetchError(f"{self._root} cannot take the model: {error.strerror}; free or repair the disk") from None

    def _fetched(self, short: str, listing: Listing, transport: Transport, patience: Patience, quiet: bool) -> Kept:
        staging = self._root / ".incoming" / listing.key
        _make_folder(staging)
        for file in listing.files:
            if "/" in file.name:
                _make_folder((staging / file.name).parent)
        self._reuse(listing.files, staging)
        self._require_room(listing.files, staging)
        download = Download(transport, listing.access, patience)
        with Shown(listing.source, sum(file.size for file in listing.files), quiet=quiet) as shown:
            digests = _all_files(download, listing.files, staging, shown)
        files = (
            ManifestFile(name=file.name, size=file.size, sha256=digest)
            for file, digest in zip(listing.files, digests, strict=True)
        )
        return self._published(short, Manifest.of(listing.source, tuple(files)), staging)

    def _published(self, short: str, manifest: Manifest, staging: Path) -> Kept:
        key = _digest("\n".join(f"{file.sha256} {file.name}" for file in manifest.files))
        present = self._record(key)
        if present is not None and present.folder.exists():
            present.require_intact(read=False)
            shutil.rmtree(staging)
            return present
        changed = _first_difference(staging, manifest, read=False)
        if changed is not None:
            raise FetchError(
                f"{changed} in {staging} was changed by another program; delete that folder, and try again"
            )
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", short).strip("-._")[:60].lower() or "model"
        folder = self._root / f"{slug}-{key[:16]}"
        staging.rename(folder)
        _sync(self._root)
        record = _Record(folder=folder.name, manifest=manifest)
        _write(self._root / ".models" / f"{key}.json", record.model_dump_json())
        return Kept(folder, manifest)

    def _reuse(self, files: tuple[RemoteFile, ...], staging: Path) -> None:
        """Copy what another revision has already; it is checked as what arrives is."""
        wanted = {file.sha256: file for file in files if file.sha256 and not (staging / file.name).exists()}
        for path in (self._root / ".models").glob("*.json") if wanted else ():
            kept = self._record(path.stem)
            for file in kept.manifest.files if kept else ():
                if (target := wanted.pop(file.sha256, None)) and kept and (kept.folder / file.name).is_file():
                    shutil.copyfile(kept.folder / file.name, staging / target.name)

    def _require_room(self, files: tuple[RemoteFile, ...], staging: Path) -> None:
        missing = 0
        for file in files:
            path = staging / file.name
            missing += file.size - (min(file.size, path.stat().st_size) if path.exists() else 0)
        free = shutil.disk_usage(self._root).free
        if missing and missing + SPARE > free:
            raise FetchError(
                f"the model needs {missing / 1e9:.2f} GB more and the disk of {self._root} has {free / 1e9:.2f} GB"
                " free; delete something, or name a folder on another disk"
            )

    def _indexed(self, text: str) -> Kept | None:
        try:
            key = (self._root / ".index" / _digest(text)).read_text()
        except FileNotFoundError:
            return None
        kept = self._record(key) if re.fullmatch("[0-9a-f]{64}", key) else None
        return kept if kept is not None and kept.folder.is_dir() else None

    def _record(self, key: str) -> Kept | None:
        path = self._root / ".models" / f"{key}.json"
        try:
            record = _Record.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise FetchError(f"{path} was changed; delete it, and fetch the model again") from None
        return Kept(self._root / record.folder, record.manifest)

    def _note(self, text: str, kept: Kept) -> None:
        key = _digest("\n".join(f"{file.sha256} {file.name}" for file in kept.manifest.files))
        _write(self._root / ".index" / _digest(text), key)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._root / ".locks" / key, flags, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another process fetches this model; waiting for it")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _all_files(download: Download, files: tuple[RemoteFile, ...], folder: Path, shown: Shown) -> list[str]:
    """SHA-256 of each. The first that fails ends the others."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch") as threads:
        try:
            running = [threads.submit(download.file, file, folder / file.name, shown) for file in files]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            for each in done:
                each.result()
            return [each.result() for each in running]
        finally:
            download.stop()
            threads.shutdown(cancel_futures=True)


def _first_difference(folder: Path, manifest: Manifest, *, read: bool) -> str | None:
    """Name of a file that is missing, changed or too many; links and other kinds are."""
    expected = {file.name: file for file in manifest.files}
    found = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    if odd := found ^ expected.keys():
        return min(odd)
    for name, file in sorted(expected.items()):
        status = (folder / name).lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
            return name
        if read and _sha256(folder / name) != file.sha256:
            return name
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _make_folder(path: Path) -> None:
    """Raises FetchError where it is a link, which would lead elsewhere."""
    path.mkdir(exist_ok=True)
    if path.is_symlink():
        raise FetchError(f"{path} is a link; delete it, and try again")


def _write(path: Path, text: str) -> None:
    """Write the file atomically, also beside other writers."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    draft.write_text(text)
    draft.replace(path)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
