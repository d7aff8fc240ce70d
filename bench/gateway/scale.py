"""What a cell shares as it grows, measured with the real components, and what cells of three sizes need of it.

    python -m bench.gateway.scale [--seconds 8] [--day 1000000] [--out FILE.json]
    python -m bench.gateway.scale --tables bench/results/scale-2026-11-30.json

- idle: real gateways on one PostgreSQL without callers: CPU of the server and connections, for each gateway.
- record: 1, 2 and 4 processes write records of ten tenants into one PostgreSQL: records/s, CPU of the server and of the
  writer, bytes on disk, for each record.
- divided: the same by two writers, of one database and then of two, as when tenants are divided among two cells.
- limits: reservations in PostgreSQL and in Valkey, 64 at once: operations/s, CPU of the server for each.
- day (--day N): N records, a thousandth of those of a day of the largest cell, written as in `record` and verified.

`needs` computes what cells need from these; `--tables FILE.json` prints docs/scaling.md's tables of an earlier run.
Needs the extra ``dev`` and valkey-server or redis-server; a
quiet machine with PostgreSQL's and the writers' processes on the same cores: rates are lower bounds.
"""

import argparse
import asyncio
import json
import logging
import math
import multiprocessing
import os
import platform
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import psycopg

from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog
from audit.storage.postgres import PostgresReader, PostgresStore
from audit.verification.verify import verify_log
from bench.audit.append import intent, outcome
from gateway.database.database import Database
from gateway.installation.installation import Installation
from gateway.limits.limiter import Cost, Level, Limiter, Limits, counters
from gateway.limits.postgres_store import PostgresLimitStore
from gateway.limits.redis_store import RedisLimitStore
from tests.fakes.cluster import own_postgresql
from tests.gateway.nursery import listening, nursery
from tests.gateway.test_four_hosts import Valkey
from tests.gateway.test_installation_identity import CONTROL, RECORD, fresh_database

DAY_S = 86_400
PEAK = 3.0
"""The busiest hour's rate, in times of the day's mean."""
BUSY = 0.6
"""The share of a core or of a server's rate that is planned for."""
TENANTS = [f"t{number}" for number in range(10)]


# --- what a cell needs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constants:
    """Measured. CPU in microseconds, sizes in bytes."""

    request_us: float  # a gateway, of a whole call
    record_us: float  # the record's server, of a record
    record_bytes: float
    limit_us: float  # the server of limits, of a call: reserve and settle
    idle_us: float  # the control plane's server, a second and gateway
    connections: float  # of a gateway, to all its databases
    verify_us: float  # of a record
    records_a_call: float = 2.0


@dataclass(frozen=True)
class Needs:
    """Of one cell at its busiest hour; cores are planned to be BUSY."""

    gateways: int
    records_a_day: float
    calls_a_second: float
    gateway_cores: float
    record_cores: float
    limit_cores: float
    control_cores: float
    connections: int
    gigabytes_a_day: float
    verify_core_hours: float

    @property
    def first_bottleneck(self) -> str:
        """The shared part that is nearest to its bound, in times of it: one server of 64 cores; Valkey, which uses one;
        2,000 connections to a PostgreSQL."""
        loads = {
            "PostgreSQL's cores for the record": self.record_cores / 64,
            "Valkey's one core": self.limit_cores,
            "PostgreSQL's cores for the control plane": self.control_cores / 64,
            "connections to PostgreSQL": self.connections / 2000,
        }
        part = max(loads, key=lambda each: loads[each])
        return f"{part} ({loads[part]:.2f} of it)"


def needs(gateways: int, records_a_day: float, known: Constants) -> Needs:
    calls = records_a_day / known.records_a_call / DAY_S * PEAK

    def cores(microseconds: float, a_second: float) -> float:
        return microseconds * a_second / 1e6 / BUSY

    return Needs(
        gateways=gateways,
        records_a_day=records_a_day,
        calls_a_second=calls,
        gateway_cores=cores(known.request_us, calls),
        record_cores=cores(known.record_us, calls * known.records_a_call),
        limit_cores=cores(known.limit_us, calls),
        control_cores=cores(known.idle_us, gateways),
        connections=math.ceil(known.connections * gateways),
        gigabytes_a_day=known.record_bytes * records_a_day / 1e9,
        verify_core_hours=known.verify_us * records_a_day / 3.6e9,
    )


# --- measuring -------------------------------------------------------------------------------------------------------


class ServerCpu:
    """CPU seconds of a server's processes, those that have ended included as far as it has counted them."""

    def __init__(self, pid: int) -> None:
        self._server = psutil.Process(pid)

    def seconds(self) -> float:
        """The server's own, of children that ended, and of those that run."""
        total = 0.0
        for process in [self._server, *self._server.children(recursive=True)]:
            with _gone():
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total


@contextmanager
def _gone():
    try:
        yield
    except psutil.NoSuchProcess:
        return


def postmaster(url: str) -> int:
    with psycopg.connect(url) as db:
        (folder,) = db.execute("SHOW data_directory").fetchone()
    return int((Path(folder) / "postmaster.pid").read_text().split()[0])


