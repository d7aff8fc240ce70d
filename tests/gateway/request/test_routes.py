"""Which backends may be called, and the last look before one is."""

import contextlib
from pathlib import Path

import pytest

from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Requests
from gateway.errors import BackendRefused, BackendUnavailable, InternalError
from gateway.openai.asgi_client import BatchLine
from gateway.request.routes import Routes
from gateway.upstream.credentials import TenantCredentials
from regions.fleet.fleet import FAILURES, TRIALS
from tests.fakes.lab import OPEN_POLICY
from tests.gateway.parts import World, parsed, principal, record

HOME = ("acme/eu-fr-par/acme-1", "acme/eu-de-fra/acme-2", "acme/eu-fr-par/acme-3", "acme/eu-fr-par/acme-4")
PLACES = (*HOME, "acme/us-east/acme-us", "globex/eu-fr-par/globex-1")


def routes(world, max_attempts=3):
    nowhere = Path("/nonexistent")
    return Routes(
        world.fleet,
        world.registry,
        TenantCredentials(nowhere, "eu-1", nowhere, None),
        Bounds(Requests(max_attempts=max_attempts)),
    )


@pytest.fixture
def world():
    return World(*PLACES)


def decided(world, asked=None):
    decided = world.decided(asked or parsed())
    return decided.request, decided.decision


def names(found):
    return [route.backend.id for route in found]


def test_only_backends_of_the_decision_are_chosen_and_no_more_than_may_be_tried(world):
    found = routes(world, 3).choose(*decided(world))
    assert len(found) == 3
    assert set(names(found)) < {"acme-1", "acme-2", "acme-3", "acme-4"}
    assert len(routes(world, 10).choose(*decided(world))) == 4


def test_a_route_says_where_it_leads_and_on_what_basis(world):
    found = routes(world, 10).choose(*decided(world))
    route = next(route for route in found if route.backend.id == "acme-2")
    assert (route.facts.compute_country, route.transfer_basis) == ("DE", "intra_eea")


def test_calls_that_begin_alike_go_to_the_same_backend_and_others_elsewhere(world):
    def first(text):
        body = {"model": "small", "messages": [{"role": "system", "content": text}, {"role": "user", "content": "?"}]}
        return names(routes(world).choose(*decided(world, parsed(body))))[0]

    assert len({first("You are a helpful clerk.") for _ in range(5)}) == 1
    assert len({first(f"You are clerk number {number}.") for number in range(40)}) == 4


def test_conversations_under_one_system_prompt_begin_where_there_is_room_and_stay_where_they_began(world):
    way, system = routes(world), "You are a helpful clerk. " * 40

    def ask(number, turns):
        said = "".join(f"turn {turn} of conversation {number}: {str(number * 7919) * 120}" for turn in range(turns))
        body = {
            "model": "small",
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": said}],
        }
        asked, decision = decided(world, parsed(body))
        route = way.choose(asked, decision)[0]
        with way.in_flight(asked, decision, route) as attempt:
            attempt.answered()
        return route.backend.id

    began = {number: ask(number, 1) for number in range(1, 25)}
    assert len(set(began.values())) >= 3
    assert max(list(began.values()).count(name) for name in began.values()) <= 12
    for turns in (2, 3):
        assert {number: ask(number, turns) for number in began} == began


def test_prices_of_backends_reach_the_choice(world):
    records = [record(place).model_copy(update={"cost": cost}) for place, cost in zip(HOME, (9, 9, 1, 9), strict=True)]
    world.registry.replace(records)
    firsts = {
        names(
            routes(world).choose(
                *decided(
                    world, parsed({"model": "small", "messages": [{"role": "user", "content": f"question {number}"}]})
                )
            )
        )[0]
        for number in range(20)
    }
    assert firsts == {"acme-3"}


def test_one_that_is_down_is_not_asked_and_when_all_are_there_is_none(world):
    asked, decision = decided(world)
    for number, place in enumerate(HOME, 1):
        world.fleet.mark_ready(world.backend(place.split("/")[2]), False)
        if number < len(HOME):
            assert place.split("/")[2] not in names(routes(world, 10).choose(asked, decision))
    assert routes(world).choose(asked, decision) == routes(world).trials(asked, decision) == []


