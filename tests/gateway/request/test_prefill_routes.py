"""Which backend computes the prompt for the one that answers: by the same decision, and only one of its own tenant."""

import pytest

from gateway.errors import BackendUnavailable, InternalError
from gateway.openai.asgi_client import BatchLine
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.recorder import _outcome, _route
from gateway.request.stages import Accepted
from regions.fleet.fleet import EngineReport
from tests.gateway.parts import World, parsed, record
from tests.gateway.request.test_routes import decided, names, routes


def pairs(*places):
    """places: tenant/region/id; those that begin with p compute prompts, with d answer, with m do both."""
    world = World()
    world.registry.replace([made(place) for place in places])
    return world


def made(place):
    role = {"p": "prefill", "d": "decode", "m": "mixed"}[place.split("/")[2][0]]
    return record(place, role=role, transfer="10.0.0.7:9000" if role == "prefill" else None)


PAIR = ("acme/eu-fr-par/p-1", "acme/eu-fr-par/d-1", "acme/eu-fr-par/d-2")


def test_a_decode_backend_answers_and_a_prefill_backend_computes_the_prompt():
    world = pairs(*PAIR)
    table = routes(world)
    found = table.choose(*decided(world))
    assert sorted(names(found)) == ["d-1", "d-2"]
    assert {route.prefill.backend.id for route in found} == {"p-1"}
    place = table.prefill_place(found[0])
    assert (place.backend, place.host, place.port) == ("p-1", "10.0.0.7", 9000)
    assert place.uri == "spiffe://domicile.eu-1/tenant/acme/region/eu-fr-par/backend/p-1"
    assert place.asker == found[0].backend.uri


def test_a_mixed_backend_computes_its_own_prompts():
    world = pairs("acme/eu-fr-par/p-1", "acme/eu-fr-par/m-1")
    table = routes(world)
    (found,) = table.choose(*decided(world))
    assert (found.backend.id, found.prefill, table.prefill_place(found)) == ("m-1", None, None)


def test_a_place_that_policy_refuses_computes_no_prompt():
    world = pairs("acme/us-east/p-us", "acme/eu-fr-par/d-1", "globex/eu-fr-par/p-2")
    (found,) = routes(world).choose(*decided(world))
    assert (found.backend.id, found.prefill) == ("d-1", None)


def test_one_that_is_down_or_was_tried_computes_no_prompt():
    world = pairs(*PAIR, "acme/eu-fr-par/p-2")
    table = routes(world)
    request, decision = decided(world)
    world.fleet.mark_ready(world.backend("p-1"), False)
    assert {route.prefill.backend.id for route in table.choose(request, decision)} == {"p-2"}
    world.fleet.mark_ready(world.backend("p-2"), False)
    assert {route.prefill for route in table.choose(request, decision)} == {None}


def test_where_no_other_is_up_the_one_for_prompts_answers():
    world = pairs(*PAIR)
    table = routes(world)
    request, decision = decided(world)
    for name in ("d-1", "d-2"):
        world.fleet.mark_ready(world.backend(name), False)
    (found,) = table.choose(request, decision)
    assert (found.backend.id, found.prefill) == ("p-1", None)


def test_prompts_that_begin_alike_go_to_the_same_backend_for_prompts():
    world = pairs(*PAIR, "acme/eu-fr-par/p-2", "acme/eu-fr-par/p-3")
    table = routes(world)

    def prefill(text):
        messages = [{"role": "system", "content": text}, {"role": "user", "content": "?"}]
        request, decision = decided(world, parsed({"model": "small", "messages": messages}))
        return table.choose(request, decision)[0].prefill.backend.id

    assert len({prefill("the same rules " * 30) for _ in range(5)}) == 1
    assert len({prefill(f"rules {n} " * 40) for n in range(24)}) > 1


