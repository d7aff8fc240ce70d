"""Incidents or requests of tenants, kept between questions: only what was recorded since the last one is read."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

from audit.incidents.incident import OF_INCIDENTS, Case, take_records
from audit.incidents.subject_requests import OF_REQUESTS, Matter, take_requests
from audit.log.walk import size_of
from audit.storage.store import Reader

T = TypeVar("T")

Places = Callable[[Reader, str], tuple[int, Sequence[int]]]
"""How many records of a tenant were read before, and which of them are of incidents or requests."""
Take = Callable[[dict[str, T], Reader, str, int, int | None], None]
"""Adds what the records of a tenant from a number to before another say to the cases by id."""


def nothing_known(reader: Reader, tenant: str) -> tuple[int, Sequence[int]]:
    return 0, ()


@dataclass(slots=True)
class _Read(Generic[T]):
    """The cases of one tenant in its first `size` records."""

    size: int = 0
    cases: dict[str, T] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


@dataclass(slots=True)
class Known(Generic[T]):
    """Known cases of one log. May be asked from several threads. `places` spares the first question to read what it
    names; what they say is read from the record, by `take`."""

    take: Take[T]
    places: Places = nothing_known
    _tenants: dict[str, _Read[T]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, reader: Reader, tenant: str) -> list[T]:
        """In the order in which they came on record. The first question of a tenant reads its log, but for what
        `places` knows. Raises StoreError, or what `places` raises."""
        with self._lock:
            known = self._tenants.setdefault(tenant, _Read())
        with known.lock:
            size = size_of(reader, tenant)
            if size < known.size:  # another log, put in place of the one that was read
                known.size, known.cases = 0, {}
            if known.size == 0:
                read, seqs = self.places(reader, tenant)
                for seq in seqs:
                    self.take(known.cases, reader, tenant, seq, seq + 1)
                known.size = read
            if size > known.size:
                self.take(known.cases, reader, tenant, known.size, size)
                known.size = size
            return deepcopy(list(known.cases.values()))


def known_incidents(places: Places = nothing_known) -> Known[Case]:
    return Known(take_records, places)


def known_requests(places: Places = nothing_known) -> Known[Matter]:
    return Known(take_requests, places)


def places(reader: Reader, tenant: str, start: int, end: int) -> list[int]:
    """The numbers of those records from `start` to before `end` that either has to read, and few more."""
    wanted = OF_INCIDENTS, *OF_REQUESTS
    leaves = reader.leaves(tenant, start, end)
    return [leaf.seq for leaf in leaves if any(part in leaf.payload for part in wanted)]
