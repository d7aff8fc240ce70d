"""What the fleet costs and how fast it is.

    python -m bench.fleet.scale day               simulated days of bursty calls: cost and time to the first token
    python -m bench.fleet.scale scale             2,000 deployments and 5,000 backends in one database
    python -m bench.fleet.scale wake              from no backend, and from sleep, to the first token, real CPU backends

Each prints JSON; ``--out FILE`` keeps it.
"""

import argparse
import asyncio
import json
import logging
import resource
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from bench.fleet import day as fleet_day

WAKE_WANTED_S = 10
SCALE = {"deployments": 2000, "backends": 5000}


# --- many of them ----------------------------------------------------------------------------------------------------


class StandingLauncher:
    """Keeps replicas as running without starting a process."""

    outlives = False

    def __init__(self, running):
        self.running = running

    async def adopt(self):
        """What it holds it held before."""

    async def start(self, spec, *, progress=None):
        raise AssertionError("nothing is missing, so nothing is started")

    async def stop(self, backend_id):
        raise AssertionError("nothing is too much, so nothing is stopped")

    async def close(self):
        self.running = {}


def fill(database, control):
    """Tenants with ten deployments each, whose replicas are all up and in service."""
    from gateway.database.tables.control import BackendRow, TenantRow
    from gateway.database.tables.fleet import DeploymentRow, ReplicaRow
    from gateway.store.fleet.demand import write_demand
    from gateway.store.fleet.fleet_store import FleetStore
    from regions.fleet.demand import Demand, DemandReport
    from regions.identity.identity import BackendIdentity

    now, stamp = time.time(), {"cell": "demo", "created_at": datetime.now(UTC), "epoch": 1}
    tenants = [f"t{n}" for n in range(SCALE["deployments"] // 10)]
    wish = {
        "weights": "m.gguf", "regions": ["eu-fr-par"], "gpu": "h100", "max_replicas": 8, "idle_s": 300, "ttft_ms": 1000,
        "calls_each": 8, "asleep_s": 0, "wait_s": 60, "micro_eur_per_hour": 2_500_000, "draining": False,
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
    told = [DemandReport(row["tenant"], row["model"], Demand(4)) for row in deployments]
    write_demand(database, "demo", "g1", told)
    control.create_tenant("news")
    store = FleetStore(database, cell="demo", node="one", on_event=lambda event: None)
    return store, {row["id"]: None for row in replicas}, told


async def many(options):
    from gateway.database.database import Database
    from gateway.directory.directory import Directory
    from gateway.identity.keys import KeyHasher
    from gateway.store.control.control import Control
    from gateway.store.fleet.demand import write_demand
    from regions.fleet.reconciler import METER_EVERY_S, Reconciler
    from regions.identity.identity import BackendIdentity
    from tests.fakes.postgresql import postgresql

    started = postgresql() if options.database == "here" else nullcontext(options.database)
    with tempfile.TemporaryDirectory() as folder, started as url:
        database = Database.open(Path(folder), url=url)
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

    from gateway.configuration.settings import load_settings
    from gateway.demo.run import demo_model
    from gateway.installation.installation import Installation
    from gateway.server.assembly import open_gateway
    from gateway.server.serve import serving
    from gateway.store.reports.fleet_inventory import replicas_of
    from regions.fleet.deployment import Deployment, Scale
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

        async def first_token(http, port):
            """Seconds until it, of an answer that then comes to its end."""
            body, head = chat("Say yes.", stream=True, max_tokens=8), {"authorization": f"Bearer {key}"}
            began, first = time.monotonic(), None
            async with http.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, headers=head) as answer:
                async for line in answer.content:
                    if first is None and line.startswith(b"data:") and b'"content":"' in line.replace(b" ", b""):
                        first = time.monotonic() - began
                    if line.startswith(b"data: [DONE]"):
                        return first
            return None

        async def until(states):
            """All replicas there are, are in one of these."""
            while any(each.state not in states for each in replicas_of(database, "acme", "small").items):  # noqa: ASYNC110
                await asyncio.sleep(0.2)

        from_nothing, from_sleep = [], []
        async with (
            open_gateway(settings) as gateway,
            serving(gateway.app, settings.listen.model_copy(update={"port": 0})) as port,
            aiohttp.ClientSession() as http,
        ):
            for _ in range(options.rounds):
                from_nothing.append(await first_token(http, port))
                await until(())  # none is left
            control.scale_deployment("acme", "small", Scale(idle_s=3, asleep_s=3600))
            await first_token(http, port)
            for _ in range(options.rounds):
                await until(("asleep",))
                from_sleep.append(await first_token(http, port))
        logs = [log.read_text() for log in (installation.data / "backends").glob("*/backend.log")]
        database.close()
    if None in (*from_nothing, *from_sleep) or max(from_nothing) > WAKE_WANTED_S:
        print(*logs, sep="\n", file=sys.stderr)
    return {
        "rounds": options.rounds,
        "answered": sum(each is not None for each in (*from_nothing, *from_sleep)),
        "first_token_s": {
            "from_nothing": [each and round(each, 2) for each in from_nothing],
            "from_sleep": [each and round(each, 2) for each in from_sleep],
        },
        "wanted": f"<= {WAKE_WANTED_S} s each, all answered",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    fleet_day.options(commands.add_parser("day"))
    of_scale = commands.add_parser("scale")
    of_scale.add_argument("--database", help="URL of an empty PostgreSQL, or `here` to start one; default: SQLite")
    commands.add_parser("wake").add_argument("--rounds", type=int, default=2)
    for command in commands.choices.values():
        command.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING if options.command == "wake" else logging.ERROR)
    report = {
        "day": fleet_day.report,
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
