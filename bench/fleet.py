"""What the fleet costs and how fast it is.

    python -m bench.fleet day               a simulated day of bursty calls: cost and time to the first token
    python -m bench.fleet scale             2,000 deployments and 5,000 backends in one database
    python -m bench.fleet wake              from no backend to the first token, with real CPU backends

Each prints JSON; ``--out FILE`` keeps it.
"""

import argparse
import asyncio
import heapq
import json
import logging
import math
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

DAY_S = 86_400
SCALE = {"deployments": 2000, "backends": 5000}


# --- a day -----------------------------------------------------------------------------------------------------------


def arrivals(seed, peak_per_s):
    """Instants of one day, and answers' lengths.

    The shape that BurstGPT (Wang et al. 2024, arXiv:2401.17644 §3) and the Azure LLM traces (Patel et al. 2024,
    DynamoLLM §3) report: a working day's two humps over a night with hardly anything, Gamma-distributed gaps with a
    coefficient of variation above one, and bursts of a minute on top. Lengths: log-normal, median 180, at most 1024.
    """
    rng = random.Random(seed)
    bursts = [(rng.uniform(0, DAY_S), rng.uniform(20, 90), rng.uniform(1.5, 2.5)) for _ in range(48)]
    shape = 0.5  # of the Gamma distribution: a coefficient of variation of 1.41
    at, found = 0.0, []
    while True:
        hour = at / 3600
        humps = math.exp(-(((hour - 10.5) / 1.9) ** 2)) + 0.9 * math.exp(-(((hour - 15.5) / 2.0) ** 2))
        rate = peak_per_s * (0.0006 + 0.7 * humps)
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
    """`policy(replicas, calls, waiting, ttft_ms, at)` says how many there should be, each second."""

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
            wanted = self.policy(len(standing), len(ends) + len(queue), len(queue), ttft, now)
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


def p95(values):
    return sorted(values)[int(len(values) * 0.95)] if values else None


def day(options):
    from regions.autoscaler import Sample, desired, trimmed
    from regions.deployment import Scale

    calls = arrivals(options.seed, options.peak)
    target_s = 0.2
    fixed = 0
    while True:  # as many as the day's peak takes, all day long
        fixed += 1
        always = SimulatedDay(calls, lambda *_, n=fixed: n, options.start_s, fixed).run()
        if p95(always.ttft) <= target_s:
            break
    scale = Scale(min_replicas=0, max_replicas=fixed + 2, idle_s=600, ttft_ms=round(target_s * 1000), calls_each=16)
    samples = []

    def policy(replicas, running, waiting, ttft, at):
        samples[:] = trimmed([*samples, Sample(at, replicas, running, waiting, 0.0, ttft)], at)
        return desired(scale, replicas, samples, at)

    scaled = SimulatedDay(calls, policy, options.start_s, 0).run()
    return {
        "calls": len(calls),
        "seed": options.seed,
        "start_s": options.start_s,
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
        "wanted": "cost_ratio <= 0.6 at p95_ttft_ratio <= 1.2",
    }


# --- many of them ----------------------------------------------------------------------------------------------------


class StandingLauncher:
    """Holds what it is told to hold; starts nothing."""

    def __init__(self, running):
        self.running = running

    async def start(self, spec, *, progress=None):
        raise AssertionError("nothing is missing, so nothing is started")

    async def stop(self, backend_id):
        raise AssertionError("nothing is too much, so nothing is stopped")

    async def close(self):
        self.running = {}


