"""What a durable record costs: records/s, latency of an append, CPU a record.

    python bench/audit/append.py [--seconds 3] [--folder DIR]

Two kinds of load on one log in one process, each call an intent and then its outcome, as the gateway writes them:
closed (N callers append as fast as they are answered) and paced (calls arrive at a fixed rate). The CPU figure is that
of the whole process, building the event, the canonical form, the hash, the store and the event loop included; the
loop's own cost of waking that often, measured without a log, is printed beside it. Bare inserts into SQLite, printed
first, are the yardstick: absolute figures mean little on a machine that others use.
"""

import argparse
import asyncio
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from audit.events.event import Decision, InferenceAccepted, InferenceCompleted, Reason, Redaction
from audit.incidents.pack_inputs import Evidence, Part, Policy, Ruling
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog
from audit.storage.sqlite import SqliteReader
from audit.tree.note import VerifierKey
from audit.verification.verify import verify_log

CANONICAL, TEXT = '{"policy":"acme-default","version":3}', "policy: acme-default\nversion: 3\n"
VERSION = Policy(
    number=1,
    sha256=sha256(TEXT.encode()).hexdigest(),
    text=TEXT,
    activated_by="bench",
    activated_at="2026-01-01T00:00:00.000Z",
    active=True,
)
RULING = Ruling(
    policy_hash=sha256(CANONICAL.encode()).hexdigest(),
    policy_id="acme-default",
    policy_version="3",
    canonical=CANONICAL,
    made_of=(Part(scope="", number=1, sha256=VERSION.sha256),),
)
KNOWN = Evidence(policies=(VERSION,), rulings=(RULING,))


def intent(request_id: str) -> InferenceAccepted:
    reason = Reason(
        rule="residency.process_in", candidate="eu-fr-par/acme-1", because="FR is in the EEA", article="GDPR 44"
    )
    return InferenceAccepted(
        tenant="acme",
        request_id=request_id,
        key_id="k7Qm2x9a",
        project="support",
        activity_id="customer-support",
        risk_class="limited",
        endpoint="/v1/chat/completions",
        stream=True,
        model_requested="smollm2-135m-instruct",
        policy_id="acme-default",
        policy_version="3",
        policy_hash=RULING.policy_hash,
        retention_class="metadata",
        decision=Decision(outcome="allow", reasons=(reason,)),
        redaction=Redaction(engine_version="1", counts_by_type={"iban": 1, "email": 2}),
        backend_id="acme-1",
        region="eu-fr-par",
        inference_country="FR",
        storage_country="FR",
        operator_entity="Example SAS",
        operator_hq="FR",
        ultimate_parent="Example SAS",
        ultimate_parent_country="FR",
        transfer_basis="intra_eea",
    )


def outcome(request_id: str) -> InferenceCompleted:
    return InferenceCompleted(
        tenant="acme",
        request_id=request_id,
        status=200,
        model_served="smollm2-135m-instruct",
        backend_id="acme-1",
        region="eu-fr-par",
        tokens_in=120,
        tokens_out=64,
        bytes_in=900,
        bytes_out=400,
        ttft_ms=35,
        latency_ms=480,
        finish_reason="stop",
    )


class Load:
    """Counts what a load did: one latency in seconds for each append."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._calls = 0
        self.latencies: list[float] = []

    async def call(self) -> None:
        self._calls += 1
        request_id = f"{self._calls:032x}-{id(self):x}"
        for make in (intent, outcome):
            started = time.perf_counter()
            await self._log.append(make(request_id))
            self.latencies.append(time.perf_counter() - started)


async def closed(call: Callable[[], Awaitable[None]], callers: int, seconds: float) -> None:
    end = time.perf_counter() + seconds

    async def caller() -> None:
        while time.perf_counter() < end:
            await call()

    await asyncio.gather(*(caller() for _ in range(callers)))


async def paced(call: Callable[[], Awaitable[None]], calls_a_second: int, seconds: float) -> None:
    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(calls_a_second * seconds)):
            if (early := begin + number / calls_a_second - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            group.create_task(call())


async def measure(name: str, log: AuditLog, run: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
    load = Load(log)
    cpu, wall = time.process_time(), time.perf_counter()
    await run(load.call)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print_line(name, len(load.latencies), load.latencies, cpu, wall)


def print_line(name: str, records: int, latencies: list[float], cpu: float, wall: float) -> None:
    taken = sorted(latencies)
    p50, p99 = (taken[int(len(taken) * part)] * 1e3 for part in (0.5, 0.99))
    print(
        f"{name:<26}{records / wall:>10,.0f} records/s   p50 {p50:6.2f} ms   p99 {p99:6.2f} ms"
        f"   CPU {cpu / records * 1e6:6.1f} us a record"
    )


async def idle_cpu(calls_a_second: int, seconds: float) -> float:
    """CPU microseconds that pacing alone costs, a record (two to a call)."""
    cpu = time.process_time()
    await paced(lambda: asyncio.sleep(0), calls_a_second, seconds)
    return (time.process_time() - cpu) / (calls_a_second * seconds * 2) * 1e6


def bare_sqlite(folder: Path, records_a_commit: int, seconds: float) -> None:
    """The yardstick of this machine at this moment: the same bytes, inserted and committed with nothing around them."""
    db = sqlite3.connect(folder / f"bare-{records_a_commit}.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE leaf (payload BLOB)")
    rows = [(bytes(1000),)] * records_a_commit
    taken: list[float] = []
    cpu, begin = time.process_time(), time.perf_counter()
    while time.perf_counter() - begin < seconds:
        started = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO leaf VALUES (?)", rows)
        db.execute("COMMIT")
        taken.append(time.perf_counter() - started)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - begin
    db.close()
    print_line(f"bare, {records_a_commit} a commit", len(taken) * records_a_commit, taken, cpu, wall)


def verify(path: Path, key: VerifierKey) -> None:
    reader = SqliteReader.open(path)
    started = time.perf_counter()
    report = verify_log(reader, key)
    wall = time.perf_counter() - started
    reader.close()
    records = sum(tree.records for tree in report.trees)
    verdict = "holds" if report.ok else f"DOES NOT HOLD: {report.findings[:3]}"
    print(f"verify: {records:,} records in {wall:.1f} s = {wall / records * 1e6:.0f} s a million; the log {verdict}")


async def main(folder: Path, seconds: float) -> None:
    signer = FileSigner.open(folder / "signer.key")
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {folder}")
    print(f"load average {os.getloadavg()[0]:.1f}: above about 0.5, other processes are measured too")
    for records in (1, 64):
        bare_sqlite(folder, records, seconds)
    async with await AuditLog.open(folder / "log.db", signer=signer, node="bench") as log:
        for callers in (1, 16, 64, 256, 512):
            await measure(f"closed, {callers} callers", log, lambda call, n=callers: closed(call, n, seconds))
        for rate in (50, 250, 500, 1000):
            await measure(f"paced, {rate * 2} records/s", log, lambda call, n=rate: paced(call, n, seconds))
            print(f"{'':<26}of which pacing itself: {await idle_cpu(rate, min(1.0, seconds)):.1f} us")
    verify(folder / "log.db", signer.verifier_key)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each load")
    parser.add_argument("--folder", type=Path, help="where the log is written [default: a new temporary folder]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        asyncio.run(main(Path(name), options.seconds))
