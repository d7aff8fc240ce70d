from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.errors import IsolationError
from regions.fleet import Fleet, Load
from regions.router import PREFIX_BYTES, SMALL_BATCH, affinity_key, choose
from tests.regions.test_fleet import Clock, backend

IDLE = Load(0, None, True)
FOUR = [backend(f"acme-{number}") for number in range(4)]


def loads(*in_flight):
    return {f"acme-{number}": Load(count, None, True) for number, count in enumerate(in_flight)}


loads_strategy = st.builds(Load, st.integers(0, 50), st.none() | st.floats(0, 10), st.booleans())
cases = st.integers(0, 12).flatmap(
    lambda n: st.tuples(
        st.just([backend(f"acme-{number}") for number in range(n)]),
        st.lists(loads_strategy, min_size=n, max_size=n),
        st.sets(st.integers(0, 12)),
        st.none() | st.binary(min_size=16, max_size=16),
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
    states = {b.id: Load(1, latency, True) for b, latency in zip(FOUR, (0.4, 0.1, 0.3, 0.2), strict=True)}
    assert [b.id for b in choose("acme", FOUR, states)] == ["acme-1", "acme-3", "acme-2", "acme-0"]


def test_one_prefix_goes_to_one_backend_while_there_is_room():
    key = affinity_key(b"You are a helpful assistant.")
    first = {choose("acme", FOUR, loads(*counts), key)[0].id for counts in [(0, 0, 0, 0), (3, 0, 0, 0), (0, 3, 1, 3)]}
    assert len(first) == 1


def test_prefixes_spread_evenly():
    firsts = Counter(choose("acme", FOUR, loads(0, 0, 0, 0), affinity_key(str(n).encode()))[0].id for n in range(2000))
    assert all(400 < firsts[b.id] < 600 for b in FOUR)


def test_a_favourite_that_is_clearly_busier_is_passed_over():
    key = affinity_key(b"prefix")
    favourite = choose("acme", FOUR, loads(0, 0, 0, 0), key)[0]
    busy = {b.id: Load(SMALL_BATCH if b is favourite else 0, None, True) for b in FOUR}
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


@given(st.lists(st.integers(0, 100), min_size=4, max_size=4), st.binary(min_size=16, max_size=16))
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