def test_trials_are_of_the_decisions_backends_without_those_tried_and_within_the_attempts(world):
    asked, decision = decided(world)
    ids = [place.split("/")[2] for place in HOME]
    for backend in list(world.fleet):  # also those of other tenants and outside the policy
        for _ in range(3):
            with world.fleet.call(backend, tenant=backend.tenant) as call:
                call.failed()
    found = names(routes(world, 10).trials(asked, decision))
    assert sorted(found) == sorted(decision.backends)
    assert set(found) <= set(ids)
    assert names(routes(world, 10).trials(asked, decision, tried=found[:1])) == found[1:]
    assert len(routes(world, 2).trials(asked, decision, tried=found[:1])) == 1
    assert routes(world, 2).trials(asked, decision, tried=found[:2]) == []


def test_one_whose_calls_keep_failing_is_left_alone(world):
    asked, decision = decided(world)
    chosen = routes(world, 10)
    route = chosen.choose(asked, decision)[0]
    for _ in range(FAILURES):
        with chosen.in_flight(asked, decision, route) as attempt:
            attempt.failed()
    assert route.backend.id not in names(chosen.choose(asked, decision))


RATE_LIMIT = BackendRefused(429, {"message": "too many"})
BROKEN = BackendUnavailable("it broke off; try again")


def test_what_was_up_when_it_was_chosen_may_help_after_any_failure_and_what_went_since_may_not(world):
    chosen, route = routes(world), world.route("acme-2")
    assert all(chosen.may_help(failure, route) for failure in (None, BROKEN, RATE_LIMIT))
    world.fleet.mark_ready(route.backend, False)
    assert not any(chosen.may_help(failure, route) for failure in (None, BROKEN, RATE_LIMIT))
    world.fleet.mark_ready(route.backend, True)
    world.register(*(place for place in HOME if not place.endswith("acme-2")))
    assert not any(chosen.may_help(failure, route) for failure in (None, BROKEN, RATE_LIMIT))


def test_one_in_back_off_may_help_while_it_has_room_for_a_trial(world):
    chosen, route = routes(world), world.route("acme-2")
    for _ in range(FAILURES):
        with world.fleet.call(route.backend, tenant="acme") as call:
            call.failed()
    assert chosen.may_help(None, route)
    with contextlib.ExitStack() as trials:
        for _ in range(TRIALS):
            trials.enter_context(world.fleet.call(route.backend, tenant="acme"))
        assert not chosen.may_help(None, route)


def test_after_a_rate_limit_a_backend_that_is_busy_too_is_not_asked_and_after_other_failures_it_is(world):
    chosen, route = routes(world), world.route("acme-2")
    with world.fleet.call(route.backend, tenant="acme") as call:
        call.busy(30)
    assert not chosen.may_help(RATE_LIMIT, route)
    assert chosen.may_help(BROKEN, route) and chosen.may_help(None, route)
    assert chosen.may_help(RATE_LIMIT, world.route("acme-3"))


def test_calls_in_flight_are_counted_while_they_run(world):
    asked, decision = decided(world)
    route = world.route()
    with routes(world).in_flight(asked, decision, route):
        assert world.fleet.loads([route.backend])["acme-1"].in_flight == 1
    assert world.fleet.loads([route.backend])["acme-1"].in_flight == 0


@pytest.mark.parametrize("fails", ["_remember", "_tracker"])
def test_a_call_that_fails_while_it_is_entered_is_counted_nowhere(world, monkeypatch, fails):
    def broken(*_):
        raise MemoryError

    asked, decision = decided(world)
    route, chosen = world.route(), routes(world)
    if fails == "_remember":
        monkeypatch.setattr(chosen, "_remember", broken)
    else:
        monkeypatch.setattr(chosen._tracker, "began", broken)
    with pytest.raises(MemoryError), chosen.in_flight(asked, decision, route):
        pytest.fail("it was entered")
    assert world.fleet.loads([route.backend])["acme-1"].in_flight == 0
    assert all(report.demand.in_flight == 0 for report in chosen._tracker.reports())


def test_a_backend_outside_the_decision_is_never_called(world):
    asked, decision = decided(world)
    with (
        pytest.raises(InternalError, match="nothing was sent"),
        routes(world).in_flight(asked, decision, world.route("acme-us")),
    ):
        pytest.fail("it was called")


def test_another_tenants_backend_is_never_called_even_if_a_decision_named_it(world):
    asked, decision = decided(world, parsed(who=principal(OPEN_POLICY, tenant="globex")))
    foreign = parsed(request_id="req-2", who=principal(tenant="acme"))
    with pytest.raises(BackendUnavailable), routes(world).in_flight(foreign, decision, world.route("globex-1")):
        pytest.fail("it was called")
    with routes(world).in_flight(asked, decision, world.route("globex-1")):
        pass


