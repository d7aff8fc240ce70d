from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from gateway.database.errors import Invalid, NotFound
from gateway.identity.keys import KeyHasher
from gateway.records.control import Scopes
from gateway.store.control.control import Control
from tests.gateway.conftest import PEPPER, compile_policy

ON_BOTH_DATABASES = True

DAY = timedelta(days=1)


def test_a_successor_has_the_label_and_scopes_and_the_old_key_an_end(acme, inventory):
    scopes = Scopes(models=("m",), regions=("eu-fr-par",), networks=("10.0.0.0/8",))
    old, _ = acme.create_key("acme", "support", label="web shop", scopes=scopes)
    before = datetime.now(UTC)
    new, secret = acme.rotate_key("acme", old.id, grace=DAY)
    assert (new.label, new.scopes, new.project) == ("web shop", scopes, "support")
    assert secret.id == new.id != old.id
    ended = inventory.key("acme", old.id)
    assert ended.replaced_by == new.id
    assert before + DAY <= ended.expires_at <= datetime.now(UTC) + DAY
    assert new.expires_at is None


def test_a_grace_period_never_lengthens_a_life(acme, inventory):
    soon = datetime.now(UTC) + timedelta(hours=1)
    old, _ = acme.create_key("acme", "support", expires_at=soon)
    new, _ = acme.rotate_key("acme", old.id, grace=DAY)
    assert inventory.key("acme", old.id).expires_at == soon
    assert new.expires_at - new.created_at == old.expires_at - old.created_at


def test_both_changes_are_on_record_and_name_each_other(acme, events):
    old, _ = acme.create_key("acme", "support")
    del events[:]
    new, _ = acme.rotate_key("acme", old.id, grace=DAY)
    made, rotated = events
    assert (made.action, made.target, made.detail) == ("key.created", new.id, {"replaces": old.id})
    assert (rotated.action, rotated.target) == ("key.rotated", old.id)
    assert rotated.before == old.digest() != rotated.after
    assert made.epoch == rotated.epoch


def test_a_rotation_that_cannot_be_recorded_did_not_happen(acme, database, inventory):
    old, _ = acme.create_key("acme", "support")

    def second_fails(event):
        if event.action == "key.rotated":
            raise RuntimeError("no record")

    failing = Control(
        database,
        cell="demo",
        hasher=KeyHasher(PEPPER),
        actor="cli",
        check_policy=compile_policy,
        on_event=second_fails,
    )
    with pytest.raises(RuntimeError):
        failing.rotate_key("acme", old.id, grace=DAY)
    assert inventory.keys("acme") == [old]


def test_a_key_is_rotated_once_and_then_its_successor(acme):
    first, _ = acme.create_key("acme", "support")
    second, _ = acme.rotate_key("acme", first.id, grace=DAY)
    with pytest.raises(Invalid, match=f"already, to '{second.id}'"):
        acme.rotate_key("acme", first.id, grace=DAY)
    third, _ = acme.rotate_key("acme", second.id, grace=DAY)
    assert third.id not in {first.id, second.id}


def test_a_dead_key_has_no_successor(acme):
    key, _ = acme.create_key("acme", "support")
    acme.revoke_key("acme", key.id)
    with pytest.raises(Invalid, match="no longer"):
        acme.rotate_key("acme", key.id, grace=DAY)


@pytest.mark.parametrize("grace", [timedelta(seconds=-1), timedelta(days=91)])
def test_a_grace_period_out_of_bounds_is_refused(acme, grace):
    key, _ = acme.create_key("acme", "support")
    with pytest.raises(Invalid, match="grace"):
        acme.rotate_key("acme", key.id, grace=grace)


def test_another_tenants_key_is_not_found(acme):
    key, _ = acme.create_key("acme", "support")
    acme.create_tenant("globex")
    with pytest.raises(NotFound):
        acme.rotate_key("globex", key.id, grace=DAY)


def test_when_a_key_was_used_is_no_part_of_its_digest(acme):
    key, _ = acme.create_key("acme", "support")
    assert key.model_copy(update={"last_used_at": datetime.now(UTC)}).digest() == key.digest()
    assert key.model_copy(update={"label": "other"}).digest() != key.digest()


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::1", True),
        ("11.0.0.1", False),
        ("::ffff:11.0.0.1", False),
        ("2001:db9::1", False),
        ("::", False),
    ],
)
def test_an_address_is_in_a_network_of_its_own_family_or_mapped_to_it(address, allowed):
    scopes = Scopes(networks=("10.0.0.0/8", "2001:db8::/32"))
    assert scopes.allows_address(ip_address(address)) is allowed


def test_an_unknown_address_passes_only_where_no_network_is_asked_for():
    assert Scopes().allows_address(None)
    assert not Scopes(networks=("0.0.0.0/0", "::/0")).allows_address(None)
    assert not Scopes(networks=()).allows_address(ip_address("10.0.0.1"))


@pytest.mark.parametrize("network", ["10.0.0.1/8", "10.0.0.0/33", "everywhere", ""])
def test_what_is_no_network_is_refused(network):
    with pytest.raises(ValueError, match="network"):
        Scopes(networks=(network,))
