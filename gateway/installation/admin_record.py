"""Administration from a shell, on record: every change is durable in the log before it is committed."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import getpid
from threading import Lock

from audit.events.base import Event
from audit.events.event import AdminChanged, ModelChanged
from audit.events.incident import Oversight
from audit.log.audit_log import AuditLog
from audit.log.receipt import Receipt
from gateway.installation.installation import Installation
from gateway.records.control import AdminEvent
from gateway.store.change import OnEvent

RECORD_TIMEOUT_S = 30
_TURN = Lock()  # a node's name is one process's, so changes made by several of its threads take turns


@contextmanager
def recorded_admin(installation: Installation) -> Iterator[OnEvent]:
    """Yields the sink of `Control`'s changes. It raises AuditUnavailable; then nothing is changed (fail closed)."""
    with recording(installation) as append:

        def on_event(event: AdminEvent) -> None:
            for recorded in _recorded(event):
                append(recorded)

        yield on_event


@contextmanager
def recording(installation: Installation) -> Iterator[Callable[[Event], Receipt]]:
    """Yields what makes any event durable, or raises AuditUnavailable.

    The log is opened with the first event, so that a command that is refused before leaves no trace. Raises StoreError
    if the folder's databases are not where it remembers them.
    """
    installation.settle()
    with _TURN, asyncio.Runner() as runner:
        opened: list[AuditLog] = []

        def append(event: Event) -> Receipt:
            if not opened:
                node = f"cli-{getpid()}"  # several may run at once, next to the gateway
                signer, path = installation.signer(), installation.audit_log
                opened.append(
                    runner.run(AuditLog.open(path, signer=signer, node=node, open_store=installation.open_store))
                )
            return runner.run(opened[0].append(event))

        try:
            yield append
        finally:
            for log in opened:
                runner.run(log.close())


def recorded_from_threads(log: AuditLog) -> OnEvent:
    """For changes made in threads while the loop that owns `log` runs. Raises as `record` does.

    Not to be called from the loop itself, which would wait for itself.
    """
    loop = asyncio.get_running_loop()
    return lambda event: asyncio.run_coroutine_threadsafe(record(log, event), loop).result(RECORD_TIMEOUT_S)


async def record(log: AuditLog, event: AdminEvent) -> None:
    for recorded in _recorded(event):
        await log.append(recorded)


def _recorded(event: AdminEvent) -> Iterator[AdminChanged | Oversight | ModelChanged]:
    """The change itself, or the act of oversight that it is; then what it means for the models that answer."""
    if event.action in ("oversight.stopped", "oversight.resumed"):
        said = event.model_dump(include={"tenant", "project", "actor", "epoch"}, exclude_none=True)
        yield Oversight.model_validate({"type": event.action, **said, **event.detail})
        return
    fields = event.model_dump(exclude={"action", "cell", "at", "models"}, exclude_none=True)
    yield AdminChanged.model_validate({"type": f"admin.{event.action}", **fields})
    said = event.model_dump(include={"tenant", "actor", "before", "after"}, exclude_none=True)
    for model, what in sorted(event.models.items()):
        yield ModelChanged.model_validate({**said, "model": model, "what": what, "backend_id": event.target})
