"""A process that appends until it is killed, and tells each receipt as it gets it; and a command beside it."""

import asyncio
import os
import random
import sys
from contextlib import suppress
from pathlib import Path

from audit.cli.app import app
from audit.errors import AuditUnavailable
from audit.events.event import InferenceAborted
from audit.events.private_value import Private
from audit.log.audit_log import AuditLog
from audit.storage.location import DATABASE_VARIABLE
from tests.audit.conftest import Home, accepted, completed

CALLERS = 16
FLAT_OUT = 60
"""Calls of each caller without a pause; then it slows down, so that a command that reads the whole log comes to an end
on a busy machine too."""
SLOWER_S = 0.5


def run(folder: str, url: str | None, node: str, out: int, seed: int) -> None:
    asyncio.run(_append_for_ever(Home(Path(folder), url), node, out, random.Random(seed)))


def command(folder: str, url: str | None, words: list[str]) -> None:
    """``domicile audit *words`` in this process; it ends with the command's exit status."""
    os.environ["DOMICILE_DATA"] = folder
    if url is not None:
        os.environ[DATABASE_VARIABLE] = url
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        app(words)


async def _append_for_ever(home: Home, node: str, out: int, chance: random.Random) -> None:
    log = await _opened(home, node)
    prefix = f"{node}-{os.getpid()}"
    await asyncio.gather(*(_caller(log, f"{prefix}-{number}", out, chance) for number in range(CALLERS)))


async def _opened(home: Home, node: str) -> AuditLog:
    """As a supervisor would: a start that another process held up for too long is tried again."""
    while True:
        with suppress(AuditUnavailable):
            return await home.open(node, open_store=home.open_log_and_values)
        await asyncio.sleep(0.1)


async def _caller(log: AuditLog, prefix: str, out: int, chance: random.Random) -> None:
    for turn in range(sys.maxsize):
        if turn >= FLAT_OUT:
            await asyncio.sleep(chance.random() * SLOWER_S)
        tenant = chance.choice(["acme", "globex"])
        request = f"{prefix}-{turn}"
        private = Private({"input": request}, f"person {chance.randrange(5)}") if chance.random() < 0.3 else None
        try:
            receipt = await log.append(accepted(request, tenant), private)
        except AuditUnavailable:  # refused and not acknowledged: the client may try again
            await asyncio.sleep(0.1)
            continue
        os.write(out, f"{receipt}\n".encode())  # shorter than PIPE_BUF: written whole or not at all
        await asyncio.sleep(chance.random() * 0.002)
        outcome = completed(request, tenant)
        if chance.random() < 0.2:
            outcome = InferenceAborted(tenant=tenant, request_id=request, reason="client_disconnect")
        with suppress(AuditUnavailable):  # the log closes it by itself
            receipt = await log.append(outcome)
            os.write(out, f"{receipt}\n".encode())
