import asyncio

import pytest

from gateway.errors import LimitsUnavailable
from gateway.limits.batching import AT_ONCE, BatchingLimitStore
from gateway.limits.limiter import NOTHING, Cost, Level, Limits, Reservation, counters

COUNTERS = counters([Level("acme", "acme", Limits.of(tpm=5))])


class Noting(BatchingLimitStore):
    """Notes each round, and waits in it until it is let go on."""

    def __init__(self):
        super().__init__()
        self.rounds, self.go, self.fails = [], asyncio.Event(), None

    async def apply(self, steps):
        self.rounds.append([(step.kind, step.reservation.id, step.is_void) for step in steps])
        await self.go.wait()
        if self.fails:
            raise self.fails
        return [None] * len(steps)


def call(name):
    return Reservation(name, COUNTERS, NOTHING)


@pytest.fixture
async def store():
    store = Noting()
    yield store
    store.go.set()
    await store.close()


async def test_what_waits_while_a_round_runs_forms_the_next_in_the_order_it_came(store):
    first = asyncio.create_task(store.take(call("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    more = [asyncio.create_task(store.settle(call("a"), Cost())), asyncio.create_task(store.take(call("b")))]
    await asyncio.sleep(0)
    store.go.set()
    await asyncio.gather(first, *more)
    assert store.rounds == [[("take", "a", False)], [("settle", "a", False), ("take", "b", False)]]


async def test_a_caller_who_leaves_neither_ends_the_round_nor_takes_anything(store):
    first = asyncio.create_task(store.take(call("a")))
    await asyncio.sleep(0.01)
    leaves, settles = asyncio.create_task(store.take(call("b"))), asyncio.create_task(store.settle(call("c"), Cost()))
    await asyncio.sleep(0)
    first.cancel()
    leaves.cancel()
    settles.cancel()
    stays = asyncio.create_task(store.take(call("d")))
    await asyncio.sleep(0)
    store.go.set()
    await stays
    void_is_only_the_take = [("take", "b", True), ("settle", "c", False), ("take", "d", False)]
    assert store.rounds[1] == void_is_only_the_take


@pytest.mark.parametrize("error", [LimitsUnavailable("gone"), KeyError("a defect")])
async def test_what_befalls_a_round_befalls_all_in_it_and_the_next_runs_again(store, error):
    store.fails = error
    store.go.set()
    outcomes = await asyncio.gather(*(store.take(call(name)) for name in "abc"), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LimitsUnavailable] * 3
    store.fails = None
    await store.take(call("d"))


async def test_a_round_has_a_size(store):
    store.go.set()
    await asyncio.gather(*(store.take(call(str(at))) for at in range(AT_ONCE + 1)))
    assert [len(each) for each in store.rounds] == [AT_ONCE, 1]
