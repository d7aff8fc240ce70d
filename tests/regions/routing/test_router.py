import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.errors import IsolationError
from regions.fleet.fleet import BUSY_RANK, KEY_BITS, EngineReport, Fleet, Load, short_hash
from regions.routing import router
from regions.routing.router import PREFIX_BYTES, SMALL_BATCH, Candidates, affinity_key
from tests.regions.fleet.test_fleet import Clock, backend

IDLE = Load(0, None, True)
KEYS = [short_hash(f"acme-{number}".encode()) >> (64 - KEY_BITS) for number in range(4)]
FOUR = [backend(f"acme-{number}") for number in range(4)]


def choose(tenant, allowed, *more):
    return router.choose(Candidates(tenant, allowed), *more)


def loads(*in_flight):
    return {f"acme-{number}": Load(count, None, True, count, KEYS[number]) for number, count in enumerate(in_flight)}


loads_strategy = st.builds(
    lambda count, latency, up: Load(count, latency, up, count + (latency or 0.0) * 0.049),
    st.integers(0, 50),
    st.none() | st.floats(0, 10),
    st.booleans(),
)
cases = st.integers(0, 12).flatmap(
    lambda n: st.tuples(
        st.just([backend(f"acme-{number}") for number in range(n)]),
        st.lists(loads_strategy, min_size=n, max_size=n),
        st.sets(st.integers(0, 12)),
        st.none() | st.integers(0, 2**61 - 2),
    )
)


@given(cases)
def test_every_available_allowed_backend_comes_once_and_no_other_ever(case):
    backends, states, decided, affinity = case
    allowed = [b for number, b in enumerate(backends) if number in decided]
    by_id = {b.id: load for b, load in zip(backends, states, strict=True)}
    chosen = choose("acme", allowed, by_id, affinity)
    assert sorted(b.id for b in chosen) == sorted(b.id for b in allowed if by_id[b.id].available)
    assert chosen == choose("acme", allowed, by_id, affinity)


@given(cases, st.integers(0, 11))
def test_another_tenants_backend_is_an_error_and_never_a_choice(case, at):
    backends, _, _, affinity = case
    mixed = [*backends[:at], backend("globex-1", "globex"), *backends[at:]]
    by_id = {b.id: IDLE for b in mixed}
    with pytest.raises(IsolationError):
        choose("acme", mixed, by_id, affinity)


def test_nothing_allowed_is_nothing_chosen():
    assert choose("acme", [], {}) == []


def test_one_of_which_nothing_is_known_is_not_chosen():
    assert choose("acme", FOUR, {"acme-1": IDLE}) == [FOUR[1]]


def test_without_affinity_the_least_loaded_comes_first():
    assert [b.id for b in choose("acme", FOUR, loads(3, 0, 2, 1))] == ["acme-1", "acme-3", "acme-2", "acme-0"]


def test_of_equally_loaded_the_faster_comes_first():
    states = {
        b.id: Load(1, latency, True, 1 + latency * 0.049) for b, latency in zip(FOUR, (0.4, 0.1, 0.3, 0.2), strict=True)
    }
    assert [b.id for b in choose("acme", FOUR, states)] == ["acme-1", "acme-3", "acme-2", "acme-0"]


def test_one_prefix_goes_to_one_backend_while_there_is_room():
    key = affinity_key(b"You are a helpful assistant.")
    first = {choose("acme", FOUR, loads(*counts), key)[0].id for counts in [(0, 0, 0, 0), (3, 0, 0, 0), (0, 3, 1, 3)]}
    assert len(first) == 1


def test_prefixes_spread_evenly_over_many_as_well():
    allowed = [backend(f"acme-{number}") for number in range(200)]
    idle = Fleet(allowed).live()
    firsts = Counter(choose("acme", allowed, idle, affinity_key(str(n).encode()), (), 1)[0].id for n in range(8000))
    assert len(firsts) == 200 and max(firsts.values()) < 100  # of 40 each


def test_prefixes_spread_evenly():
    firsts = Counter(choose("acme", FOUR, loads(0, 0, 0, 0), affinity_key(str(n).encode()))[0].id for n in range(2000))
    assert all(400 < firsts[b.id] < 600 for b in FOUR)


def test_a_favourite_that_is_clearly_busier_is_passed_over():
    key = affinity_key(b"prefix")
    favourite = choose("acme", FOUR, loads(0, 0, 0, 0), key)[0]
    busy = {
        b.id: Load(0, None, True, SMALL_BATCH if b is favourite else 0, short_hash(b.id.encode()) >> 34) for b in FOUR
    }
    order = choose("acme", FOUR, busy, key)
    assert order[0] is not favourite
    assert order[-1] is favourite


