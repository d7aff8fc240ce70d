"""What an evidence pack costs: time and memory to make it, time to check it with verify.py in a bare interpreter.

    python bench/audit/pack.py [--records 20000] [--private 0.1]

`--private` is the part of the calls whose prompt is kept in the value store. Figures grow in proportion to the records,
so a million is a multiple; memory should not grow with them.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from audit.events.private_value import Private
from audit.keys.owner_keys import FileKeyProvider
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog
from audit.pack.export import export
from audit.pack.program import program
from audit.private.audit_context import AuditContext
from audit.private.log_and_value_store import open_log_and_values
from audit.private.value_store import ValueStore
from audit.storage.sqlite import SqliteReader
from bench.audit.append import KNOWN, intent, outcome

CALLERS = 200


async def fill(log: AuditLog, records: int, private: float) -> None:
    async def call(number: int) -> None:
        kept = Private({"input": "x" * 500}, f"person {number % 97}") if number % 100 < private * 100 else None
        await log.append(intent(f"r{number}"), kept)
        await log.append(outcome(f"r{number}"))

    started = time.perf_counter()
    for first in range(0, records // 2, CALLERS):
        await asyncio.gather(*(call(number) for number in range(first, min(first + CALLERS, records // 2))))
    wall = time.perf_counter() - started
    print(f"append: {records / wall:,.0f} records/s, {private:.0%} of calls with a private value")


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main(folder: Path, records: int, private: float) -> None:
    signer, keys = FileSigner.open(folder / "signer.key"), FileKeyProvider.open(folder / "keys")
    opened = open_log_and_values(folder / "side.db", keys)
    async with await AuditLog.open(folder / "log.db", signer=signer, node="bench", open_store=opened) as log:
        await fill(log, records, private)
        await asyncio.sleep(1.5)  # until the last record is signed
        context = AuditContext(
            log,
            open_values=lambda: ValueStore.open(folder / "side.db", keys),
            open_reader=lambda: SqliteReader.open(folder / "log.db"),
            keys=keys,
            signer=signer,
        )
        before, started = peak_mb(), time.perf_counter()
        made = await export(context, "acme", folder / "pack.zip", disclose=True, evidence=KNOWN)
        wall, count = time.perf_counter() - started, made.end - made.first
    size = (folder / "pack.zip").stat().st_size
    print(
        f"export: {count:,} records in {wall:.1f} s = {wall / count * 1e6:.0f} s a million, {size / count:.0f} bytes a"
        f" record, peak memory {before:.0f} -> {peak_mb():.0f} MB"
    )
    verify(folder, signer, count)


def verify(folder: Path, signer: FileSigner, count: int) -> None:
    verifier = folder / "verify.py"
    verifier.write_bytes(program())
    started = time.perf_counter()
    command = [sys.executable, "-I", "-S", verifier, folder / "pack.zip", "--key", str(signer.verifier_key)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - started
    print(f"verify.py: {wall:.1f} s = {wall / count * 1e6:.0f} s a million; {done.stdout.splitlines()[-1]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--private", type=float, default=0.1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name), options.records, options.private))
