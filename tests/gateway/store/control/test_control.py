from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import pytest
from sqlmodel import select

from gateway.database.errors import Duplicate, Invalid, NotFound
from gateway.database.tables.control import ApiKeyRow, ConfigEpochRow, PolicyVersionRow
from gateway.identity.keys import KeyHasher
from gateway.records.control import Scopes
from gateway.store.control.control import Control
from regions.identity.identity import BackendIdentity
from tests.gateway.conftest import ACTIVITY, PEPPER, compile_policy

ON_BOTH_DATABASES = True

BACKEND = BackendIdentity("demo", "acme", "eu-fr-par", "acme-1")
URL = "https://127.0.0.1:9000"


def epoch(database):
    with database.read() as session:
        row = session.get(ConfigEpochRow, "demo")
        return row.value if row else 0


def dump(path):
    import sqlite3

    connection = sqlite3.connect(path)
    try:
        return "\n".join(connection.iterdump())
    finally:
        connection.close()


def test_a_key_is_shown_once_and_only_its_keyed_hash_is_kept(acme, database, data):
    record, key = acme.create_key("acme", "support", label="web shop")
    assert record.id == key.id
    assert record.last_four == key.token[-4:]
    with database.read() as session:
        assert session.exec(select(ApiKeyRow)).one().digest == KeyHasher(PEPPER).digest(key)
    database.close()
    assert key.token[18:61] not in dump(data / "control.db")
    assert "digest" not in record.model_dump()


def test_every_write_raises_the_epoch_by_one_and_tells_the_record(control, database, events):
    steps = [
        lambda: control.create_tenant("acme"),
        lambda: control.create_project("acme", "support", **ACTIVITY),
        lambda: control.create_key("acme", "support"),
        lambda: control.activate_policy("acme", "policy: acme"),
        lambda: control.register_backend(BACKEND, url=URL, models=["smollm2"]),
        lambda: control.revoke_key("acme", events[2].target),
        lambda: control.revoke_backend("acme", "acme-1"),
        lambda: control.revoke_project("acme", "support"),
        lambda: control.revoke_tenant("acme"),
    ]
    for number, step in enumerate(steps, 1):
        step()
        assert epoch(database) == number
        assert [event.epoch for event in events] == list(range(1, number + 1))
    assert [event.action for event in events] == [
        "tenant.created",
        "project.created",
        "key.created",
        "policy.activated",
        "backend.registered",
        "key.revoked",
        "backend.revoked",
        "project.revoked",
        "tenant.revoked",
    ]
    assert {event.actor for event in events} == {"cli:test"}


def test_before_and_after_are_digests_that_chain(acme, events):
    record, _ = acme.create_key("acme", "support")
    revoked = acme.revoke_key("acme", record.id)
    created, ended = events[-2:]
    assert created.before is None
    assert created.after == record.digest() == ended.before
    assert ended.after == revoked.digest() != record.digest()


def test_when_the_event_cannot_be_recorded_nothing_has_happened(acme, database, inventory):
    before = epoch(database)

    def refuse(_event):
        raise RuntimeError("the log is full")

    deaf = Control(
        database,
        cell="demo",
        hasher=KeyHasher(PEPPER),
        actor="x",
        check_policy=compile_policy,
        on_event=refuse,
    )
    record, _ = acme.create_key("acme", "support")
    for step in (
        lambda: deaf.create_tenant("globex"),
        lambda: deaf.create_project("acme", "other", **ACTIVITY),
        lambda: deaf.create_key("acme", "support"),
        lambda: deaf.activate_policy("acme", "policy: acme"),
        lambda: deaf.register_backend(BACKEND, url=URL, models=["m"]),
        lambda: deaf.revoke_key("acme", record.id),
    ):
        with pytest.raises(RuntimeError, match="log is full"):
            step()
    assert epoch(database) == before + 1
    assert [t.id for t in inventory.tenants()] == ["acme"]
    assert [p.id for p in inventory.projects("acme")] == ["support"]
    assert [k.revoked_at for k in inventory.keys("acme")] == [None]
    assert inventory.policies("acme") == inventory.backends("acme") == []


def test_no_event_holds_a_key(acme, events):
    _, key = acme.create_key("acme", "support", label="shop")
    assert key.token[18:61] not in events[-1].model_dump_json()


