"""What a page of the console costs the gateway, on a record of a given size: bytes on the wire and milliseconds.

    python -m bench.gateway.console [--records 1000000] [--rounds 20] [--out FILE.json]

A real installation whose record and ledger hold the calls, a real gateway over it in this process, and one client on
loopback, which asks for each page several times: the median is what the page takes, from the first byte of the request
to the last of the answer.
"""

import argparse
import asyncio
import json
import re
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import httpx2

from audit.log.audit_log import AuditLog
from bench.audit.append import intent, outcome
from gateway.configuration.settings import Settings, load_settings
from gateway.database.errors import DatabaseUnavailable
from gateway.installation.installation import Installation
from gateway.server.assembly import open_gateway
from gateway.server.serve import serving

AT_ONCE = 512
POLICY = "policy: bench\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"
PAGES = (
    "/t/acme",
    "/t/acme/calls",
    "/t/acme/calls/0",
    "/t/acme/usage",
    "/t/acme/usage/figures",
    "/t/acme/duties",
    "/t/acme/places",
    "/t/acme/record",
    "/t/acme/incidents",
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


async def measured(base: str, session: str, rounds: int) -> dict:
    """Of each page: bytes, and the median and the slowest of `rounds` answers in milliseconds."""
    found = {}
    cookies = {"domicile-session": session}
    async with httpx2.AsyncClient(base_url=base, cookies=cookies, timeout=600) as client:
        for page in PAGES:
            took = []
            for _ in range(rounds):
                begun = time.perf_counter()
                answer = await client.get(f"/console{page}")
                took.append((time.perf_counter() - begun) * 1000)
                if answer.status_code != 200:
                    raise RuntimeError(f"{page}: {answer.status_code}; see the gateway's log")
            files = set(re.findall(r'(?:href|src)="(/console/static/[^"]+)"', answer.text))
            size = len(answer.content)
            for file in files:
                async with client.stream("GET", file, headers={"accept-encoding": "gzip"}) as one:
                    size += sum([len(piece) async for piece in one.aiter_raw()])
            found[page] = {
                "bytes_with_files": size,
                "median_ms": round(statistics.median(took), 1),
                "slowest_ms": round(max(took), 1),
            }
    return found


async def run(records: int, rounds: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        installation = Installation.create(data, "eu-1")
        control = installation.control(installation.database(), actor="bench", on_event=lambda event: None)
        control.create_tenant("acme")
        control.activate_policy("acme", POLICY)
        control.create_project("acme", "support", purpose="bench", legal_basis="contract")
        person = control.create_person(None, "Bench", ["operator"])
        begun = time.perf_counter()
        await fill(installation, records // 2)
        filled = time.perf_counter() - begun
        print(f"filled in {filled:.0f} s", flush=True)
        _, session = control.open_session(None, person.id, life=timedelta(hours=3))
        control._database.close()
        settings = load_settings(data=data, node="bench", audit={"reserve_bytes": 1 << 20})
        begun = time.perf_counter()
        await read_into_ledger(settings)
        opened = time.perf_counter() - begun
        async with open_gateway(settings) as gateway:
            async with serving(gateway.app, settings.listen.model_copy(update={"port": 0})) as port:
                pages = await measured(f"http://127.0.0.1:{port}", session.token, rounds)
    return {"records": records, "filled_s": round(filled), "ledger_s": round(opened, 1), "pages": pages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = asyncio.run(run(asked.records, asked.rounds))
    print(json.dumps(found, indent=2))
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
