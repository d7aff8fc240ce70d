"""Every figure that the record promises, in one run.

    python bench/audit/log.py [--quick] [--records 1000000] [--out bench/results/audit-DATE.json]

append      durable records/s on SQLite at 64 writers; p99 of an append at 1,000 records/s
postgresql  durable records/s of 4 writer processes on one tree (extra dev, or DOMICILE_TEST_DATABASE_URL)
flatness    cost of a batch of 256 as the log grows from 1 k to --flat entries (the store alone)
pack        --records events: export and verify.py, seconds and peak memory; `audit verify` of the same log

Promises: 8,000/s; 10 ms; 3,000/s; flat to 10 M; 1 M verified in 60 s; 1 M exported in 300 s and 300 MB. Absolute
figures mean little on a machine that others use: the load average is printed and kept.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from audit.events.base import Step
from audit.events.leaf import encode_leaf
from audit.events.stamp import Stamper, uuid7
from audit.keys.owner_keys import FileKeyProvider
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog
from audit.log.sequencer import QueueLimits
from audit.pack.export import export
from audit.pack.program import program
from audit.private.audit_context import AuditContext
from audit.private.log_and_value_store import open_log_and_values
from audit.private.value_store import ValueStore
from audit.storage.sqlite import SqliteReader, SqliteStore
from audit.storage.store import LogEntry
from audit.tree.merkle import leaf_hash
from audit.verification.verify import verify_log
from bench.audit.append import KNOWN, Load, closed, intent, outcome, paced

BATCH = 256


def stamped(number: int, stamper: Stamper, kind: Any = intent) -> LogEntry:
    event = kind(f"r{number}")
    payload = encode_leaf(event, stamper.fields())
    return LogEntry("acme", leaf_hash(payload), payload, event.step, event.request_id)


async def appends(folder: Path, seconds: float) -> dict[str, float]:
    signer = FileSigner.open(folder / "signer.key")
    found = {}
    async with await AuditLog.open(folder / "log.db", signer=signer, node="bench") as log:
        load, began = Load(log), time.perf_counter()
        await closed(load.call, 64, seconds)
        found["sqlite_64_writers_per_s"] = len(load.latencies) / (time.perf_counter() - began)
        load = Load(log)
        await paced(load.call, 500, seconds)  # an intent and an outcome each
        found["p99_ms_at_1000_per_s"] = sorted(load.latencies)[int(len(load.latencies) * 0.99)] * 1e3
    return found


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def _writer(url: str, folder: str, number: int, seconds: float) -> int:
    async def run() -> int:
        from audit.log.audit_log import AuditSettings
        from audit.storage.postgres import open_postgres

        path = Path(folder) / f"{number}" / "log.db"
        signer = FileSigner.open(Path(folder) / "signer.key")
        settings = AuditSettings(limits=QueueLimits(reserve_bytes=0))
        opened = open_postgres(url)
        node = f"bench-{number}"
        async with await AuditLog.open(path, signer=signer, node=node, open_store=opened, settings=settings) as log:
            load = Load(log)
            load._calls = number * 10_000_000
            await closed(load.call, 32, seconds)
        return len(load.latencies)

    return asyncio.run(run())


def postgresql(folder: Path, seconds: float) -> dict[str, float | str]:
    from tests.fakes.postgresql import postgresql as server

    FileSigner.open(folder / "signer.key")
    with server() as url, multiprocessing.get_context("spawn").Pool(4) as pool:
        began = time.perf_counter()
        counts = pool.starmap(_writer, [(url, str(folder), number, seconds) for number in range(4)])
        wall = time.perf_counter() - began
        return {"postgresql_4_processes_per_s": sum(counts) / seconds, "postgresql_wall_s": wall}


# --- growth ----------------------------------------------------------------------------------------------------------


def flatness(folder: Path, upto: int) -> dict[str, float]:
    """Median milliseconds of a commit of 256 records, after the log has each size; filled by commits of 4,096."""
    store = SqliteStore.open(folder / "flat.db", "bench", "boot")
    sample = stamped(0, Stamper("bench", uuid7(0), time.time))
    found, size, target = {}, 0, 1000
    while target <= upto:
        while size < target:
            count = min(4096, target - size)
            store.append([LogEntry("acme", sample.leaf_hash, sample.payload, Step.NONE)] * count)
            size += count
        taken = []
        for _ in range(15):
            began = time.perf_counter()
            store.append([LogEntry("acme", sample.leaf_hash, sample.payload, Step.NONE)] * BATCH)
            taken.append((time.perf_counter() - began) * 1e3)
            size += BATCH
        found[f"commit_ms_at_{target}"] = sorted(taken)[len(taken) // 2]
        target *= 10
    store.close()
    return found


# --- a million -------------------------------------------------------------------------------------------------------


def fill(path: Path, records: int) -> None:
    """Calls of an intent and an outcome, stored as the sequencer would, without its event loop."""
    store, stamper = SqliteStore.open(path, "bench", "boot"), Stamper("bench", uuid7(0), time.time)
    for first in range(0, records // 2, 1000):
        numbers = range(first, min(first + 1000, records // 2))
        store.append([stamped(number, stamper, kind) for number in numbers for kind in (intent, outcome)])
    store.close()


async def packs(folder: Path, records: int) -> dict[str, float]:
    fill(folder / "log.db", records)
    signer, keys = FileSigner.open(folder / "signer.key"), FileKeyProvider.open(folder / "keys")
    opened = open_log_and_values(folder / "side.db", keys)
    found: dict[str, float] = {}
    async with await AuditLog.open(folder / "log.db", signer=signer, node="bench", open_store=opened) as log:
        await asyncio.sleep(1.5)  # until it is signed
        context = AuditContext(
            log,
            open_values=lambda: ValueStore.open(folder / "side.db", keys),
            open_reader=lambda: SqliteReader.open(folder / "log.db"),
            keys=keys,
            signer=signer,
        )
        began = time.perf_counter()
        made = await export(context, "acme", folder / "pack.zip", evidence=KNOWN)
        found["export_s"] = time.perf_counter() - began
    found["records"] = made.end - made.first
    found["export_peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found["pack_bytes_a_record"] = (folder / "pack.zip").stat().st_size / found["records"]
    began = time.perf_counter()
    reader = SqliteReader.open(folder / "log.db")
    report = verify_log(reader, signer.verifier_key)
    reader.close()
    found["verify_log_s"] = time.perf_counter() - began
    verifier = folder / "verify.py"
    verifier.write_bytes(program())
    command = [sys.executable, "-I", "-S", verifier, folder / "pack.zip", "--key", str(signer.verifier_key)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: ASYNC221, nothing else runs
    found["verify_py_s"] = time.perf_counter() - began
    if done.returncode or not report.ok:
        raise SystemExit(f"what was written does not verify: {done.stdout[-300:]} {report.findings[:2]}")
    return found


def in_child(work: Any, *arguments: object) -> dict[str, Any]:
    """In a process of its own, so that its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: dict[str, Any] = pool.apply(work, arguments)
    return found


def run_packs(folder: Path, records: int) -> dict[str, float]:
    return asyncio.run(packs(folder, records))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load")
    parser.add_argument("--records", type=int, default=1_000_000, help="size of the pack")
    parser.add_argument("--flat", type=int, default=10_000_000, help="size up to which appends are timed")
    parser.add_argument("--quick", action="store_true", help="2 s, 20,000 records, 100,000 entries")
    parser.add_argument("--folder", type=Path, help="where the logs are written [default: a temporary folder]")
    parser.add_argument("--out", type=Path, help="write the result here as well")
    options = parser.parse_args()
    seconds, records, flat = options.seconds, options.records, options.flat
    if options.quick:
        seconds, records, flat = 2.0, 20_000, 100_000
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(report))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for part, measure in (
            ("append", lambda at: asyncio.run(appends(at, seconds))),
            ("postgresql", lambda at: postgresql(at, seconds)),
            ("flatness", lambda at: flatness(at, flat)),
            ("pack", lambda at: in_child(run_packs, at, records)),
        ):
            folder = Path(name) / part
            folder.mkdir()
            found = {key: round(value, 2) for key, value in measure(folder).items()}
            print(part, json.dumps(found), flush=True)
            report[part] = found
    text = json.dumps(report, indent=2)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
