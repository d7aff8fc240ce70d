"""Access tokens of the installations that a user is logged in to: one file per URL, readable by the user only.

A login through the identity provider is stored with its refresh token. Concurrent commands renew it one after the
other, because a refresh token may be valid for one use only.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from audit.files.secret_file import LoosePermissions, read_secret

FOLDER_VARIABLE = "XDG_CONFIG_HOME"
CURRENT = "current"


class CredentialsError(Exception):
    """Credentials that cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Renewal of a session opened through the identity provider. `expires_at`: end of the session, ISO 8601. `tenant`:
    tenant given at the login. `refresh`: the provider's refresh token, None if it issued none."""

    expires_at: str
    issuer: str
    client_id: str
    scope: str
    tenant: str | None
    refresh: str | None

    def is_due(self, at: datetime) -> bool:
        return datetime.fromisoformat(self.expires_at) <= at


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials for one gateway. `url`: without a path of the admin API. `ca_file`: certificate of a private CA, if
    the gateway has one. `renewal`: None for an access token given by the user, which a logout does not revoke."""

    url: str
    token: str
    ca_file: str | None = None
    renewal: Renewal | None = None


def folder() -> Path:
    """Return the folder of credentials (XDG Base Directory Specification)."""
    base = os.environ.get(FOLDER_VARIABLE)
    return (Path(base) if base else Path.home() / ".config") / "domicile" / "credentials"


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Hold a lock per URL among all commands of this user. Raises CredentialsError."""
    place = folder() / f".{_name(url)}.lock"
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CredentialsError(f"{place} cannot be opened: {error.strerror}; make the folder writable") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def save(credentials: Credentials, *, make_current: bool = True) -> None:
    """Store credentials and make them the current ones. Raises CredentialsError."""
    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.stat().st_mode & 0o077:
            place.chmod(0o700)
        _write(place / _name(credentials.url), json.dumps(asdict(credentials)))
        if make_current:
            _write(place / CURRENT, credentials.url)
    except OSError as error:
        raise CredentialsError(
            f"credentials cannot be kept in {place}: {error.strerror}; make the folder writable"
        ) from error


def load(url: str) -> Credentials:
    """Return the credentials for `url`. Raises CredentialsError if there are none or other users may read the file."""
    file = folder() / _name(url)
    try:
        kept = json.loads(read_secret(file))
        renewal = kept.pop("renewal", None)
        return Credentials(**kept, renewal=Renewal(**renewal) if renewal else None)
    except LoosePermissions as error:
        raise CredentialsError(str(error)) from error
    except FileNotFoundError as error:
        raise CredentialsError(f"you are not logged in to {url}; run: domicile login --url {url}") from error
    except (OSError, ValueError, TypeError) as error:
        raise CredentialsError(f"{file} cannot be read; run: domicile login --url {url}") from error


def current() -> str | None:
    """Return the URL of the latest login, or None if it was logged out since."""
    try:
        return (folder() / CURRENT).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def forget(url: str) -> bool:
    """Delete the credentials for `url`. Returns whether there were any. Raises CredentialsError."""
    place = folder()
    if current() == url:
        with suppress(OSError):
            (place / CURRENT).unlink()
    try:
        (place / _name(url)).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CredentialsError(
            f"the credentials in {place} cannot be deleted: {error.strerror}; delete them there"
        ) from error
    return True


def _name(url: str) -> str:
    return sha256(url.encode()).hexdigest()[:32] + ".json"


def _write(file: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old content or the new one."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    draft.replace(file)
