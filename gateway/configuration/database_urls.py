"""Where the databases are, as the environment and the configuration say: their URLs, with passwords from files.

A variable of the environment goes before the configuration. Messages name the variable or the key, never a URL: it may
hold a password.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from audit.errors import StoreError
from audit.private.value_location import VALUES_SETTING, VALUES_VARIABLE
from audit.storage.dsn import database_of
from audit.storage.location import DATABASE_SETTING as RECORD_SETTING
from audit.storage.location import DATABASE_VARIABLE as RECORD_VARIABLE
from gateway.configuration.settings import Database, SettingsError, is_loopback

CONTROL_VARIABLE = "DOMICILE_DATABASE_URL"
CONTROL_SETTING = "database.url"
REDIS_VARIABLE = "DOMICILE_REDIS_URL"
MAX_FILE = 64 * 1024  # bytes of a file that holds one line


@dataclass(frozen=True, slots=True)
class DatabaseUrls:
    """None: the database is a file of the data folder, or there is no Redis. Not shown by `repr`."""

    control: str | None = field(default=None, repr=False)
    record: str | None = field(default=None, repr=False)
    redis: str | None = field(default=None, repr=False)
    values: str | None = field(default=None, repr=False)

    @property
    def all_here(self) -> bool:
        """Whether each that is named is on this machine."""
        named = self.control, self.record, self.values
        servers = [database_of(url, CONTROL_VARIABLE).host for url in named if url is not None]
        hosts = [host.rpartition(":")[0].strip("[]") for server in servers for host in server.split(",")]
        if self.redis is not None:
            hosts.append(urlsplit(self.redis).hostname or "/")
        return all(host.startswith("/") or is_loopback(host) for host in hosts)


def urls_of(settings: Database, environment: Mapping[str, str] = os.environ) -> DatabaseUrls:
    """Raises SettingsError, in one sentence without any part of a URL, for one that is none or a file that is not."""
    try:
        control, record, values = (_url(settings, environment, *one) for one in _DATABASES)
    except StoreError as error:
        raise SettingsError(str(error)) from error
    return DatabaseUrls(control, record, _redis(environment.get(REDIS_VARIABLE) or None), values)


_DATABASES = (
    (CONTROL_VARIABLE, CONTROL_SETTING),
    (RECORD_VARIABLE, RECORD_SETTING),
    (VALUES_VARIABLE, VALUES_SETTING),
)


def _url(settings: Database, environment: Mapping[str, str], variable: str, setting: str) -> str | None:
    key = setting.removeprefix("database.")
    url = environment.get(variable)
    source = variable if url else setting
    url = url or _configured(settings, getattr(settings, key), getattr(settings, f"{key}_file"), key)
    if url is not None:
        database_of(url, source)
    return url


def _configured(settings: Database, url: str | None, file: Path | None, key: str) -> str | None:
    if file is not None:
        return _line(file, f"database.{key}_file")
    if url is None or settings.password_file is None:
        return url
    scheme, _, rest = url.partition("://")
    user, at, host = rest.partition("@")
    if not at:
        raise SettingsError(f"database.{key} names no user that database.password_file could be of; write USER@HOST")
    return f"{scheme}://{user}:{quote(_line(settings.password_file, 'database.password_file'), safe='')}@{host}"


def _line(file: Path, key: str) -> str:
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_FILE + 1).decode().strip()
    except OSError as error:
        raise SettingsError(f"{key}: {file} cannot be read: {error.strerror}; let this user read it") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{key}: {file} is not UTF-8 text; write one line into it") from error
    if not text or len(text) >= MAX_FILE or not text.isprintable():
        raise SettingsError(f"{key}: {file} does not hold one line of text; write one line into it")
    return text


def _redis(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("redis", "rediss") and parts.hostname is not None and parts.port != 0
        good = (known or (parts.scheme == "unix" and parts.path)) and url.isprintable()
    except ValueError:
        good = False
    if not good:
        raise SettingsError(f"{REDIS_VARIABLE} is not the URL of a Redis; write redis://:password@host:port/number")
    return url
