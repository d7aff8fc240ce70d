"""Where each setting comes from, for ``domicile config``: the environment, the file, or nowhere but the default."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from audit.files.secret_file import LoosePermissions, read_secret
from audit.storage.location import DATABASE_VARIABLE
from gateway.configuration.database_urls import CONTROL_VARIABLE, REDIS_VARIABLE, urls_of
from gateway.configuration.settings import Settings, SettingsError, load_settings
from gateway.configuration.sinks import stays_here

PREFIX = "DOMICILE__"
URLS = (CONTROL_VARIABLE, DATABASE_VARIABLE, REDIS_VARIABLE)
"""Settings read from the environment alone: they may hold a password."""
FILES = ("listen.cert_file", "listen.key_file", "oidc.client_secret_file")
SECRET_FILES = frozenset({"listen.key_file", "oidc.client_secret_file"})


@dataclass(frozen=True, slots=True)
class Setting:
    """`key`: as ``listen.port``. `source`: ``default``, the file's name, or the name of a variable."""

    key: str
    value: Any
    source: str


def resolved(path: Path | None, data: Path | None = None) -> tuple[Settings, list[Setting]]:
    """The settings in force and the source of each. `data` overrides all, as for ``domicile up``. Raises
    SettingsError."""
    settings = load_settings(path, **({} if data is None else {"data": data}))
    written = _written(path)
    variables = {name[len(PREFIX) :].lower().replace("__", "."): name for name in os.environ if name.startswith(PREFIX)}

    def source(key: str) -> str:
        if key == "data" and data is not None:
            return "DOMICILE_DATA" if os.environ.get("DOMICILE_DATA") == str(data) else "--data"
        within = [key.rsplit(".", cut)[0] for cut in range(key.count(".") + 1)]  # a variable may set a whole section
        named = next((variables[each] for each in within if each in variables), None)
        return named or (str(path) if key in written else "default")

    return settings, [Setting(key, value, source(key)) for key, value in _leaves(settings.model_dump(mode="json"))]


def environment_urls() -> list[Setting]:
    """The URLs that come from the environment alone, their passwords left out."""
    return [Setting(name, without_password(os.environ[name]), name) for name in URLS if os.environ.get(name)]


def without_password(url: str) -> str:
    """``postgresql://user:***@host/name``; what cannot be read as a URL is not shown at all."""
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "***"
    user = f"{parts.username or ''}{':***' if parts.password else ''}"
    return f"{parts.scheme}://{f'{user}@' if user else ''}{host}{parts.path}" if parts.scheme else "***"


def mistakes(settings: Settings) -> list[str]:
    """What is wrong around the settings, as far as it can be seen without starting: files that are named."""
    found = []
    values = dict(_leaves(settings.model_dump()))
    for key in FILES:
        file = values.get(key)
        if file is None:
            continue
        try:
            read_secret(file) if key in SECRET_FILES else file.read_bytes()
        except LoosePermissions as error:
            found.append(f"{key}: {error}")
        except OSError as error:
            found.append(f"{key}: {file} cannot be read: {error.strerror}")
    try:
        urls_of(settings.database)
    except SettingsError as error:
        return [*found, str(error)]
    if settings.sinks.record is None and not stays_here(settings):
        found.append(
            "sinks.record: say in which country the record is kept, as FR: it can be reached from elsewhere, or is kept"
            " elsewhere, and until then every call is refused (docs/policy-reference.md, What store_in binds)"
        )
    if not (settings.data / "cell").exists():
        found.append(
            f"data: {settings.data} holds no installation; make one with: domicile init --data {settings.data}"
        )
    return found


def _written(path: Path | None) -> frozenset[str]:
    import yaml

    return frozenset() if path is None else frozenset(key for key, _ in _leaves(yaml.safe_load(path.read_text()) or {}))


def _leaves(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
