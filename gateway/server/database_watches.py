"""The watches of a gateway on its databases, and the round that looks at them every second."""

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from audit.storage.file_watch import FileWatch
from audit.storage.watched import Watch, Watches
from gateway.database.database import Database
from gateway.database.watch import ControlWatch
from gateway.errors import AuditUnavailable
from gateway.installation.installation import Installation
from gateway.server.health import Check

EVERY_S = 1.0


def watches_of(installation: Installation, database: Database) -> Watches:
    """On the control database from now on; on record and value store from when they are open. Raises StoreError,
    DatabaseUnavailable."""
    control: Watch
    if (file := database.file) is not None:
        control = FileWatch(file, file.name)
    else:
        control = ControlWatch(database, installation.cell)
    return Watches(lambda: _of_the_record(installation), [control])


async def watch_databases(watches: Watches) -> NoReturn:
    while True:
        await asyncio.to_thread(watches.look_closely)
        await asyncio.sleep(EVERY_S)


def databases_healthy(watches: Watches) -> Check:
    """For readiness: raises with the sentence that names the database."""

    async def check() -> None:
        if (trouble := watches.trouble) is not None:
            raise AuditUnavailable(trouble)

    return check


def _of_the_record(installation: Installation) -> Sequence[Watch]:
    side = _of_the_values(installation)
    if (url := installation.record_url()) is None:
        return [FileWatch(installation.audit_log, "audit/log.db"), side]
    from audit.storage.postgres_watch import RecordWatch  # of the extra domicile[postgres]

    return [RecordWatch(url), side]


def _of_the_values(installation: Installation) -> Watch:
    if (url := installation.values_url()) is None:
        return FileWatch(installation.side_store, "audit/side.db")
    from audit.private.postgres_values_watch import ValuesWatch

    return ValuesWatch(url)
