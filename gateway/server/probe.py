"""Asks a backend whether it is ready, and what its queue and cache look like, on one kept connection.

Our engine answers ``/readyz`` by a round trip through its loop; any other server is ready when it lists its models.
Both report their queue and speed in Prometheus text at ``/metrics`` (`gateway.server.monitoring.engine_report`); one
that does not is judged by our own calls alone.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from backend.wire import PING_PATH, WEIGHTS_PATH
from gateway.directory.attestor import Attested, Attestor
from gateway.directory.shown import Shown, shown_weights
from gateway.offers.model_cards import Cards, parse_cards
from gateway.request.routes import Routes
from gateway.server.monitoring.engine_report import METRICS_PATH, parse_figures, parse_report
from gateway.upstream.client import Target, Upstream
from regions.fleet.fleet import Backend, Fleet

TIMEOUT_S = 5.0
MODELS_PATH = "/v1/models"
MEASURING = 503
Show = Callable[[Backend, Shown | None], None]


class BackendProbe:
    """A `regions.fleet.health.Probe`: True if ready; raises if it does not answer. Its report goes to the fleet."""

    def __init__(
        self,
        upstream: Upstream,
        routes: Routes,
        fleet: Fleet,
        cards: Cards | None = None,
        show: Show = lambda backend, shown: None,
        attestor: Attestor | None = None,
    ) -> None:
        """`cards`: takes what each backend says of its models, once it is ready. `show`: takes what one of our own
        shows of itself, before it counts as ready; None while that is not known. `attestor`: asks what its hardware
        attests."""
        self._attestor = attestor
        self._asking: dict[str, asyncio.Task[Attested]] = {}
        self._cards = cards
        self._show = show
        self._weights: dict[str, tuple[Backend, bytes | None, Shown]] = {}
        self._upstream = upstream
        self._routes = routes
        self._fleet = fleet

    async def __call__(self, backend: Backend) -> bool:
        target = self._routes.target(backend)
        path = PING_PATH if backend.kind == "domicile" else MODELS_PATH
        if not await self._upstream.ready(target, path, TIMEOUT_S):
            return False
        if backend.kind == "domicile":
            await self._ask_weights(backend, target)
        if self._cards is not None and not self._cards.knows(backend.id, backend):
            listed = await self._upstream.fetch(target, MODELS_PATH, TIMEOUT_S)
            if listed is not None:
                self._cards.note(backend.id, backend, parse_cards(listed))
        if backend.kind == "managed":
            return True  # it has its own queue
        said = await self._upstream.fetch(target, METRICS_PATH, TIMEOUT_S)
        if said is not None and (report := parse_report(said)) is not None:
            self._fleet.mark_report(backend, report)
            self._fleet.mark_figures(backend, parse_figures(said))
        return True

    async def _ask_weights(self, backend: Backend, target: Target) -> None:
        """At each probe, since a backend may have been restarted. A signature is verified where it is another."""
        status, said = await self._upstream.ask(target, WEIGHTS_PATH, TIMEOUT_S)
        if status == MEASURING:
            self._weights.pop(backend.id, None)
            self._show(backend, None)
            return
        said = said if status == 200 else None
        known = self._weights.get(backend.id)
        if known is None or known[0] is not backend or known[1] != said:
            self._show(backend, None)  # no call goes there by what it was before
            shown = await asyncio.to_thread(shown_weights, said)
            known = self._weights[backend.id] = backend, said, shown
        self._show_whole(backend, target, known[2])

    def _show_whole(self, backend: Backend, target: Target, shown: Shown) -> None:
        """With its evidence, which is asked for beside the probes: hardware may take longer than these."""
        if self._attestor is None or shown.sha256 is None:
            self._show(backend, shown)
            return
        weights = shown.sha256
        if self._attestor.is_due(backend, weights):
            asking = self._asking.get(backend.id)
            if asking is None or asking.done():
                self._asking[backend.id] = asyncio.create_task(self._attestor.ask(backend, target, weights))
                self._asking[backend.id].add_done_callback(lambda _: self._show_evidence(backend, shown))
            return
        self._show_evidence(backend, shown)

    def _show_evidence(self, backend: Backend, shown: Shown) -> None:
        known = self._weights.get(backend.id)
        if self._attestor is not None and known is not None and known[0] is backend and known[2] is shown:
            found = self._attestor.found(backend)
            self._show(backend, replace(shown, attested=found.technologies, attestation_fault=found.fault))
