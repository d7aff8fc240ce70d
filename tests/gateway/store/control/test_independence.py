"""Two people decide only if one did not invent the other: by people, roles, tokens, and those who vouch."""

from datetime import timedelta

import pytest

from gateway.database.errors import Invalid, NotFound, NotIndependent, NotReady
from gateway.database.tables.control import AccessTokenRow, PersonRow
from gateway.store.control.control import Control

ON_BOTH_DATABASES = True

POLICY = "policy: one"

WAIT = timedelta(hours=72)
SOON = timedelta(hours=71, minutes=59)


@pytest.fixture
def clock(control):
    """Moves the time of all controls that `at` makes."""

    class Clock:
        now = control._now()

        def pass_(self, time):
            self.now += time

    return Clock()


@pytest.fixture
def acting(control, clock, events):
    """A control that acts by this token (its id), or as this actor."""

    def make(token):
        return Control(
            control._database,
            cell=control._cell,
            hasher=control._hasher,
            actor=token if ":" in token or token == "cli" else f"key:{token}",
            check_policy=control._check,
            on_event=events.append,
            now=lambda: clock.now,
            approval_wait=WAIT,
        )

    return make


class People:
    """Makes people and tokens through the admin API, by the token of who makes them; ids of people and tokens."""

    def __init__(self, acting, clock):
        self._acting, self._clock = acting, clock

    def person(self, by, *roles, tenant="acme"):
        return self._acting(by).create_person(tenant, "Somebody", roles).id

    def token(self, by, person, tenant="acme"):
        record, _ = self._acting(by).create_token(tenant, person, expires_at=self._clock.now + timedelta(days=90))
        return record.id

    def both(self, by, *roles, tenant="acme"):
        person = self.person(by, *roles, tenant=tenant)
        return person, self.token(by, person, tenant)


@pytest.fixture
def people(control, acting, clock):
    control.create_tenant("acme")
    return People(acting, clock)


def submit(acting, person, token):
    return acting(token).submit_policy("acme", POLICY, person=person).number


def approve(acting, number, person, token):
    return acting(token).approve_policy("acme", number, person=person)


def refused(acting, number, person, token, side="approver"):
    with pytest.raises(NotIndependent, match=f"the {side} of proposal {number}, .* wait, or let another role run"):
        approve(acting, number, person, token)


@pytest.fixture
def admin(people):
    """(person, token) of a tenant's administrator, whom the host's shell made."""
    return people.both("cli", "tenant-admin")


@pytest.fixture
def dpo(people):
    return people.both("cli", "dpo")


def test_who_the_shell_made_counts_at_once(acting, admin, dpo):
    assert approve(acting, submit(acting, *admin), *dpo).approved_by == dpo[0]


def test_an_administrator_who_invents_a_second_person_is_refused_and_that_is_on_record(
    acting, people, admin, events, clock, inventory
):
    number = submit(acting, *admin)
    invented = people.both(admin[1], "dpo")
    refused(acting, number, *invented)
    (told,) = [event for event in events if event.action == "policy.approval_refused"]
    assert (told.actor, told.target, told.before) == (f"key:{invented[1]}", "acme", told.after)
    assert told.detail["side"] == "approver" and told.detail["approver"] == invented[0]
    clock.pass_(SOON)
    refused(acting, number, *invented)
    assert inventory.proposals("acme")[0].approved_by is None
    clock.pass_(timedelta(minutes=2))
    assert approve(acting, number, *invented).approved_by == invented[0]


def test_nor_does_it_help_to_submit_as_the_invented_one(acting, people, admin):
    invented = people.both(admin[1], "developer")
    refused(acting, submit(acting, *invented), *admin, side="submitter")


def test_a_token_in_the_name_of_somebody_who_is_there_is_no_second_person(acting, people, admin, dpo, clock):
    clock.pass_(WAIT)
    number = submit(acting, *admin)
    minted = people.token(admin[1], dpo[0])
    refused(acting, number, dpo[0], minted)
    assert approve(acting, number, *dpo).approved_by == dpo[0], "by their own token"
    again = submit(acting, dpo[0], minted)
    refused(acting, again, *admin, side="submitter")


def test_other_roles_for_somebody_who_is_there_make_no_second_person(acting, people, admin, clock):
    billing = people.both("cli", "billing")
    clock.pass_(WAIT)
    number = submit(acting, *admin)
    acting(admin[1]).set_roles("acme", billing[0], ["dpo"])
    refused(acting, number, *billing)
    clock.pass_(WAIT)
    assert approve(acting, number, *billing).approved_by == billing[0]


def test_a_token_that_somebody_made_for_themselves_is_as_old_as_the_one_they_made_it_with(acting, people, admin, dpo):
    own = people.token(admin[1], admin[0])
    assert approve(acting, submit(acting, *dpo), admin[0], own).approved_by == admin[0]
    other = people.both(admin[1], "tenant-admin")
    theirs = people.token(other[1], other[0])
    refused(acting, submit(acting, *dpo), other[0], theirs)


