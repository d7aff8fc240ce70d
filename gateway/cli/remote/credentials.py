"""Access tokens of installations that a user logged in to: one file for each URL, which only the user can read."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from audit.files.secret_file import LoosePermissions, read_secret

FOLDER_VARIABLE = "XDG_CONFIG_HOME"
CURRENT = "current"


class CredentialsError(Exception):
    """Credentials that cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """`url`: of the gateway, without a path of the admin API. `ca_file`: of a private authority, if its is one."""

    url: str
    token: str
    ca_file: str | None = None


def folder() -> Path:
    """As the XDG Base Directory Specification has it."""
    base = os.environ.get(FOLDER_VARIABLE)
    return (Path(base) if base else Path.home() / ".config") / "domicile" / "credentials"


def save(credentials: Credentials) -> None:
    """Keep them, and make them the current ones. Raises CredentialsError."""
    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.stat().st_mode & 0o077:
            place.chmod(0o700)
        _write(place / _name(credentials.url), json.dumps(asdict(credentials)))
        _write(place / CURRENT, credentials.url)
    except OSError as error:
        raise CredentialsError(
            f"credentials cannot be kept in {place}: {error.strerror}; make the folder writable"
        ) from error


def load(url: str) -> Credentials:
    """Raises CredentialsError where nobody logged in there, or others may read the file."""
    file = folder() / _name(url)
    try:
        return Credentials(**json.loads(read_secret(file)))
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
