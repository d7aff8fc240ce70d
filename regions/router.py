"""Which of the allowed backends to ask first: one that has the prompt's beginning cached, unless it is too busy.

Whose cache holds most of a prompt comes first (`regions.prefixes`); a prompt that nobody holds goes to the favourite
of its beginning by rendezvous hashing (Thaler & Ravishankar 1998), so that gateways agree without a word.
Either gives way when it is too far ahead in load: consistent hashing with bounded loads (Mirrokni, Thorup &
Zadimoghaddam 2018). Pure: same inputs, same order.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from regions.errors import IsolationError
from regions.fleet import Backend, Load, short_hash

PREFIX_BYTES = 256
SLACK = 1.25
SMALL_BATCH = 4  # calls that a backend runs together at about the price of one


def affinity_key(prompt: bytes) -> int:
    """64 bits for the beginning of a prompt: its first 256 bytes, where a system prompt or a conversation begins."""
    return short_hash(prompt[:PREFIX_BYTES])


def choose(
    tenant: str,
    allowed: Sequence[Backend],
    loads: Mapping[str, Load],
    affinity: int | None = None,
    holders: Iterable[set[str]] = (),
    limit: int | None = None,
) -> list[Backend]:
    """The available ones of `allowed`, best first, `limit` at most; those after the first are for retries.

    First the least loaded of those that hold most of the prompt (`holders`, as `PrefixIndex.longest` gives them), or
    the favourite of `affinity`, whose load stays within a batch of four or 1.25 times the mean; then by load. Raises
    IsolationError if one of `allowed` is not `tenant`'s.
    """
    if {backend.tenant for backend in allowed} - {tenant}:
        raise IsolationError(f"a backend among {len(allowed)} is not tenant {tenant}'s")
    free = [
        (load.rank, number, backend, load.key)
        for number, backend in enumerate(allowed)
        if (load := loads.get(backend.id)) is not None and load.available
    ]
    if not free:
        return []
    first = None if affinity is None else _favourite(free, affinity, holders)
    wanted = len(free) if limit is None else min(limit, len(free))
    ranked = sorted(free)[:wanted]
    if first is None:
        return [backend for _, _, backend, _ in ranked]
    return [first, *(backend for _, _, backend, _ in ranked if backend is not first)][:wanted]


_Ranked = tuple[float, int, Backend, int]


def _favourite(free: list[_Ranked], affinity: int, holders: Iterable[set[str]]) -> Backend:
    queues = sum([ranked[0] for ranked in free])
    bound = max(SMALL_BATCH, math.ceil(SLACK * (queues + 1) / len(free)))
    for level in holders:
        if able := [ranked for ranked in free if ranked[0] < bound and ranked[2].id in level]:
            return min(able)[2]
    # At least one is within the bound: not all can be above 1.25 times their mean.
    return max([((affinity ^ key) * _MIX & _BITS, -n, b) for rank, n, b, key in free if rank < bound])[2]


_MIX = 0x9E3779B97F4A7C15  # of the golden ratio (Knuth, TAOCP 3, 6.4)
_BITS = (1 << 64) - 1
