"""Which of the allowed backends to ask first: affinity, then load, then latency, then cost.

Whose cache holds most of a prompt comes first (`regions.routing.prefixes`). A prompt that no backend has cached goes to
the favourite of its beginning by rendezvous hashing (Thaler & Ravishankar 1998), so that gateways agree without a word;
where costs are known, to the favourite of the cheapest. Either gives way when it is too far ahead in load: consistent
hashing with bounded loads (Mirrokni, Thorup & Zadimoghaddam 2018). The same bound, put on what caches hold, keeps a
system prompt that many share from gathering all their conversations in one cache, where they would push each other out:
one that begins goes where there is room, and stays there. Those to be tried after it come by load, which counts the
queue, then the cache in use, then the latency (`regions.fleet.fleet.Load`), and of equals the cheaper first.

Pure: same inputs, same order. A choice takes less than 100 us among 200 backends, so tuples are read by position.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat, takewhile
from operator import itemgetter
from typing import Final

from regions.errors import IsolationError
from regions.fleet.fleet import BUSY_RANK, KEY_BITS, Backend, Load, short_hash

PREFIX_BYTES = 256
SLACK = 1.25
ROOM = 4  # blocks that a cache may be given beyond its share
SMALL_BATCH = 4  # calls that a backend runs together at about the price of one


def affinity_key(prompt: bytes) -> int:
    """64 bits for the beginning of a prompt: its first 256 bytes, where a system prompt or a conversation begins."""
    return short_hash(prompt[:PREFIX_BYTES])


class Candidates:
    """The backends that a decision allows, all of one tenant, the cheaper first. Made once, for many choices."""

    __slots__ = ("backends", "costs", "ids", "priced")

    def __init__(self, tenant: str, allowed: Sequence[Backend]) -> None:
        """A backend without a price counts as paid for. Raises IsolationError if one is not `tenant`'s."""
        if {backend.tenant for backend in allowed} - {tenant}:
            raise IsolationError(f"a backend among {len(allowed)} is not tenant {tenant}'s")
        self.backends = sorted(allowed, key=lambda backend: backend.cost or 0)
        self.ids = [backend.id for backend in self.backends]
        self.costs = [backend.cost or 0 for backend in self.backends]
        self.priced = len(set(self.costs)) > 1


def choose(
    candidates: Candidates,
    loads: Mapping[str, Load],
    affinity: int | None = None,
    holders: Iterable[set[str]] = (),
    limit: int | None = None,
    contents: Mapping[str, int] | None = None,
) -> list[Backend]:
    """The available ones of `candidates`, best first, `limit` at most; those after the first are for retries.

    First the least loaded of those that hold most of the prompt (`holders`, as `PrefixIndex.longest` gives them), or
    the favourite of `affinity`, whose load stays within a batch of four or 1.25 times the mean; then by load.
    `contents`: how many blocks each one's cache was given lately, for a prompt that is not bound to one of them; it
    goes to none that was given more than 1.25 times the mean.
    """
    free = [
        (load[_RANK], number, load[_KEY])
        for number, load in enumerate(map(loads.get, candidates.ids))
        if load is not None and load[_AVAILABLE]
    ]
    if not free:
        return []
    order = [number for _, number, _ in sorted(free)[:limit]]
    free = [ranked for ranked in free if ranked[0] < BUSY_RANK] or free
    if affinity is not None and limit != 0:
        first = _favourite(candidates, free, affinity & _BITS, holders, contents)
        order = [first, *(number for number in order if number != first)][:limit]
    return [candidates.backends[number] for number in order]


def cheapest(candidates: Candidates, loads: Mapping[str, Load]) -> list[Backend]:
    """The available ones of `candidates` for work that can wait: those that are not busy first, then by price, and of
    equals the least loaded."""
    free = [
        (load[_RANK] >= BUSY_RANK, candidates.costs[number], load[_RANK], number)
        for number, load in enumerate(map(loads.get, candidates.ids))
        if load is not None and load[_AVAILABLE]
    ]
    return [candidates.backends[number] for *_, number in sorted(free)]


def trials(candidates: Candidates, loads: Mapping[str, Load], limit: int | None = None) -> list[Backend]:
    """For a call of which no candidate is available: those that are out after failures and have room for a trial, the
    least recently tried first, `limit` at most. Empty while one is available."""
    known = [(loads.get(backend.id), backend) for backend in candidates.backends]
    if any(load is not None and load.available for load, _ in known):
        return []
    out = [(load.tried_at, backend) for load, backend in known if load is not None and load.tried_at is not None]
    return [backend for _, backend in sorted(out, key=itemgetter(0))[:limit]]


# Positions of these in a Load.
_AVAILABLE: Final = 2
_RANK: Final = 3
_KEY: Final = 4
_Ranked = tuple[float, int, int]


def _favourite(
    candidates: Candidates,
    free: list[_Ranked],
    affinity: int,
    holders: Iterable[set[str]],
    contents: Mapping[str, int] | None,
) -> int:
    """Its number among the candidates."""
    ids = candidates.ids
    queues = sum([ranked[0] for ranked in free])
    bound = max(SMALL_BATCH, math.ceil(SLACK * (queues + 1) / len(free)))
    # At least one is within the bound: not all can be above 1.25 times their mean.
    able = [ranked for ranked in free if ranked[0] < bound]
    most = math.inf
    held: Mapping[str, int] = {}
    if contents:
        held, most = contents, ROOM + SLACK * sum(map(contents.get, ids, repeat(0))) / len(ids)
    for level in holders:
        holding = [one for one in able if ids[one[1]] in level and held.get(ids[one[1]], 0) <= most]
        if holding:
            return min(holding)[1]
    if candidates.priced:
        costs, least = candidates.costs, candidates.costs[able[0][1]]
        able = list(takewhile(lambda ranked: costs[ranked[1]] == least, able))
    first = _by_hash(able, affinity)
    if held.get(ids[first], 0) > most:
        first = _by_hash([one for one in able if held.get(ids[one[1]], 0) <= most] or able, affinity)
    return first


def _by_hash(able: list[_Ranked], affinity: int) -> int:
    scores = [(affinity ^ key) * _MIX & _BITS for _, _, key in able]
    return able[scores.index(max(scores))][1]


_BITS = (1 << KEY_BITS) - 1
_MIX = 0x9E3779B97F4A7C15 >> (64 - KEY_BITS) | 1  # of the golden ratio (Knuth, TAOCP 3, 6.4)