@pytest.mark.parametrize(
    "name", ["", "A", "Acme", "1acme", "a", "acme_x", "аcme", "acme\n", "a" * 32, "../acme", "_system"]
)
def test_a_name_outside_the_grammar_is_refused(control, inventory, name):
    with pytest.raises(Invalid, match="is not a name"):
        control.create_tenant(name)
    control.create_tenant("acme")
    with pytest.raises(Invalid, match="is not a name"):
        control.create_project("acme", name, **ACTIVITY)
    assert [t.id for t in inventory.tenants()] == ["acme"]


def test_what_exists_already_is_not_made_twice(acme):
    with pytest.raises(Duplicate, match="tenant 'acme' exists"):
        acme.create_tenant("acme")
    with pytest.raises(Duplicate, match="project 'support'"):
        acme.create_project("acme", "support", **ACTIVITY)


def test_two_tenants_may_have_projects_of_one_name(acme, inventory):
    acme.create_tenant("globex")
    acme.create_project("globex", "support", **ACTIVITY)
    assert inventory.project("globex", "support").tenant == "globex"


def test_what_belongs_to_nobody_is_not_found(acme, inventory):
    for step in (
        lambda: acme.create_project("globex", "support", **ACTIVITY),
        lambda: acme.create_key("acme", "nope"),
        lambda: acme.create_key("nope", "support"),
        lambda: acme.activate_policy("nope", "policy: x"),
        lambda: acme.activate_policy("acme", "policy: x", project="nope"),
        lambda: acme.revoke_key("acme", "00000000"),
        lambda: acme.revoke_backend("acme", "acme-1"),
        lambda: acme.register_backend(BackendIdentity("demo", "nope", "eu-fr-par", "b1"), url=URL, models=["m"]),
        lambda: inventory.tenant("nope"),
        lambda: inventory.projects("nope"),
        lambda: inventory.keys("acme", "nope"),
        lambda: inventory.policies("nope"),
        lambda: inventory.backends("nope"),
        lambda: inventory.key("acme", "00000000"),
    ):
        with pytest.raises(NotFound):
            step()


def test_one_tenant_cannot_touch_what_is_anothers(acme, inventory):
    acme.create_tenant("globex")
    record, _ = acme.create_key("acme", "support")
    acme.register_backend(BACKEND, url=URL, models=["m"])
    for step in (
        lambda: acme.revoke_key("globex", record.id),
        lambda: acme.revoke_backend("globex", "acme-1"),
        lambda: acme.revoke_project("globex", "support"),
        lambda: inventory.key("globex", record.id),
    ):
        with pytest.raises(NotFound):
            step()
    assert inventory.key("acme", record.id).revoked_at is None


def test_a_backend_name_taken_by_another_tenant_or_region_is_a_duplicate(acme):
    acme.create_tenant("globex")
    acme.register_backend(BACKEND, url=URL, models=["m"])
    for identity in (
        BackendIdentity("demo", "globex", "eu-fr-par", "acme-1"),
        BackendIdentity("demo", "acme", "us-east", "acme-1"),
    ):
        with pytest.raises(Duplicate):
            acme.register_backend(identity, url=URL, models=["m"])


def test_a_backend_that_comes_back_elsewhere_is_the_same_backend(acme, inventory):
    acme.register_backend(BACKEND, url=URL, models=["m"])
    acme.revoke_backend("acme", "acme-1")
    acme.register_backend(BACKEND, url="https://127.0.0.1:9001", models=["m", "n"])
    (record,) = inventory.backends("acme")
    assert (record.url, record.models, record.revoked_at) == ("https://127.0.0.1:9001", ("m", "n"), None)


def test_a_backend_without_model_or_over_plain_http_elsewhere_is_refused(acme):
    for url, models in (("http://10.0.0.1:80", ["m"]), ("ftp://127.0.0.1", ["m"]), (URL, [])):
        with pytest.raises(Invalid):
            acme.register_backend(BACKEND, url=url, models=models)
    with pytest.raises(Invalid, match="not of cell"):
        acme.register_backend(BackendIdentity("other", "acme", "eu-fr-par", "b1"), url=URL, models=["m"])


