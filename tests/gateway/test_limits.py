import asyncio
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.limits import Cost, Limiter, LimitExceeded, Limits, MemoryLimitStore, MonthlyBudget, Rate
from gateway.redis_limits import RedisLimitStore

NOTHING = Cost()


class Clock:
    def __init__(self, at=datetime(2026, 3, 15, tzinfo=UTC)):
        self.at = at.timestamp()

    def __call__(self):
        return self.at


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "redis"])
async def limiter(clock, request):
    if request.param == "memory":
        yield Limiter(MemoryLimitStore(), now=clock)
        return
    store = RedisLimitStore(request.getfixturevalue("redis_url"))
    yield Limiter(store, now=clock)
    await store.close()


async def admitted(limiter, limits, cost=NOTHING, times=100, key="acme"):
    reservations = []
    for _ in range(times):
        try:
            reservations.append(await limiter.reserve(key, limits, cost))
        except LimitExceeded:
            break
    return reservations


async def test_a_minutes_requests_pass_at_once_and_then_one_by_one(limiter, clock):
    limits = Limits.of(rpm=6)
    assert len(await admitted(limiter, limits)) == 6
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve("acme", limits, Cost())
    assert refusal.value.quota == "requests"
    assert refusal.value.retry_after == pytest.approx(10)
    clock.at += 9.9
    assert await admitted(limiter, limits) == []
    clock.at += 0.2
    assert len(await admitted(limiter, limits)) == 1


async def test_waiting_as_long_as_told_is_enough(limiter, clock):
    limits = Limits.of(rpm=7, tpm=1000)
    for _ in range(20):
        try:
            await limiter.settle(await limiter.reserve("acme", limits, Cost(tokens=300)), Cost(tokens=300))
        except LimitExceeded as refusal:
            clock.at += refusal.retry_after
            await limiter.settle(await limiter.reserve("acme", limits, Cost(tokens=300)), Cost(tokens=300))


async def test_one_keys_use_is_not_anothers(limiter):
    limits = Limits.of(rpm=1)
    assert len(await admitted(limiter, limits, key="acme")) == 1
    assert len(await admitted(limiter, limits, key="globex")) == 1


async def test_of_parallel_calls_against_a_budget_for_one_exactly_one_passes(limiter):
    limits = Limits.of(eur_per_month=1)
    outcomes = await asyncio.gather(
        *(limiter.reserve("acme", limits, Cost(money=0.6)) for _ in range(50)), return_exceptions=True
    )
    assert sum(not isinstance(outcome, LimitExceeded) for outcome in outcomes) == 1


async def test_what_was_not_used_comes_back_at_once(limiter):
    limits = Limits.of(tpm=1000)
    first = await limiter.reserve("acme", limits, Cost(tokens=900))
    assert await admitted(limiter, limits, Cost(tokens=200)) == []
    await limiter.settle(first, Cost(tokens=100))
    assert len(await admitted(limiter, limits, Cost(tokens=900))) == 1


async def test_what_was_used_beyond_is_owed(limiter, clock):
    limits = Limits.of(tpm=600)
    await limiter.settle(await limiter.reserve("acme", limits, Cost(tokens=10)), Cost(tokens=1200))
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve("acme", limits, Cost(tokens=10))
    assert refusal.value.retry_after == pytest.approx(61)


async def test_settling_twice_counts_once(limiter):
    limits = Limits.of(tpm=1000)
    first = await limiter.reserve("acme", limits, Cost(tokens=500))
    other = await limiter.reserve("acme", limits, Cost(tokens=500))
    await limiter.settle(first, Cost())
    await limiter.settle(first, Cost())
    assert len(await admitted(limiter, limits, Cost(tokens=500))) == 1
    await limiter.settle(other, Cost(tokens=500))


async def test_what_is_held_does_not_drain_while_a_call_runs(limiter, clock):
    limits = Limits.of(tpm=1000)
    running = await limiter.reserve("acme", limits, Cost(tokens=1000))
    clock.at += 1800
    assert await admitted(limiter, limits, Cost(tokens=1)) == []
    await limiter.settle(running, Cost(tokens=1000))
    assert await admitted(limiter, limits, Cost(tokens=1)) == []
    clock.at += 60
    assert len(await admitted(limiter, limits, Cost(tokens=1000))) == 1


async def test_a_refused_call_takes_nothing_of_any_quota(limiter):
    limits = Limits.of(rpm=2, tpm=100)
    for _ in range(5):
        with pytest.raises(LimitExceeded, match="tokens"):
            await limiter.reserve("acme", limits, Cost(tokens=101))
    assert len(await admitted(limiter, limits)) == 2


async def test_what_can_never_fit_is_told_apart_from_what_must_wait(limiter):
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve("acme", Limits.of(tpm=100), Cost(tokens=101))
    assert refusal.value.retry_after is None


