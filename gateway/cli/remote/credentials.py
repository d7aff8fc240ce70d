"""Access tokens of installations that a user logged in to: one file for each URL, which only the user can read.

A login by the identity provider is kept with what renews it. Two commands at once renew it one after the other, since
a refresh token may be good for one use.
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
    """Of a session that the identity provider opened. `expires_at`: of the session, in ISO 8601; `tenant`: what was
    named at the login; `refresh`: the provider's token, None where it gave none."""

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
    """`url`: of the gateway, without a path of the admin API. `ca_file`: of a private authority, if its is one.
    `renewal`: None for an access token, which was given to the user and is not ended by a logout."""

    url: str
    token: str
    ca_file: str | None = None
    renewal: Renewal | None = None


def folder() -> Path:
    """As the XDG Base Directory Specification has it."""
    base = os.environ.get(FOLDER_VARIABLE)
    return (Path(base) if base else Path.home() / ".config") / "domicile" / "credentials"


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Among all commands of this user, one at a time for each URL. Raises CredentialsError."""
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
    """Keep them, and make them the current ones. Raises CredentialsError."""
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
    """Raises CredentialsError where nobody logged in there, or others may read the file."""
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
    """The URL that was logged in to last, if it was not logged out of since."""
    try:
        return (folder() / CURRENT).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def forget(url: str) -> bool:
    """Delete them; whether there were any."""
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
    """At once: who reads it finds the old content or the new one."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    draft.replace(file)
