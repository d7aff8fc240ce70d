"""Use of each budget of tenants and projects, from the ledger."""

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from time import monotonic
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.database.database import Database
from gateway.limits.bucket import Budget
from gateway.limits.limiter import Counter
from gateway.store.reports.usage_report import spent

CACHE_S = 15.0
"""The ledger follows the record within a second, and is summed up over a month: not at each scrape."""
LABELS = ("tenant", "project", "limit")


class BudgetUse(NamedTuple):
    """`project` is empty for a budget of the whole tenant; `limit`: its name, as ``eur_per_month``. In the budget's
    unit, which is euros for those. `began`: the day from which it counts."""

    tenant: str
    project: str
    limit: str
    used: float
    capacity: float
    began: date

    @property
    def ratio(self) -> float:
        """Used share of the budget; 1 or more if it is exhausted. A budget of 0 is always exhausted."""
        return self.used / self.capacity if self.capacity else 1.0


class Budgets:
    """`counters`: those of tenants and projects; see `Directory.budgets`."""

    def __init__(
        self,
        database: Database,
        counters: Callable[[], Iterable[Counter]],
        today: Callable[[], date] = lambda: datetime.now(UTC).date(),
    ) -> None:
        self._database = database
        self._counters = counters
        self._today = today
        self._last: tuple[float, list[BudgetUse]] | None = None

    def use(self) -> list[BudgetUse]:
        """Return the use of every budget, at most CACHE_S seconds old. Blocks on the database. Raises
        DatabaseUnavailable."""
        if self._last is None or monotonic() - self._last[0] > CACHE_S:
            self._last = monotonic(), self._read()
        return self._last[1]

    def _read(self) -> list[BudgetUse]:
        counters = [each for each in self._counters() if isinstance(each.quota, Budget)]
        if not counters:
            return []
        today = self._today()
        used = spent(self._database, today)
        found = []
        for counter in counters:
            tenant, _, project = counter.bucket.rpartition(":")[0].partition("/")
            began = today.replace(day=1) if counter.quota.name == "month" else today
            amount = used.get(counter.bucket, 0.0)
            found.append(BudgetUse(tenant, project, counter.kind.name, amount, counter.quota.capacity, began))
        return found

    def metrics(self, tenant_label: Callable[[str], str]) -> list[Metric]:
        """Return used and total amounts as metrics. Tenants without a label of their own share one, with the highest
        use among them.

        Raises DatabaseUnavailable.
        """
        worst: dict[tuple[str, str, str], BudgetUse] = {}
        for use in self.use():
            tenant = tenant_label(use.tenant)
            key = tenant, use.project if tenant == use.tenant else "", use.limit
            if key not in worst or worst[key].ratio < use.ratio:
                worst[key] = use
        used = GaugeMetricFamily("domicile_budget_used", "What is used of a budget.", labels=LABELS)
        capacity = GaugeMetricFamily("domicile_budget", "A budget of a tenant, or of a project.", labels=LABELS)
        for key, use in worst.items():
            used.add_metric(key, use.used)
            capacity.add_metric(key, use.capacity)
        return [used, capacity]
