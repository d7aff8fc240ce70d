"""Several gateways, one store: a limit is one limit, whoever counts, whoever dies."""

import asyncio
import signal
import time

import pytest

from gateway.database.database import Database
from gateway.errors import LimitsUnavailable
from gateway.limits.limiter import NOTHING, Cost, Level, Limiter, LimitExceeded, Limits, counters
from gateway.limits.postgres_store import PostgresLimitStore
from tests.fakes.forks import forks
from tests.gateway.counting import count, hold, opened

WORKERS = 4


@pytest.fixture(params=["redis", "postgresql"])
def where(request):
    if request.param == "redis":
        return request.getfixturevalue("redis_url")
    request.getfixturevalue("postgresql")
    return request.getfixturevalue("postgresql_url")


def started(work, *arguments):
    """A process that does `work`, and the pipe to it."""
    here, there = forks.Pipe()
    process = forks.Process(target=work, args=(there, *arguments))
    process.start()
    there.close()
    return process, here


def heard(pipe, within_s=60):
    """What the process says next; EOFError if it ended instead: see its traceback."""
    assert pipe.poll(within_s)
    return pipe.recv()


def run(where, limits, cost, calls=200, use=None):
    """How many calls passed, of each worker; all begin at once."""
    workers = [started(count, where, limits, cost, calls, use or cost) for _ in range(WORKERS)]
    for _, pipe in workers:
        assert heard(pipe) == "ready"
    for _, pipe in workers:
        pipe.send("go")
    passed = [heard(pipe) for _, pipe in workers]
    for process, pipe in workers:
        process.join(60)
        assert process.exitcode == 0
        process.close()
        pipe.close()
    return passed


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
    holder, pipe = await asyncio.to_thread(started, hold, where)
    assert await asyncio.to_thread(heard, pipe) == "held"
    holder.kill()
    await asyncio.to_thread(holder.join)
    assert holder.exitcode == -signal.SIGKILL
    holder.close()
    pipe.close()
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
    monkeypatch.setattr("gateway.limits.limiter.RENEW_EVERY_S", 0.2)
    monkeypatch.setattr("gateway.limits.limiter.RETRY_EVERY_S", 0.05)
    for module in ("gateway.limits.redis_store", "gateway.limits.postgres_store", "gateway.limits.limiter"):
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
