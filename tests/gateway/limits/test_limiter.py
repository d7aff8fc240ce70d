import asyncio
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import LimitsUnavailable
from gateway.limits.bucket import Rate
from gateway.limits.limit_kinds import BY_NAME
from gateway.limits.limiter import LEASE_S, NOTHING, Cost, Level, Limiter, LimitExceeded, Limits, counters
from gateway.limits.memory_store import MemoryLimitStore
from gateway.limits.postgres_store import PostgresLimitStore
from gateway.limits.redis_store import RedisLimitStore


class Clock:
    def __init__(self, at=datetime(2026, 3, 15, tzinfo=UTC)):
        self.at = at.timestamp()

    def __call__(self):
        return self.at


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "redis", "postgresql"])
async def limiter(clock, request):
    if request.param == "memory":
        store = MemoryLimitStore(clock)
    elif request.param == "postgresql":
        store = PostgresLimitStore(request.getfixturevalue("postgresql"), clock)
    else:
        store = RedisLimitStore(request.getfixturevalue("redis_url"), clock)
    yield Limiter(store)
    await store.close()


def of(limits, place="acme"):
    """The counters of one level."""
    return counters([Level(place, f"project {place}", limits)])


async def admitted(limiter, limits, cost=NOTHING, times=100, key="acme"):
    reservations = []
    for _ in range(times):
        try:
            reservations.append(await limiter.reserve(of(limits, key), cost))
        except LimitExceeded:
            break
    return reservations


async def test_a_minutes_requests_pass_at_once_and_then_one_by_one(limiter, clock):
    limits = Limits.of(rpm=6)
    assert len(await admitted(limiter, limits)) == 6
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve(of(limits), Cost())
    assert refusal.value.counter.kind.bucket == "requests"
    assert refusal.value.retry_after == pytest.approx(10)
    clock.at += 9.9
    assert await admitted(limiter, limits) == []
    clock.at += 0.2
    assert len(await admitted(limiter, limits)) == 1


async def test_waiting_as_long_as_told_is_enough(limiter, clock):
    limits = Limits.of(rpm=7, tpm=1000)
    for _ in range(20):
        try:
            await limiter.settle(await limiter.reserve(of(limits), Cost(tokens=300)), Cost(tokens=300))
        except LimitExceeded as refusal:
            clock.at += refusal.retry_after
            await limiter.settle(await limiter.reserve(of(limits), Cost(tokens=300)), Cost(tokens=300))


async def test_one_keys_use_is_not_anothers(limiter):
    limits = Limits.of(rpm=1)
    assert len(await admitted(limiter, limits, key="acme")) == 1
    assert len(await admitted(limiter, limits, key="globex")) == 1


async def test_of_parallel_calls_against_a_budget_for_one_exactly_one_passes(limiter):
    limits = Limits.of(eur_per_month=1)
    outcomes = await asyncio.gather(
        *(limiter.reserve(of(limits), Cost(money=0.6)) for _ in range(50)), return_exceptions=True
    )
    assert sum(not isinstance(outcome, LimitExceeded) for outcome in outcomes) == 1


async def test_what_was_not_used_comes_back_at_once(limiter):
    limits = Limits.of(tpm=1000)
    first = await limiter.reserve(of(limits), Cost(tokens=900))
    assert await admitted(limiter, limits, Cost(tokens=200)) == []
    await limiter.settle(first, Cost(tokens=100))
    assert len(await admitted(limiter, limits, Cost(tokens=900))) == 1


async def test_what_was_used_beyond_is_owed(limiter, clock):
    limits = Limits.of(tpm=600)
    await limiter.settle(await limiter.reserve(of(limits), Cost(tokens=10)), Cost(tokens=1200))
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve(of(limits), Cost(tokens=10))
    assert refusal.value.retry_after == pytest.approx(61)


async def test_settling_twice_counts_once(limiter):
    limits = Limits.of(tpm=1000)
    first = await limiter.reserve(of(limits), Cost(tokens=500))
    other = await limiter.reserve(of(limits), Cost(tokens=500))
    await limiter.settle(first, Cost())
    await limiter.settle(first, Cost())
    assert len(await admitted(limiter, limits, Cost(tokens=500))) == 1
    await limiter.settle(other, Cost(tokens=500))


