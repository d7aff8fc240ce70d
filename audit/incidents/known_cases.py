"""Incidents of tenants, kept between questions: only what was recorded since the last one is read."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from threading import Lock

from audit.incidents.incident import Case, take_records
from audit.log.walk import size_of
from audit.storage.store import Reader


@dataclass(slots=True)
class _Read:
    """The cases of one tenant in its first `size` records."""

    size: int = 0
    cases: dict[str, Case] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)


Places = Callable[[Reader, str], tuple[int, Sequence[int]]]
"""How many records of a tenant were read before, and which of them are of incidents."""


@dataclass(slots=True)
class KnownCases:
    """Of one log. May be asked from several threads. `places` spares the first question to read what it names; what
    they say is read from the record."""

    places: Places = lambda reader, tenant: (0, ())
    _tenants: dict[str, _Read] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def of(self, reader: Reader, tenant: str) -> list[Case]:
        """As `audit.incidents.incident.cases`. The first question of a tenant reads its log, but for what `places`
        knows. Raises StoreError, or what `places` raises."""
        with self._lock:
            known = self._tenants.setdefault(tenant, _Read())
        with known.lock:
            size = size_of(reader, tenant)
            if size < known.size:  # another log, put in place of the one that was read
                known.size, known.cases = 0, {}
            if known.size == 0:
                read, seqs = self.places(reader, tenant)
                for seq in seqs:
                    take_records(known.cases, reader, tenant, seq, seq + 1)
                known.size = read
            if size > known.size:
                take_records(known.cases, reader, tenant, known.size, size)
                known.size = size
            return deepcopy(list(known.cases.values()))
