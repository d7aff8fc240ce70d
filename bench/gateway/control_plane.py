"""The control plane's figures: what a key check and limits cost, how a large cell starts, how exact limits are.

    python bench/gateway/control_plane.py [--seconds 60] [--json FILE] [--only start,request,cluster]

- start: 10,000 tenants with 10 keys each, on SQLite and PostgreSQL: seconds until the directory answers, and of a whole
  gateway, Python's own start included, until it listens; peak memory of its process (budget: 3 s, 300 MB).
- request: CPU of a key check and of reserving and settling under seven quotas of three levels, one after another and 64
  at once, for each store (budget: 150 µs a request, warm).
- cluster: 4 gateways, each a process, on one PostgreSQL, under load, which is crashed and started again in the middle:
  whether limits were exact, connections stayed within the pools and the ledger is the sum of the record.

Exit status 1 where a budget is missed or something did not hold.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2]))

from gateway.database.database import Database
from gateway.database.tables.control import ApiKeyRow, ConfigEpochRow, ProjectRow, TenantRow
from gateway.directory.directory import Directory
from gateway.identity.keys import KeyHasher, generate_key
from gateway.installation.installation import Installation
from gateway.limits.limiter import Cost, Level, Limiter, Limits, counters
from gateway.limits.memory_store import MemoryLimitStore
from gateway.limits.postgres_store import PostgresLimitStore
from gateway.limits.redis_store import RedisLimitStore
from gateway.server.serve import run
from tests.fakes.cluster import loaded, own_postgresql

TENANTS, KEYS = 10_000, 10
START_S, MEMORY_MB, REQUEST_US = 3.0, 300.0, 150.0
PEPPER = bytes(32)
LIMITS = {
    "acme": Limits.of(rpm=10**9, tpm=10**12, concurrent=10**6, eur_per_month=10**9),
    "acme/main": Limits.of(rpm=10**9, tpm=10**12),
    "acme/main/k1": Limits.of(rpm=10**9),
}


# --- start -----------------------------------------------------------------------------------------------------------


def fill(database):
    """A large cell, written as rows."""
    now = datetime.now(UTC)
    stamp = {"cell": "bench", "created_at": now, "revoked_at": None}
    with database.write() as session:
        connection = session.connection()
        tenants = [{**stamp, "epoch": n + 1, "id": f"t{n}", "display_name": f"Tenant {n}"} for n in range(TENANTS)]
        connection.execute(TenantRow.__table__.insert(), tenants)
        activity = {"purpose": "support", "legal_basis": "contract", "data_classes": [], "risk_class": "limited"}
        projects = [
            {**stamp, **activity, "epoch": n + 1, "tenant": f"t{n}", "id": "main", "ai_system_id": None}
            for n in range(TENANTS)
        ]
        connection.execute(ProjectRow.__table__.insert(), projects)
        more = {"label": "", "pepper": 1, "last_four": "abcd", "expires_at": None, "replaced_by": None}
        keys = [
            {
                **stamp, **more, "epoch": n + 1, "id": f"k{n:07d}", "tenant": f"t{n // KEYS}", "project": "main",
                "digest": secrets.token_bytes(32), "last_used_at": None,
                "scopes": {} if n % 4 else {"models": ["small"]},
            }
            for n in range(TENANTS * KEYS)
        ]  # fmt: skip
        for at in range(0, len(keys), 10_000):
            connection.execute(ApiKeyRow.__table__.insert(), keys[at : at + 10_000])
        connection.execute(ConfigEpochRow.__table__.insert(), [{"cell": "bench", "value": TENANTS * KEYS}])


async def start(url):
    """In a process of its own: seconds until the directory answers, and the peak of its memory, in MB."""
    database = Database(url)
    began, cpu = time.perf_counter(), time.process_time()
    async with Directory(database, cell="bench", hasher=KeyHasher(PEPPER), compile_policy=_no_policy) as directory:
        took, spent = time.perf_counter() - began, time.process_time() - cpu
        assert len(directory._snapshot.keys) == TENANTS * KEYS
    database.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": round(took, 3), "cpu_seconds": round(spent, 3), "peak_mb": round(peak, 1)}


def _no_policy(tenant, document, project):
    return SimpleNamespace(policy=SimpleNamespace(limits=None))


def starts(folder, postgresql):
    figures = {}
    for name, url in (("sqlite", f"sqlite:///{folder / 'control.db'}"), ("postgresql", postgresql)):
        database = Database(url)
        database.migrate()
        fill(database)
        database.close()
        command = [sys.executable, __file__, "--start", url]
        runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3)]
        figures[name] = sorted(runs, key=lambda run: run["seconds"])[1] | {"worker": worker(folder, url)}
    return figures


def worker(folder, url):
    """``domicile up`` on the large cell: seconds until it listens, and the peak of its memory, in MB."""
    Installation.create(folder, "bench")
    config = folder / "config.yaml"
    config.write_text("listen: {port: 0}\nnode: bench\naudit: {reserve_bytes: 0}\n")
    environment = {**os.environ, "DOMICILE_DATABASE_URL": url if url.startswith("postgresql") else ""}
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "up", "-c", str(config), "--data", str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    for line in process.stderr:
        if "listening on" in line:
            break
    took = time.perf_counter() - began
    time.sleep(2)
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.terminate()
    process.communicate()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    return {"seconds": round(took, 3), "peak_mb": round(peak, 1)}


# --- request ---------------------------------------------------------------------------------------------------------


async def request_costs(postgresql, redis, calls):
    figures = {"key_check_us": await _key_check(calls)}
    quotas = counters(Level(place, place, limits) for place, limits in LIMITS.items())
    database = Database(postgresql)
    database.migrate()
    stores = {"memory": MemoryLimitStore(), "postgresql": PostgresLimitStore(database)}
    if redis:
        stores["redis"] = RedisLimitStore(redis)
    for name, store in stores.items():
        for at_once in (1, 64):
            few = calls if name == "memory" else calls // 10
            figures[f"limits_{name}_{at_once}_at_once"] = await _limits(store, quotas, few, at_once)
        await store.close()
    database.close()
    figures["key_check_and_limits_us"] = {
        name.removeprefix("limits_"): round(figures["key_check_us"] + cost["cpu_us"], 1)
        for name, cost in figures.items()
        if name.startswith("limits_")
    }
    return figures


async def _key_check(calls):
    folder = Path(tempfile.mkdtemp())
    database = Database.open(folder)
    hasher = KeyHasher(PEPPER)
    key = generate_key()
    stamp = {"cell": "bench", "created_at": datetime.now(UTC), "epoch": 1}
    with database.write() as session:
        session.add(TenantRow(**stamp, id="acme", display_name="Acme"))
        session.flush()
        activity = {"purpose": "support", "legal_basis": "contract", "data_classes": [], "risk_class": "limited"}
        session.add(ProjectRow(**stamp, **activity, tenant="acme", id="main"))
        session.flush()
        more = {"label": "", "last_four": "abcd", "scopes": {}}
        session.add(ApiKeyRow(**stamp, **more, id=key.id, tenant="acme", project="main", digest=hasher.digest(key)))
        session.add(ConfigEpochRow(cell="bench", value=1))
    async with Directory(database, cell="bench", hasher=hasher, compile_policy=_no_policy) as directory:
        await directory.authenticate(key.token)
        began = time.process_time()
        for _ in range(calls):
            await directory.authenticate(key.token)
        cost = (time.process_time() - began) / calls
    database.close()
    shutil.rmtree(folder)
    return round(cost * 1e6, 1)


async def _limits(store, quotas, calls, at_once):
    """CPU of this process and time from the first to the last, for each call that is reserved and settled."""
    limiter, cost, used = Limiter(store), Cost(600, 0.01), Cost(200, 0.004)

    async def some(count):
        for _ in range(count):
            await limiter.settle(await limiter.reserve(quotas, cost), used)

    await some(20)
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some(calls // at_once) for _ in range(at_once)))
    done = calls // at_once * at_once
    spent, took = time.process_time() - cpu, time.perf_counter() - began
    return {"cpu_us": round(spent / done * 1e6, 1), "calls_per_s": round(done / took)}


# --- all -------------------------------------------------------------------------------------------------------------


def own_redis(folder):
    """A server on a socket, or nothing where there is none."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        return None, None
    socket = Path(folder) / "redis"
    server = subprocess.Popen(
        [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    while not socket.exists():
        time.sleep(0.02)
    return server, f"unix://{socket}"


def missed(figures):
    """What is over its budget or did not hold, in words."""
    found = []
    for name, started in figures.get("start", {}).items():
        worker = started["worker"]
        for what, seconds in (("the directory", started["seconds"]), ("a worker", worker["seconds"])):
            if seconds > START_S:
                found.append(f"start of {what} on {name}: {seconds} s, over {START_S}")
        if worker["peak_mb"] > MEMORY_MB:
            found.append(f"memory of a worker on {name}: {worker['peak_mb']} MB, over {MEMORY_MB}")
    for where, cost in figures.get("request", {}).get("key_check_and_limits_us", {}).items():
        if cost > REQUEST_US:
            found.append(f"key check and limits in {where}: {cost} µs, over {REQUEST_US}")
    return found + figures.get("cluster", {}).get("faults", [])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of load on the cluster")
    parser.add_argument("--calls", type=int, default=20_000, help="timed for the cost of a request")
    parser.add_argument("--only", default="start,request,cluster", help="parts to run, commas between")
    parser.add_argument("--json", type=Path, help="where the figures go, besides standard output")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.start:
        print(json.dumps(asyncio.run(start(arguments.start))))
        return 0
    figures = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]},
    }
    parts = arguments.only.split(",")
    with tempfile.TemporaryDirectory(prefix="plane") as folder:
        if "start" in parts:
            with own_postgresql() as (url, _):
                figures["start"] = starts(Path(folder), url)
        if "request" in parts:
            server, redis = own_redis(folder)
            with own_postgresql() as (url, _):
                figures["request"] = run(request_costs(url, redis, arguments.calls))
            if server is not None:
                server.terminate()
                server.wait()
        if "cluster" in parts:
            with own_postgresql() as (url, restart):
                outcome = asyncio.run(loaded(Path(folder) / "cluster", url, restart, seconds=arguments.seconds))
            figures["cluster"] = outcome.as_json()
    figures["missed"] = missed(figures)
    said = json.dumps(figures, indent=2, ensure_ascii=False)
    print(said)
    if arguments.json:
        arguments.json.write_text(f"{said}\n")
    return 1 if figures["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
