"""A model by its name: the path of what is here, or of what is fetched, pinned by a digest where one is given."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from backend.answer.weights import measure
from backend.errors import FetchError
from backend.fetch.cache import Cache, Kept
from backend.fetch.model_manifest import Manifest
from backend.fetch.model_references import RemoteName, remote_name
from backend.fetch.patience import Patience
from backend.fetch.source import RemoteFile
from backend.fetch.sources import listing_of
from backend.fetch.transport import Transport
from backend.models.checkpoints.checkpoint import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """cache: the folder that fetched models are kept in. sha256: the digest that the weights must have. lock: the files
    that they must be. offline: use the cache only."""

    cache: Path
    sha256: str | None = None
    lock: Manifest | None = None
    offline: bool = False
    quiet: bool = False
    patience: Patience = field(default_factory=Patience)

    @property
    def digest(self) -> str | None:
        """Raises FetchError where pin and lock disagree."""
        if self.lock is not None and self.sha256 not in (None, self.lock.sha256):
            raise FetchError("--model-sha256 and the lock file name different weights; give one of them")
        return self.lock.sha256 if self.lock is not None else self.sha256


@dataclass(frozen=True, slots=True)
class Fetched:
    """`name`: a short one for requests. `kept`: None where the model was a path of this host."""

    path: Path
    name: str
    kept: Kept | None


def default_cache() -> Path:
    """Where programs keep what they can fetch again (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "domicile" / "models"


def fetched(model: str, how: How) -> Fetched:
    """The model, fetched if it is of another place and not here yet. Blocks for as long as that takes.

    Raises FetchError where it cannot be had or is not what it has to be; ModelNotFound for a demo that is not here.
    """
    name = remote_name(model)
    if name is not None:
        kept = _kept(name, how)
        return Fetched(kept.path, name.short, kept)
    path = resolve(model)
    if how.digest is not None:
        _require_digest(model, path, how.digest)
    return Fetched(path, Path(model).stem, None)


def _kept(name: RemoteName, how: How) -> Kept:
    cache = Cache(how.cache)
    kept = cache.by_weights(how.digest) if how.digest is not None else None
    if kept is not None and how.lock is not None and kept.manifest.difference(how.lock):
        kept = None  # the same weights with another signature beside them
    if kept is None and (how.offline or name.is_fixed):
        kept = cache.by_name(str(name))
    if kept is None and how.offline:
        raise FetchError(f"{name} is not here; fetch it once without --offline")
    if kept is None:
        with Transport(how.patience) as transport:
            listing = listing_of(name, transport)
            _compare(listing.files, how.lock)
            kept = cache.bring(str(name), name.short, listing, transport, how.patience, quiet=how.quiet)
    kept.require_intact(read=how.digest is not None)
    _require(name, kept.manifest, how)
    return kept


def _compare(files: tuple[RemoteFile, ...], lock: Manifest | None) -> None:
    """Raises FetchError before anything is fetched, where the place says already that it has other files."""
    if lock is None:
        return
    locked = {file.name: file for file in lock.files}
    for file in files:
        known = locked.pop(file.name, None)
        if known is None or known.size != file.size or file.sha256 not in (None, known.sha256):
            raise FetchError(f"{file.name} is not what the lock file says; {_OTHER}")
    if locked:
        raise FetchError(f"{min(locked)} of the lock file is missing; {_OTHER}")


_OTHER = "find out who changed the model before you fetch a new lock file"


def _require(name: RemoteName, manifest: Manifest, how: How) -> None:
    if how.digest is not None and manifest.sha256 != how.digest:
        raise FetchError(
            f"{name} has the weights {manifest.sha256} and not {how.digest}; find out who changed the model, or give"
            " the other digest"
        )
    if how.lock is not None and (name_of := manifest.difference(how.lock)):
        raise FetchError(f"{name_of} is not what the lock file says; {_OTHER}")


def _require_digest(model: str, path: Path, digest: str) -> None:
    """Raises FetchError. A missing path passes: the loader reports it."""
    if not path.exists():
        return
    try:
        found = measure(path).sha256
    except OSError as error:
        raise FetchError(f"{model} cannot be read: {error.strerror}; make it readable") from None
    if found != digest:
        raise FetchError(
            f"{model} has the weights {found} and not {digest}; find out who changed the model, or give the other"
            " digest"
        )
