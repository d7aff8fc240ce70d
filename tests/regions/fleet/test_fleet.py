import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from regions.errors import IsolationError
from regions.fleet.fleet import (
    BUSY_RANK,
    BUSY_S,
    COOL_DOWN_S,
    FAILURES,
    LONGEST_BUSY_S,
    LONGEST_COOL_DOWN_S,
    TRIALS,
    Backend,
    Fleet,
)
from regions.identity.identity import BackendIdentity


def backend(name="acme-1", tenant="acme", region="eu-fr-par", models=("m",), port=1):
    uri = BackendIdentity("demo", tenant, region, name).uri
    return Backend(id=name, tenant=tenant, region=region, url=f"https://127.0.0.1:{port}", uri=uri, models=models)


class Clock:
    at = 100.0

    def __call__(self):
        return self.at


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def one():
    return backend()


@pytest.fixture
def fleet(one, clock):
    return Fleet([one], now=clock)


def available(fleet, one):
    return fleet.loads([one])[one.id].available


def fail(fleet, one, times=1):
    for _ in range(times):
        with fleet.call(one, tenant=one.tenant) as call:
            call.failed()


@pytest.mark.parametrize("wrong", [{"id": "acme-2"}, {"tenant": "globex"}, {"region": "us-east"}, {"uri": "https://x"}])
def test_a_backend_is_who_its_uri_says_or_nobody(one, wrong):
    with pytest.raises(ValidationError):
        Backend.model_validate(one.model_dump() | wrong)


def test_the_gateways_own_identity_is_no_backends(one):
    with pytest.raises(ValidationError):
        Backend.model_validate(one.model_dump() | {"uri": "spiffe://domicile.demo/tenant/acme/gateway"})


tenants = st.sampled_from(["acme", "globex", "initech"])
fleets = st.lists(st.tuples(tenants, st.sets(st.sampled_from("mno"), min_size=1)), max_size=12).map(
    lambda rows: [backend(f"b-{number}", tenant, models=tuple(models)) for number, (tenant, models) in enumerate(rows)]
)


@given(fleets, tenants, st.sampled_from("mnop"))
def test_candidates_are_all_and_only_the_tenants_own_that_serve_the_model(backends, tenant, model):
    found = Fleet(backends).candidates(tenant, model)
    assert list(found) == [b for b in backends if b.tenant == tenant and model in b.models]


def test_a_tenant_can_ask_for_what_its_own_backends_serve():
    fleet = Fleet(
        [backend("a-1", models=("z", "m")), backend("a-2", models=("m",)), backend("g-1", "globex", models=("x",))]
    )
    assert fleet.models("acme") == ("m", "z")
    assert fleet.models("nobody") == ()


def test_candidates_do_not_hang_on_who_is_up(fleet, one):
    fleet.mark_ready(one, False)
    assert fleet.candidates("acme", "m") == (one,)
    assert not available(fleet, one)


def test_calls_are_counted_while_they_run(fleet, one):
    with fleet.call(one, tenant="acme"), fleet.call(one, tenant="acme"):
        assert fleet.loads([one])["acme-1"].in_flight == 2
    assert fleet.loads([one])["acme-1"].in_flight == 0


def test_a_call_that_raises_is_counted_down(fleet, one):
    with pytest.raises(RuntimeError), fleet.call(one, tenant="acme"):
        raise RuntimeError
    assert fleet.loads([one])["acme-1"].in_flight == 0


def test_latency_is_to_the_first_byte_of_the_last_good_answer(fleet, one, clock):
    assert fleet.loads([one])["acme-1"].latency_s is None
    with fleet.call(one, tenant="acme") as call:
        clock.at += 0.25
        call.answered()
        clock.at += 60
    assert fleet.loads([one])["acme-1"].latency_s == 0.25


@pytest.mark.parametrize("tenant", ["globex", "", "acme-1"])
def test_no_call_is_made_for_another_tenant(fleet, one, tenant):
    with pytest.raises(IsolationError), fleet.call(one, tenant=tenant):
        pytest.fail("the call began")


def test_no_call_is_made_to_one_that_left_or_moved_since_it_was_chosen(fleet, one):
    moved = backend(port=2)
    fleet.replace([moved])
    with pytest.raises(IsolationError), fleet.call(one, tenant="acme"):
        pytest.fail("the call began")
    assert not available(fleet, one)
    assert available(fleet, moved)
    fleet.replace([])
    with pytest.raises(IsolationError), fleet.call(moved, tenant="acme"):
        pytest.fail("the call began")
    assert not fleet.loads([moved])["acme-1"].available


def test_one_that_keeps_failing_is_left_alone_for_a_while(fleet, one, clock):
    fail(fleet, one, FAILURES - 1)
    assert available(fleet, one)
    fail(fleet, one)
    assert not available(fleet, one)
    clock.at += COOL_DOWN_S
    assert available(fleet, one)


def test_a_good_answer_in_between_forgives_the_failures(fleet, one):
    fail(fleet, one, FAILURES - 1)
    with fleet.call(one, tenant="acme") as call:
        call.answered()
        call.completed()
    fail(fleet, one, FAILURES - 1)
    assert available(fleet, one)


def test_answers_that_begin_well_and_break_off_are_failures_in_a_row(fleet, one):
    for _ in range(FAILURES):
        assert available(fleet, one)
        with fleet.call(one, tenant="acme") as call:
            call.answered()
            call.failed()
    assert not available(fleet, one)


def test_one_on_probation_that_breaks_off_is_left_alone_for_twice_as_long(fleet, one, clock):
    fail(fleet, one, FAILURES)
    clock.at += COOL_DOWN_S
    with fleet.call(one, tenant="acme") as call:
        call.answered()
        call.failed()
    clock.at += COOL_DOWN_S
    assert not available(fleet, one)
    clock.at += COOL_DOWN_S
    assert available(fleet, one)