async def idle(url: str, folder: Path, seconds: float, gateways: int = 4) -> dict:
    """Real gateways, which poll, watch and lease, without callers."""
    named = {CONTROL: fresh_database(url), RECORD: fresh_database(url), "DOMICILE__AUDIT__RESERVE_BYTES": "0"}
    os.environ.update(named)
    try:
        data = folder / "idle"
        Installation.create(data, "bench").database().close()
        async with nursery(data) as started:
            pids = [await started.start(f"gw-{number}", folder / f"idle-{number}.log") for number in range(gateways)]
            for number in range(gateways):
                await listening(folder / f"idle-{number}.log")
            await asyncio.sleep(3)
            server = ServerCpu(postmaster(url))
            before = server.seconds()
            await asyncio.sleep(seconds)
            spent = server.seconds() - before
            with psycopg.connect(url) as db:
                query = (
                    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                    " AND datname LIKE 'identity%'"
                )
                (connections,) = db.execute(query).fetchone()
            for pid in pids:
                await started.end(pid, "TERM")
    finally:
        for name in named:
            del os.environ[name]
    return {
        "gateways": gateways,
        "server_us_a_second": round(spent / seconds / gateways * 1e6),
        "connections": connections / gateways,
    }


def _write(url: str, folder: str, node: str, seconds: float, records: int, pipe) -> None:
    async def main() -> None:
        signer = FileSigner.open(Path(folder) / "signer.key")

        def store(path: Path, name: str, boot: str) -> PostgresStore:
            return PostgresStore.open(url, name, boot)

        counted = 0
        async with await AuditLog.open(Path(folder) / "log.db", signer=signer, node=node, open_store=store) as log:
            pipe.send("ready")
            pipe.recv()
            cpu, end = time.process_time(), time.perf_counter() + seconds

            async def caller(number: int) -> None:
                nonlocal counted
                while counted < records and time.perf_counter() < end:
                    counted += 2
                    tenant = TENANTS[(number + counted) % len(TENANTS)]
                    request = f"{node}-{number}-{counted}"
                    for make in (intent, outcome):
                        await log.append(make(request).model_copy(update={"tenant": tenant}))

            await asyncio.gather(*(caller(number) for number in range(64)))
            spent = time.process_time() - cpu
        pipe.send((counted, spent))

    logging.disable()
    asyncio.run(main())


