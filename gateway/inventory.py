"""What each tenant's backends are in the eyes of a policy: the fleet, described by the catalogue of the day."""

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime

from gateway.store.records import BackendRecord
from policy.facts import BackendFacts
from regions.catalogue import Catalogue
from regions.fleet import Backend, Fleet


class Inventory:
    def __init__(
        self, fleet: Fleet, catalogue: Catalogue, today: Callable[[], date] = lambda: datetime.now(UTC).date()
    ) -> None:
        self._fleet = fleet
        self._catalogue = catalogue
        self._today = today
        self._described: tuple[date, dict[Backend, BackendFacts]] | None = None

    def replace(self, records: Iterable[BackendRecord]) -> None:
        """Take over what the control store says now."""
        self._fleet.replace(
            Backend(id=r.id, tenant=r.tenant, region=r.region, url=r.url, uri=r.uri, models=r.models) for r in records
        )
        self._described = None

    def models(self, tenant: str) -> tuple[str, ...]:
        return self._fleet.models(tenant)

    def facts(self, tenant: str, model: str) -> tuple[BackendFacts, ...]:
        """Of every backend of `tenant` that serves `model`, however it fares: where a call may go does not hang on
        who is up."""
        return tuple(self.facts_of(backend) for backend in self._fleet.candidates(tenant, model))

    def backends(self, tenant: str, model: str) -> tuple[Backend, ...]:
        return self._fleet.candidates(tenant, model)

    def facts_of(self, backend: Backend) -> BackendFacts:
        today = self._today()
        if self._described is None or self._described[0] != today:  # rows of the catalogue begin and end by the day
            self._described = today, {}
        described = self._described[1]
        if backend not in described:
            described[backend] = self._catalogue.backend_facts(
                backend_id=backend.id, tenant=backend.tenant, region=backend.region, models=backend.models, day=today
            )
        return described[backend]
