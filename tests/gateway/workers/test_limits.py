"""Limits of several workers in one supervisor: as exact as in one process, and with the same words."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from gateway.errors import LimitsUnavailable
from gateway.limits.limiter import NOTHING, Cost, Level, Limiter, LimitExceeded, Limits, counters
from gateway.limits.memory_store import MemoryLimitStore
from gateway.workers.limits import LimitCounter, SupervisedLimitStore
from gateway.workers.peer import Peer

KINDS = {"rpm": 2, "tpm": 100, "concurrent": 2, "eur_per_day": 1, "eur_per_month": 2}


@asynccontextmanager
async def worker(counter, spent=None):
    """The store of one worker whose supervisor has `counter`, and what ends the worker."""
    name = object()

    async def made(batch):
        return await counter.make(name, batch)

    ours, theirs = socket.socketpair()
    supervisor = await Peer.over(ours, {"limits": made})
    peer = await Peer.over(theirs, {})

    async def end():
        await peer.close()
        await asyncio.wait_for(supervisor.gone.wait(), 10)
        await counter.release(name)

    try:
        yield SupervisedLimitStore(peer, spent or {}), end
    finally:
        await peer.close()
        await supervisor.close()


def quotas(**amounts):
    return counters([Level("acme", "tenant acme", Limits.of(**amounts))])


async def test_a_limit_is_one_limit_for_all_workers():
    counter, limits = LimitCounter(), quotas(rpm=10)
    async with worker(counter) as (one, _), worker(counter) as (two, _):
        made = [Limiter(store).reserve(limits, NOTHING) for store in (one, two) for _ in range(20)]
        outcomes = await asyncio.gather(*made, return_exceptions=True)
    assert sum(not isinstance(each, LimitExceeded) for each in outcomes) == 10


async def test_what_was_used_counts_and_what_was_only_reserved_is_given_back():
    counter, limits = LimitCounter(), quotas(eur_per_day=10)
    async with worker(counter) as (one, _), worker(counter) as (two, _):
        first = Limiter(one)
        held = await first.reserve(limits, Cost(money=9))
        with pytest.raises(LimitExceeded):
            await Limiter(two).reserve(limits, Cost(money=2))
        await first.settle(held, Cost(money=3))
        await first.settle(held, Cost(money=3))  # once more counts once
        assert (await Limiter(two).reserve(limits, Cost(money=7))).used == (10.0,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cost", [Cost(1, 0.1), Cost(60, 0.9), Cost(1000, 100)])
async def test_refusals_say_the_same_as_of_one_process(kind, cost):
    limits = quotas(**{kind: KINDS[kind]})

    async def refusal(store):
        for _ in range(1000):
            try:
                await Limiter(store).reserve(limits, cost)
            except LimitExceeded as error:
                return str(error).split(" in ")[0], error.held, error.asked, error.counter, list(error.used)
        return None

    async with worker(LimitCounter()) as (store, _):
        ours = await refusal(store)
    alone = await refusal(MemoryLimitStore())
    assert ours[:-1] == alone[:-1]
    assert ours[-1] == pytest.approx(alone[-1], abs=0.1), "rates drain meanwhile"


async def test_a_rate_of_nothing_never_opens_again_and_says_so_alike():
    limits = quotas(tpm=0)
    async with worker(LimitCounter()) as (store, _):
        with pytest.raises(LimitExceeded) as ours:
            await Limiter(store).reserve(limits, Cost(1))
    with pytest.raises(LimitExceeded) as alone:
        await Limiter(MemoryLimitStore()).reserve(limits, Cost(1))
    assert str(ours.value) == str(alone.value)
    assert ours.value.retry_after is alone.value.retry_after is None


async def test_what_a_worker_that_died_held_is_free_at_once():
    counter, limits = LimitCounter(), quotas(concurrent=1)
    async with worker(counter) as (one, end), worker(counter) as (two, _):
        await Limiter(one).reserve(limits, NOTHING)
        with pytest.raises(LimitExceeded):
            await Limiter(two).reserve(limits, NOTHING)
        await end()
        await Limiter(two).reserve(limits, NOTHING)


async def test_budgets_go_on_from_the_ledger_once_however_many_workers_start():
    counter, limits = LimitCounter(), quotas(eur_per_month=10)
    bucket = limits[0].bucket
    async with worker(counter, {bucket: 4.0}) as (one, _), worker(counter, {bucket: 9.0}) as (late, _):
        assert (await Limiter(one).reserve(limits, Cost(money=1))).used == (5.0,)
        assert (await Limiter(late).reserve(limits, Cost(money=1))).used == (6.0,)


async def test_without_a_supervisor_no_call_is_admitted():
    async with worker(LimitCounter()) as (store, end):
        await end()
        with pytest.raises(LimitsUnavailable):
            await Limiter(store).reserve(quotas(rpm=1), NOTHING)


async def test_a_call_that_is_cancelled_before_its_batch_takes_nothing():
    counter, limits = LimitCounter(), quotas(concurrent=1)
    async with worker(counter) as (store, _):
        limiter = Limiter(store)
        first = asyncio.create_task(limiter.reserve(limits, NOTHING))
        second = asyncio.create_task(limiter.reserve(limits, NOTHING))
        await asyncio.sleep(0)
        second.cancel()
        held = await first
        await asyncio.gather(second, return_exceptions=True)
        await limiter.settle(held, NOTHING)
        await limiter.reserve(limits, NOTHING)
