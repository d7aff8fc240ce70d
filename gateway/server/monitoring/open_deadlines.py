"""Open deadlines of incidents and of requests of data subjects, by tenant."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from time import monotonic
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from audit.incidents.incident import Case
from audit.incidents.known_cases import Known
from audit.incidents.subject_requests import Matter
from audit.law.deadlines import later, load_clocks, rfc3339_of
from audit.storage.store import Reader

CACHE_S = 15.0
SOON_HOURS: Final = {"incident": 24, "request": 7 * 24}
"""How long before its end a deadline is due soon: authorities are informed within days, persons within a month."""
STATES: Final = ("running", "due_soon", "overdue")


class OpenDeadlines:
    """`tenants`: those with an incident or request on record. `now`: RFC 3339 UTC with milliseconds."""

    def __init__(
        self,
        tenants: Callable[[], list[str]],
        open_reader: Callable[[], Reader],
        incidents: Known[Case],
        requests: Known[Matter],
        now: Callable[[], str] = lambda: rfc3339_of(datetime.now(UTC)),
    ) -> None:
        self._tenants = tenants
        self._open_reader = open_reader
        self._incidents = incidents
        self._requests = requests
        self._now = now
        self._last: tuple[float, Counter[tuple[str, str, str]]] | None = None

    def open(self) -> Counter[tuple[str, str, str]]:
        """How many deadlines are open, by tenant, duty and state, at most CACHE_S seconds old; each tenant that ever
        had a duty has every state. Blocks. Raises DatabaseUnavailable, StoreError."""
        if self._last is None or monotonic() - self._last[0] > CACHE_S:
            self._last = monotonic(), self._read()
        return self._last[1]

    def metrics(self, tenant_label: Callable[[str], str]) -> list[Metric]:
        """Tenants without a label of their own share one, with the sum of their duties. Raises as `open` does."""
        shown: Counter[tuple[str, str, str]] = Counter()
        for (tenant, duty, state), count in self.open().items():
            shown[tenant_label(tenant), duty, state] += count
        family = GaugeMetricFamily(
            "domicile_duties",
            "Open deadlines of incidents and of requests of persons.",
            labels=("tenant", "duty", "state"),
        )
        for key, count in shown.items():
            family.add_metric(key, count)
        return [family]

    def _read(self) -> Counter[tuple[str, str, str]]:
        now, found = self._now(), Counter[tuple[str, str, str]]()
        with closing(self._open_reader()) as reader:
            for tenant in self._tenants():
                found.update({(tenant, duty, state): 0 for duty in SOON_HOURS for state in STATES})
                for duty, due in (*self._of_incidents(reader, tenant), *self._of_requests(reader, tenant)):
                    found[tenant, duty, _state(due, now, SOON_HOURS[duty])] += 1
        return found

    def _of_incidents(self, reader: Reader, tenant: str) -> Iterator[tuple[str, str]]:
        clocks = load_clocks()
        for case in self._incidents.of(reader, tenant):
            for one in case.deadlines(clocks) if case.closed is None else ():
                if one.met is None and one.due is not None:
                    yield "incident", one.due

    def _of_requests(self, reader: Reader, tenant: str) -> Iterator[tuple[str, str]]:
        for matter in self._requests.of(reader, tenant):
            if matter.closed is None:
                yield "request", matter.due_at


def _state(due: str, now: str, soon_hours: int) -> str:
    if now > due:
        return "overdue"
    return "due_soon" if later(now, hours=soon_hours) >= due else "running"