def test_when_all_are_busy_alike_the_favourite_keeps_its_prefix():
    key = affinity_key(b"prefix")
    favourite = choose("acme", FOUR, loads(0, 0, 0, 0), key)[0]
    assert choose("acme", FOUR, loads(40, 40, 40, 40), key)[0] is favourite


def test_when_one_goes_only_its_prefixes_move():
    keys = [affinity_key(str(n).encode()) for n in range(500)]
    before = {key: choose("acme", FOUR, loads(0, 0, 0, 0), key)[0] for key in keys}
    after = {key: choose("acme", FOUR[:3], loads(0, 0, 0), key)[0] for key in keys}
    assert all(after[key] == first for key, first in before.items() if first != FOUR[3])


def test_a_conversation_that_grows_keeps_its_key():
    start = b"system prompt " * 30
    assert len(start) > PREFIX_BYTES
    assert affinity_key(start) == affinity_key(start + b"next turn")
    assert affinity_key(b"a" + start) != affinity_key(start)


@given(st.lists(st.integers(0, 100), min_size=4, max_size=4), st.integers(0, 2**61 - 2))
def test_no_backend_gets_far_ahead_of_the_mean(counts, key):
    chosen = choose("acme", FOUR, loads(*counts), key)[0]
    after = counts[int(chosen.id[-1])] + 1
    assert after <= max(SMALL_BATCH, 1.25 * (sum(counts) + 1) / 4 + 1)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(["acme", "globex"]), st.sets(st.integers(0, 5)), st.integers(0, 3)),
        st.tuples(st.just("replace"), st.sets(st.integers(0, 5))),
        st.tuples(st.just("ready"), st.integers(0, 5), st.booleans()),
        st.tuples(st.just("wait"), st.floats(0, 10)),
    ),
    max_size=30,
)


@given(steps)
def test_whatever_fails_and_moves_no_call_is_made_outside_tenant_and_decision(steps):
    """Each ask is tried on one backend after the other, the first `failures` of which fail, while the fleet changes."""
    clock = Clock()
    everyone = [backend(f"b-{n}", ("acme", "globex")[n % 2], port=n + 1) for n in range(6)]
    fleet = Fleet(everyone, now=clock)
    for step in steps:
        match step:
            case "ask", tenant, decided, failures:
                allowed = [b for b in fleet.candidates(tenant, "m") if int(b.id[2:]) in decided]
                received = []
                for chosen in choose(tenant, allowed, fleet.loads(allowed), affinity_key(tenant.encode())):
                    with fleet.call(chosen, tenant=tenant) as call:
                        received.append(chosen)
                        if len(received) > failures:
                            call.answered()
                            break
                        call.failed()
                assert all(b.tenant == tenant and b in allowed and b in fleet for b in received)
                assert len({b.id for b in received}) == len(received) <= len(decided)
            case "replace", living:
                fleet.replace(b for b in everyone if int(b.id[2:]) in living)
            case "ready", number, ready:
                fleet.mark_ready(everyone[number], ready)
            case "wait", seconds:
                clock.at += seconds
    assert all(load.in_flight == 0 for load in fleet.loads(everyone).values())


def test_whoever_holds_most_of_the_prompt_comes_first_and_the_least_loaded_of_them():
    holders = [{"acme-2"}, {"acme-2", "acme-0", "acme-3"}]
    assert choose("acme", FOUR, loads(0, 0, 3, 0), 1, holders)[0].id == "acme-2"
    assert choose("acme", FOUR, loads(2, 0, SMALL_BATCH, 1), 1, holders)[0].id == "acme-3"


def test_a_holder_that_is_not_allowed_or_not_there_is_never_chosen():
    assert {b.id for b in choose("acme", FOUR[:2], loads(0, 0, 0, 0), 1, [{"acme-2", "gone"}])} == {"acme-0", "acme-1"}


def test_a_load_is_read_where_its_fields_stand():
    load = Load(7, 0.5, True, 7.25, 99)
    assert (load[router._AVAILABLE], load[router._RANK], load[router._KEY]) == (load.available, load.rank, load.key)


def priced(*costs):
    return [one.model_copy(update={"cost": cost}) for one, cost in zip(FOUR, costs, strict=True)]


def test_of_backends_that_fare_alike_the_cheaper_comes_first_and_what_has_no_price_is_paid_for():
    order = choose("acme", priced(300_000, 200_000, None, 400_000), loads(0, 0, 0, 0))
    assert [b.id for b in order] == ["acme-2", "acme-1", "acme-0", "acme-3"]


