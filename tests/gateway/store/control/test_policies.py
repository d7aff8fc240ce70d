"""From a proposal to what is in force: two people, an instant, a way back, and nothing that displaces by mistake."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.database.errors import Invalid, NotFound, NotReady
from gateway.identity.keys import KeyHasher
from gateway.store.control.control import Control
from tests.gateway.conftest import PEPPER, compile_policy

ON_BOTH_DATABASES = True

ONE, TWO = "policy: one", "policy: two"


@pytest.fixture
def clock():
    class Clock:
        def __init__(self):
            self.now = datetime(2026, 11, 28, 12, tzinfo=UTC)

        def __call__(self):
            return self.now

    return Clock()


@pytest.fixture
def timed(database, events, clock, acme):
    return Control(
        database,
        cell="demo",
        hasher=KeyHasher(PEPPER),
        actor="cli:test",
        check_policy=compile_policy,
        on_event=events.append,
        now=clock,
    )


def in_force(inventory, tenant="acme", project=None):
    active = [v.document for v in inventory.policies(tenant) if v.active and v.project == project]
    return active[0] if active else None


def test_a_proposal_takes_a_second_person_and_then_an_activation(timed, inventory, events):
    timed.activate_policy("acme", ONE)
    del events[:]
    made = timed.submit_policy("acme", TWO, person="ada")
    assert (made.number, made.state, in_force(inventory)) == (1, "submitted", ONE)
    approved = timed.approve_policy("acme", 1, person="bob")
    assert (approved.state, approved.approved_by, in_force(inventory)) == ("approved", "bob", ONE)
    active = timed.activate_proposal("acme", 1)
    assert (active.state, active.version, in_force(inventory)) == ("active", 2, TWO)
    assert [event.action for event in events] == ["policy.submitted", "policy.approved", "policy.activated"]
    assert {"submitted_by": "ada", "approved_by": "bob", "proposal": "1"}.items() <= events[-1].detail.items()


def test_nobody_approves_their_own(timed):
    timed.submit_policy("acme", ONE, person="ada")
    with pytest.raises(NotReady, match="second person"):
        timed.approve_policy("acme", 1, person="ada")
    with pytest.raises(NotReady, match="submitted, not approved yet"):
        timed.activate_proposal("acme", 1)


def test_approving_twice_keeps_the_first_name(timed):
    timed.submit_policy("acme", ONE, person="ada")
    timed.approve_policy("acme", 1, person="bob")
    assert timed.approve_policy("acme", 1, person="eve").approved_by == "bob"


def test_a_document_that_is_wrong_is_no_proposal(timed, inventory, events):
    timed.activate_policy("acme", ONE)
    before = len(events)
    with pytest.raises(Invalid, match="line 3"):
        timed.submit_policy("acme", "policy: bad", person="ada")
    assert (len(events), in_force(inventory)) == (before, ONE)
    assert timed.submit_policy("acme", TWO, person="ada").number == 1


def test_a_proposal_that_no_longer_compiles_does_not_displace_what_is_in_force(timed, inventory):
    timed.activate_policy("acme", "policy: loose")
    timed.submit_policy("acme", "policy: loose project", project="support", person="ada")
    timed.approve_policy("acme", 1, project="support", person="bob")
    timed.activate_policy("acme", "policy: strict")
    with pytest.raises(Invalid, match="may only tighten"):
        timed.activate_proposal("acme", 1, project="support")
    assert in_force(inventory, project="support") is None


def test_a_scheduled_proposal_waits_for_its_instant_and_then_takes_over(timed, inventory, clock, events):
    timed.activate_policy("acme", ONE)
    timed.submit_policy("acme", TWO, person="ada")
    timed.approve_policy("acme", 1, person="bob")
    at = clock.now + timedelta(hours=1)
    assert timed.activate_proposal("acme", 1, at=at).state == "scheduled"
    clock.now = at - timedelta(microseconds=1)
    assert timed.activate_due() == [] and in_force(inventory) == ONE
    clock.now = at
    (done,) = timed.activate_due()
    assert (done.state, in_force(inventory)) == ("active", TWO)
    assert timed.activate_due() == []
    assert [event.action for event in events][-2:] == ["policy.scheduled", "policy.activated"]


def test_an_instant_that_is_past_is_now(timed, inventory, clock):
    timed.submit_policy("acme", ONE, person="ada")
    timed.approve_policy("acme", 1, person="bob")
    assert timed.activate_proposal("acme", 1, at=clock.now - timedelta(days=1)).state == "active"
    assert in_force(inventory) == ONE


def test_a_scheduled_one_that_does_not_compile_at_its_instant_is_withdrawn_and_says_why(timed, inventory, clock):
    timed.activate_policy("acme", "policy: loose")
    timed.submit_policy("acme", "policy: loose project", project="support", person="ada")
    timed.approve_policy("acme", 1, project="support", person="bob")
    timed.activate_proposal("acme", 1, project="support", at=clock.now + timedelta(hours=1))
    timed.activate_policy("acme", "policy: strict")
    clock.now += timedelta(hours=2)
    (done,) = timed.activate_due()
    assert done.state == "withdrawn" and "may only tighten" in done.withdrawn_because
    assert in_force(inventory, project="support") is None
    assert timed.activate_due() == []


def test_what_was_withdrawn_is_neither_approved_nor_activated(timed, clock):
    timed.submit_policy("acme", ONE, person="ada")
    assert timed.withdraw_policy("acme", 1, because="a typo").state == "withdrawn"
    assert timed.withdraw_policy("acme", 1).withdrawn_because == "a typo"
    with pytest.raises(NotReady, match="a typo"):
        timed.approve_policy("acme", 1, person="bob")
    with pytest.raises(NotReady, match="withdrawn"):
        timed.activate_proposal("acme", 1, at=clock.now + timedelta(days=1))


def test_what_is_in_force_is_not_withdrawn_nor_activated_again(timed):
    timed.submit_policy("acme", ONE, person="ada")
    timed.approve_policy("acme", 1, person="bob")
    timed.activate_proposal("acme", 1)
    with pytest.raises(NotReady, match="in force or was"):
        timed.withdraw_policy("acme", 1)
    with pytest.raises(NotReady, match="is active"):
        timed.activate_proposal("acme", 1)


def test_rolling_back_goes_one_step_and_every_version_is_kept(timed, inventory):
    with pytest.raises(NotReady):
        timed.roll_back_policy("acme")
    timed.activate_policy("acme", ONE)
    timed.activate_policy("acme", TWO)
    assert timed.roll_back_policy("acme").document == ONE
    assert timed.roll_back_policy("acme").document == TWO
    kept = inventory.policies("acme")
    assert [(v.number, v.document, v.active) for v in kept] == [
        (1, ONE, False), (2, TWO, False), (3, ONE, False), (4, TWO, True),
    ]  # fmt: skip
    assert all(len(version.sha256) == 64 for version in kept)


def test_the_operators_policy_must_leave_every_tenants_compiling(timed, events):
    with pytest.raises(Invalid, match="no tenant has a policy yet"):
        timed.submit_policy(None, "policy: ceiling", person="root")
    timed.activate_policy("acme", ONE)
    with pytest.raises(Invalid, match="tenant 'acme' under the operator's policy"):
        timed.submit_policy(None, "policy: bad ceiling", person="root")
    made = timed.submit_policy(None, "policy: ceiling", person="root")
    timed.approve_policy(None, 1, person="staff")
    assert (made.tenant, timed.activate_proposal(None, 1).state) == (None, "active")
    assert (events[-1].tenant, events[-1].target) == ("_system", "operator")
    with pytest.raises(Invalid, match="has no projects"):
        timed.submit_policy(None, "policy: x", project="support", person="root")


def test_proposals_are_numbered_in_their_scope_and_found_only_there(timed, control):
    control.create_tenant("globex")
    timed.activate_policy("acme", ONE)
    timed.submit_policy("acme", TWO, person="ada")
    assert timed.submit_policy("acme", "policy: p", project="support", person="ada").number == 1
    for lost in (
        lambda: timed.approve_policy("globex", 1, person="bob"),
        lambda: timed.approve_policy("acme", 2, person="bob"),
        lambda: timed.activate_proposal("acme", 1, project="nope"),
        lambda: timed.withdraw_policy(None, 1),
        lambda: timed.submit_policy("nope", ONE, person="ada"),
    ):
        with pytest.raises(NotFound):
            lost()


def test_nothing_happens_that_cannot_be_recorded(database, acme, inventory):
    def deaf(event):
        raise RuntimeError("the record is full")

    unheard = Control(
        database, cell="demo", hasher=KeyHasher(PEPPER), actor="cli:test", check_policy=compile_policy, on_event=deaf
    )
    acme.submit_policy("acme", ONE, person="ada")
    for attempt in (
        lambda: unheard.submit_policy("acme", TWO, person="ada"),
        lambda: unheard.approve_policy("acme", 1, person="bob"),
        lambda: unheard.withdraw_policy("acme", 1),
    ):
        with pytest.raises(RuntimeError, match="full"):
            attempt()
    assert acme.approve_policy("acme", 1, person="bob").approved_by == "bob"
    assert acme.submit_policy("acme", TWO, person="ada").number == 2