def test_a_backend_that_left_the_fleet_or_moved_after_it_was_chosen_is_not_called(world):
    asked, decision = decided(world)
    route = world.route("acme-1")
    for now in (HOME[1:], HOME):
        world.register(*now, url="http://127.0.0.1:2")
        with pytest.raises(BackendUnavailable), routes(world).in_flight(asked, decision, route):
            pytest.fail("it was called")


def test_a_target_is_where_it_listens_and_over_https_needs_a_certificate(world):
    chosen = routes(world)
    plain = chosen.target(world.backend("acme-1"))
    assert (plain.backend_id, plain.url, plain.tls) == ("acme-1", "http://127.0.0.1:1", None)
    assert chosen.target(world.backend("acme-1")) is plain
    world.register("acme/eu-fr-par/acme-1", url="https://backend.internal:8443/")
    secure = chosen.target(world.backend("acme-1"))
    assert secure.url == "https://backend.internal:8443"
    with pytest.raises(BackendUnavailable) as none:
        secure.tls()
    assert none.value.code == "no_certificate"


# --- lines of batches -----------------------------------------------------------------------------------------------


def line():
    """A request that is a line of a batch."""
    asked = parsed()
    asked.client.batch = BatchLine("batch_1", 1, "a", "7GA3GXAA")
    return asked


def of_kind(world, **kinds):
    """Backends by id with what is said of their servers; the others are our engine's."""
    records = [record(place).model_copy(update=kinds.get(place.split("/")[2].replace("-", ""), {})) for place in HOME]
    world.registry.replace(records)


OTHER_SERVER = {"kind": "openai", "single_tenant": "declared"}


def test_a_line_goes_to_the_cheapest_however_busy_it_is_and_leaves_no_trace_in_the_caches(world):
    of_kind(world, acme2={"cost": 5}, acme1={"cost": 9}, acme3={"cost": 7}, acme4={"cost": 9})
    chosen, (asked, decision) = routes(world, 10), decided(world, line())
    assert names(chosen.choose(asked, decision)) == ["acme-2", "acme-3", "acme-1", "acme-4"]
    cheap = chosen.choose(asked, decision)[0]
    calls = [chosen.in_flight(asked, decision, cheap) for _ in range(20)]
    for each in calls:
        each.__enter__()
    assert names(chosen.choose(asked, decision))[0] == "acme-2"
    assert chosen._prefixes.contents == {}
    for each in calls:
        each.__exit__(None, None, None)
    assert names(chosen.choose(asked, decision, tried=["acme-2"]))[0] == "acme-3"


def test_at_a_server_without_priorities_a_line_waits_behind_interactive_calls_and_not_behind_lines(world):
    of_kind(world, **{f"acme{number}": OTHER_SERVER for number in range(1, 5)})
    chosen, (asked, decision) = routes(world, 10), decided(world, line())
    assert chosen.has_room("acme", "small")
    lines = [chosen.in_flight(asked, decision, route) for route in chosen.choose(asked, decision) for _ in range(10)]
    for each in lines:
        each.__enter__()
    assert chosen.has_room("acme", "small"), "lines do not wait behind lines"
    interactive, allowed = decided(world)
    calls = [
        chosen.in_flight(interactive, allowed, route) for route in chosen.choose(interactive, allowed) for _ in range(4)
    ]
    for each in calls:
        each.__enter__()
    assert not chosen.has_room("acme", "small")
    calls[0].__exit__(None, None, None)
    assert chosen.has_room("acme", "small")
    assert names(chosen.choose(asked, decision))[0] == calls[0]._route.backend.id, "that has room comes first"


def test_engines_with_priorities_always_have_room_for_lines(world):
    chosen, (asked, decision) = routes(world, 10), decided(world)
    for route in chosen.choose(asked, decision):
        for _ in range(50):
            chosen.in_flight(asked, decision, route).__enter__()
    assert chosen.has_room("acme", "small")


def test_where_no_backend_is_up_the_line_itself_finds_that(world):
    for place in HOME:
        world.fleet.mark_ready(world.backend(place.split("/")[2]), False)
    assert routes(world).has_room("acme", "small")
    assert routes(world).has_room("acme", "unknown")
