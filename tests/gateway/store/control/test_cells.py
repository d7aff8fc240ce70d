"""Tenants taken over from their home cell: as it says, never the other way, never older, and never half."""

import pytest
from sqlmodel import select

from audit.tree.note import VerifierKey
from gateway.database.database import Database
from gateway.database.errors import Invalid, NotFound, StoreError
from gateway.database.tables.control import PolicyVersionRow
from gateway.identity.keys import KeyHasher
from gateway.limits.limit_kinds import LimitFigures
from gateway.limits.limiter import Limits
from gateway.records.bundle import Bundle, BundledTenant
from gateway.records.bundle_request import key_name
from gateway.records.control import Scopes
from gateway.store.cells import allowances, applied_bundles, bundle_for, peers
from gateway.store.changes import read_changes
from gateway.store.control.control import Control
from tests.gateway.conftest import ACTIVITY, PEPPER, compile_policy

ON_BOTH_DATABASES = True
DOCUMENT = "policy: acme\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"


def vkey(cell="eu-de"):
    return str(VerifierKey(key_name(cell), bytes(range(32))))


@pytest.fixture
def home(acme):
    """Cell demo, where acme has a policy, a key and limits, and may be served in eu-de."""
    acme.activate_policy("acme", DOCUMENT)
    acme.create_key("acme", "support", scopes=Scopes(models=("small",)))
    acme.set_limits("acme", LimitFigures(requests_per_minute=60))
    acme.register_peer("eu-de", vkey())
    acme.allow_cell("acme", "eu-de")
    return acme


@pytest.fixture
def there(tmp_path):
    """Another cell's control, with a database of its own."""
    other = Database.open(tmp_path / "other")
    told = []
    control = Control(
        other, cell="eu-de", hasher=KeyHasher(PEPPER), actor="system", check_policy=compile_policy, on_event=told.append
    )
    control.told, control.database = told, other
    yield control
    other.close()


def told(database):
    return bundle_for(database, "demo", "eu-de")


def in_force(there):
    with there.database.read() as session:
        return read_changes(session, "eu-de", 0)


def test_what_the_home_says_is_in_force_there_in_one_epoch(home, database, there):
    assert there.apply_bundle(told(database)) == ["acme"]
    found = in_force(there)
    assert found.tenants == {"acme": False} and found.epoch == 1
    (key,) = found.keys.values()
    assert (key.tenant, key.project, key.scopes.models) == ("acme", "support", ("small",))
    assert found.policies["acme", ""].document == DOCUMENT
    assert found.limits["acme", "", ""] == Limits.of(rpm=60)
    (event,) = there.told
    assert (event.action, event.tenant, event.target) == ("bundle.applied", "acme", "demo")
    assert event.detail["bundle"] == told(database).sha256
    (record,) = applied_bundles(there.database)
    assert (record.home, record.tenants) == ("demo", ("acme",))


def test_the_same_again_changes_nothing_and_tells_nothing(home, database, there):
    there.apply_bundle(told(database))
    assert there.apply_bundle(told(database)) == []
    assert len(there.told) == 1


def test_only_tenants_that_are_allowed_there_are_told_of(home, database):
    home.create_tenant("globex")
    home.create_project("globex", "main", **ACTIVITY)
    home.create_key("globex", "main")
    bundle = told(database)
    assert {each.id for each in bundle.tenants} == {"acme"} == {each.tenant for each in bundle.keys}
    assert bundle_for(database, "demo", "eu-at").tenants == ()


def test_a_revoked_key_a_new_policy_and_new_limits_follow(home, database, there):
    there.apply_bundle(told(database))
    (key,) = in_force(there).keys
    home.revoke_key("acme", key)
    newer = DOCUMENT.replace("version: 1", "version: 2")
    home.activate_policy("acme", newer)
    home.set_limits("acme", LimitFigures(requests_per_minute=5))
    there.apply_bundle(told(database))
    found = in_force(there)
    assert found.keys[key].revoked
    assert found.policies["acme", ""].document == newer
    assert found.limits["acme", "", ""] == Limits.of(rpm=5)
    with there.database.read() as session:
        active = session.exec(select(PolicyVersionRow.number).where(PolicyVersionRow.active == True)).all()  # noqa: E712
    assert active == [2]