async def test_a_budget_is_of_a_calendar_month(limiter, clock):
    limits = Limits.of(eur_per_month=10)
    clock.at = datetime(2026, 12, 31, 23, 0, tzinfo=UTC).timestamp()
    await limiter.settle(await limiter.reserve("acme", limits, Cost(money=10)), Cost(money=10))
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve("acme", limits, Cost(money=0.01))
    assert refusal.value.quota == "money"
    assert refusal.value.retry_after == pytest.approx(3600)
    clock.at += 3599
    assert await admitted(limiter, limits, Cost(money=0.01)) == []
    clock.at += 1
    assert len(await admitted(limiter, limits, Cost(money=10))) == 1


async def test_no_limits_means_no_limits(limiter):
    assert len(await admitted(limiter, Limits(), Cost(tokens=1e9, money=1e9), times=1000)) == 1000


async def test_a_clock_set_back_gives_nothing_away(limiter, clock):
    limits = Limits.of(rpm=2)
    await admitted(limiter, limits)
    clock.at -= 86400
    assert await admitted(limiter, limits) == []
    clock.at += 86400
    assert await admitted(limiter, limits) == []


async def test_a_changed_limit_keeps_what_was_used(limiter):
    await admitted(limiter, Limits.of(rpm=10), times=8)
    assert await admitted(limiter, Limits.of(rpm=5)) == []
    assert len(await admitted(limiter, Limits.of(rpm=10))) == 2


async def test_empty_buckets_are_forgotten(clock):
    store = MemoryLimitStore()
    limiter = Limiter(store, now=clock)
    for number in range(store.SWEEP_EVERY - 2):
        await limiter.reserve(f"key-{number}", Limits.of(rpm=1), Cost())
    assert len(store) == store.SWEEP_EVERY - 2
    clock.at += 61
    held = await limiter.reserve("held", Limits.of(tpm=5), Cost(tokens=5))
    await limiter.reserve("last", Limits.of(rpm=1), Cost())
    assert len(store) == 2
    await limiter.settle(held, Cost(tokens=5))


@pytest.mark.parametrize("wrong", [-1, math.inf, math.nan])
def test_a_cost_that_is_no_number_is_refused(wrong):
    with pytest.raises(ValueError):
        Cost(tokens=wrong)
    with pytest.raises(ValueError):
        Cost(money=wrong)


@pytest.mark.parametrize("make", [lambda n: Rate(n), lambda n: Rate(1, n), lambda n: Rate(1, 1, n), MonthlyBudget])
@pytest.mark.parametrize("wrong", [0, -1, math.nan])
def test_a_limit_that_is_not_positive_is_refused(make, wrong):
    with pytest.raises(ValueError):
        make(wrong)


calls = st.lists(
    st.tuples(
        st.floats(0, 30),  # seconds until it arrives
        st.floats(0, 12),  # reserved
        st.floats(0, 1),  # the part of it that is used
        st.floats(0, 60),  # seconds until it is settled
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(calls, st.floats(1, 20), st.floats(0.5, 3))
def test_in_any_span_no_more_than_burst_and_rate_is_consumed_or_held(calls, burst, rate):
    async def run():
        clock = Clock()
        limiter = Limiter(MemoryLimitStore(), now=clock)
        limits = Limits(tokens=Rate(rate, period=1, burst=burst))
        running, consumed, begin = [], [], clock.at
        for gap, reserve, part, lasts in calls:
            arrival = clock.at + gap
            for ends, reservation, amount in sorted((r for r in running if r[0] <= arrival), key=lambda r: r[0]):
                clock.at = max(clock.at, ends)
                await limiter.settle(reservation, Cost(tokens=amount))
                consumed.append((clock.at, amount))
            running = [r for r in running if r[0] > arrival]
            clock.at = arrival
            try:
                reservation = await limiter.reserve("acme", limits, Cost(tokens=reserve))
            except LimitExceeded:
                continue
            running.append((arrival + lasts, reservation, part * reserve))
            held = sum(r.charges["tokens"].hold for _, r, _ in running)
            for start in [begin, *(at for at, _ in consumed)]:
                used = sum(amount for at, amount in consumed if at >= start)
                assert used + held <= burst + rate * (clock.at - start) + 1e-6

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 20), max_size=60), st.integers(1, 10), st.floats(1, 60))
def test_requests_never_pass_faster_than_burst_and_rate(gaps, burst, rpm):
    async def run():
        clock = Clock()
        limiter = Limiter(MemoryLimitStore(), now=clock)
        limits = Limits(requests=Rate(rpm, burst=burst))
        passed = []
        for gap in gaps:
            clock.at += gap
            try:
                await limiter.settle(await limiter.reserve("acme", limits, Cost()), Cost())
                passed.append(clock.at)
            except LimitExceeded:
                pass
        for first, start in enumerate(passed):
            for last in range(first, len(passed)):
                assert last - first + 1 <= burst + rpm / 60 * (passed[last] - start) + 1e-6

    asyncio.run(run())
