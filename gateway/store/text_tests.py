"""Limit on the tests of texts of a tenant, counted in the control database: for all gateways and workers together, and
through their restarts. It prevents editing a text until its mark is removed."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlmodel import col, delete, select

from gateway.database.database import Database
from gateway.database.errors import NotReady
from gateway.database.tables.control import TenantRow
from gateway.database.tables.marks import TextTestRow

TESTS_AN_HOUR = 60
HOUR = timedelta(hours=1)

Kind = Literal["watermark", "search", "challenge"]


class TooManyTests(NotReady):
    """No text of this tenant is tested now."""


class TextTests:
    """Tests of one kind. Blocks."""

    def __init__(
        self,
        database: Database,
        kind: Kind,
        most: int = TESTS_AN_HOUR,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._kind = kind
        self._most = most
        self._now = now

    def take(self, tenant: str) -> None:
        """Count a test; of a tenant that there is not, none. Raises TooManyTests, DatabaseUnavailable."""
        own = col(TextTestRow.tenant) == tenant, col(TextTestRow.kind) == self._kind
        now = self._now()
        with self._database.write() as session:
            if session.get(TenantRow, tenant, with_for_update=True) is None:  # of two gateways one counts at a time
                return
            session.exec(delete(TextTestRow).where(*own, col(TextTestRow.at) <= now - HOUR))
            taken = set(session.exec(select(TextTestRow.number).where(*own)).all())
            free = next((number for number in range(self._most) if number not in taken), None)
            if free is not None:
                session.add(TextTestRow(tenant=tenant, kind=self._kind, number=free, at=now))
        if free is None:
            raise TooManyTests(f"{self._most} texts were tested within an hour, the most there may be; try again later")
