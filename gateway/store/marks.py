"""The keys by which a tenant's answers are watermarked: one a calendar month, wrapped under the tenant's own key.

They are kept after their month, since a text is tested for all of them. What a tenant's answers are marked with ends
with the tenant's key: without it nothing can be detected any more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_bytes

from sqlalchemy import exc
from sqlmodel import col, select

from audit.keys.owner_keys import KeyProvider
from gateway.database.database import Database
from gateway.database.tables.marks import MarkKeyRow, MarkUseRow

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class PeriodKey:
    """period: as ``2026-12``. models: that were marked by it, as far as is known."""

    period: str
    key: bytes = field(repr=False)
    models: tuple[str, ...] = ()


def period_at(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m")


class MarkKeys:
    """Blocks. Every method may raise DatabaseUnavailable and what the provider raises: KeyProviderError, KeyLost."""

    def __init__(
        self, database: Database, provider: KeyProvider, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database = database
        self._provider = provider
        self._now = now

    def used(self, tenant: str, period: str, model: str, scheme: str) -> PeriodKey:
        """The key of a period, made if there is none; that the model is marked by it is noted before it is."""
        key = self.of(tenant, period) or self._make(tenant, period)
        place = (tenant, period, model, scheme)
        with self._database.read() as session:
            known = session.get(MarkUseRow, place) is not None
        if not known:
            row = MarkUseRow(tenant=tenant, period=period, model=model, scheme=scheme, first_at=self._now())
            self._add(row)
        return key

    def of(self, tenant: str, period: str) -> PeriodKey | None:
        """The key of one period; None where nothing was marked in it."""
        with self._database.read() as session:
            row = session.get(MarkKeyRow, (tenant, period))
        return None if row is None else PeriodKey(period, self._provider.unwrap(tenant, row.wrapped))

    def all(self, tenant: str) -> list[PeriodKey]:
        """Those of all periods, newest first."""
        with self._database.read() as session:
            keys = session.exec(
                select(MarkKeyRow).where(MarkKeyRow.tenant == tenant).order_by(col(MarkKeyRow.period).desc())
            ).all()
            uses = session.exec(select(MarkUseRow).where(MarkUseRow.tenant == tenant)).all()
        return [
            PeriodKey(
                row.period,
                self._provider.unwrap(tenant, row.wrapped),
                tuple(sorted({use.model for use in uses if use.period == row.period})),
            )
            for row in keys
        ]

    def rewrap(self, tenant: str) -> int:
        """Wrap each key under the newest generation of the tenant's own; how many there are."""
        with self._database.write() as session:
            rows = session.exec(select(MarkKeyRow).where(MarkKeyRow.tenant == tenant)).all()
            for row in rows:
                row.wrapped = self._provider.wrap(tenant, self._provider.unwrap(tenant, row.wrapped))
                session.add(row)
        return len(rows)

    def _make(self, tenant: str, period: str) -> PeriodKey:
        """Another gateway may make one at the same time: the first that is written holds."""
        wrapped = self._provider.wrap(tenant, token_bytes(KEY_BYTES))
        self._add(MarkKeyRow(tenant=tenant, period=period, wrapped=wrapped, created_at=self._now()))
        made = self.of(tenant, period)
        if made is None:
            raise RuntimeError(f"the key of {period} is not there though it was written; report it")
        return made

    def _add(self, row: MarkKeyRow | MarkUseRow) -> None:
        try:
            with self._database.write() as session:
                session.add(row)
        except exc.IntegrityError:
            with self._database.read() as session:
                if session.get(type(row), _place(row)) is None:
                    raise


def _place(row: MarkKeyRow | MarkUseRow) -> tuple[str, ...]:
    if isinstance(row, MarkKeyRow):
        return row.tenant, row.period
    return row.tenant, row.period, row.model, row.scheme
