"""From the facts to yes or no: unknown is no, and every no has its reason."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.directory.oversight import Stops
from gateway.errors import ModelNotFound, PolicyDenied
from gateway.records.control import Scopes
from gateway.request.enforcement import PolicyEnforcement
from gateway.store.oversight import StopRecord
from tests.fakes.lab import OPEN_POLICY
from tests.gateway.parts import World, parsed, principal

US_TOO = """
policy: open
version: 7
residency: {process_in: [FR, US], store_in: [FR, US], transfer_basis: [intra_eea, scc]}
"""


def stop(tenant, project):
    at = datetime(2026, 11, 30, tzinfo=UTC)
    return StopRecord(
        cell="eu-1",
        created_at=at,
        tenant=tenant,
        project=project,
        ai_system_id=None,
        reason="bias",
        stopped_at=at,
        stopped_by="person:anna",
        resumed_at=None,
        resumed_by=None,
    )


@pytest.fixture
def world():
    return World("acme/eu-fr-par/acme-1", "acme/us-east/acme-us", "globex/eu-fr-par/globex-1")


def rules(refused):
    return {reason.rule for reason in refused.value.reasons}


def test_of_a_tenants_backends_those_are_allowed_that_its_policy_allows(world):
    asked = parsed()
    decision, redactor = world.enforcement.decide(asked)
    assert decision.backends == ("acme-1",)
    assert redactor is asked.principal.redactor
    assert {reason.candidate for reason in decision.reasons} == {"acme-us"}


def test_two_tenants_are_judged_by_their_own_policies_over_their_own_backends(world):
    theirs, _ = world.enforcement.decide(parsed(who=principal(OPEN_POLICY, tenant="globex")))
    assert (theirs.backends, theirs.policy_id) == (("globex-1",), "open")


def test_who_is_up_does_not_change_where_a_call_may_go(world):
    world.fleet.mark_ready(world.backend("acme-1"), False)
    assert world.enforcement.decide(parsed())[0].backends == ("acme-1",)


def test_a_no_carries_every_reason_and_the_decision():
    world = World("acme/us-east/acme-us")
    with pytest.raises(PolicyDenied) as refused:
        world.enforcement.decide(parsed())
    assert {"residency.process_in", "residency.operator.ultimate_parent"} <= rules(refused)
    assert refused.value.decision is not None and not refused.value.decision.allowed
    assert b'outcome="deny",rule="residency' in world.telemetry.exposition()


def test_another_policy_over_the_same_backend_says_yes():
    world = World("acme/us-east/acme-us")
    with pytest.raises(PolicyDenied):
        world.enforcement.decide(parsed())
    decision, _ = world.enforcement.decide(parsed(who=principal(US_TOO)))
    assert (decision.backends, decision.policy_id, decision.version) == (("acme-us",), "open", "7")


def test_a_model_that_nobody_serves_is_not_found_whatever_the_policy(world):
    for who in (principal(), principal(None, error="tenant acme has no active policy")):
        with pytest.raises(ModelNotFound, match=r"there are: small$"):
            world.enforcement.decide(parsed(model="made-up", who=who))


def test_a_long_name_is_not_given_back_whole(world):
    with pytest.raises(ModelNotFound) as refused:
        world.enforcement.decide(parsed(model="m" * 100_000))
    assert len(refused.value.message) < 200


def test_no_policy_is_no_permission_and_says_why_there_is_none(world):
    with pytest.raises(PolicyDenied, match="the policy of acme/main does not compile") as refused:
        world.enforcement.decide(parsed(who=principal(None, error="the policy of acme/main does not compile")))
    assert rules(refused) == {"policy.unknown"}
    assert refused.value.decision is None


@pytest.mark.parametrize("scopes", [Scopes(models=("other",)), Scopes(endpoints=("completions",)), Scopes(models=())])
def test_a_key_is_good_for_what_it_was_made_for_only(world, scopes):
    with pytest.raises(PolicyDenied) as refused:
        world.enforcement.decide(parsed(who=principal(scopes=scopes)))
    assert rules(refused) == {"key.scope"}
    fitting = Scopes(models=("small",), endpoints=("chat/completions",))
    assert world.enforcement.decide(parsed(who=principal(scopes=fitting)))[0].allowed


def test_a_backend_that_joins_or_leaves_is_seen_by_the_next_call(world):
    who = principal()
    assert world.enforcement.decide(parsed(who=who))[0].backends == ("acme-1",)
    world.register("acme/eu-fr-par/acme-1", "acme/eu-de-fra/acme-2")
    assert world.enforcement.decide(parsed(who=who))[0].backends == ("acme-1", "acme-2")
    world.register("acme/eu-de-fra/acme-2")
    assert world.enforcement.decide(parsed(who=who))[0].backends == ("acme-2",)


def test_a_policy_that_was_replaced_is_not_applied_again(world):
    assert world.enforcement.decide(parsed(who=principal()))[0].allowed
    germany_only = "policy: test-default\nversion: 2\nresidency: {process_in: [DE], store_in: [DE]}\n"
    with pytest.raises(PolicyDenied):
        world.enforcement.decide(parsed(who=principal(germany_only)))


def test_a_decision_holds_for_the_same_principal_over_the_same_backends_and_is_no_other_decision(world):
    asked = parsed()
    assert not world.enforcement.holds(asked, world.decided(parsed()).decision), "of another principal"
    decision, _ = world.enforcement.decide(asked)
    assert world.enforcement.holds(asked, decision)
    assert not world.enforcement.holds(asked, replace(decision)), "equal, and not what was decided"
    assert not world.enforcement.holds(replace(asked, principal=principal()), decision), "the key was loaded again"
    assert not world.enforcement.holds(parsed(model="made-up"), decision)
    world.register("acme/eu-fr-par/acme-1", "acme/eu-de-fra/acme-2")
    assert not world.enforcement.holds(asked, decision), "a backend joined"


def test_no_decision_holds_of_a_project_that_is_stopped(world):
    stops = Stops()
    enforcement = PolicyEnforcement(world.registry, world.telemetry, stops=stops)
    asked = parsed()
    decision, _ = enforcement.decide(asked)
    assert enforcement.holds(asked, decision)
    stops.replace([stop("acme", "main")])
    assert not enforcement.holds(asked, decision)
    stops.replace([stop("acme", "other")])
    assert enforcement.holds(asked, decision)


def test_on_a_day_before_the_catalogue_knows_a_place_nothing_may_go_there():
    world = World("acme/eu-fr-par/acme-1")
    long_ago = datetime(1990, 1, 1, tzinfo=UTC)
    world.registry._clock = long_ago.timestamp
    enforcement = PolicyEnforcement(world.registry, world.telemetry, now=lambda: long_ago)
    with pytest.raises(PolicyDenied):
        enforcement.decide(parsed())
