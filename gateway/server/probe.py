"""Asks a backend whether it is ready, and what its queue and cache look like, on one kept connection.

Our engine answers ``/readyz`` by a round trip through its loop; any other server is ready when it lists its models.
Both tell of their queue in Prometheus text at ``/metrics``, ours by our names, vLLM, SGLang and TGI by theirs; one that
does not is judged by our own calls alone.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from backend.wire import PING_PATH, WEIGHTS_PATH
from gateway.directory.attestor import Attested, Attestor
from gateway.directory.shown import Shown, shown_weights
from gateway.offers.cards import Cards, parse_cards
from gateway.request.routes import Routes
from gateway.upstream.client import Target, Upstream
from regions.fleet.fleet import Backend, EngineReport, Fleet

TIMEOUT_S = 5.0
MODELS_PATH = "/v1/models"
METRICS_PATH = "/metrics"
MEASURING = 503
Show = Callable[[Backend, Shown | None], None]

_SAMPLE = re.compile(rb"^([a-z_:]+)(?:\{[^}\n]*\})? ([0-9.eE+-]+)$", re.MULTILINE)
_RUNNING = (
    b"domicile_backend_sequences_running",
    b"vllm:num_requests_running",
    b"sglang:num_running_reqs",
    b"tgi_batch_current_size",
)
_WAITING = (
    b"domicile_backend_sequences_waiting",
    b"vllm:num_requests_waiting",
    b"sglang:num_queue_reqs",
    b"tgi_queue_size",
)
_USED, _BLOCKS = b"domicile_backend_kv_blocks_used", b"domicile_backend_kv_blocks"
_SHARE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", b"sglang:token_usage")


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
            return True  # its queue is its own affair
        said = await self._upstream.fetch(target, METRICS_PATH, TIMEOUT_S)
        if said is not None and (report := parse_report(said)) is not None:
            self._fleet.mark_report(backend, report)
        return True

    async def _ask_weights(self, backend: Backend, target: Target) -> None:
        """At each probe, since a backend may have been started anew. A signature is verified where it is another."""
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


def parse_report(text: bytes) -> EngineReport | None:
    """The load in Prometheus text; None if it reports no queue. Several engines in one text are added up."""
    found: dict[bytes, list[float]] = {}
    for name, value in _SAMPLE.findall(text):
        with suppress(ValueError):
            number = float(value)
            found.setdefault(name, []).append(number)
    running, waiting = _first(found, _RUNNING), _first(found, _WAITING)
    if running is None or waiting is None:
        return None
    used, blocks, share = found.get(_USED), found.get(_BLOCKS), _first(found, _SHARE)
    use = sum(share) / len(share) if share else 0.0
    if used and blocks and sum(blocks) > 0:
        use = sum(used) / sum(blocks)
    numbers = (sum(running), sum(waiting), use)
    if any(not 0 <= number < 1e9 for number in numbers):  # also for what is not a number
        return None
    return EngineReport(int(numbers[0]), int(numbers[1]), min(use, 1.0))


def _first(found: dict[bytes, list[float]], names: tuple[bytes, ...]) -> list[float] | None:
    return next((found[name] for name in names if name in found), None)
