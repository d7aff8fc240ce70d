"""One administrator's change: a transaction that bumps the epoch, is offered to the record, and only then commits.

If `on_event` raises, nothing has happened. So the record may hold a change whose commit then failed, but never lacks
one that was made.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sqlalchemy import exc
from sqlmodel import Session

from gateway.database.database import Database
from gateway.database.epoch import bump_epoch
from gateway.database.errors import Duplicate, Invalid, InvalidValue, Stale
from gateway.database.tables.cells import TenantHomeRow
from gateway.database.tables.control import AccessTokenRow, ApiKeyRow, BackendRow, PersonRow, ProjectRow, Row, TenantRow
from gateway.identity.keys import KeyHasher
from gateway.identity.principal import PolicyInForce
from gateway.records.control import AdminEvent, Record
from gateway.store.idempotent_answers import note_change
from regions.errors import IdentityError
from regions.identity.identity import check_name

AT_HOME_ONLY = frozenset({"tenant", "project", "key", "policy", "limits"})
"""What of a tenant taken over from another cell is changed there; its backends here belong to this cell."""

OnEvent = Callable[[AdminEvent], None]
CheckPolicy = Callable[[str, str, str | None, str | None], PolicyInForce]
"""(tenant, its document, a project's or None, the operator's or None) -> what would be in force; raises what is wrong,
failed tests too."""

_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")

RevocableRow = TypeVar("RevocableRow", TenantRow, ProjectRow, ApiKeyRow, BackendRow, PersonRow, AccessTokenRow)
RecordKind = TypeVar("RecordKind", bound=Record)


class Change:
    """A running transaction: its session, instant and epoch. `expected`: digest of what is to be changed, if known."""

    def __init__(
        self,
        session: Session,
        cell: str,
        actor: str,
        at: datetime,
        epoch: int,
        on_event: OnEvent,
        expected: str | None,
    ) -> None:
        self.session, self.cell, self.actor, self.at, self.epoch = session, cell, actor, at, epoch
        self._on_event = on_event
        self._expected = expected
        self.summaries: list[str] = []

    @property
    def stamp(self) -> dict[str, Any]:
        return {"cell": self.cell, "created_at": self.at, "epoch": self.epoch}

    def insert(self, row: Row, what: str) -> None:
        self.session.add(row)
        try:
            self.session.flush()
        except exc.IntegrityError as error:
            raise Duplicate(f"{what} exists already; choose another name") from error

    def confirm(self, before: Record) -> None:
        """Check that `before` is what the caller expected, where it named a record. Raises Stale."""
        expected, self._expected = self._expected, None
        if expected is not None and before.digest() != expected:
            raise Stale("it was changed since you last read it; read it again, and repeat the change")

    def report(self, action: str, tenant: str, target: str, before: Record | None, after: Record, **more: Any) -> None:
        """Raises Stale where something else was expected `before`, Invalid for what only the tenant's home may do."""
        if action.partition(".")[0] in AT_HOME_ONLY and (home := self.session.get(TenantHomeRow, tenant)) is not None:
            raise Invalid(f"tenant {tenant!r} is administered in its home cell {home.home!r}; change it there")
        if before is not None and self._expected is not None and before.digest() != self._expected:
            raise Stale(f"{target!r} was changed since you last read it; read it again, and repeat the change")
        self.session.flush()
        self.summaries.append(f"{action} {target}")
        self._on_event(
            AdminEvent.model_validate(
                {
                    "action": action,
                    "cell": self.cell,
                    "tenant": tenant,
                    "target": target,
                    "actor": self.actor,
                    "at": self.at,
                    "before": before and before.digest(),
                    "after": after.digest(),
                    "epoch": self.epoch,
                    **more,
                }
            )
        )


class Administration:
    """Operations of one actor on one cell. All raise DatabaseUnavailable, and what `on_event` raises.

    With `expected`, a digest, only what still has it is changed; otherwise Stale is raised. `approval_wait`: how long
    an administrator's new person or token does not count as a second one.
    """

    def __init__(
        self,
        database: Database,
        *,
        cell: str,
        hasher: KeyHasher,
        actor: str,
        check_policy: CheckPolicy,
        on_event: OnEvent = lambda event: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        expected: str | None = None,
        approval_wait: timedelta = timedelta(hours=72),
    ) -> None:
        self._database = database
        self._approval_wait = approval_wait
        self._cell = checked_name(cell, "cell")
        self._hasher = hasher
        self._actor = actor
        self._check = check_policy
        self._on_event = on_event
        self._now = now
        self._expected = expected

    @contextmanager
    def _change(self) -> Iterator[Change]:
        try:
            with self._database.write() as session:
                epoch = bump_epoch(session, self._cell)
                at, on_event = self._now(), self._on_event
                change = Change(session, self._cell, self._actor, at, epoch, on_event, self._expected)
                yield change
                note_change(session, ", ".join(change.summaries))
        except exc.IntegrityError as error:  # another administrator was faster
            raise Duplicate("someone else made it at the same moment; read it again") from error

    @staticmethod
    def _revoke(
        change: Change,
        row: RevocableRow,
        to_record: Callable[[RevocableRow], RecordKind],
        action: str,
        tenant: str,
        target: str,
        *,
        project: str | None = None,
        **more: Any,
    ) -> RecordKind:
        before = to_record(row)
        if row.revoked_at is not None:
            return before
        row.revoked_at, row.epoch = change.at, change.epoch
        after = to_record(row)
        change.report(action, tenant, target, before, after, project=project, **more)
        return after


def checked_name(name: str, what: str) -> str:
    """`name` if it is within the grammar of names; raises Invalid."""
    try:
        return check_name(name, what)
    except IdentityError as error:
        raise InvalidValue(str(error)) from error


def checked_text(value: str, what: str) -> str:
    """A line for people: not empty, not long, nothing in it that moves a cursor. Raises Invalid."""
    if not value.strip() or len(value) > 200 or not value.isprintable():
        raise InvalidValue(f"the {what} is not one line of 1 to 200 printable characters; shorten it")
    return value


def checked_origin(value: str) -> str:
    """The origin of a page as browsers send it: scheme, host and port, in lower case (RFC 6454 §6.2). Raises
    InvalidValue, also for ``*`` and ``null``, which are many."""
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = parts.hostname or ""
    written = f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{'' if port is None else f':{port}'}"
    usual = (parts.scheme, port) not in (("https", 443), ("http", 80))
    if not _HOST.fullmatch(host) or value != written or not usual or len(value) > 200:
        raise InvalidValue("it is no origin of a web page; write it as https://app.example.org")
    return value


def checked_label(value: str) -> str:
    """As `checked_text`, or empty."""
    return checked_text(value, "label") if value else ""
