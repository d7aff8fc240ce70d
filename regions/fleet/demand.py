"""Demand for a model of a tenant: of one gateway, and of all of them.

A `DemandTracker` belongs to one gateway and one event loop.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

TTFT_WINDOW_S = 15.0
TTFT_KEPT = 512


class Demand(NamedTuple):
    """Calls that run at backends and that wait for one. `ttft_ms`: the 95th percentile of the last 15 s. `regions`:
    where those that wait may be answered."""

    in_flight: int = 0
    parked: int = 0
    ttft_ms: float | None = None
    regions: frozenset[str] = frozenset()


NOTHING = Demand()


class DemandReport(NamedTuple):
    """The demand for one model of one tenant, as one gateway reports it."""

    tenant: str
    model: str
    demand: Demand


def add_up(reports: Iterable[DemandReport]) -> dict[tuple[str, str], Demand]:
    """The sum over several gateways, by tenant and model; of times to first token the slowest counts."""
    sums: dict[tuple[str, str], Demand] = {}
    for tenant, model, one in reports:
        known = sums.get((tenant, model), NOTHING)
        late = [ms for ms in (known.ttft_ms, one.ttft_ms) if ms is not None]
        sums[tenant, model] = Demand(
            known.in_flight + one.in_flight,
            known.parked + one.parked,
            max(late, default=None),
            known.regions | one.regions,
        )
    return sums


@dataclass(slots=True)
class _Entry:
    in_flight: int = 0
    parked: list[Collection[str]] = field(default_factory=list)
    ttft: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=TTFT_KEPT))


class DemandTracker:
    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._urgent: Callable[[], None] = lambda: None
        self._monotonic = monotonic
        self._entries: dict[tuple[str, str], _Entry] = {}

    def when_waiting(self, urgent: Callable[[], None]) -> None:
        """Set what is called whenever a call begins to wait, so that a backend can be started."""
        self._urgent = urgent

    def began(self, tenant: str, model: str) -> None:
        """A call runs at a backend from now on, until `ended`."""
        self._entry(tenant, model).in_flight += 1

    def ended(self, tenant: str, model: str) -> None:
        self._entry(tenant, model).in_flight -= 1

    @contextmanager
    def waiting(self, tenant: str, model: str, regions: Collection[str]) -> Iterator[None]:
        """A call waits for a backend in one of `regions` while the block runs."""
        entry = self._entry(tenant, model)
        entry.parked.append(regions)
        try:
            self._urgent()
            yield
        finally:
            entry.parked.remove(regions)

    def first_token(self, tenant: str, model: str, ms: float) -> None:
        """Note the time to first token of one answer, in milliseconds."""
        self._entry(tenant, model).ttft.append((self._monotonic(), ms))

    def reports(self) -> list[DemandReport]:
        """Demand of each active model; an idle model is reported once with `NOTHING`, then dropped."""
        since = self._monotonic() - TTFT_WINDOW_S
        found = []
        for (tenant, model), entry in list(self._entries.items()):
            while entry.ttft and entry.ttft[0][0] < since:
                entry.ttft.popleft()
            late = sorted(ms for _, ms in entry.ttft)
            demand = Demand(
                entry.in_flight,
                len(entry.parked),
                late[min(len(late) - 1, int(len(late) * 0.95))] if late else None,
                frozenset(region for regions in entry.parked for region in regions),
            )
            found.append(DemandReport(tenant, model, demand))
            if demand == NOTHING:
                del self._entries[tenant, model]
        return found

    def _entry(self, tenant: str, model: str) -> _Entry:
        known = self._entries.get((tenant, model))
        if known is None:
            known = self._entries[tenant, model] = _Entry()
        return known
