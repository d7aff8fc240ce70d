"""What the child processes of `test_limits_across_processes` do: count calls against shared limits, each in a loop of
its own."""

import asyncio

from gateway.database.database import Database
from gateway.limits.limiter import Cost, Level, Limiter, LimitExceeded, Limits, counters
from gateway.limits.postgres_store import PostgresLimitStore
from gateway.limits.redis_store import RedisLimitStore


def opened(where):
    """A store at this place, and what closes what is behind it."""
    if where.startswith("postgresql"):
        database = Database(where)
        return PostgresLimitStore(database), database.close
    return RedisLimitStore(where), lambda: None


def quotas(limits):
    """`limits`: by place, the bounds there."""
    return counters([Level(place, place, Limits.of(**each)) for place, each in limits.items()])


def count(pipe, where, limits, cost, calls, use):
    """Says that it is ready, waits to be told, makes `calls` calls, and says how many of them passed."""

    async def main():
        places, store_and_close = quotas(limits), opened(where)
        limiter, passed = Limiter(store_and_close[0]), 0
        pipe.send("ready")
        pipe.recv()

        async def call():
            nonlocal passed
            try:
                reservation = await limiter.reserve(places, Cost(**cost))
            except LimitExceeded:
                return
            passed += 1
            await limiter.settle(reservation, Cost(**use))

        for _ in range(calls // 25):
            await asyncio.gather(*(call() for _ in range(25)))
        assert limiter.owed == 0
        await store_and_close[0].close()
        store_and_close[1]()
        pipe.send(passed)

    asyncio.run(main())


def hold(pipe, where):
    """Takes what there is and keeps it."""

    async def main():
        store, _ = opened(where)
        await Limiter(store).reserve(quotas({"acme": {"concurrent": 1, "eur_per_day": 1}}), Cost(money=1))
        pipe.send("held")
        await asyncio.sleep(60)

    asyncio.run(main())