def test_both_are_counted_while_the_call_runs_and_looked_at_once_more_before_it():
    world = pairs(*PAIR)
    table = routes(world)
    request, decision = decided(world)
    route = table.choose(request, decision)[0]
    with table.in_flight(request, decision, route):
        loads = world.fleet.live()
        assert (loads[route.backend.id].in_flight, loads["p-1"].in_flight) == (1, 1)
    assert [world.fleet.live()[name].in_flight for name in ("p-1", "d-1", "d-2")] == [0, 0, 0]
    world.registry.replace([made("acme/eu-fr-par/d-1"), made("acme/eu-fr-par/d-2")])
    with pytest.raises(BackendUnavailable), table.in_flight(request, decision, route):
        pass
    assert world.fleet.live()[route.backend.id].in_flight == 0


def reports(world, name, waiting):
    world.fleet.mark_report(world.backend(name), EngineReport(running=1, waiting=waiting, kv_use=0.0))


def test_where_prompts_wait_longer_than_answers_they_are_computed_where_they_are_answered():
    world = pairs(*PAIR)
    table = routes(world)
    request, decision = decided(world)
    reports(world, "p-1", 3)
    assert {route.prefill.backend.id for route in table.choose(request, decision)} == {"p-1"}
    reports(world, "p-1", 9)
    assert {route.prefill for route in table.choose(request, decision)} == {None}
    reports(world, "d-1", 9)
    assert {route.backend.id: route.prefill is not None for route in table.choose(request, decision)} == {
        "d-1": True,
        "d-2": False,
    }
    reports(world, "p-1", 0)
    assert all(route.prefill is not None for route in table.choose(request, decision))


def test_of_two_for_prompts_the_shorter_queue_is_taken():
    world = pairs(*PAIR, "acme/eu-fr-par/p-2")
    table = routes(world)
    request, decision = decided(world)
    for busy, free in (("p-1", "p-2"), ("p-2", "p-1")):
        reports(world, busy, 9)
        reports(world, free, 0)
        assert {route.prefill.backend.id for route in table.choose(request, decision)} == {free}


def test_a_prompt_is_counted_until_its_answer_begins():
    world = pairs(*PAIR)
    table = routes(world)
    request, decision = decided(world)
    route = table.choose(request, decision)[0]

    def in_flight():
        return [world.fleet.live()[name].in_flight for name in ("p-1", route.backend.id)]

    with table.in_flight(request, decision, route) as call:
        assert in_flight() == [1, 1]
        call.answered()
        assert in_flight() == [0, 1]
        call.answered()
        assert in_flight() == [0, 1]
    assert in_flight() == [0, 0]


def test_one_outside_the_decision_never_gets_a_prompt():
    world = pairs(*PAIR, "acme/us-east/p-us")
    table = routes(world)
    request, decision = decided(world)
    route = table.choose(request, decision)[0]
    elsewhere = type(route)(route.backend, route.facts, route.transfer_basis, (), world.route("p-us"))
    with pytest.raises(InternalError), table.in_flight(request, decision, elsewhere):
        pass
    assert world.fleet.live()[route.backend.id].in_flight == 0


def test_lines_of_batches_are_computed_where_they_are_answered():
    world = pairs(*PAIR)
    request, decision = decided(world)
    request.client.batch = BatchLine("batch_1", 1, "a", "7GA3GXAA")
    assert {route.prefill for route in routes(world).choose(request, decision)} == {None}


def test_intent_and_outcome_name_both():
    world = pairs(*PAIR)
    request, decision = decided(world)
    route = routes(world).choose(request, decision)[0]
    routed = world.routed(request, route.backend.id)
    routed = type(routed)(request, routed.redacted, route, (), 0, routed.body)
    place = _route(routed)["prefill"]
    assert (place.backend_id, place.region, place.inference_country) == ("p-1", "eu-fr-par", "FR")
    assert place.transfer_basis == "intra_eea"
    received = ReceivedAnswer()
    received.prefill = "here"
    outcome = _outcome(Accepted(request, routed, None), routed, received, 200)
    assert (outcome["prefill_backend_id"], outcome["prefill_computed"]) == ("p-1", "here")