def test_load_and_then_latency_come_before_cost():
    fleet = Fleet(priced(1, 2, 3, 4))
    zero, one, two, three = sorted(fleet, key=lambda b: b.id)
    fleet.mark_report(zero, EngineReport(1, 0, 0.0))
    fleet.mark_report(one, EngineReport(0, 0, 0.5))
    clock_says(fleet, two, 0.4)
    clock_says(fleet, three, 0.015)
    assert choose("acme", list(fleet), fleet.live()) == [three, two, one, zero]


def test_two_latencies_of_one_doubling_are_alike_and_the_price_decides():
    fleet = Fleet(priced(4, 3, 2, 1))
    for one, seconds in zip(fleet, (0.021, 0.025, 0.03, 0.039), strict=True):
        clock_says(fleet, one, seconds)
    assert [b.cost for b in choose("acme", list(fleet), fleet.live())] == [1, 2, 3, 4]


def test_a_prompt_that_nobody_holds_goes_to_the_cheapest_until_they_are_too_far_ahead():
    allowed = priced(5, 5, 9, 9)
    keys = [affinity_key(str(n).encode()) for n in range(300)]
    idle = Counter(choose("acme", allowed, loads(0, 0, 0, 0), key)[0].id for key in keys)
    assert set(idle) == {"acme-0", "acme-1"} and min(idle.values()) > 100
    busy = Counter(choose("acme", allowed, loads(SMALL_BATCH, SMALL_BATCH, 0, 0), key)[0].id for key in keys)
    assert set(busy) == {"acme-2", "acme-3"}


def test_a_cache_that_holds_the_prompt_is_worth_more_than_a_price():
    assert choose("acme", priced(1, 1, 1, 9), loads(0, 0, 0, 0), 1, [{"acme-3"}])[0].id == "acme-3"


def test_what_is_not_bound_to_a_cache_goes_to_none_that_holds_too_much():
    keys = [affinity_key(str(n).encode()) for n in range(200)]
    contents = {"acme-0": 100, "acme-1": 100, "acme-2": 20}
    firsts = {choose("acme", FOUR, loads(0, 0, 0, 0), key, (), 1, contents)[0].id for key in keys}
    assert firsts == {"acme-2", "acme-3"}
    kept = choose("acme", FOUR, loads(0, 0, 0, 0), 1, [{"acme-0", "acme-2"}], 1, contents)
    assert kept[0].id == "acme-2"
    elsewhere = choose("acme", FOUR, loads(0, 0, 0, 0), 1, [{"acme-0", "acme-1"}], 1, contents)
    assert elsewhere[0].id in firsts
    full = choose("acme", FOUR, loads(0, 0, SMALL_BATCH, SMALL_BATCH), 1, (), 1, contents)
    assert full[0].id in {"acme-0", "acme-1"}  # rather than one that is too busy


def clock_says(fleet, one, seconds):
    state = fleet._states[one.id]
    state.latency_s = seconds
    fleet._changed(one.id, state)


def test_no_more_are_named_than_asked_for():
    for limit in range(6):
        assert len(choose("acme", FOUR, loads(0, 1, 2, 3), 1, (), limit)) == min(limit, 4)


def test_what_engines_report_of_their_queue_and_cache_counts_beside_our_own_calls():
    fleet = Fleet([backend(f"acme-{n}", port=n + 1) for n in range(3)])
    ones = sorted(fleet, key=lambda b: b.id)
    fleet.mark_report(ones[0], EngineReport(5, 2, 0.1))
    fleet.mark_report(ones[1], EngineReport(0, 0, 0.9))
    fleet.mark_report(ones[2], EngineReport(0, 0, 0.2))
    assert [b.id for b in choose("acme", ones, fleet.live())] == ["acme-2", "acme-1", "acme-0"]
    with fleet.call(ones[2], tenant="acme"):
        assert choose("acme", ones, fleet.live())[0] is ones[1]
        fleet.mark_report(ones[2], EngineReport(1, 0, 0.2))  # our own call, seen by the engine: it counts once
        assert fleet.live()["acme-2"].rank < 2
    assert choose("acme", ones, fleet.live())[0] is ones[2]


def test_one_whose_cool_down_is_over_is_seen_without_any_call():
    clock = Clock()
    fleet = Fleet([backend("acme-1")], now=clock)
    (one,) = fleet
    for _ in range(3):
        with fleet.call(one, tenant="acme") as call:
            call.failed()
    assert choose("acme", [one], fleet.live()) == []
    clock.at += 60
    assert choose("acme", [one], fleet.live()) == [one]


