"""Metrics of all backends, re-exported by the gateway for a Prometheus server that reaches only gateways.

A backend accepts only the client certificates and tokens of its gateways. So the gateway scrapes each backend and adds
the labels ``tenant``, ``region``, ``deployment``, ``backend`` and ``replica`` (``deployment`` and ``replica`` are
empty for a server registered by hand). Labels of these names in a backend's own metrics are dropped. Metrics of our
engine whose names the gateway uses too (``gen_ai_server_…``) are renamed to ``domicile_backend_…``. For other servers
only the queue length is exported, since their other metrics may carry any labels.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.request.routes import Routes
from gateway.server.monitoring.engine_report import METRICS_PATH, parse_report
from gateway.upstream.client import Upstream
from regions.fleet.deployment import Deployment
from regions.fleet.fleet import Backend, Fleet

TIMEOUT_S = 4.0
"""For one backend; with the time that those before it took, less than Prometheus' default of 10 seconds."""
DEADLINE_S = 8.0
AT_ONCE = 32
MAX_SAMPLES = 5000
"""Samples of one backend. Ours has some hundreds."""

OWN = "domicile_backend_"
SHARED = "gen_ai_server_"
LABELS = ("tenant", "region", "deployment", "backend", "replica")
_REPLICA = re.compile(r"(.+)-([0-9a-f]{8})")

Said = Mapping[str, bytes | None]
"""What each backend answered, by its id; None for one that did not."""


class Labelled(NamedTuple):
    """A backend and the values of its labels, in the order of `LABELS`."""

    backend: Backend
    labels: tuple[str, ...]


class BackendMetrics:
    """`tenant_label`: the name of a tenant in metrics, which are bounded in how many they name. `deployments`: those
    that are there, to distinguish a replica from a server that was registered by hand."""

    def __init__(
        self,
        upstream: Upstream,
        routes: Routes,
        fleet: Fleet,
        tenant_label: Callable[[str], str],
        deployments: Callable[[], Iterable[Deployment]],
    ) -> None:
        self._upstream = upstream
        self._routes = routes
        self._fleet = fleet
        self._tenant_label = tenant_label
        self._deployments = deployments

    async def collect(self) -> list[Metric]:
        """Scrape all backends now."""
        backends = self._labelled()
        said = await self._ask([each.backend for each in backends])
        return await asyncio.to_thread(labelled, backends, said)

    def _labelled(self) -> list[Labelled]:
        known = {(each.tenant, each.id) for each in self._deployments()}
        return [Labelled(each, self._labels(each, known)) for each in self._fleet if each.kind != "managed"]

    def _labels(self, backend: Backend, known: set[tuple[str, str]]) -> tuple[str, ...]:
        deployment, replica = "", ""
        if (found := _REPLICA.fullmatch(backend.id)) and (backend.tenant, found[1]) in known:
            deployment, replica = found[1], found[2]
        return self._tenant_label(backend.tenant), backend.region, deployment, backend.id, replica

    async def _ask(self, backends: Iterable[Backend]) -> Said:
        said: dict[str, bytes | None] = {}
        room = asyncio.Semaphore(AT_ONCE)

        async def ask(backend: Backend) -> None:
            async with room:
                said[backend.id] = await self._upstream.fetch(self._routes.target(backend), METRICS_PATH, TIMEOUT_S)

        tasks = [asyncio.create_task(ask(each)) for each in backends]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=DEADLINE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return said


def labelled(backends: Iterable[Labelled], said: Said) -> list[Metric]:
    """What the backends said, under one name and type each. One that said nothing that can be read is
    ``domicile_backend_up 0``."""
    up = GaugeMetricFamily(f"{OWN}up", "1 while this gateway can read the metrics of the backend.", labels=LABELS)
    families: dict[str, Metric] = {}
    for backend, labels in backends:
        told = _told(backend, labels, said.get(backend.id))
        for metric in told or ():
            first = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            if first.type == metric.type:
                first.samples.extend(metric.samples)
        up.add_metric(labels, 0.0 if told is None else 1.0)
    return [up, *families.values()]


def _told(backend: Backend, labels: tuple[str, ...], text: bytes | None) -> list[Metric] | None:
    """Return the metrics of one backend, or None if they cannot be parsed."""
    if text is None:
        return None
    if backend.kind != "domicile":
        return _queue(labels, text)
    try:
        return _relabelled(text.decode(), dict(zip(LABELS, labels, strict=True)))
    except (ValueError, KeyError, IndexError):  # what the parser makes of text that is none
        return None


def _queue(labels: tuple[str, ...], text: bytes) -> list[Metric]:
    """Return the queue metrics of any server that `parse_report` reads, under the names of our engine."""
    report = parse_report(text)
    if report is None:
        return []
    found: list[Metric] = []
    for name, help_text, value in (
        ("sequences_running", "Sequences in the running batch.", report.running),
        ("sequences_waiting", "Sequences queued for the engine.", report.waiting),
    ):
        gauge = GaugeMetricFamily(OWN + name, help_text, labels=LABELS)
        gauge.add_metric(labels, value)
        found.append(gauge)
    return found


def _relabelled(text: str, labels: dict[str, str]) -> list[Metric]:
    """Return the relabelled metrics. Raises ValueError for an invalid or too large exposition."""
    found, samples = [], 0
    for family in text_string_to_metric_families(text):
        if not family.name.startswith((OWN, SHARED)) or family.name == f"{OWN}up":
            continue
        metric = Metric(_renamed(family.name), family.documentation, family.type)
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            samples += 1
            if samples > MAX_SAMPLES:
                raise ValueError(f"more than {MAX_SAMPLES} samples; look at what the backend exports")
            own = {name: value for name, value in sample.labels.items() if name not in labels}
            metric.add_sample(_renamed(sample.name), labels | own, sample.value)
        found.append(metric)
    return found


def _renamed(name: str) -> str:
    return OWN + name.removeprefix(SHARED) if name.startswith(SHARED) else name
