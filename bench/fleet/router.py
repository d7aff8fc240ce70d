"""What routing costs, and how much of the prefix cache it keeps: ``python -m bench.fleet.router``.

Budgets: 100 us for a choice among 200 backends; over four backends 90 % of the prefix hits that one engine with the
memory of all four would have. The hit rate is simulated; `--engines` measures it on real ones. Simulated engines are
LRU caches of chained blocks, as the real one keeps; conversations that grow, under shared system prompts, come in a
random order.
"""

import json
import random
import sys
from collections import OrderedDict
from collections.abc import Callable
from time import thread_time_ns

from regions.fleet.fleet import Backend, Fleet
from regions.identity.identity import BackendIdentity
from regions.routing.prefixes import BLOCK_BYTES, PrefixIndex, block_hashes
from regions.routing.router import Candidates, affinity_key, choose

BACKENDS, ROUNDS = 200, 3000
ENGINES, CACHE_BLOCKS = 4, 1500


def fleet(size: int) -> Fleet:
    identities = [BackendIdentity("c1", "acme", "eu-fr-par", f"acme-{number}") for number in range(size)]
    return Fleet(
        Backend(id=i.backend, tenant="acme", region=i.region, url="https://h:1", uri=i.uri, models=("m",))
        for i in identities
    )


def cost(known: bool, size: int = BACKENDS, rounds: int = ROUNDS) -> list[float]:
    """Microseconds of one choice of three: hash the prompt, look it up, choose. `known`: its prefix is held.

    Of this thread's own time, so that other processes of the machine do not count.
    """
    backends, index = fleet(size), PrefixIndex()
    allowed = backends.of("acme")
    candidates = Candidates("acme", allowed)
    prompts = [random.Random(n).randbytes(4096) for n in range(50)]
    for number in range(size):
        index.remember(allowed[number].id, block_hashes(random.Random(-1 - number).randbytes(4096)))
    for number, prompt in enumerate(prompts):
        if known:
            index.remember(allowed[number % size].id, block_hashes(prompt))
    times = []
    for number in range(rounds):
        prompt = prompts[number % len(prompts)]
        began = thread_time_ns()
        hashes = block_hashes(prompt)
        contents = None if index.settled(hashes) else index.contents
        choose(candidates, backends.live(), affinity_key(prompt), index.longest(hashes), 3, contents)
        times.append((thread_time_ns() - began) / 1000)
    return sorted(times)


class Engine:
    """A prefix cache: chained blocks, least recently used first out."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def serve(self, hashes: list[int]) -> int:
        """Blocks found; then it holds all of them."""
        found = 0
        for name in hashes:
            if name not in self._blocks:
                break
            found += 1
        for name in reversed(hashes):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return found


def prompts(seed: int = 7, turns: int = 4000) -> list[bytes]:
    """Conversations under twelve system prompts: each turn appends to one of sixty that are under way."""
    draw = random.Random(seed)
    systems = [draw.randbytes(BLOCK_BYTES * draw.randint(2, 8)) for _ in range(12)]
    under_way = [draw.choice(systems) for _ in range(60)]
    said = []
    for _ in range(turns):
        at = draw.randrange(len(under_way))
        if len(under_way[at]) > BLOCK_BYTES * 40 or draw.random() < 0.03:
            under_way[at] = draw.choice(systems)  # it is over, another begins
        under_way[at] += draw.randbytes(draw.randint(100, 900))
        said.append(under_way[at])
    return said


def hit_rate(route: Callable[[bytes, list[int]], Engine], traffic: list[bytes]) -> float:
    hit = asked = 0
    for prompt in traffic:
        hashes = block_hashes(prompt)
        hit += route(prompt, hashes).serve(hashes)
        asked += len(hashes)
    return hit / asked


def kept(seed: int = 7, traffic: list[bytes] | None = None, blocks: int = CACHE_BLOCKS) -> dict[str, float]:
    """Hit rates of one engine with all the memory, and of `ENGINES` with `blocks` each."""
    traffic = prompts(seed) if traffic is None else traffic
    single = Engine(ENGINES * blocks)
    alone = hit_rate(lambda prompt, hashes: single, traffic)
    backends, index = fleet(ENGINES), PrefixIndex()
    candidates = Candidates("acme", backends.of("acme"))
    engines = {backend.id: Engine(blocks) for backend in backends}
    draw = random.Random(seed)

    def by_prefix(prompt: bytes, hashes: list[int]) -> Engine:
        contents = None if index.settled(hashes) else index.contents
        order = choose(candidates, backends.live(), affinity_key(prompt), index.longest(hashes), 1, contents)
        index.remember(order[0].id, hashes)
        return engines[order[0].id]

    spread = [Engine(blocks) for _ in range(ENGINES)]
    routed = hit_rate(by_prefix, traffic)
    at_random = hit_rate(lambda prompt, hashes: draw.choice(spread), traffic)
    return {"single": alone, "routed": routed, "at_random": at_random, "kept": routed / alone}


def measure() -> dict[str, object]:
    held, new = cost(known=True), cost(known=False)
    middle, last = ROUNDS // 2, ROUNDS * 99 // 100
    return {
        "backends": BACKENDS,
        "held_prefix_us": {"p50": held[middle], "p99": held[last]},
        "new_prefix_us": {"p50": new[middle], "p99": new[last]},
        "prefix_hits": kept(),
    }


if __name__ == "__main__":
    if "--engines" in sys.argv[1:]:
        from bench.fleet.router_engines import measure as measure_engines

        print(json.dumps(measure_engines(), indent=1))
    else:
        print(json.dumps(measure(), indent=1))
