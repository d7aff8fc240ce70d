"""Watermark keys of a tenant: one per calendar month, wrapped under the tenant's own key.

Keys are kept after their month because detection tries all of them. Once the tenant's own key is destroyed, its marks
can no longer be detected.
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
        """Return the key of a period, creating it if needed. The model is stored as marked by it first."""
        key = self.of(tenant, period) or self._make(tenant, period)
        place = (tenant, period, model, scheme)
        with self._database.read() as session:
            known = session.get(MarkUseRow, place) is not None
        if not known:
            row = MarkUseRow(tenant=tenant, period=period, model=model, scheme=scheme, first_at=self._now())
            self._add(row)
        return key

    def of(self, tenant: str, period: str) -> PeriodKey | None:
        """Return the key of a period, or None if nothing was marked in it."""
        with self._database.read() as session:
            row = session.get(MarkKeyRow, (tenant, period))
        return None if row is None else PeriodKey(period, self._provider.unwrap(tenant, row.wrapped))

    def all(self, tenant: str) -> list[PeriodKey]:
        """Return the keys of all periods, newest first."""
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
        """Wrap each key under the newest generation of the tenant's key. Returns the number of keys."""
        with self._database.write() as session:
            rows = session.exec(select(MarkKeyRow).where(MarkKeyRow.tenant == tenant)).all()
            for row in rows:
                row.wrapped = self._provider.wrap(tenant, self._provider.unwrap(tenant, row.wrapped))
                session.add(row)
        return len(rows)

    def _make(self, tenant: str, period: str) -> PeriodKey:
        """Create a key. If another gateway creates one concurrently, the first one written is used."""
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