@pytest.mark.parametrize("systems", [1, 2, 8, 24])
def test_however_many_share_a_system_prompt_the_caches_of_four_hold_what_that_of_one_would(systems):
    """With caches that are just large enough, so that conversations on one heap would push each other out."""
    from bench.fleet import router as bench

    draw = random.Random(systems)
    prompts = [draw.randbytes(draw.randint(1000, 3000)) for _ in range(systems)]
    under_way = [draw.choice(prompts) for _ in range(24)]
    traffic = []
    for _ in range(600):
        at = draw.randrange(len(under_way))
        if len(under_way[at]) > 8000 or draw.random() < 0.03:
            under_way[at] = draw.choice(prompts)
        under_way[at] += draw.randbytes(draw.randint(200, 1000))
        traffic.append(under_way[at])
    found = bench.kept(traffic=traffic, blocks=200)
    assert found["kept"] >= 0.9, found


def test_routing_keeps_the_prefix_hits_of_one_large_engine():
    from bench.fleet.router import kept

    found = kept()
    assert found["kept"] >= 0.9 > found["at_random"] / found["single"]


def test_one_that_is_over_its_rate_is_last_and_affinity_does_not_choose_it():
    for key in range(40):
        favourite = choose("acme", FOUR, {b.id: IDLE._replace(key=KEYS[n]) for n, b in enumerate(FOUR)}, key)[0]
        loads = {
            b.id: IDLE._replace(key=KEYS[n], rank=BUSY_RANK if b is favourite else 3.0 * n) for n, b in enumerate(FOUR)
        }
        ordered = choose("acme", FOUR, loads, key, [{favourite.id}])
        assert ordered[-1] is favourite
        assert len(ordered) == 4


def test_where_all_are_over_their_rate_one_is_asked_nevertheless():
    loads = {b.id: IDLE._replace(key=KEYS[n], rank=BUSY_RANK + n) for n, b in enumerate(FOUR)}
    assert len(choose("acme", FOUR, loads, 7)) == 4


# --- all are left alone after failures -------------------------------------------------------------------------------


def out(number, tried_at):
    return IDLE._replace(key=KEYS[number], available=False, tried_at=tried_at)


def test_where_all_are_out_the_one_least_recently_tried_comes_first():
    states = {f"acme-{number}": out(number, tried_at) for number, tried_at in enumerate([4.0, 2.0, 3.0, 1.0])}
    candidates = Candidates("acme", FOUR)
    assert router.choose(candidates, states) == []
    assert [b.id for b in router.trials(candidates, states)] == ["acme-3", "acme-1", "acme-2", "acme-0"]
    assert [b.id for b in router.trials(candidates, states, 1)] == ["acme-3"]


def test_while_one_is_available_none_that_is_out_is_tried():
    states = {f"acme-{number}": out(number, 1.0) for number in range(3)} | {"acme-3": IDLE}
    assert router.trials(Candidates("acme", FOUR), states) == []


def test_one_that_says_it_is_not_ready_or_has_left_or_has_trials_enough_is_not_tried():
    states = {"acme-0": IDLE._replace(available=False), "acme-1": out(1, 5.0)}
    assert [b.id for b in router.trials(Candidates("acme", FOUR), states)] == ["acme-1"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["fail", "answer", "leave", "ready", "unready"]),
            st.integers(0, 2),
            st.sampled_from([0.0, 0.5, 2.0, 60.0]),
        ),
        max_size=40,
    )
)
def test_a_tenant_with_a_ready_backend_always_has_one_to_call_when_no_trial_runs(steps):
    """Whatever happened before: with nothing in flight, a backend that is ready is available or may be tried."""
    clock = Clock()
    fleet = Fleet([backend(f"acme-{n}", port=n + 1) for n in range(3)], now=clock)
    ones, ready = sorted(fleet, key=lambda b: b.id), {0, 1, 2}
    candidates = Candidates("acme", ones)
    for what, number, later in steps:
        clock.at += later
        one = ones[number]
        if what in ("ready", "unready"):
            fleet.mark_ready(one, what == "ready")
            (ready.add if what == "ready" else ready.discard)(number)
        else:
            with fleet.call(one, tenant="acme") as call:
                if what == "answer":
                    call.answered()
                    call.completed()
                elif what == "fail":
                    call.failed()
        callable_now = router.choose(candidates, fleet.live()) or router.trials(candidates, fleet.live())
        assert bool(callable_now) == bool(ready)
        assert {ones.index(b) for b in callable_now} <= ready