def test_a_project_needs_a_purpose_and_a_ground_in_law(acme):
    good = {"purpose": "support", "legal_basis": "contract"}
    for wrong in (
        {"purpose": " "},
        {"purpose": "two\nlines"},
        {"purpose": "x" * 201},
        {"legal_basis": "because"},
        {"risk_class": "prohibited"},
        {"data_classes": ["ok", ""]},
    ):
        with pytest.raises(Invalid):
            acme.create_project("acme", "other", **(good | wrong))


def test_nothing_new_grows_under_what_was_revoked(acme):
    acme.revoke_project("acme", "support")
    with pytest.raises(Invalid, match="revoked"):
        acme.create_key("acme", "support")
    acme.revoke_tenant("acme")
    for step in (
        lambda: acme.create_project("acme", "other", **ACTIVITY),
        lambda: acme.activate_policy("acme", "policy: x"),
        lambda: acme.register_backend(BACKEND, url=URL, models=["m"]),
    ):
        with pytest.raises(Invalid, match="revoked"):
            step()


def test_revoking_twice_keeps_the_first_instant_and_tells_once(acme, events):
    record, _ = acme.create_key("acme", "support")
    first = acme.revoke_key("acme", record.id)
    assert acme.revoke_key("acme", record.id) == first
    assert [event.action for event in events].count("key.revoked") == 1


def test_a_key_cannot_begin_expired(acme):
    for expiry in (datetime.now(UTC) - timedelta(seconds=1), datetime(2100, 1, 1)):
        with pytest.raises(Invalid, match="in the past or has no zone"):
            acme.create_key("acme", "support", expires_at=expiry)


def test_scopes_survive_the_database(acme, inventory):
    scopes = Scopes(models=("smollm2",), endpoints=())
    record, _ = acme.create_key("acme", "support", scopes=scopes)
    assert inventory.key("acme", record.id).scopes == scopes


def test_versions_count_up_and_one_is_active(acme, inventory):
    acme.activate_policy("acme", "policy: one")
    second = acme.activate_policy("acme", "policy: two")
    acme.activate_policy("acme", "policy: ours", project="support")
    assert second.sha256 == sha256(b"policy: two").hexdigest()
    assert [(p.project, p.number, p.active, p.document) for p in inventory.policies("acme")] == [
        (None, 1, False, "policy: one"),
        (None, 2, True, "policy: two"),
        ("support", 1, True, "policy: ours"),
    ]


def test_a_policy_that_does_not_compile_never_displaces_the_active_one(acme, inventory):
    acme.activate_policy("acme", "policy: one")
    with pytest.raises(Invalid, match=r"line 3: residency\.proces_in: unknown key"):
        acme.activate_policy("acme", "policy: bad")
    assert [(p.document, p.active) for p in inventory.policies("acme")] == [("policy: one", True)]


def test_a_tenant_policy_that_breaks_a_project_below_it_is_refused_by_name(acme, inventory):
    acme.activate_policy("acme", "policy: loose")
    acme.activate_policy("acme", "policy: loose project", project="support")
    with pytest.raises(Invalid, match="project 'support' under the new policy"):
        acme.activate_policy("acme", "policy: strict")
    assert [p.document for p in inventory.policies("acme") if p.active] == ["policy: loose", "policy: loose project"]


def test_a_project_policy_needs_one_of_the_tenant_to_tighten(acme):
    with pytest.raises(Invalid, match="no active policy"):
        acme.activate_policy("acme", "policy: ours", project="support")


def test_the_database_itself_refuses_two_active_versions(acme, database):
    import sqlalchemy

    acme.activate_policy("acme", "policy: one")
    with pytest.raises(sqlalchemy.exc.IntegrityError), database.write() as session:
        row = session.exec(select(PolicyVersionRow)).one()
        session.add(PolicyVersionRow(**(row.model_dump() | {"number": 2})))


def test_writers_at_once_lose_nothing(acme, database, inventory):
    before = epoch(database)
    with ThreadPoolExecutor(4) as pool:
        keys = list(pool.map(lambda _: acme.create_key("acme", "support"), range(20)))
    assert len({record.id for record, _ in keys}) == 20
    assert epoch(database) == before + 20
    assert len(inventory.keys("acme")) == 20