def record(url: str, folder: Path, writers: int, seconds: float, records: int = 10**12) -> dict:
    """`records`: of all writers together; by default as many as fit into `seconds`."""
    target = fresh_database(url)
    FileSigner.open(folder / "signer.key")
    spawn = multiprocessing.get_context("spawn")
    workers = []
    for number in range(writers):
        ours, theirs = spawn.Pipe()
        given = (target, str(folder), f"w-{number}", seconds, records // writers, theirs)
        process = spawn.Process(target=_write, args=given)
        process.start()
        workers.append((process, ours))
    for _, pipe in workers:
        assert pipe.recv() == "ready"
    server = ServerCpu(postmaster(url))
    before, began = server.seconds(), time.perf_counter()
    for _, pipe in workers:
        pipe.send("go")
    results = [pipe.recv() for _, pipe in workers]
    took, spent = time.perf_counter() - began, server.seconds() - before
    for process, _ in workers:
        process.join()
    written = sum(count for count, _ in results)
    with psycopg.connect(target) as db:
        (size,) = db.execute("SELECT pg_database_size(current_database())").fetchone()
    return {
        "writers": writers,
        "records": written,
        "records_per_s": round(written / took),
        "server_us": round(spent / written * 1e6, 1),
        "writer_us": round(sum(cpu for _, cpu in results) / written * 1e6, 1),
        "bytes": round(size / written),
        "url": target,
    }


async def limits(store, pid: int, seconds: float) -> dict:
    """Reserve and settle under six quotas of three levels, 64 calls at once."""
    limiter = Limiter(store)
    bound = Limits.of(rpm=10**9, tpm=10**12)
    quotas = counters([Level(place, place, bound) for place in ("acme", "acme/main", "acme/main/k1")])
    done, server = 0, ServerCpu(pid)
    before, end = server.seconds(), time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < end:
            reservation = await limiter.reserve(quotas, Cost(tokens=100))
            await limiter.settle(reservation, Cost(tokens=60))
            done += 1

    await asyncio.gather(*(caller() for _ in range(64)))
    spent = server.seconds() - before
    await store.close()
    return {"calls_per_s": round(done / seconds), "server_us": round(spent / done * 1e6, 1)}


async def both_limits(url: str, seconds: float) -> dict:
    found = {}
    target = fresh_database(url)
    with closing(Database(target)) as database:
        database.migrate()
        found["postgresql"] = await limits(PostgresLimitStore(database), postmaster(url), seconds)
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is not None:
        valkey = Valkey(program)
        valkey.start()
        await asyncio.sleep(1)
        try:
            found["valkey"] = await limits(RedisLimitStore(valkey.url), valkey.pid, seconds)
        finally:
            valkey.remove()
    return found


def divided(url: str, folder: Path, seconds: float) -> list[dict]:
    """Two writers of one record, then two of a record each."""
    (folder / "other").mkdir()
    together = {"cells": 1, **record(url, folder, 2, seconds)}
    with ThreadPoolExecutor(2) as threads:
        parts = list(threads.map(lambda place: record(url, place, 1, seconds), (folder, folder / "other")))
    records = sum(part["records"] for part in parts)
    apart = {
        "cells": 2,
        "writers": 2,
        "records": records,
        "records_per_s": sum(part["records_per_s"] for part in parts),
        # Each part counted the CPU of the server that both use.
        "server_us": round(sum(part["server_us"] * part["records"] for part in parts) / 2 / records, 1),
        "writer_us": round(sum(part["writer_us"] * part["records"] for part in parts) / records, 1),
        "bytes": round(sum(part["bytes"] * part["records"] for part in parts) / records),
    }
    return [{name: value for name, value in each.items() if name != "url"} for each in (together, apart)]


def day(url: str, folder: Path, records: int) -> dict:
    """A thousandth of a day of 10⁹ records, by four writers; then verified as an auditor does."""
    written = record(url, folder, 4, 3600, records)
    with closing(PostgresReader.open(written.pop("url"))) as reader:
        began = time.perf_counter()
        report = verify_log(reader, FileSigner.open(folder / "signer.key").verifier_key)
        took = time.perf_counter() - began
    counted = sum(tree.records for tree in report.trees)
    return {**written, "verify_us": round(took / counted * 1e6, 1), "holds": report.ok}


def tables(found: dict) -> str:
    """The tables of docs/scaling.md, in Markdown, of what a run found."""
    known, limits, day = found["constants"], found["limits"], found["day"]
    parts = found["divided"]
    constants = [
        ("a call: CPU of a gateway, with one process", f"{known['request_us']:,.0f} µs"),
        ("a record: CPU of PostgreSQL, of the writer", f"{known['record_us']} µs, {day['writer_us']} µs"),
        ("a record: bytes on disk", f"{known['record_bytes']:,}"),
        ("a call's limits: CPU of Valkey, of PostgreSQL", f"{known['limit_us']} µs, {limits['postgresql']['server_us']}"
                                                          f" µs"),
        ("a gateway without calls: CPU of PostgreSQL", f"{known['idle_us'] / 1000:.1f} ms a second"),
        ("a gateway: connections", f"{known['connections']:g}"),
        ("a record: CPU of who verifies it", f"{known['verify_us']} µs"),
        ("a day of 10⁹ records, a thousandth of it",
         f"{day['records']:,} records at {day['records_per_s']:,}/s; holds"),
        *(
            (f"two writers, records of {each['cells']} cell{'s' * (each['cells'] > 1)}",
             f"{each['records_per_s']:,} records/s, PostgreSQL {each['server_us']} µs each")
            for each in parts
        ),
    ]  # fmt: skip
    lines = ["| measured | |", "|---|---|", *(f"| {name} | {value} |" for name, value in constants), ""]
    lines += [
        "| gateways | records a day | calls/s at the peak | cores: gateways | record | limits | control | connections "
        "| GB a day | hours to verify | nearest to its bound |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["needs"]:
        cores = (row["gateway_cores"], row["record_cores"], row["limit_cores"], row["control_cores"])
        lines.append(
            f"| {row['gateways']:,} | {row['records_a_day']:,.0f} | {row['calls_a_second']:,.0f} | "
            + " | ".join(f"{each:.1f}" for each in cores)
            + f" | {row['connections']:,} | {row['gigabytes_a_day']:,.0f} | {row['verify_core_hours']:.1f}"
            f" | {row['first_bottleneck']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--day", type=int, default=100_000, help="records that are written and verified")
    parser.add_argument("--request-us", type=float, default=1294, help="of bench/gateway/run.py: CPU of a call")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tables", type=Path, help="print the tables of this run, and measure nothing")
    options = parser.parse_args()
    if options.tables is not None:
        print(tables(json.loads(options.tables.read_text(encoding="utf-8"))))
        return
    found: dict = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]},
    }
    with own_postgresql() as (url, _), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found["idle"] = asyncio.run(idle(url, folder, options.seconds))
        found["record"] = [record(url, folder, writers, options.seconds) for writers in (1, 2, 4)]
        found["divided"] = divided(url, folder, options.seconds)
        found["limits"] = asyncio.run(both_limits(url, options.seconds))
        found["day"] = day(url, folder, options.day)
    for each in found["record"]:
        each.pop("url")
    known = Constants(
        request_us=options.request_us,
        record_us=found["day"]["server_us"],
        record_bytes=found["day"]["bytes"],
        limit_us=found["limits"].get("valkey", found["limits"]["postgresql"])["server_us"],
        idle_us=found["idle"]["server_us_a_second"],
        connections=found["idle"]["connections"],
        verify_us=found["day"]["verify_us"],
    )
    found["constants"] = asdict(known)
    sizes = ((10, 1e7), (100, 1e8), (1000, 1e9))
    found["needs"] = [{**asdict(n := needs(*size, known)), "first_bottleneck": n.first_bottleneck} for size in sizes]
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
