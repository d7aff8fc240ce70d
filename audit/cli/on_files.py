"""The record in a data folder, for commands: persons' requests and rights, holds and incidents.

Each command opens the log beside a running gateway, as a node of its own, and is itself on record before it has effect.
`audit.cli.over_api.OverApi` has the same methods for an installation elsewhere; both return JSON values.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from audit.cli.command_context import DEFAULT_DATA, LOG_IN_DATA, UsageMistake, open_keys
from audit.errors import AuditError, NoLog
from audit.events.commitment import Field
from audit.events.stamp import rfc3339
from audit.incidents.incident import Case, case_of, cases, close, notify, open_cases_of_hold, open_incident, update
from audit.incidents.pack_inputs import evidence_of
from audit.incidents.subject_requests import Matter, extend, matter_of, matters, receive, settle
from audit.law.deadlines import ClockTable, as_rows
from audit.log.audit_log import AuditLog
from audit.privacy.kept_content import reader_of
from audit.privacy.rights import answer, read, rectify, restrict
from audit.private.audit_context import AuditContext
from audit.private.certificate import open_certificate
from audit.private.deletion import holds_of
from audit.private.erasure import erase, finish, place_hold, release_hold
from audit.private.log_and_value_store import open_log_and_values
from audit.private.value_location import FILE, open_values
from audit.storage.location import exchange_attested_files, is_there, open_reader
from audit.storage.sqlite import no_log_at
from audit.storage.tiles import TILES

ACTOR = "cli"
BACKUP_DAYS = 30
T = TypeVar("T")
Row = dict[str, Any]
Span = tuple[int, int]


class Erased(NamedTuple):
    """A signed certificate of erasure and what it says."""

    note: str
    says: Row


class OnFiles:
    """Methods raise AuditError, UsageMistake and OSError."""

    def __init__(self, data: Path | None) -> None:
        self._data = data

    def _do(self, tenant: str, work: Callable[[AuditContext], Awaitable[T]], backup_days: int = BACKUP_DAYS) -> T:
        return do(self._data, work, backup_days, tenants=(tenant,))

    # Requests of persons

    def receive(self, tenant: str, *, right: str, subject: str, received_at: str | None) -> Row:
        async def work(context: AuditContext) -> Row:
            made = await receive(context, tenant, right=right, subject=subject, received_at=received_at, actor=ACTOR)
            return _matter_row(context, tenant, made)

        return self._do(tenant, work)

    def extend(self, tenant: str, matter: str, *, reason: str) -> Row:
        async def work(context: AuditContext) -> Row:
            await extend(context, _matter(context, tenant, matter), reason=reason, actor=ACTOR)
            return _matter_row(context, tenant, matter)

        return self._do(tenant, work)

    def settle(self, tenant: str, matter: str, *, outcome: str, act_seq: int | None, reason: str | None) -> Row:
        async def work(context: AuditContext) -> Row:
            known = _matter(context, tenant, matter)
            await settle(context, known, outcome=outcome, act_seq=act_seq, reason=reason, actor=ACTOR)
            return _matter_row(context, tenant, matter)

        return self._do(tenant, work)

    def requests(self, tenant: str) -> list[Row]:
        async def work(context: AuditContext) -> list[Row]:
            with context.reading() as reader:
                return [one.as_row(rfc3339(context.now())) for one in matters(reader, tenant)]

        return self._do(tenant, work)

    # Rights

    def access(self, tenant: str, subject: str) -> Row:
        folder = self._data or DEFAULT_DATA
        known, content = evidence_of(folder, tenant), reader_of(folder)
        return self._do(
            tenant, lambda context: answer(context, tenant, subject, actor=ACTOR, evidence=known, content=content)
        )

    def erase(
        self, tenant: str, *, subject: str | None, records: Span | None, reason: str, backup_days: int | None
    ) -> Erased:
        """Without subject and records, all of the tenant."""

        async def work(context: AuditContext) -> Erased:
            await finish(context)
            note = await erase(context, tenant, subject=subject, records=records, actor=ACTOR, reason=reason)
            opened = open_certificate(note, context.origin(tenant), context.signer.public_key)
            return Erased(note, opened.model_dump(mode="json", exclude_none=True))

        return self._do(tenant, work, BACKUP_DAYS if backup_days is None else backup_days)

    def restrict(self, tenant: str, subject: str, *, restricted: bool) -> None:
        self._do(tenant, lambda context: restrict(context, tenant, subject, restricted=restricted, actor=ACTOR))

    def rectify(self, tenant: str, seq: int, field: Field, value: Any) -> str:
        """Return the receipt of the correction."""
        return str(self._do(tenant, lambda context: rectify(context, tenant, seq, field, value, actor=ACTOR)))

    def read(self, tenant: str, seq: int, *, reason: str) -> Row:
        shown = self._do(tenant, lambda context: read(context, tenant, seq, actor=ACTOR, reason=reason))
        return {one.kept.field: one.value for one in shown}

    # Holds

    def place_hold(self, tenant: str, *, subject: str | None, records: Span | None, reason: str) -> str:
        return self._do(
            tenant,
            lambda context: place_hold(context, tenant, subject=subject, records=records, actor=ACTOR, reason=reason),
        )

    def release_hold(self, tenant: str, hold: str) -> list[str]:
        """Return the open incidents whose records it kept."""

        async def work(context: AuditContext) -> list[str]:
            def find() -> list[str]:
                with context.reading() as reader:
                    return [case.incident_id for case in open_cases_of_hold(reader, tenant, hold)]

            concerned = await context.in_thread(find)
            await release_hold(context, tenant, hold, actor=ACTOR)
            return concerned

        return self._do(tenant, work)

    def holds(self, tenant: str) -> list[Row]:
        standing = self._do(tenant, lambda context: context.with_values(lambda side: holds_of(side, tenant)))
        return [hold._asdict() for hold in standing]

    # Incidents

    def open_incident(self, tenant: str, clocks: ClockTable, **facts: Any) -> Row:
        async def work(context: AuditContext) -> Row:
            return _case_row(context, tenant, await open_incident(context, tenant, actor=ACTOR, **facts), clocks)

        return self._do(tenant, work)

    def update_incident(self, tenant: str, incident: str, clocks: ClockTable, **facts: Any) -> Row:
        async def work(context: AuditContext) -> Row:
            known = _case(context, tenant, incident)
            check_severity(clocks, (*known.laws, *facts.get("laws", ())), facts.get("severity"))
            await update(context, tenant, incident, actor=ACTOR, known=known, **facts)
            return _case_row(context, tenant, incident, clocks)

        return self._do(tenant, work)

    def notify_incident(self, tenant: str, incident: str, clocks: ClockTable, *, clock: str, authority: str) -> Row:
        async def work(context: AuditContext) -> Row:
            if clock not in clocks.names():
                raise UsageMistake(f"there is no clock {clock!r}; name one of {', '.join(sorted(clocks.names()))}")
            known = _case(context, tenant, incident)
            if not any(one.name == clock and one.law in known.laws for one in clocks.clocks):
                raise AuditError(
                    f"the incident is under {', '.join(known.laws)}, of which {clock} is no clock; name one of it, or"
                    " add the law with: domicile audit incident update --law"
                )
            await notify(context, tenant, incident, clock=clock, authority=authority, actor=ACTOR, known=known)
            return _case_row(context, tenant, incident, clocks)

        return self._do(tenant, work)

    def close_incident(self, tenant: str, incident: str, clocks: ClockTable, *, reason: str, release: bool) -> Row:
        async def work(context: AuditContext) -> Row:
            known = _case(context, tenant, incident)
            await close(context, tenant, incident, reason=reason, release=release, actor=ACTOR, known=known)
            return _case_row(context, tenant, incident, clocks)

        return self._do(tenant, work)

    def incidents(self, tenant: str, clocks: ClockTable) -> list[Row]:
        async def work(context: AuditContext) -> list[Row]:
            with context.reading() as reader:
                return [_row_of(case, clocks, rfc3339(context.now())) for case in cases(reader, tenant)]

        return self._do(tenant, work)


def check_severity(known: ClockTable, laws: Collection[str], severity: str | None) -> None:
    """Raises UsageMistake for a severity that none of `laws` knows."""
    if severity is not None and severity not in (names := known.severity_names(laws)):
        raise UsageMistake(
            f"{severity!r} is no severity under {', '.join(sorted(laws))}; name one of {', '.join(names)}"
        )


def _matter(context: AuditContext, tenant: str, matter: str) -> Matter:
    with context.reading() as reader:
        return matter_of(reader, tenant, matter)


def _matter_row(context: AuditContext, tenant: str, matter: str) -> Row:
    return _matter(context, tenant, matter).as_row(rfc3339(context.now()))


def _case(context: AuditContext, tenant: str, incident: str) -> Case:
    with context.reading() as reader:
        return case_of(reader, tenant, incident)


def _case_row(context: AuditContext, tenant: str, incident: str, clocks: ClockTable) -> Row:
    return _row_of(_case(context, tenant, incident), clocks, rfc3339(context.now()))


def _row_of(case: Case, clocks: ClockTable, now: str) -> Row:
    return {
        "incident_id": case.incident_id,
        "opened": case.opened,
        "closed": case.closed,
        "laws": case.laws,
        "severity": case.severity,
        "moments": case.moments,
        "hold_ids": case.hold_ids,
        "deadlines": as_rows(case.deadlines(clocks), now),
    }


def do(
    data: Path | None,
    work: Callable[[AuditContext], Awaitable[T]],
    backup_days: int = BACKUP_DAYS,
    *,
    tenants: Collection[str] = (),
) -> T:
    """What `work` returns, done on the log and side store of a data folder.

    Raises StoreError for one of `tenants` of whom nothing is on record, so that a mistyped name gets no record.
    """
    log = (data or DEFAULT_DATA) / LOG_IN_DATA
    if not is_there(log):
        raise NoLog(no_log_at(log))
    if not any(log.with_name(name).is_file() for name in ("signer.key", "signer.vkey")):
        raise AuditError(
            f"{log.with_name('signer.key')}, which signs this log, is missing; use the original data folder, or put the"
            " key set back with: domicile init --keys KEY_SET"
        )

    async def inside() -> T:
        async with _audit_context(log, backup_days) as context:
            with context.reading() as reader:
                for tenant in tenants:
                    reader.head(tenant)
            return await work(context)

    return asyncio.run(inside())


@asynccontextmanager
async def _audit_context(log: Path, backup_days: int) -> AsyncIterator[AuditContext]:
    keys, signer = open_keys.get()(log)
    side = log.with_name(FILE)
    opened = open_log_and_values(side, keys)
    async with await AuditLog.open(log, signer=signer, node=f"cli-{os.getpid()}", open_store=opened) as audit_log:
        yield AuditContext(
            audit_log,
            open_values=lambda: open_values(side, keys),
            open_reader=lambda: open_reader(log),
            keys=keys,
            signer=signer,
            backup_days=backup_days,
            tiles=log.with_name(TILES),
            exchange=partial(exchange_attested_files, log),
        )
