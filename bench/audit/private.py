"""What a durable record costs whose values are kept: records/s and CPU a record, with a person's key and without.

    python bench/audit/private.py [--seconds 4] [--writers 64] [--folder DIR]

Each call is an intent and its outcome with 1 KiB of prompt and of answer, as the gateway keeps them. Compare with
`bench/audit/append.py` on the same machine in the same hour: absolute figures mean little where others work too.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from audit.events.private_value import Private
from audit.keys.owner_keys import FileKeyProvider
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog
from audit.private.log_and_value_store import open_log_and_values
from bench.audit.append import intent, outcome

TEXT = "x" * 1024
DIGEST = {"bytes": 1024, "sha256": "a" * 64}


async def measure(folder: Path, persons: int, writers: int, seconds: float) -> tuple[float, float]:
    """Records/s, and microseconds of CPU a record, everything included."""
    opened = open_log_and_values(folder / "side.db", FileKeyProvider.open(folder / "keys"))
    signer = FileSigner.open(folder / "signer.key")
    async with await AuditLog.open(folder / "log.db", signer=signer, node="bench", open_store=opened) as log:
        done = 0
        stop = time.perf_counter() + seconds

        async def write(writer: int) -> None:
            nonlocal done
            number = 0
            while time.perf_counter() < stop:
                request, number = f"r{writer}-{number}", number + 1
                person = f"person {(writer * 7919 + number) % persons}" if persons else None
                await log.append(intent(request), Private({"input": TEXT, "input_original": DIGEST}, person, expires=9))
                await log.append(
                    outcome(request), Private({"output": [{"index": 0, "content": TEXT}]}, person, expires=9)
                )
                done += 2

        began, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(write, range(writers)))
        return done / (time.perf_counter() - began), (time.process_time() - spent) / done * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description="Append with private values.")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args()
    for persons in (0, 1000):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            rate, cpu = asyncio.run(measure(Path(folder), persons, asked.writers, asked.seconds))
        whose = f"{persons} persons" if persons else "a key a record"
        print(f"{whose:16} {rate:8.0f} records/s {cpu:6.0f} us CPU a record")


if __name__ == "__main__":
    main()