async def test_settling_twice_at_the_same_moment_counts_once_in_the_store_itself(limiter):
    limits = of(Limits.of(tpm=1000))
    call = await limiter.reserve(limits, Cost(tokens=500))
    other = await limiter.reserve(limits, Cost(tokens=300))
    await asyncio.gather(*(limiter._store.settle(call, Cost(tokens=100)) for _ in range(3)))
    assert (await limiter.reserve(limits, Cost(tokens=1))).used == [pytest.approx(100 + 300 + 1)]
    assert other.open


async def test_what_is_held_does_not_drain_while_a_call_runs(limiter, clock):
    limits = Limits.of(tpm=1000)
    running = await limiter.reserve(of(limits), Cost(tokens=1000))
    for _ in range(60):
        clock.at += LEASE_S / 2
        await limiter.renew()
    assert await admitted(limiter, limits, Cost(tokens=1)) == []
    await limiter.settle(running, Cost(tokens=1000))
    assert await admitted(limiter, limits, Cost(tokens=1)) == []
    clock.at += 60
    assert len(await admitted(limiter, limits, Cost(tokens=1000))) == 1


async def test_a_refused_call_takes_nothing_of_any_quota(limiter):
    limits = Limits.of(rpm=2, tpm=100)
    for _ in range(5):
        with pytest.raises(LimitExceeded, match="tokens"):
            await limiter.reserve(of(limits), Cost(tokens=101))
    assert len(await admitted(limiter, limits)) == 2


async def test_what_can_never_fit_is_told_apart_from_what_must_wait(limiter):
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve(of(Limits.of(tpm=100)), Cost(tokens=101))
    assert refusal.value.retry_after is None


async def test_a_budget_is_of_a_calendar_month(limiter, clock):
    limits = Limits.of(eur_per_month=10)
    clock.at = datetime(2026, 12, 31, 23, 0, tzinfo=UTC).timestamp()
    await limiter.settle(await limiter.reserve(of(limits), Cost(money=10)), Cost(money=10))
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve(of(limits), Cost(money=0.01))
    assert refusal.value.counter.kind.bucket == "month"
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


LEVELS = {
    "requests": (Limits.of(rpm=2), Cost()),
    "tokens": (Limits.of(tpm=2), Cost(tokens=1)),
    "concurrent": (Limits.of(concurrent=2), Cost()),
    "day": (Limits.of(eur_per_day=2), Cost(money=1)),
    "month": (Limits.of(eur_per_month=2), Cost(money=1)),
}


def stack(*limits):
    """The counters of a key, its project and its tenant."""
    places = ("acme/main/k1", "acme/main", "acme")
    return counters([Level(place, place, each) for place, each in zip(places, limits, strict=True)])


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("at", range(3))
async def test_each_quota_binds_on_each_level_and_a_refused_call_takes_from_no_other(limiter, kind, at):
    limits, cost = LEVELS[kind]
    wide = Limits.of(rpm=1000, tpm=1000, concurrent=1000, eur_per_day=1000, eur_per_month=1000)
    binding = stack(*(limits if level == at else wide for level in range(3)))
    taken = [await limiter.reserve(binding, cost) for _ in range(2)]
    for _ in range(5):
        with pytest.raises(LimitExceeded) as refusal:
            await limiter.reserve(binding, cost)
        assert refusal.value.counter.kind.bucket == kind
        assert refusal.value.counter.scope == ("acme/main/k1", "acme/main", "acme")[at]
    others = [counter for counter in binding if counter is not refusal.value.counter]
    used = (await limiter.reserve(others, cost)).used
    assert used == [(cost.asked()[counter.kind.measure]) * 3 for counter in others]
    assert len(taken) == 2