def test_machines_that_make_people_are_waited_for_too(acting, people, admin):
    refused(acting, submit(acting, *admin), *people.both("machine:0123", "dpo"))


def test_another_role_vouches_for_who_was_made(acting, people, admin, dpo, inventory, events, clock):
    number = submit(acting, *admin)
    new = people.both(admin[1], "dpo")
    clock.pass_(timedelta(seconds=1))
    record = acting(dpo[1]).vouch_for_person("acme", new[0], voucher=dpo[0])
    assert (record.vouched_by, inventory.person("acme", new[0]).vouched_by) == (dpo[0], dpo[0])
    assert approve(acting, number, *new).approved_by == new[0]
    later = people.token(admin[1], new[0])
    refused(acting, submit(acting, *admin), new[0], later)
    (told,) = [event for event in events if event.action == "person.vouched"]
    assert told.detail == {"voucher": dpo[0]}


def test_the_host_vouches(acting, people, admin, clock):
    new = people.both(admin[1], "dpo")
    clock.pass_(timedelta(seconds=1))
    acting("cli").vouch_for_person("acme", new[0], voucher="cli")
    assert approve(acting, submit(acting, *admin), *new).approved_by == new[0]


def test_nobody_vouches_for_themselves_for_whom_they_made_or_with_the_same_role(acting, people, admin, dpo, clock):
    new = people.both(admin[1], "dpo")
    helper = people.both(admin[1], "dpo")
    colleague = people.both("cli", "tenant-admin")
    for person, token, words in [
        (*new, "you are this person"),
        (*admin, "or made them"),
        (*colleague, "has all of your roles"),
        (*helper, "too new"),
    ]:
        with pytest.raises(NotReady, match=words):
            acting(token).vouch_for_person("acme", new[0], voucher=person)
    minted = people.token(admin[1], dpo[0])
    with pytest.raises(NotReady, match="too new"):
        acting(minted).vouch_for_person("acme", new[0], voucher=dpo[0])
    refused(acting, submit(acting, *admin), *new)


def test_vouching_is_for_the_living_of_this_tenant_who_are_known_here(acting, control, people, dpo):
    control.create_tenant("globex")
    stranger = people.person("cli", "dpo", tenant="globex")
    with pytest.raises(NotFound):
        acting(dpo[1]).vouch_for_person("acme", stranger, voucher=dpo[0])
    gone = people.person("cli", "dpo")
    acting("cli").revoke_person("acme", gone)
    (federated,) = acting("system").apply_groups("f" * 64, "Fay", {"acme": ("dpo",)})
    for person in (gone, federated.id):
        with pytest.raises(Invalid):
            acting(dpo[1]).vouch_for_person("acme", person, voucher=dpo[0])


def test_people_of_the_identity_provider_count_at_once(acting, admin):
    (fay,) = acting("system").apply_groups("f" * 64, "Fay", {"acme": ("dpo",)})
    session, _ = acting("system").open_session("acme", fay.id, life=timedelta(hours=1))
    assert approve(acting, submit(acting, *admin), fay.id, session.id).approved_by == fay.id


def test_a_console_session_by_a_one_time_token_is_as_old_as_who_made_that(acting, people, admin, dpo):
    token, _ = acting("cli").create_sign_in("acme", dpo[0])
    _, session, _ = acting("system").sign_in(token.id, life=timedelta(hours=1))
    assert approve(acting, submit(acting, *admin), dpo[0], session.id).approved_by == dpo[0]
    minted, _ = acting(admin[1]).create_sign_in("acme", dpo[0])
    _, session, _ = acting("system").sign_in(minted.id, life=timedelta(hours=1))
    refused(acting, submit(acting, *admin), dpo[0], session.id)


def test_the_first_operator_counts_at_once(acting, control):
    control.create_tenant("acme")
    token, _ = control.create_bootstrap_token()
    person, record, _ = acting(token.id).bootstrap(token.id, "Root", expires_at=control._now() + timedelta(days=9))
    number = acting("cli").submit_policy("acme", POLICY, person="cli").number
    assert approve(acting, number, person.id, record.id).approved_by == person.id


def test_what_was_there_before_the_makers_were_noted_counts_from_its_creation(acting, control, people, admin, clock):
    old = people.both(admin[1], "dpo")
    with control._database.write() as session:
        session.get(PersonRow, old[0]).made_by = None
        session.get(AccessTokenRow, old[1]).made_by = None
    number = submit(acting, *admin)
    refused(acting, number, *old)
    clock.pass_(WAIT)
    assert approve(acting, number, *old).approved_by == old[0]
