"""Queue of calls to a model without a running backend, while one is started; bounded per tenant.

A waiting stream is kept open with comments (HTML Living Standard, server-sent events §9.2.6), which clients skip. The
status is sent with the first comment, so a call that is refused before that gets an error status.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import perf_counter

from gateway.directory.backend_registry import BackendRegistry
from gateway.errors import BackendCannotStart, BackendUnavailable
from gateway.request.answer.headers import EVENT_STREAM, provenance
from gateway.request.exchange import Attempts
from gateway.request.stages import Redacted
from policy.decision.decision import Decision
from regions.fleet.demand import DemandTracker
from regions.fleet.deployment import Deployment
from regions.fleet.fleet import Backend, Fleet

LOOK_S = 0.5
"""How often a waiting call checks the fleet without a notification: a backend may become available again after its
back-off."""
COMMENT_S = 5.0
COMMENT = b": waiting for a backend\n\n"
PATIENCE_S = 5.0
"""How long calls wait for a deployment whose last starts failed: long enough for the reconciler to see the demand and
start it again."""
FAILURES = 2
"""Failed starts in a row after which calls wait for PATIENCE_S only."""
RETRY_AFTER_S = 5.0


class Parking:
    """`per_tenant`: maximum number of waiting calls of one tenant."""

    def __init__(self, registry: BackendRegistry, fleet: Fleet, tracker: DemandTracker, per_tenant: int) -> None:
        self._registry = registry
        self._fleet = fleet
        self._tracker = tracker
        self._per_tenant = per_tenant
        self._taken: Counter[str] = Counter()
        self._news = asyncio.Event()

    def look(self) -> None:
        """Wake all waiting calls, because the fleet changed."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait(self, redacted: Redacted, attempts: Attempts) -> bool:
        """Wait until a backend that may answer is running, or the deployment is gone; then return True.

        Returns False immediately if no deployment will start a backend for this call. Raises BackendUnavailable if too
        many calls wait or the deployment's waiting time is over, and BackendCannotStart if its starts fail.
        """
        request = redacted.request
        tenant = request.principal.tenant
        model = self._registry.base_of(tenant, request.call.model)
        deployment = self._registry.deployment(tenant, model)
        regions = self._allowed(redacted.allowed, deployment)
        if deployment is None or not regions:
            return False
        again = attempts.waiting_since is not None
        since = attempts.waiting_since = attempts.waiting_since or perf_counter()
        with self._place(tenant), self._tracker.waiting(tenant, model, regions):
            if again:  # a backend was running but could not be called
                await asyncio.sleep(LOOK_S)
            while not self._is_up(tenant, model, regions, redacted.allowed):
                deployment = self._registry.deployment(tenant, model)
                if deployment is None:
                    return True  # drained, deleted, or its tenant revoked: the call is evaluated again
                _check_patience(deployment, perf_counter() - since)  # before the comment, because that sends the status
                commented = request.call.stream and request.call.endpoint.format.streams_events
                if commented and perf_counter() - since >= COMMENT_S * (attempts.comments + 1):
                    attempts.comments += 1
                    await request.client.hold([*EVENT_STREAM, *provenance(redacted, None, None)], COMMENT)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):  # wait_for could swallow the cancellation by a client that left
                        await self._news.wait()
        return True

    def _allowed(self, decision: Decision, deployment: Deployment | None) -> frozenset[str]:
        """Return the regions of the deployment in which `decision` allows a backend."""
        if deployment is None:
            return frozenset()
        facts = self._registry.facts(deployment.tenant, deployment.model)
        may = {*decision.backends, *decision.pending}
        allowed = {fact.region for fact in facts if fact.backend_id in may}
        return frozenset(deployment.regions) & allowed

    def _is_up(self, tenant: str, model: str, regions: frozenset[str], decision: Decision) -> bool:
        """Whether a backend is up that may be called now, or that the decision does not know yet."""

        def waits(backend: Backend) -> bool:
            return backend.id in decision.pending and self._registry.facts_of(backend).pending

        live = self._fleet.live()
        return any(
            backend.region in regions and live[backend.id].available and not waits(backend)
            for backend in self._registry.backends(tenant, model)
        )

    @contextmanager
    def _place(self, tenant: str) -> Iterator[None]:
        if self._taken[tenant] >= self._per_tenant:
            raise BackendUnavailable(
                f"{self._per_tenant} calls are already waiting for a backend; try again",
                code="too_many_waiting",
                retry_after_s=RETRY_AFTER_S,
            )
        self._taken[tenant] += 1
        try:
            yield
        finally:
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]


def _check_patience(deployment: Deployment, waited_s: float) -> None:
    over = waited_s >= deployment.wait_s
    hopeless = deployment.failures >= FAILURES and waited_s >= PATIENCE_S
    if deployment.failures and (over or hopeless):
        times = f"the last {deployment.failures} starts" if deployment.failures > 1 else "the last start"
        raise BackendCannotStart(
            f"The backend for this cannot start: {times} failed ({deployment.failure})"
            "; ask the operator to fix this cause"
        )
    if over:
        raise BackendUnavailable(
            f"No backend for this was ready within {deployment.wait_s} s; try again",
            code="backend_starting",
            retry_after_s=RETRY_AFTER_S,
        )