async def test_a_call_ends_and_its_place_is_free_for_the_next(limiter):
    limits = of(Limits.of(concurrent=2))
    first, _ = [await limiter.reserve(limits, NOTHING) for _ in range(2)]
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve(limits, NOTHING)
    assert refusal.value.retry_after == 1
    await limiter.settle(first, NOTHING)
    await limiter.settle(first, NOTHING)
    await limiter.reserve(limits, NOTHING)
    with pytest.raises(LimitExceeded):
        await limiter.reserve(limits, NOTHING)


@pytest.mark.parametrize("kind", LEVELS)
async def test_a_limit_of_zero_lets_nothing_through_and_says_that_waiting_does_not_help(limiter, kind):
    zero = {"requests": "rpm", "tokens": "tpm", "concurrent": "concurrent"}.get(kind, f"eur_per_{kind}")
    with pytest.raises(LimitExceeded, match="more than the limit of 0 ") as refusal:
        await limiter.reserve(of(Limits.of(**{zero: 0})), Cost(tokens=1, money=1))
    assert refusal.value.retry_after is None


async def test_a_refusal_names_the_numbers(limiter):
    with pytest.raises(LimitExceeded, match="may use 1001, more than the limit of 1000 tokens per minute of project"):
        await limiter.reserve(of(Limits.of(tpm=1000)), Cost(tokens=1001))


@pytest.mark.parametrize("budget", ["eur_per_day", "eur_per_month"])
async def test_a_budget_that_running_calls_hold_says_so_and_is_worth_asking_for_again_soon(limiter, budget):
    limits = of(Limits.of(**{budget: 1}))
    running = await limiter.reserve(limits, Cost(money=0.8))
    with pytest.raises(LimitExceeded, match="reserved by calls that are running; try again when one has ended") as held:
        await limiter.reserve(limits, Cost(money=0.5))
    assert held.value.held and held.value.retry_after <= 1
    await limiter.settle(running, Cost(money=0.6))
    with pytest.raises(LimitExceeded, match="is reached; try again in") as spent:
        await limiter.reserve(limits, Cost(money=0.5))
    assert not spent.value.held and spent.value.retry_after > 1
    assert await limiter.reserve(limits, Cost(money=0.4))


async def test_tokens_that_running_calls_hold_are_told_apart_from_tokens_that_were_used(limiter):
    limits = of(Limits.of(tpm=100))
    running = await limiter.reserve(limits, Cost(tokens=80))
    with pytest.raises(LimitExceeded, match="reserved by calls that are running"):
        await limiter.reserve(limits, Cost(tokens=50))
    await limiter.settle(running, Cost(tokens=80))
    with pytest.raises(LimitExceeded, match="is reached"):
        await limiter.reserve(limits, Cost(tokens=50))


async def test_fractional_money_is_counted_to_the_cent(limiter):
    limits = Limits.of(eur_per_day=0.3)
    assert len(await admitted(limiter, limits, Cost(money=0.1))) == 3


async def test_a_budget_of_a_day_ends_at_midnight(limiter, clock):
    clock.at = datetime(2028, 2, 28, 23, 59, tzinfo=UTC).timestamp()
    both = of(Limits.of(eur_per_day=1, eur_per_month=1.5))
    await limiter.settle(await limiter.reserve(both, Cost(money=1)), Cost(money=1))
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve(both, Cost(money=0.5))
    assert (refusal.value.counter.kind.bucket, refusal.value.retry_after) == ("day", pytest.approx(60))
    clock.at += 60
    await limiter.settle(await limiter.reserve(both, Cost(money=0.5)), Cost(money=0.5))
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve(both, Cost(money=0.5))
    assert (refusal.value.counter.kind.bucket, refusal.value.retry_after) == ("month", pytest.approx(86400))


@pytest.mark.parametrize("day", ["2026-12-31", "2027-02-28", "2028-02-29", "2100-02-28", "2026-01-01", "2026-06-30"])
async def test_the_month_is_over_when_the_calendar_says_so(limiter, clock, day):
    clock.at = (datetime.fromisoformat(day).replace(tzinfo=UTC)).timestamp() + 43200
    limits = of(Limits.of(eur_per_month=1))
    await limiter.settle(await limiter.reserve(limits, Cost(money=1)), Cost(money=1))
    with pytest.raises(LimitExceeded) as refusal:
        await limiter.reserve(limits, Cost(money=1))
    ends = datetime.fromtimestamp(clock.at + refusal.value.retry_after, UTC)
    assert (ends.day, ends.hour, ends.minute, ends.second) == (1, 0, 0, 0)
    assert 0 < refusal.value.retry_after <= 31 * 86400