def test_a_tenant_that_may_no_longer_be_served_there_is_revoked_there_and_lives_again_when_it_may(
    home, database, there
):
    there.apply_bundle(told(database))
    home.forbid_cell("acme", "eu-de")
    assert there.apply_bundle(told(database)) == ["acme"]
    assert in_force(there).tenants == {"acme": True}
    home.allow_cell("acme", "eu-de")
    there.apply_bundle(told(database))
    assert in_force(there).tenants == {"acme": False}


def test_an_older_bundle_is_refused(home, database, there):
    old = told(database)
    home.set_limits("acme", LimitFigures(requests_per_minute=5))
    there.apply_bundle(told(database))
    with pytest.raises(Invalid, match="newer bundle already"):
        there.apply_bundle(old)
    assert in_force(there).limits["acme", "", ""] == Limits.of(rpm=5)


def test_a_cell_has_nothing_to_say_of_a_tenant_that_is_at_home_elsewhere(home, database, there):
    there.create_tenant("acme")
    with pytest.raises(Invalid, match="at home here"):
        there.apply_bundle(told(database))
    assert applied_bundles(there.database) == []
    there.apply_bundle(Bundle(home="eu-fr", peer="eu-de", epoch=1, tenants=(_tenant("globex"),)))
    with pytest.raises(Invalid, match="at home in cell 'eu-fr'"):
        there.apply_bundle(Bundle(home="eu-it", peer="eu-de", epoch=1, tenants=(_tenant("globex"),)))


def test_a_policy_that_cannot_be_in_force_there_leaves_all_as_it_was(home, database, there):
    there.apply_bundle(told(database))
    bad = told(database).model_copy(
        update={
            "epoch": 99,
            "policies": tuple(
                each.model_copy(update={"document": "bad", "number": 2}) for each in told(database).policies
            ),
        }
    )
    with pytest.raises(StoreError):
        there.apply_bundle(bad)
    assert in_force(there).policies["acme", ""].document == DOCUMENT
    assert [each.epoch for each in applied_bundles(there.database)] == [told(database).epoch]


def test_what_a_bundle_says_of_somebody_it_does_not_name_is_refused(home, database, there):
    bundle = told(database)
    with pytest.raises(Invalid, match="without listing"):
        there.apply_bundle(bundle.model_copy(update={"tenants": ()}))


def test_a_tenant_taken_over_is_administered_at_home_alone(home, database, there):
    there.apply_bundle(told(database))
    for change in (
        lambda: there.create_key("acme", "support"),
        lambda: there.create_project("acme", "more", **ACTIVITY),
        lambda: there.activate_policy("acme", DOCUMENT),
        lambda: there.set_limits("acme", LimitFigures(requests_per_minute=1)),
        lambda: there.revoke_tenant("acme"),
    ):
        with pytest.raises(Invalid, match="home cell 'demo'"):
            change()
    home.create_key("acme", "support")


def test_peers_are_known_by_the_key_of_their_record(acme, database, events):
    with pytest.raises(Invalid, match="verifier key cannot be read"):
        acme.register_peer("eu-de", "rubbish")
    with pytest.raises(Invalid, match="not of 'domicile"):
        acme.register_peer("eu-de", vkey("eu-at"))
    with pytest.raises(Invalid, match="its own peer"):
        acme.register_peer("demo", vkey("demo"))
    with pytest.raises(NotFound, match="register it first"):
        acme.allow_cell("acme", "eu-de")
    acme.register_peer("eu-de", vkey())
    acme.allow_cell("acme", "eu-de")
    with pytest.raises(NotFound):
        acme.allow_cell("nobody", "eu-de")
    with pytest.raises(NotFound):
        acme.forbid_cell("acme", "eu-at")
    assert [each.id for each in peers(database)] == ["eu-de"]
    assert [(each.tenant, each.peer) for each in allowances(database)] == [("acme", "eu-de")]
    assert [event.action for event in events[-2:]] == ["cell.registered", "cell.allowed"]


def _tenant(name):
    return BundledTenant(id=name, display_name=name, revoked_at=None)
