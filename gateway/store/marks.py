"""Watermark keys and fingerprint salts of a tenant: one of each per calendar month, wrapped under the tenant's own key.

They are kept after their month because detection and search try all of them. Once the tenant's own key is destroyed,
its marks can no longer be detected, and its answers no longer be found by their fingerprints.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from secrets import token_bytes
from typing import ClassVar

from sqlalchemy import exc
from sqlmodel import col, select

from audit.keys.owner_keys import KeyProvider
from gateway.database.database import Database
from gateway.database.errors import Invalid, NotFound
from gateway.database.tables.marks import AnswerSaltRow, MarkKeyRow, MarkUseRow, MonthlySecretRow

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class PeriodKey:
    """period: as ``2026-12``. models: that were marked by it, as far as is known."""

    period: str
    key: bytes = field(repr=False)
    models: tuple[str, ...] = ()


def period_at(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m")


class _Monthly:
    """Secrets of 32 bytes, one a tenant and month, in the table of `row`.

    Blocks. Every method may raise DatabaseUnavailable and what the provider raises: KeyProviderError, KeyLost.
    """

    row: ClassVar[type[MonthlySecretRow]]

    def __init__(
        self, database: Database, provider: KeyProvider, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database = database
        self._provider = provider
        self._now = now

    def of(self, tenant: str, period: str) -> PeriodKey | None:
        """Return the key of a period, or None if there is none."""
        with self._database.read() as session:
            row = session.get(self.row, (tenant, period))
        return None if row is None else PeriodKey(period, self._provider.unwrap(tenant, row.wrapped))

    def all(self, tenant: str) -> list[PeriodKey]:
        """Return the keys of all periods, newest first."""
        found = self._rows(tenant)
        keys = self._provider.unwrap_all(tenant, [row.wrapped for row in found]) if found else []
        return [PeriodKey(row.period, key) for row, key in zip(found, keys, strict=True)]

    def rewrap(self, tenant: str) -> int:
        """Wrap each key under the newest generation of the tenant's key. Returns the number of keys."""
        with self._database.write() as session:
            rows = session.exec(select(self.row).where(self.row.tenant == tenant)).all()
            for row in rows:
                row.wrapped = self._provider.wrap(tenant, self._provider.unwrap(tenant, row.wrapped))
                session.add(row)
        return len(rows)

    def made(self, tenant: str, period: str) -> PeriodKey:
        """Return the key of a period, creating it if needed. If another gateway creates one concurrently, the first one
        written is used."""
        if (known := self.of(tenant, period)) is not None:
            return known
        wrapped = self._provider.wrap(tenant, token_bytes(KEY_BYTES))
        self._add(self.row(tenant=tenant, period=period, wrapped=wrapped, created_at=self._now()))
        made = self.of(tenant, period)
        if made is None:
            raise RuntimeError(f"the key of {period} is not there though it was written; report it")
        return made

    def _rows(self, tenant: str) -> Sequence[MonthlySecretRow]:
        with self._database.read() as session:
            row = self.row
            return session.exec(select(row).where(row.tenant == tenant).order_by(col(row.period).desc())).all()

    def _add(self, row: MonthlySecretRow | MarkUseRow) -> None:
        try:
            with self._database.write() as session:
                session.add(row)
        except exc.IntegrityError:
            with self._database.read() as session:
                if session.get(type(row), _place(row)) is None:
                    raise


class MarkKeys(_Monthly):
    """Watermark keys. Blocks; raises as `_Monthly` does."""

    row = MarkKeyRow

    def used(self, tenant: str, period: str, model: str, scheme: str) -> PeriodKey:
        """Return the key of a period, creating it if needed. The model is stored as marked by it first."""
        key = self.made(tenant, period)
        place = (tenant, period, model, scheme)
        with self._database.read() as session:
            known = session.get(MarkUseRow, place) is not None
        if not known:
            row = MarkUseRow(tenant=tenant, period=period, model=model, scheme=scheme, first_at=self._now())
            self._add(row)
        return key

    def all(self, tenant: str) -> list[PeriodKey]:
        """Return the keys of all periods with the models that were marked by them, newest first."""
        with self._database.read() as session:
            uses = session.exec(select(MarkUseRow).where(MarkUseRow.tenant == tenant)).all()
        return [
            replace(key, models=tuple(sorted({use.model for use in uses if use.period == key.period})))
            for key in super().all(tenant)
        ]


class AnswerSalts(_Monthly):
    """Salts of the fingerprints of answers. Blocks; raises as `_Monthly` does."""

    row = AnswerSaltRow

    def destroy(self, tenant: str, period: str, record: Callable[[], object]) -> None:
        """Destroy the salt of a month that is over: the fingerprints of its answers say nothing any more.

        `record` is called before. Raises NotFound if there is none, Invalid if answers may still get fingerprints by
        it, with nothing destroyed.
        """
        if period >= period_at(self._now() - timedelta(days=1)):
            raise Invalid(f"answers of {period} may still come in; name a month that has been over for a day")
        with self._database.read() as session:
            if session.get(AnswerSaltRow, (tenant, period)) is None:
                raise NotFound(f"there is no salt of {period}; `domicile mark list {tenant}` lists those there are")
        record()
        with self._database.write() as session:
            if (row := session.get(AnswerSaltRow, (tenant, period))) is not None:
                session.delete(row)

    def periods(self, tenant: str) -> list[str]:
        """Return the months with a salt, newest first, without unwrapping any."""
        return [row.period for row in self._rows(tenant)]


def _place(row: MonthlySecretRow | MarkUseRow) -> tuple[str, ...]:
    if isinstance(row, MarkUseRow):
        return row.tenant, row.period, row.model, row.scheme
    return row.tenant, row.period
