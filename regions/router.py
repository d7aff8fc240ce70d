"""Which of the allowed backends to ask first: the one that has the prompt's beginning cached, unless it is too busy.

Rendezvous hashing (Thaler & Ravishankar 1998) gives every prefix a favourite that stays when other backends come and
go; the bound on how far a favourite may be ahead in load is that of consistent hashing with bounded loads (Mirrokni,
Thorup & Zadimoghaddam 2018). Pure: same inputs, same order.
"""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from regions.errors import IsolationError
from regions.fleet import Backend, Load

PREFIX_BYTES = 256
SLACK = 1.25
SMALL_BATCH = 4  # calls that a backend runs together at about the price of one


def affinity_key(prompt: bytes) -> bytes:
    """16 bytes for the beginning of a prompt: its first 256 bytes, where a system prompt or a conversation begins."""
    return blake2b(prompt[:PREFIX_BYTES], digest_size=16).digest()


def choose(
    tenant: str, allowed: Sequence[Backend], loads: Mapping[str, Load], affinity: bytes | None = None
) -> list[Backend]:
    """The available ones of `allowed`, best first; the others are for retries before the first byte.

    First the favourite of `affinity`, or the next in its ranking whose load stays within a batch of four or 1.25 times
    the mean; then by calls in flight and latency. Raises IsolationError if one of `allowed` is not `tenant`'s.
    """
    for backend in allowed:
        if backend.tenant != tenant:
            raise IsolationError(f"backend {backend.id} is not tenant {tenant}'s")
    free = [backend for backend in allowed if (load := loads.get(backend.id)) is not None and load.available]
    if not free:
        return []

    def by_load(backend: Backend) -> tuple[int, float]:
        load = loads[backend.id]
        return load.in_flight, load.latency_s or 0.0

    if affinity is None:
        return sorted(free, key=by_load)
    running = sum(loads[backend.id].in_flight for backend in free)
    bound = max(SMALL_BATCH, math.ceil(SLACK * (running + 1) / len(free)))
    # At least one is within the bound: not all can be above 1.25 times their mean.
    with_room = (backend for backend in free if loads[backend.id].in_flight < bound)
    first = max(with_room, key=lambda backend: _score(affinity, backend.id))
    return [first, *sorted((backend for backend in free if backend is not first), key=by_load)]


def _score(affinity: bytes, backend_id: str) -> bytes:
    return blake2b(backend_id.encode(), key=affinity, digest_size=8).digest()
