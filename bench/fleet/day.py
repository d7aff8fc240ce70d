"""Simulated days of one deployment: what the autoscaler costs beside as many replicas all day as the peak takes.

The autoscaler is the real one (`regions.fleet.autoscaler`), asked once a second; replicas and calls are simulated.
Figures are of several seeds, and the worst counts: one day may be lucky.
"""

import heapq
import math
import random
import statistics
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from regions.fleet.autoscaler import Sample, desired, trimmed
from regions.fleet.deployment import Scale

DAY_S = 86_400
TARGET_S = 0.2
MOST_COST, MOST_P95 = 0.6, 1.2


def arrivals(seed, peak_per_s, floor):
    """Instants of one day, and answers' lengths. `floor`: what the night has of `peak_per_s`.

    The shape that published traces report: working hours over a night with very little, as in the code trace of Azure's
    services (Stojkovic et al., DynamoLLM, HPCA 2025, arXiv:2408.00741), here as two humps; Gamma-distributed gaps with
    a coefficient of variation above one (Wang et al., BurstGPT, arXiv:2401.17644), and bursts of a minute on top.
    Lengths: log-normal, median 180, at most 1024. Amounts are ours: one tenant in one country.
    """
    rng = random.Random(seed)
    bursts = [(rng.uniform(0, DAY_S), rng.uniform(20, 90), rng.uniform(1.5, 2.5)) for _ in range(48)]
    shape = 0.5  # of the Gamma distribution: a coefficient of variation of 1.41
    at, found = 0.0, []
    while True:
        hour = at / 3600
        humps = math.exp(-(((hour - 10.5) / 1.9) ** 2)) + 0.9 * math.exp(-(((hour - 15.5) / 2.0) ** 2))
        rate = peak_per_s * (floor + 0.7 * humps)
        rate *= max((factor for begin, length, factor in bursts if begin <= at < begin + length), default=1.0)
        at += rng.gammavariate(shape, 1 / (rate * shape))
        if at >= DAY_S:
            return found
        found.append((at, min(1024, max(8, round(rng.lognormvariate(math.log(180), 0.7))))))


@dataclass(eq=False)
class SimulatedReplica:
    """`PREFILL_S` and `TOKEN_S` at an idle card, both slower by what else runs: an 8B model on one card, roughly."""

    SLOTS, PREFILL_S, TOKEN_S, SLOWER = 32, 0.08, 0.012, 0.02

    began: float
    ready: float
    running: int = 0
    leaving: bool = False

    def serve(self, at, tokens):
        slower = 1 + self.SLOWER * self.running
        first = at + self.PREFILL_S * slower
        return first, first + tokens * self.TOKEN_S * slower


@dataclass
class SimulatedDay:
    """`policy(replicas, calls, waiting, ttft_ms, at, starting)` says how many there should be, each second."""

    calls: list
    policy: object
    start_s: float
    at_first: int
    replicas: list = field(default_factory=list)
    ttft: list = field(default_factory=list)
    cold: list = field(default_factory=list)
    up_s: float = 0.0
    most: int = 0

    def run(self):
        self.replicas = [SimulatedReplica(0.0, 0.0) for _ in range(self.at_first)]
        ends, queue, recent = [], deque(), deque()
        pending = deque(self.calls)
        for second in range(DAY_S):
            while True:
                arrive = pending[0][0] if pending else math.inf
                end = ends[0][0] if ends else math.inf
                at = min(arrive, end)
                if at >= second + 1:
                    break
                if end <= arrive:
                    _, _, replica = heapq.heappop(ends)
                    replica.running -= 1
                    if replica.leaving and not replica.running:
                        self.up_s += at - replica.began
                        self.replicas.remove(replica)
                else:
                    when, tokens = pending.popleft()
                    is_cold = not any(r.ready <= when and not r.leaving for r in self.replicas)
                    queue.append((when, tokens, is_cold))
                self.assign(at, queue, ends, recent)
            now = second + 1.0
            self.assign(now, queue, ends, recent)
            while recent and recent[0][0] < now - 15:
                recent.popleft()
            late = sorted(ms for _, ms in recent)
            ttft = late[int(len(late) * 0.95)] if late else None
            standing = [r for r in self.replicas if not r.leaving]
            starting = sum(r.ready > now for r in standing)
            wanted = self.policy(len(standing), len(ends) + len(queue), len(queue), ttft, now, starting)
            self.replicas += [SimulatedReplica(now, now + self.start_s) for _ in range(wanted - len(standing))]
            for replica in sorted(standing, key=lambda r: (r.running, -r.began))[: max(0, len(standing) - wanted)]:
                replica.leaving = True
                if not replica.running:
                    self.up_s += now - replica.began
                    self.replicas.remove(replica)
            self.most = max(self.most, len(self.replicas))
        self.up_s += sum(DAY_S - replica.began for replica in self.replicas)
        return self

    def assign(self, at, queue, ends, recent):
        while queue:
            free = [r for r in self.replicas if r.ready <= at and not r.leaving and r.running < r.SLOTS]
            if not free:
                return
            when, tokens, is_cold = queue.popleft()
            replica = min(free, key=lambda r: r.running)
            first, end = replica.serve(at, tokens)
            replica.running += 1
            heapq.heappush(ends, (end, id(replica), replica))
            (self.cold if is_cold else self.ttft).append(first - when)
            recent.append((first, (first - when) * 1000))


