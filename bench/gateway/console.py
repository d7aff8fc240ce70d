"""What a page of the console costs the gateway, on a record of a given size: bytes on the wire and milliseconds.

    python -m bench.gateway.console [--records 1000000] [--rounds 20] [--folder FOLDER] [--out FILE.json]

With `--folder` the installation is kept there, and measured again without being filled where it lies there already.

A real installation whose record and ledger hold the calls, a real gateway over it in this process, and one client on
loopback, which asks for each page several times: the median is what the page takes, from the first byte of the request
to the last of the answer.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2

from audit.log.audit_log import AuditLog
from bench.audit.append import intent, outcome
from gateway.configuration.settings import Settings, load_settings
from gateway.console.preparation import AFTER_S
from gateway.database.errors import DatabaseUnavailable
from gateway.installation.installation import Installation
from gateway.server.assembly import open_gateway
from gateway.server.serve import serving
from gateway.store.control.control import Control

AT_ONCE = 512
PREPARED_S = 5
"""In which the gateway has prepared its pages, as it does by itself after a start."""
POLICY = "policy: bench\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"
PAGES = (
    "/t/acme",
    "/t/acme/curves",
    "/t/acme/curves?period=7d",
    "/t/acme/calls",
    "/t/acme/calls?outcome=completed",
    "/t/acme/calls?outcome=denied",
    "/t/acme/calls?project=support",
    "/t/acme/calls?region=eu-fr-par",
    "/t/acme/calls?region=us-east",
    "/t/acme/calls?model=no-such-model",
    "/t/acme/calls?within=1h",
    "/t/acme/calls?request=req-000000000000000000000001",
    "/t/acme/calls/0",
    "/t/acme/calls/0/proof",
    "/t/acme/usage",
    "/t/acme/usage/figures",
    "/t/acme/usage/figures?by=key&days=90",
    "/t/acme/duties",
    "/t/acme/places",
    "/t/acme/changes",
    "/t/acme/changes?kind=keys&within=24h",
    "/t/acme/record",
    "/t/acme/record/outside",
    "/t/acme/packs",
    "/t/acme/policies",
    "/t/acme/projects",
    "/t/acme/keys",
    "/t/acme/people",
    "/t/acme/limits",
    "/t/acme/deployments",
    "/t/acme/oversight",
    "/t/acme/playground",
    "/t/acme/incidents",
    "/t/acme/rights",
    "/tenants",
)


async def fill(installation: Installation, calls: int) -> None:
    """Two records a call."""
    path, signer = installation.audit_log, installation.signer()
    async with await AuditLog.open(path, signer=signer, node="bench", open_store=installation.open_store) as log:
        for start in range(0, calls, AT_ONCE):
            numbers = range(start, min(calls, start + AT_ONCE))
            await asyncio.gather(*(log.append(intent(f"req-{number:024x}")) for number in numbers))
            await asyncio.gather(*(log.append(outcome(f"req-{number:024x}")) for number in numbers))


async def read_into_ledger(settings: Settings) -> None:
    """Start a gateway until its ledger has what is on record: a backlog of this size takes it several attempts, each
    of which keeps what it read."""
    for _ in range(100):
        try:
            async with open_gateway(settings):
                return
        except DatabaseUnavailable as error:
            print(f"the ledger is read on: {error}", flush=True)
    raise RuntimeError("the ledger could not be read; see the messages above")


async def measured(base: str, session: str, rounds: int) -> dict[str, Any]:
    """Of each page: bytes, and the first, the median and the slowest of `rounds` answers in milliseconds; and what this
    process, client and all, worked for the median one, which says more where others share the machine."""
    found = {}
    cookies = {"domicile-session": session}
    async with httpx2.AsyncClient(base_url=base, cookies=cookies, timeout=600) as client:
        await client.get("/healthz")  # what the client itself loads for its first request
        for page in PAGES:
            took, worked = [], []
            for _ in range(rounds):
                begun, idle = time.perf_counter(), time.process_time()
                answer = await client.get(f"/console{page}")
                took.append((time.perf_counter() - begun) * 1000)
                worked.append((time.process_time() - idle) * 1000)
                if answer.status_code != 200:
                    raise RuntimeError(f"{page}: {answer.status_code}; see the gateway's log")
            files = set(re.findall(r'(?:href|src)="(/console/static/[^"]+)"', answer.text))
            size = len(answer.content)
            for file in files:
                async with client.stream("GET", file, headers={"accept-encoding": "gzip"}) as one:
                    size += sum([len(piece) async for piece in one.aiter_raw()])
            found[page] = {
                "bytes_with_files": size,
                "first_ms": round(took[0], 1),
                "median_ms": round(statistics.median(took), 1),
                "median_cpu_ms": round(statistics.median(worked), 1),
                "slowest_ms": round(max(took), 1),
            }
    return found


def made(data: Path, records: int) -> float:
    """An installation whose record has that many entries; the seconds that it took."""
    installation = Installation.create(data, "eu-1")
    with control_of(installation) as control:
        control.create_tenant("acme")
        control.activate_policy("acme", POLICY)
        control.create_project("acme", "support", purpose="bench", legal_basis="contract")
    begun = time.perf_counter()
    asyncio.run(fill(installation, records // 2))
    return time.perf_counter() - begun


@contextmanager
def control_of(installation: Installation) -> Iterator[Control]:
    database = installation.database()
    try:
        yield installation.control(database, actor="bench", on_event=lambda event: None)
    finally:
        database.close()


async def run(data: Path, rounds: int) -> dict[str, Any]:
    """Measure the installation in `data`: how long a start takes, and each page."""
    with control_of(Installation.open(data)) as control:
        person = control.create_person(None, "Bench", ["operator"])
        _, session = control.open_session(None, person.id, life=timedelta(hours=3))
    settings = load_settings(data=data, node="bench", audit={"reserve_bytes": 1 << 20})
    begun = time.perf_counter()
    await read_into_ledger(settings)
    opened = time.perf_counter() - begun
    listen = settings.listen.model_copy(update={"port": 0})
    async with open_gateway(settings) as gateway, serving(gateway.app, listen) as port:
        await asyncio.sleep(AFTER_S + PREPARED_S)
        pages = await measured(f"http://127.0.0.1:{port}", session.token, rounds)
    return {"ledger_s": round(opened, 1), "pages": pages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where the installation is made, or lies already")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        data = (asked.folder or Path(temporary)) / "data"
        if not data.exists():
            print(f"filled in {made(data, asked.records):.0f} s", flush=True)
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
        at = datetime.now(UTC).isoformat(timespec="seconds")
        found = {"at": at, "machine": machine, "records": asked.records, **asyncio.run(run(data, asked.rounds))}
    print(json.dumps(found, indent=2))
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
