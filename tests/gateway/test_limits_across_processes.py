"""Several gateways, one store: a limit is one limit, whoever counts, whoever dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from gateway.errors import LimitsUnavailable
from gateway.limits import NOTHING, Cost, Level, Limiter, LimitExceeded, Limits, counters
from gateway.redis_limits import RedisLimitStore
from gateway.store.database import Database
from gateway.store.postgres_limits import PostgresLimitStore

WORKERS = 4

WORKER = """
import asyncio, json, sys
from gateway.limits import Cost, Level, Limiter, LimitExceeded, Limits, counters
from tests.gateway.test_limits_across_processes import opened

async def main(where, limits, cost, calls, use):
    levels = [Level(place, place, Limits.of(**each)) for place, each in json.loads(limits).items()]
    quotas, cost, use = counters(levels), Cost(**json.loads(cost)), Cost(**json.loads(use))
    store, close = opened(where)
    limiter, passed = Limiter(store), 0
    print("ready", flush=True)
    sys.stdin.readline()

    async def call():
        nonlocal passed
        try:
            reservation = await limiter.reserve(quotas, cost)
        except LimitExceeded:
            return
        passed += 1
        await limiter.settle(reservation, use)

    for _ in range(int(calls) // 25):
        await asyncio.gather(*(call() for _ in range(25)))
    assert limiter.owed == 0
    await store.close()
    close()
    print(passed, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""

HOLDER = """
import asyncio, sys
from gateway.limits import Cost, Level, Limiter, Limits, counters
from tests.gateway.test_limits_across_processes import opened

async def main(where):
    store, _ = opened(where)
    limits = Limits.of(concurrent=1, eur_per_day=1)
    await Limiter(store).reserve(counters([Level("acme", "acme", limits)]), Cost(money=1))
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(main(sys.argv[1]))
"""


def opened(where):
    """A store at this place, and what closes what is behind it."""
    if where.startswith("postgresql"):
        database = Database(where)
        return PostgresLimitStore(database), database.close
    return RedisLimitStore(where), lambda: None


@pytest.fixture(params=["redis", "postgresql"])
def where(request):
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    request.getfixturevalue("postgresql")
    return request.getfixturevalue("postgresql_url")


def run(where, limits, cost, calls=200, use=None):
    """How many calls passed, of each worker; all begin at once."""
    arguments = [where, json.dumps(limits), json.dumps(cost), str(calls), json.dumps(use or cost)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(WORKERS)
    ]
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("\n")
        worker.stdin.flush()
    return [int(worker.communicate(timeout=60)[0]) for worker in workers]


def test_of_many_calls_in_parallel_against_a_budget_for_one_exactly_one_passes(where):
    assert sum(run(where, {"acme": {"eur_per_month": 1}}, {"money": 1}, calls=50)) == 1


def test_the_limit_of_each_level_is_exact_over_all_processes(where):
    limits = {
        "acme/main/k1": {"eur_per_day": 1000},
        "acme/main": {"eur_per_month": 150},
        "acme": {"eur_per_day": 200, "concurrent": 10**6},
    }
    assert sum(run(where, limits, {"money": 1})) == 150


async def test_what_was_really_used_is_what_counts_in_the_end(where):
    limits = {"acme": {"eur_per_month": 50, "tpm": 10**9}}
    passed = await asyncio.to_thread(run, where, limits, {"money": 10, "tokens": 1}, 200, {"money": 0.25})
    store, close = opened(where)
    binding = counters([Level(place, place, Limits.of(**each)) for place, each in limits.items()])
    assert (await Limiter(store).reserve(binding, NOTHING)).used[1] == sum(passed) * 0.25
    assert sum(passed) > 5, "five may run at once"
    await store.close()
    close()


async def test_what_a_killed_process_held_is_free_again_after_its_lease_and_not_before(where):
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, where, stdout=subprocess.PIPE)
    assert await holder.stdout.readline() == b"held\n"
    os.kill(holder.pid, signal.SIGKILL)
    await holder.wait()
    limits = counters([Level("acme", "acme", Limits.of(concurrent=1, eur_per_day=1))])
    store, close = opened(where)
    with pytest.raises(LimitExceeded):
        await Limiter(store).reserve(limits, Cost(money=1))
    ahead = [0.0]
    now = time.time()  # the servers' clock is this machine's
    store._now = lambda: now + ahead[0]
    ahead[0] = 59
    with pytest.raises(LimitExceeded):
        await Limiter(store).reserve(limits, Cost(money=1))
    ahead[0] = 61
    await Limiter(store).reserve(limits, Cost(money=1))
    await store.close()
    close()


async def test_a_call_that_runs_on_keeps_what_it_holds(where, monkeypatch):
    monkeypatch.setattr("gateway.limits.RENEW_EVERY_S", 0.2)
    monkeypatch.setattr("gateway.limits.RETRY_EVERY_S", 0.05)
    for module in ("gateway.redis_limits", "gateway.store.postgres_limits", "gateway.limits"):
        monkeypatch.setattr(f"{module}.LEASE_S", 1.0)
    store, close = opened(where)
    limits = counters([Level("acme", "acme", Limits.of(concurrent=1))])
    async with Limiter(store) as limiter:
        running = await limiter.reserve(limits, NOTHING)
        for _ in range(8):
            await asyncio.sleep(0.25)
            with pytest.raises(LimitExceeded):
                await limiter.reserve(limits, NOTHING)
        await limiter.settle(running, NOTHING)
        await limiter.settle(await limiter.reserve(limits, NOTHING), NOTHING)
    await store.close()
    close()


async def test_a_database_that_is_gone_admits_nobody():
    database = Database("postgresql:///x?host=/nowhere")
    store = PostgresLimitStore(database)
    with pytest.raises(LimitsUnavailable):
        await Limiter(store).reserve(counters([Level("acme", "acme", Limits.of(rpm=1))]), NOTHING)
    assert await Limiter(store).reserve((), NOTHING), "nothing to count"
    await store.close()
    database.close()


async def test_parallel_calls_share_one_connection(postgresql):
    store = PostgresLimitStore(postgresql)
    limiter = Limiter(store)
    limits = counters([Level("acme", "acme", Limits.of(rpm=10**6, concurrent=10**6))])
    most = 0

    async def watch():
        nonlocal most
        while True:
            most = max(most, postgresql.engine.pool.checkedout())
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    running = await asyncio.gather(*(limiter.reserve(limits, NOTHING) for _ in range(1000)))
    await asyncio.gather(*(limiter.settle(each, NOTHING) for each in running))
    watching.cancel()
    assert most == 1
    assert (await limiter.reserve(limits, NOTHING)).used[1] == 1
    await store.close()
