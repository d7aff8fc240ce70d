import asyncio
import subprocess
import sys

import pytest
import redis

from gateway.errors import LimitsUnavailable
from gateway.limits.limiter import Cost, Level, Limiter, LimitExceeded, Limits, Reservation, counters
from gateway.limits.redis_store import RedisLimitStore


def of(limits, place="acme/app"):
    return counters([Level(place, place, limits)])


@pytest.fixture
async def store(redis_url):
    store = RedisLimitStore(redis_url)
    yield store
    await store.close()


async def test_of_many_at_once_from_several_gateways_exactly_one_gets_a_budget_for_one(redis_url):
    stores = [RedisLimitStore(redis_url) for _ in range(4)]
    limits = Limits.of(eur_per_month=1)
    calls = [Limiter(stores[at % 4]).reserve(of(limits), Cost(money=1)) for at in range(100)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(not isinstance(outcome, Exception) for outcome in outcomes) == 1
    assert {type(outcome) for outcome in outcomes if isinstance(outcome, Exception)} == {LimitExceeded}
    for store in stores:
        await store.close()


WORKER = """
import asyncio, sys
from gateway.limits.limiter import Cost, Level, Limiter, LimitExceeded, Limits, counters
from gateway.limits.redis_store import RedisLimitStore

BUDGET = counters([Level("acme/app", "app", Limits.of(eur_per_month=100))])

async def main(url):
    store, passed = RedisLimitStore(url), 0
    for _ in range(200):
        try:
            await Limiter(store).reserve(BUDGET, Cost(money=1))
            passed += 1
        except LimitExceeded:
            pass
    await store.close()
    print(passed)

asyncio.run(main(sys.argv[1]))
"""


def test_a_budget_holds_across_processes(redis_url):
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, redis_url], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert sum(int(worker.communicate(timeout=60)[0]) for worker in workers) == 100


async def test_what_was_spent_is_known_after_a_restart_of_the_gateway(redis_url):
    limits = Limits.of(eur_per_month=10)
    first = RedisLimitStore(redis_url)
    limiter = Limiter(first)
    await limiter.settle(await limiter.reserve(of(limits), Cost(money=9)), Cost(money=8))
    await first.close()
    second = RedisLimitStore(redis_url)
    with pytest.raises(LimitExceeded):
        await Limiter(second).reserve(of(limits), Cost(money=3))
    assert await Limiter(second).reserve(of(limits), Cost(money=2))
    await second.close()


async def test_without_redis_nothing_is_let_through(tmp_path):
    store = RedisLimitStore(f"unix://{tmp_path}/nobody")
    limiter = Limiter(store)
    with pytest.raises(LimitsUnavailable):
        await limiter.reserve(of(Limits.of(rpm=1)), Cost())
    assert await limiter.reserve(of(Limits()), Cost())  # nothing to count
    with pytest.raises(LimitsUnavailable):
        await store.settle(Reservation("r1", of(Limits.of(tpm=1)), Cost()), Cost())
    await store.close()


async def test_a_server_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr("gateway.limits.redis_store.TIMEOUT_S", 0.2)

    async def say_nothing(reader, writer):
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = RedisLimitStore(f"redis://127.0.0.1:{port}/0")
    with pytest.raises(LimitsUnavailable):  # and not never: the server says nothing for as long as it is asked
        await Limiter(store).reserve(of(Limits.of(rpm=1)), Cost())
    await store.close()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0.05)  # the other side of the connection closes


async def test_names_of_tenants_do_not_run_into_each_other(store):
    limits = Limits.of(rpm=1)
    limiter = Limiter(store)
    for key in ("acme/app", "acme/app2", "acme/ap", "globex/app"):
        assert await limiter.reserve(of(limits, key), Cost())
        with pytest.raises(LimitExceeded):
            await limiter.reserve(of(limits, key), Cost())


async def test_a_redis_that_has_forgotten_the_scripts_is_given_them_again(store, redis_url):
    limiter, limits = Limiter(store), of(Limits.of(rpm=100, tpm=1000))
    first = await limiter.reserve(limits, Cost(tokens=600))
    with redis.Redis.from_url(redis_url) as client:
        client.script_flush()
    calls = [limiter.settle(first, Cost(tokens=100)), *(limiter.reserve(limits, Cost(tokens=300)) for _ in range(4))]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1:]] == [Reservation] * 3 + [LimitExceeded]
    assert limiter.owed == 0


async def test_a_connection_that_the_server_has_closed_meanwhile_costs_no_call(store, redis_url):
    limiter, limits = Limiter(store), of(Limits.of(rpm=100))
    await limiter.reserve(limits, Cost())
    with redis.Redis.from_url(redis_url) as client:
        client.client_kill_filter(skipme=True, _type="normal")
    await asyncio.sleep(0.05)
    assert (await limiter.reserve(limits, Cost())).used == [pytest.approx(2, abs=0.5)]


async def test_what_waits_is_asked_in_one_round_and_each_gets_its_own_answer(store, monkeypatch):
    rounds = []
    apply = store.apply

    async def counted(steps):
        rounds.append(len(steps))
        return await apply(steps)

    monkeypatch.setattr(store, "apply", counted)
    limiter = Limiter(store)
    calls = [limiter.reserve(of(Limits.of(rpm=1), f"acme/{at // 2}"), Cost()) for at in range(60)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Reservation, LimitExceeded] * 30
    assert len(rounds) <= 2


async def test_an_error_of_one_step_is_that_steps_alone(store, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.set("domicile:limit:{acme}/bad:requests", "no hash")
    limiter = Limiter(store)
    calls = [limiter.reserve(of(Limits.of(rpm=5), place), Cost()) for place in ("acme/good", "acme/bad", "acme/fine")]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Reservation, LimitsUnavailable, Reservation]


async def test_a_server_that_breaks_off_in_the_middle_of_a_round_fails_those_without_an_answer(monkeypatch):
    """And they alone: what was answered was done."""

    async def half(reader, writer):
        while count := await reader.readline():
            words = []
            for _ in range(int(count[1:])):
                size = int((await reader.readline())[1:])
                words.append((await reader.readexactly(size + 2))[:-2])
            if b"EVALSHA" in words:
                writer.write(b"$5\r\n0 5 1\r\n")
                break
            writer.write(b"%1\r\n+proto\r\n:3\r\n" if b"HELLO" in words else b"+OK\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    store = RedisLimitStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
    limiter = Limiter(store)
    calls = [limiter.reserve(of(Limits.of(rpm=5)), Cost()) for _ in range(3)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Reservation, LimitsUnavailable, LimitsUnavailable]
    await store.close()
    server.close()
    await server.wait_closed()