async def test_huge_numbers_neither_overflow_nor_come_back_as_credit(limiter, clock):
    limits = Limits.of(tpm=1000, eur_per_month=1)
    first = await limiter.reserve(of(limits), Cost(tokens=1))
    await limiter.settle(first, Cost(tokens=2.0**31, money=1e12))
    for _ in range(3):
        clock.at += 3600
        assert await admitted(limiter, limits, Cost(tokens=1, money=0.1)) == []


@pytest.fixture(params=["redis", "postgresql"])
async def shared(request, clock):
    """A store that several processes share."""
    if request.param == "redis":
        store = RedisLimitStore(request.getfixturevalue("redis_url"), clock)
    else:
        store = PostgresLimitStore(request.getfixturevalue("postgresql"), clock)
    yield store
    await store.close()


async def test_a_call_that_was_forgotten_by_a_dead_process_is_free_again_after_its_lease(clock, shared):
    store = shared
    limits = of(Limits.of(concurrent=1, eur_per_month=1))
    dead = await Limiter(store).reserve(limits, Cost(money=1))
    limiter = Limiter(store)
    clock.at += LEASE_S - 1
    with pytest.raises(LimitExceeded):
        await limiter.reserve(limits, Cost(money=1))
    clock.at += 2
    again = await limiter.reserve(limits, Cost(money=0.5))
    await store.renew([dead])
    await store.settle(dead, Cost(money=0.4))  # it lived after all: what it used counts, its hold is not given twice
    await limiter.settle(again, NOTHING)
    with pytest.raises(LimitExceeded):
        await limiter.reserve(limits, Cost(money=0.7))
    assert await limiter.reserve(limits, Cost(money=0.6))


class Broken:
    """A store that fails as told, before or after it has made the step."""

    def __init__(self, inner):
        self.inner, self.fails = inner, None

    def __getattr__(self, step):
        async def run(*args):
            if self.fails == "before":
                raise LimitsUnavailable("gone")
            done = await getattr(self.inner, step)(*args)
            if self.fails == "after":
                raise LimitsUnavailable("gone")
            return done

        return run


@pytest.fixture
async def broken(limiter):
    return Broken(limiter._store)


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_what_could_not_be_settled_is_settled_once_when_the_store_is_back(broken, fails):
    limits = of(Limits.of(tpm=1000))
    limiter = Limiter(broken)
    call = await limiter.reserve(limits, Cost(tokens=600))
    broken.fails = fails
    await limiter.settle(call, Cost(tokens=300))
    assert limiter.owed == 1
    broken.fails = None
    async with limiter:
        while limiter.owed:
            await asyncio.sleep(0.01)
    other = await limiter.reserve(limits, Cost(tokens=100))
    assert other.used == [pytest.approx(400)]


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_a_store_that_fails_admits_nobody_and_what_it_took_in_vain_is_given_back(broken, fails):
    limits = of(Limits.of(concurrent=1, tpm=1000))
    limiter = Limiter(broken)
    broken.fails = fails
    for _ in range(3):
        with pytest.raises((LimitsUnavailable, LimitExceeded)):
            await limiter.reserve(limits, Cost(tokens=900))
    broken.fails = None
    async with limiter:
        pass
    assert (await limiter.reserve(limits, Cost(tokens=900))).used == [900, 1]


