"""The promise the product is bought for: no byte of a request reaches a backend outside the decision.

In one process over the gateway's own parts: registry, enforcement, routes and fleet; a backend is a list of what it
received. A schedule of failures, moves and policies drives them; `make campaign` tries many more than an ordinary run.
"""

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.errors import BackendUnavailable, GatewayError, ModelNotFound, PolicyDenied
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab
from tests.gateway.parts import World, call, parsed, principal
from tests.gateway.request.test_routes import routes

CASES = 300

REGIONS = {"eu-fr-par": "FR", "eu-de-fra": "DE", "us-east": "US"}
PLACES = [
    f"{tenant}/{region}/{tenant}-{region[-3:]}-{n}"
    for tenant in ("acme", "globex")
    for region in REGIONS
    for n in (1, 2)
]
COUNTRIES = ("EU", "EEA", "EEA+adequate", "[FR]", "[DE]", "[US]", "[FR, DE]", "[FR, US]", "[FR, DE, US]")


def document(process, store, owner, bases):
    operator = f", operator: {{ultimate_parent: {owner}}}" if owner else ""
    return (
        f"policy: p\nversion: 1\nresidency: {{process_in: {process}, store_in: {store}{operator},"
        f" transfer_basis: [{', '.join(bases)}]}}\n"
    )


TEXTS = [
    document(process, store, owner, bases)
    for process in COUNTRIES
    for store in ("EEA", "[FR, DE, US]")
    for owner in ("", "EEA")
    for bases in (["intra_eea"], ["intra_eea", "scc"])
]
WHO = {(text, tenant): principal(text, tenant=tenant) for text in TEXTS for tenant in ("acme", "globex")}
CALL = call()
WORLD = World()
"""One for all cases, so that what it remembers of one can go wrong in the next; its fleet begins empty each time."""

fleets = st.sets(st.sampled_from(PLACES), max_size=8).map(sorted)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.sampled_from(["acme", "globex"]),
            st.sampled_from(TEXTS),
            st.lists(st.booleans(), max_size=4),
            st.none() | fleets,
        ),
        st.tuples(st.just("fleet"), fleets),
        st.tuples(st.just("ready"), st.sampled_from(PLACES), st.booleans()),
    ),
    min_size=1,
    max_size=6,
)


def inside(text, facts):
    """Judged anew, by no code of ours: the sets are spelt out."""
    eea = {"FR", "DE"}
    sets = {"EU": eea, "EEA": eea, "EEA+adequate": eea}
    said = text.partition("process_in: ")[2]
    process, _, rest = said.partition(", store_in: ")
    store = rest.partition("], transfer")[0] if rest.startswith("[FR, DE, US]") else "EEA"
    allowed = sets.get(process) or set(process.strip("[]").split(", "))
    stored = {"FR", "DE", "US"} if store.startswith("[") else eea
    owned = facts.parent_country in eea or "ultimate_parent" not in text
    based = facts.compute_country in eea or "scc" in text
    return facts.compute_country in allowed and facts.storage_country in stored and owned and based


@settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))
@given(fleet=fleets, schedule=steps)
def test_for_any_policy_fleet_and_failures_no_byte_reaches_a_backend_outside_the_decision(fleet, schedule):
    world, way = WORLD, routes(WORLD)
    world.register()
    world.register(*fleet)
    for step in schedule:
        match step:
            case "ask", tenant, text, failures, meanwhile:
                received = ask(world, way, WHO[text, tenant], failures, meanwhile)
                for backend, facts in received:
                    assert backend.tenant == tenant and facts.backend_id == backend.id
                    assert inside(text, facts), (text, facts)
                assert len({backend.id for backend, _ in received}) == len(received) <= 3
            case "fleet", places:
                world.register(*places)
            case "ready", place, ready:
                for backend in world.fleet:
                    if backend.id == place.split("/")[2]:
                        world.fleet.mark_ready(backend, ready)


def ask(world, way, who, failures, meanwhile):
    """As the pipeline does: decide, choose, and try one after the other while `failures` says so; the fleet may change
    in between. Gives the backends that received a byte."""
    request, received = parsed(who=who, asked=CALL), []
    with suppress(PolicyDenied, ModelNotFound, BackendUnavailable):
        decision, _ = world.enforcement.decide(request)
        found = way.choose(request, decision)
        if meanwhile is not None:
            world.register(*meanwhile)
        for attempt, route in enumerate(found):
            with suppress(BackendUnavailable), way.in_flight(request, decision, route) as attempted:
                received.append((route.backend, world.registry.facts_of(route.backend)))
                if attempt >= len(failures) or not failures[attempt]:
                    attempted.answered()
                    break
                attempted.failed()
    return received


def test_the_oracle_and_the_policy_agree_on_what_is_outside():
    """So that the property above cannot pass for want of refusals, or of calls."""
    world = World(*PLACES)
    verdicts = set()
    for (text, tenant), who in WHO.items():
        received = ask(world, routes(world), who, [], None)
        facts = [world.registry.facts_of(backend) for backend in world.fleet if backend.tenant == tenant]
        verdicts |= {inside(text, one) for one in facts}
        with suppress(GatewayError):
            decision, _ = world.enforcement.decide(parsed(who=who, asked=CALL))
            assert set(decision.backends) == {one.backend_id for one in facts if inside(text, one)}
            assert received
    assert verdicts == {True, False}


# The three cases that a public gateway was tried with, in the default configuration.


async def test_a_mixed_group_is_answered_inside_the_eu_only(tmp_path):
    home, abroad = FakeBackend(), FakeBackend()
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": home, "acme/us-east/acme-us": abroad}) as made:
        answers = [await made.post(chat(f"question {n}")) for n in range(20)]
        assert {answer.status for answer in answers} == {200}
        assert {answer.headers["x-domicile-country"] for answer in answers} == {"FR"}
        recorded = {event["inference_country"] for event in made.events() if event["type"] == "inference.accepted"}
    assert (len(home.bodies), abroad.bodies, recorded) == (20, [], {"FR"})


async def test_a_group_that_is_only_in_the_us_is_refused_and_says_why(tmp_path):
    abroad = FakeBackend()
    async with lab(tmp_path, backends={"acme/us-east/acme-us": abroad}) as made:
        answers = [await made.post(chat(f"question {n}")) for n in range(20)]
        assert {(answer.status, answer.error["code"]) for answer in answers} == {(403, "residency_denied")}
        assert {reason["rule"] for reason in answers[0].error["reasons"]} >= {"residency.process_in"}
        assert [kind for kind in made.types() if kind.startswith("inference.")] == ["inference.denied"] * 20
    assert abroad.bodies == []


@pytest.mark.parametrize("status", [500, 503])
async def test_when_the_eu_is_down_nothing_goes_to_the_us(tmp_path, status):
    down, abroad = FakeBackend(status=status, error={"message": "down"}), FakeBackend()
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": down, "acme/us-east/acme-us": abroad}) as made:
        answers = [await made.post(chat(f"question {n}")) for n in range(20)]
        assert {answer.status for answer in answers} <= {502, 503}
    assert abroad.bodies == []
    assert POLICY.count("EEA") == 4
