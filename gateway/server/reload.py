"""Takes over changed settings in a running gateway (SIGHUP): those that can change, by name; the others are named too.

Nothing is taken over when one part of it cannot be: a certificate that does not load leaves everything as it is.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from audit.errors import AuditError
from audit.events.event import SettingsReloaded
from audit.log.audit_log import AuditLog
from gateway.configuration.settings import Settings, SettingsError

log = logging.getLogger("domicile.gateway")

Apply = Callable[[Settings], None]
CERTIFICATE = "listen.cert_file"
WHOLE = frozenset({"prices"})
"""Settings that are named as one, whichever of their entries changed."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Names of settings: those that are `applied`, and those that changed and are `pending` until a restart."""

    applied: tuple[str, ...]
    pending: tuple[str, ...]

    def __str__(self) -> str:
        said = [f"applied {', '.join(self.applied)}"] if self.applied else []
        if self.pending:
            said.append(f"restart the gateway for {', '.join(self.pending)}")
        return "; ".join(said) or "nothing has changed"


class LiveSettings:
    """`running`: what the gateway was started with. `appliers`: by the name of a setting or section, what puts a new
    value in force."""

    def __init__(self, running: Settings, appliers: Mapping[str, Apply]) -> None:
        self._appliers = dict(appliers)
        self._running = _leaves(running)

    def reload(self, new: Settings) -> Reloaded:
        """Put in force what of `new` can be."""
        wanted = _leaves(new)
        changed = sorted(
            key for key in wanted.keys() | self._running.keys() if wanted.get(key) != self._running.get(key)
        )
        applied = [key for key in changed if self._applier_of(key) is not None]
        for apply in dict.fromkeys(self._applier_of(key) for key in applied):
            if apply is not None:
                apply(new)
        self._running.update((key, wanted.get(key)) for key in applied)
        return Reloaded(tuple(applied), tuple(key for key in changed if key not in applied))

    def _applier_of(self, key: str) -> Apply | None:
        return self._appliers.get(key) or self._appliers.get(key.partition(".")[0])


async def reload_settings(
    live: LiveSettings, read: Callable[[], Settings], renew_certificate: Callable[[], bool], record: AuditLog
) -> Reloaded | None:
    """Read the settings and the server's certificate again and put them in force; the log says what came of it, and so
    does the record. None where they cannot be used: then the running ones stay."""
    try:
        new = await asyncio.to_thread(read)
        renewed = (CERTIFICATE,) if renew_certificate() else ()
        done = live.reload(new)
        done = Reloaded((*renewed, *done.applied), done.pending)
    except (SettingsError, OSError) as error:
        log.error("the settings were not reloaded, the running ones stay; mend them and send SIGHUP again: %s", error)
        return None
    log.info("settings reloaded: %s", done)
    try:
        await record.append(SettingsReloaded(applied=done.applied, pending=done.pending))
    except AuditError as error:
        log.error("the reload of settings is not on record; send SIGHUP again once the record takes events: %s", error)
    return done


def _leaves(settings: Settings) -> dict[str, Any]:
    """Values by dotted name."""
    leaves: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict) and name not in WHOLE:
            for key, each in value.items():
                walk(each, f"{name}.{key}" if name else key)
        else:
            leaves[name] = value

    walk(settings.model_dump(), "")
    return leaves