async def test_a_store_that_stays_away_neither_fills_the_memory_nor_keeps_the_gateway_from_stopping(
    broken, monkeypatch
):
    monkeypatch.setattr("gateway.limits.limiter.MAX_GIVEN_BACK", 10)
    limits = of(Limits.of(concurrent=1))
    async with Limiter(broken) as limiter:
        running = await limiter.reserve(limits, NOTHING)
        broken.fails = "before"
        for _ in range(50):
            with pytest.raises(LimitsUnavailable):
                await limiter.reserve(limits, NOTHING)
        assert limiter.owed == 10
        await limiter.settle(running, NOTHING)
        assert limiter.owed == 11, "what was used is always kept"


async def test_a_limit_that_is_set_lower_while_calls_run_holds_for_the_next(limiter):
    running = await limiter.reserve(of(Limits.of(concurrent=5)), NOTHING)
    with pytest.raises(LimitExceeded):
        await limiter.reserve(of(Limits.of(concurrent=1)), NOTHING)
    await limiter.settle(running, NOTHING)
    assert await limiter.reserve(of(Limits.of(concurrent=1)), NOTHING)


async def test_what_was_spent_before_a_restart_counts_in_memory_too(clock):
    limits = of(Limits.of(eur_per_month=10, eur_per_day=5))
    limiter = Limiter(MemoryLimitStore(clock, {"acme:month": 7.0, "acme:day": 1.0, "other:month": 10.0}))
    assert (await limiter.reserve(limits, Cost(money=3))).used == [4, 10]
    clock.at += 86400 * 20
    assert (await limiter.reserve(of(Limits.of(eur_per_month=1), "other"), Cost(money=1))).used == [1]


async def test_empty_buckets_are_forgotten(clock):
    store = MemoryLimitStore(clock)
    limiter = Limiter(store)
    for number in range(store.SWEEP_EVERY - 2):
        await limiter.reserve(of(Limits.of(rpm=1), f"key-{number}"), Cost())
    assert len(store) == store.SWEEP_EVERY - 2
    clock.at += 61
    held = await limiter.reserve(of(Limits.of(tpm=5), "held"), Cost(tokens=5))
    await limiter.reserve(of(Limits.of(rpm=1), "last"), Cost())
    assert len(store) == 2
    await limiter.settle(held, Cost(tokens=5))


@pytest.mark.parametrize("wrong", [-1, math.inf, math.nan])
def test_a_cost_that_is_no_number_is_refused(wrong):
    with pytest.raises(ValueError):
        Cost(tokens=wrong)
    with pytest.raises(ValueError):
        Cost(money=wrong)


@pytest.mark.parametrize("name", ["rpm", "tpm", "concurrent", "eur_per_day", "eur_per_month"])
@pytest.mark.parametrize("wrong", [-1, -0.5, math.nan, math.inf])
def test_a_limit_that_is_negative_or_no_number_is_refused(name, wrong):
    with pytest.raises(ValueError):
        Limits.of(**{name: wrong})


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
        limiter = Limiter(MemoryLimitStore(clock))
        limits = Limits({BY_NAME["tpm"]: Rate(rate, period=1, burst=burst)})
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
                reservation = await limiter.reserve(of(limits), Cost(tokens=reserve))
            except LimitExceeded:
                continue
            running.append((arrival + lasts, reservation, part * reserve))
            held = sum(r.cost.tokens for _, r, _ in running)
            for start in [begin, *(at for at, _ in consumed)]:
                used = sum(amount for at, amount in consumed if at >= start)
                assert used + held <= burst + rate * (clock.at - start) + 1e-6

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 20), max_size=60), st.integers(1, 10), st.floats(1, 60))
def test_requests_never_pass_faster_than_burst_and_rate(gaps, burst, rpm):
    async def run():
        clock = Clock()
        limiter = Limiter(MemoryLimitStore(clock))
        limits = Limits({BY_NAME["rpm"]: Rate(rpm, burst=burst)})
        passed = []
        for gap in gaps:
            clock.at += gap
            try:
                await limiter.settle(await limiter.reserve(of(limits), Cost()), Cost())
                passed.append(clock.at)
            except LimitExceeded:
                pass
        for first, start in enumerate(passed):
            for last in range(first, len(passed)):
                assert last - first + 1 <= burst + rpm / 60 * (passed[last] - start) + 1e-6

    asyncio.run(run())
