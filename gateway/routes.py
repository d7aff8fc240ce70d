"""From a decision to the backends that may be called, best first; and the last look before each call."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from gateway.credentials import TenantCredentials
from gateway.errors import BackendUnavailable, InternalError
from gateway.exchange import Exchange, Route
from gateway.inventory import Inventory
from gateway.upstream import Target
from policy.decision import Decision
from regions.errors import IsolationError
from regions.fleet import Backend, Call, Fleet
from regions.router import affinity_key, choose


class Routes:
    """`max_attempts`: backends tried for one request before its first byte."""

    def __init__(self, fleet: Fleet, inventory: Inventory, credentials: TenantCredentials, max_attempts: int) -> None:
        self._fleet = fleet
        self._inventory = inventory
        self._credentials = credentials
        self._max_attempts = max_attempts
        self._targets: dict[Backend, Target] = {}

    def choose(self, exchange: Exchange, decision: Decision) -> list[Route]:
        """Raises BackendUnavailable when no backend that the decision allows can be called now."""
        tenant = exchange.principal.tenant
        candidates = self._inventory.backends(tenant, exchange.call.model)
        allowed = [backend for backend in candidates if backend.id in decision.backends]
        affinity = affinity_key(exchange.call.leading_text.encode())
        ordered = choose(tenant, allowed, self._fleet.loads(allowed), affinity)[: self._max_attempts]
        if not ordered:
            raise BackendUnavailable("None of the backends that may answer this is up; try again", retry_after_s=2)
        return [
            Route(backend, self._inventory.facts_of(backend), decision.transfer_basis[backend.id])
            for backend in ordered
        ]

    @contextmanager
    def in_flight(self, exchange: Exchange, decision: Decision, route: Route) -> Iterator[Call]:
        """The last look before a connection is made, and the count of calls while one runs.

        Fails closed: a backend outside the decision, of another tenant, or gone from the fleet is not called.
        """
        if route.backend.id not in decision.backends:
            raise InternalError("A backend outside the decision was about to be called; nothing was sent")
        try:
            with self._fleet.call(route.backend, tenant=exchange.principal.tenant) as call:
                yield call
        except IsolationError:
            raise BackendUnavailable("The backend was taken out of service", retry_after_s=1) from None

    def target(self, backend: Backend) -> Target:
        known = self._targets.get(backend)
        if known is None:
            tls = partial(self._credentials.context_for, backend) if backend.url.startswith("https:") else None
            known = self._targets[backend] = Target(backend.id, backend.url.rstrip("/"), tls)
        return known