CALLS_EACH = round(0.7 * SimulatedReplica.SLOTS)
"""Seven tenths of what one can do at a time: the share that Knative Serving aims at (container concurrency target)."""


def p95(values):
    return sorted(values)[int(len(values) * 0.95)] if values else None


def one_day(seed, peak, floor, start_s):
    calls = arrivals(seed, peak, floor)
    fixed = 0
    while True:  # as many as the day's peak takes, all day long
        fixed += 1
        always = SimulatedDay(calls, lambda *_, n=fixed: n, start_s, fixed).run()
        if p95(always.ttft) <= TARGET_S:
            break
    scale = Scale(
        min_replicas=0, max_replicas=fixed + 2, idle_s=600, ttft_ms=round(TARGET_S * 1000), calls_each=CALLS_EACH
    )
    samples = []

    def policy(replicas, running, waiting, ttft, at, starting):
        samples[:] = trimmed([*samples, Sample(at, replicas, running, waiting, 0.0, ttft, starting)], at)
        return desired(scale, replicas, samples, at)

    scaled = SimulatedDay(calls, policy, start_s, 0).run()
    return {
        "seed": seed,
        "calls": len(calls),
        "always_on": {
            "replicas": fixed,
            "hours": round(always.up_s / 3600, 2),
            "p95_ttft_s": round(p95(always.ttft), 4),
        },
        "scaled": {
            "most_replicas": scaled.most,
            "hours": round(scaled.up_s / 3600, 2),
            "p95_ttft_s": round(p95(scaled.ttft), 4),
            "cold_hits": len(scaled.cold),
            "cold_p95_s": round(p95(scaled.cold), 2) if scaled.cold else None,
            "answered": len(scaled.ttft) + len(scaled.cold),
        },
        "cost_ratio": round(scaled.up_s / always.up_s, 3),
        "p95_ttft_ratio": round(p95(scaled.ttft) / p95(always.ttft), 3),
    }


def options(parser):
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 13)))
    parser.add_argument("--peak", type=float, default=24.0, help="calls a second at the humps, before bursts")
    parser.add_argument("--floor", type=float, default=0.0006, help="what the night has of that")
    parser.add_argument("--start-s", type=float, default=15.0, help="from the decision to a replica that serves")
    parser.add_argument("--jobs", type=int, default=1, help="processes")


def report(options):
    one = partial(one_day, peak=options.peak, floor=options.floor, start_s=options.start_s)
    with ProcessPoolExecutor(options.jobs) as pool:
        days = list(pool.map(one, options.seeds))
    return {
        "peak": options.peak,
        "floor": options.floor,
        "start_s": options.start_s,
        "calls_each": CALLS_EACH,
        "cost_ratio": over([each["cost_ratio"] for each in days], MOST_COST),
        "p95_ttft_ratio": over([each["p95_ttft_ratio"] for each in days], MOST_P95),
        "cold_hits": {"most": max(each["scaled"]["cold_hits"] for each in days)},
        "days": days,
    }


def over(ratios, most):
    return {"median": round(statistics.median(ratios), 3), "worst": max(ratios), "wanted": most}