@pytest.mark.parametrize(("told", "for_s"), [(None, BUSY_S), (0.1, BUSY_S), (7, 7), (1e9, LONGEST_BUSY_S)])
def test_one_over_its_rate_is_available_and_comes_after_all_others_for_as_long_as_it_said(
    fleet, one, clock, told, for_s
):
    with fleet.call(one, tenant="acme") as call:
        call.busy(told)
    assert fleet.live()["acme-1"].available
    assert fleet.live()["acme-1"].rank >= BUSY_RANK
    clock.at += for_s - 0.01
    assert fleet.live()["acme-1"].rank >= BUSY_RANK
    clock.at += 0.02
    assert fleet.live()["acme-1"].rank < BUSY_RANK


def test_after_the_cool_down_one_call_at_a_time_may_try(fleet, one, clock):
    fail(fleet, one, FAILURES)
    clock.at += COOL_DOWN_S
    with fleet.call(one, tenant="acme"):
        assert not available(fleet, one)
    assert available(fleet, one)  # its client left, so nothing is known; the next may try
    with fleet.call(one, tenant="acme") as call:
        call.answered()
        assert available(fleet, one)


def test_a_long_call_from_before_does_not_keep_others_from_trying(fleet, one, clock):
    with fleet.call(one, tenant="acme"):
        fail(fleet, one, FAILURES)
        clock.at += COOL_DOWN_S
        assert available(fleet, one)


def test_each_failed_try_doubles_the_cool_down_up_to_a_bound(fleet, one, clock):
    fail(fleet, one, FAILURES)
    waits = [COOL_DOWN_S]
    for _ in range(8):
        clock.at += waits[-1]
        assert available(fleet, one)
        fail(fleet, one)
        waits.append(min(waits[-1] * 2, LONGEST_COOL_DOWN_S))
        clock.at += waits[-1] - 0.01
        assert not available(fleet, one)
        clock.at += 0.01 - waits[-1]
    assert waits[-1] == LONGEST_COOL_DOWN_S


def test_calls_that_fail_together_open_the_circuit_once(fleet, one, clock):
    calls = [fleet.call(one, tenant="acme") for _ in range(10)]
    running = [call.__enter__() for call in calls]
    for call in running:
        call.failed()
    for call in calls:
        call.__exit__(None, None, None)
    clock.at += COOL_DOWN_S
    assert available(fleet, one)


def test_one_that_a_probe_finds_back_starts_afresh(fleet, one):
    fail(fleet, one, FAILURES)
    fleet.mark_ready(one, True)
    assert not available(fleet, one)  # it never was away: a probe that passes does not prove that calls do
    fleet.mark_ready(one, False)
    fleet.mark_ready(one, True)
    assert available(fleet, one)


def test_who_stays_as_it_was_keeps_its_state_and_who_moved_does_not(one, clock):
    other = backend("acme-2")
    fleet = Fleet([one, other], now=clock)
    fail(fleet, one, FAILURES)
    fleet.mark_ready(other, False)
    fleet.replace([one, backend("acme-2", port=2)])
    assert not available(fleet, one)
    assert available(fleet, backend("acme-2", port=2))


def test_a_probe_of_one_that_left_changes_nothing(fleet, one):
    moved = backend(port=2)
    fleet.replace([moved])
    fleet.mark_ready(one, False)
    assert available(fleet, moved)


def test_a_call_that_outlives_its_backend_ends_quietly(fleet, one):
    with fleet.call(one, tenant="acme") as call:
        fleet.replace([])
        call.failed()
    assert len(fleet) == 0


# --- trials before the cool-down is over -----------------------------------------------------------------------------


def tried_at(fleet, one):
    return fleet.loads([one])[one.id].tried_at


def test_one_that_is_out_has_room_for_a_few_trials_and_no_more(fleet, one):
    assert tried_at(fleet, one) is None
    fail(fleet, one, FAILURES)
    calls = []
    while tried_at(fleet, one) is not None:
        calls.append(fleet.call(one, tenant="acme"))
        calls[-1].__enter__()
    assert len(calls) == TRIALS
    calls.pop().__exit__(None, None, None)
    assert tried_at(fleet, one) is not None


def test_a_trial_that_fails_before_its_time_makes_the_cool_down_no_longer(fleet, one, clock):
    fail(fleet, one, FAILURES)
    for _ in range(8):
        clock.at += COOL_DOWN_S / 16
        fail(fleet, one)
        assert not available(fleet, one)
        assert tried_at(fleet, one) == clock.at
    clock.at += COOL_DOWN_S / 2
    assert available(fleet, one)


def test_a_trial_before_its_time_that_is_answered_lets_the_backend_back_in(fleet, one):
    fail(fleet, one, FAILURES)
    with fleet.call(one, tenant="acme") as call:
        call.answered()
        call.completed()
    assert available(fleet, one)
    fail(fleet, one, FAILURES - 1)
    assert available(fleet, one)


def test_a_trial_before_its_time_that_begins_well_and_breaks_off_puts_it_out_for_longer(fleet, one, clock):
    fail(fleet, one, FAILURES)
    with fleet.call(one, tenant="acme") as call:
        call.answered()
        call.failed()
    clock.at += COOL_DOWN_S
    assert not available(fleet, one)
    clock.at += COOL_DOWN_S
    assert available(fleet, one)


def test_one_that_is_not_ready_is_not_tried(fleet, one):
    fail(fleet, one, FAILURES)
    fleet.mark_ready(one, False)
    assert tried_at(fleet, one) is None