def fill(database, control):
    """Tenants with ten deployments each, whose replicas are all up and in service."""
    from gateway.store.demand import write_demand
    from gateway.store.fleet_store import FleetStore
    from gateway.store.fleet_tables import DeploymentRow, ReplicaRow
    from gateway.store.tables import BackendRow, TenantRow
    from regions.demand import Demand, Told
    from regions.identity import BackendIdentity

    now, stamp = time.time(), {"cell": "demo", "created_at": datetime.now(UTC), "epoch": 1}
    tenants = [f"t{n}" for n in range(SCALE["deployments"] // 10)]
    wish = {
        "weights": "m.gguf", "regions": ["eu-fr-par"], "gpu": "h100", "max_replicas": 8, "idle_s": 300, "ttft_ms": 1000,
        "calls_each": 8, "wait_s": 60, "micro_eur_per_hour": 2_500_000, "draining": False,
    }  # fmt: skip
    deployments, replicas, backends = [], [], []
    for number in range(SCALE["deployments"]):
        tenant, name = tenants[number % len(tenants)], f"d{number}"
        count = 3 if number % 2 else 2
        deployments.append({"tenant": tenant, "id": name, "model": name, "min_replicas": count, **wish, **stamp})
        for index in range(count):
            replica = f"{name}-{index}"
            replicas.append(
                {"id": replica, "cell": "demo", "tenant": tenant, "deployment": name, "region": "eu-fr-par",
                 "state": "ready", "holder": "one", "gpu": "h100", "model": name, "micro_eur_per_hour": 2_500_000,
                 "started_at": now, "metered_until": now}
            )  # fmt: skip
            backends.append(
                {"id": replica, "tenant": tenant, "region": "eu-fr-par", "url": "https://127.0.0.1:1",
                 "uri": BackendIdentity("demo", tenant, "eu-fr-par", replica).uri, "models": [name],
                 "kind": "domicile", "single_tenant": "attested", **stamp}
            )  # fmt: skip
    with database.write() as session:
        connection = session.connection()
        connection.execute(TenantRow.__table__.insert(), [{"id": t, "display_name": t, **stamp} for t in tenants])
        connection.execute(DeploymentRow.__table__.insert(), deployments)
        connection.execute(ReplicaRow.__table__.insert(), replicas)
        connection.execute(BackendRow.__table__.insert(), backends)
    told = [Told(row["tenant"], row["model"], Demand(4)) for row in deployments]
    write_demand(database, "demo", "g1", told)
    control.create_tenant("news")
    store = FleetStore(database, cell="demo", node="one", on_event=lambda event: None)
    return store, {row["id"]: None for row in replicas}, told


async def many(options):
    from gateway.directory import Directory
    from gateway.identity.keys import KeyHasher
    from gateway.store.control import Control
    from gateway.store.database import Database
    from gateway.store.demand import write_demand
    from regions.identity import BackendIdentity
    from regions.reconciler import METER_EVERY_S, Reconciler

    with tempfile.TemporaryDirectory() as folder:
        database = Database.open(Path(folder), url=options.database)
        hasher = KeyHasher(bytes(32))
        control = Control(database, cell="demo", hasher=hasher, actor="cli", check_policy=None)
        store, running, told = fill(database, control)
        clock = time.monotonic
        skew = [0.0]
        reconciler = Reconciler(
            store, StandingLauncher(running), cell="demo", models=Path(folder), monotonic=lambda: clock() + skew[0]
        )
        passes = []
        for _ in range(5):
            write_demand(database, "demo", "g1", told)
            skew[0] += METER_EVERY_S  # each pass meters too
            began = clock()
            await reconciler.reconcile()
            passes.append(clock() - began)
        lags = []
        async with Directory(database, cell="demo", hasher=hasher, compile_policy=None) as directory:
            known = len(directory.backends())
            for number in range(5):
                identity = BackendIdentity("demo", "news", "eu-fr-par", f"new-{number}")
                began = clock()
                await asyncio.to_thread(control.register_backend, identity, url="https://127.0.0.1:1", models=["m"])
                while len(directory.backends()) == known:  # noqa: ASYNC110  # it is this that is measured
                    await asyncio.sleep(0.005)
                known = len(directory.backends())
                lags.append(clock() - began)
        database.close()
    return {
        **SCALE,
        "database": "postgresql" if options.database else "sqlite",
        "pass_s": {"median": round(statistics.median(passes), 3), "longest": round(max(passes), 3), "wanted": 5},
        "gateway_behind_s": {"longest": round(max(lags), 3), "wanted": 1},
        "memory_mb": {"most": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), "wanted": 500},
    }


# --- a real one ------------------------------------------------------------------------------------------------------


async def wake(options):
    import aiohttp

    from gateway.assembly import open_gateway
    from gateway.demo.run import demo_model
    from gateway.installation import Installation
    from gateway.serve import serving
    from gateway.settings import load_settings
    from regions.deployment import Deployment
    from tests.fakes.lab import OPEN_POLICY, chat

    with tempfile.TemporaryDirectory() as folder:
        installation = Installation.create(Path(folder) / "data", "demo")
        database = installation.database()
        control = installation.control(database, actor="cli", on_event=lambda event: None)
        control.create_tenant("acme")
        control.activate_policy("acme", OPEN_POLICY)
        control.create_project("acme", "main", purpose="a measurement", legal_basis="contract")
        key = control.create_key("acme", "main")[1].token
        control.create_deployment(
            Deployment(
                tenant="acme", id="small", model="small", weights=str(demo_model()), regions=("eu-fr-par",), idle_s=3
            )
        )
        settings = load_settings(data=installation.data, node="bench")
        rounds = []
        async with (
            open_gateway(settings) as gateway,
            serving(gateway.app, settings.listen.model_copy(update={"port": 0})) as port,
            aiohttp.ClientSession() as http,
        ):
            for _ in range(options.rounds):
                body, head = chat("Say yes.", stream=True, max_tokens=8), {"authorization": f"Bearer {key}"}
                began, first = time.monotonic(), None
                async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=head) as answer:
                    async for line in answer.content:
                        if first is None and line.startswith(b"data:") and b'"content":"' in line.replace(b" ", b""):
                            first = time.monotonic() - began
                        if line.startswith(b"data: [DONE]"):
                            rounds.append(first)
                while control_backends(installation, database):  # noqa: ASYNC110  # until it sleeps again
                    await asyncio.sleep(0.2)
        database.close()
        if max(rounds, default=0) > 10:
            for log in (installation.data / "backends").glob("*/backend.log"):
                print(log.read_text(), file=sys.stderr)
    return {
        "rounds": options.rounds,
        "answered": len(rounds),
        "first_token_s": [round(each, 2) for each in rounds],
        "wanted": "<= 10 s each, all answered",
    }


def control_backends(installation, database):
    return [b for b in installation.inventory(database).backends("acme") if b.revoked_at is None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    of_day = commands.add_parser("day")
    of_day.add_argument("--seed", type=int, default=7)
    of_day.add_argument("--peak", type=float, default=24.0, help="calls a second at the humps, before bursts")
    of_day.add_argument("--start-s", type=float, default=15.0, help="from the decision to a replica that serves")
    commands.add_parser("scale").add_argument("--database", help="URL of an empty PostgreSQL; default: SQLite")
    commands.add_parser("wake").add_argument("--rounds", type=int, default=2)
    for command in commands.choices.values():
        command.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING if options.command == "wake" else logging.ERROR)
    report = {
        "day": day,
        "scale": lambda o: asyncio.run(many(o)),
        "wake": lambda o: asyncio.run(wake(o)),
    }[options.command](options)
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
