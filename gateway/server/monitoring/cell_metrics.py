"""``/metrics/cell``: metrics of all backends of a cell, of budgets and of open duties, available from each gateway.

This is separate from ``/metrics``, the gateway's own metrics, so that a slow backend does not delay those. Scraping one
gateway, or one of several workers, is enough.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.server.monitoring.backend_metrics import BackendMetrics
from gateway.server.monitoring.budgets import Budgets
from gateway.server.monitoring.open_deadlines import OpenDeadlines
from gateway.workers.metrics import written

log = logging.getLogger(__name__)

CACHE_S = 1.0


class CellMetrics:
    """`tenant_label`: the name of a tenant in metrics, which are bounded in how many they name."""

    def __init__(
        self, backends: BackendMetrics, budgets: Budgets, duties: OpenDeadlines, tenant_label: Callable[[str], str]
    ) -> None:
        self._backends = backends
        self._sources: dict[str, Budgets | OpenDeadlines] = {"budgets": budgets, "duties": duties}
        self._tenant_label = tenant_label
        self._asking = asyncio.Lock()
        self._last: tuple[float, bytes] | None = None

    async def exposition(self) -> bytes:
        """Return Prometheus text format 0.0.4. Concurrent scrapes share one scrape of the backends."""
        async with self._asking:
            if self._last is None or monotonic() - self._last[0] > CACHE_S:
                metrics = [*await self._backends.collect(), *await asyncio.to_thread(self._of_sources)]
                self._last = monotonic(), (await asyncio.to_thread(written, metrics)).encode()
            return self._last[1]

    def _of_sources(self) -> list[Metric]:
        return [metric for name in self._sources for metric in self._of(name)]

    def _of(self, name: str) -> list[Metric]:
        known = GaugeMetricFamily(f"domicile_{name}_known", f"1 while {name} can be read.")
        try:
            metrics = self._sources[name].metrics(self._tenant_label)
        except Exception as error:  # of any kind: what others report is still sent
            log.warning("%s cannot be read for metrics: %s; check the databases", name, type(error).__name__)
            known.add_metric((), 0.0)
            return [known]
        known.add_metric((), 1.0)
        return [known, *metrics]
