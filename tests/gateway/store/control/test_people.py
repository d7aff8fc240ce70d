from datetime import UTC, datetime, timedelta

import pytest

from gateway.database.errors import Invalid, NotFound

ON_BOTH_DATABASES = True

DAY = timedelta(days=1)


def tomorrow():
    return datetime.now(UTC) + DAY


def test_a_person_has_a_random_id_and_roles_in_the_order_of_the_table(acme, inventory):
    person = acme.create_person("acme", "Ada Lovelace", ["dpo", "developer", "dpo"])
    assert person.roles == ("developer", "dpo")
    assert len(person.id) == 8
    assert inventory.people("acme") == [person]
    assert inventory.people(None) == []


def test_the_record_has_no_name_and_no_hash_of_one(acme, events):
    person = acme.create_person("acme", "Ada Lovelace", ["dpo"])
    event = events[-1]
    assert (event.action, event.tenant, event.target) == ("person.created", "acme", person.id)
    assert "Ada" not in event.model_dump_json()
    assert event.after == person.model_copy(update={"display_name": "Bob"}).digest()


@pytest.mark.parametrize("roles", [[], ["operator"], ["root"], ["dpo", "operator"]])
def test_roles_that_a_tenants_person_cannot_have_are_refused(acme, roles):
    with pytest.raises(Invalid, match="roles"):
        acme.create_person("acme", "Ada", roles)


def test_a_person_of_an_unknown_or_revoked_tenant_is_not_made(acme):
    with pytest.raises(NotFound):
        acme.create_person("nowhere", "Ada", ["dpo"])
    acme.revoke_tenant("acme")
    with pytest.raises(Invalid, match="revoked"):
        acme.create_person("acme", "Ada", ["dpo"])


def test_a_person_is_found_only_where_they_belong(acme):
    acme.create_tenant("globex")
    person = acme.create_person("acme", "Ada", ["dpo"])
    token, _ = acme.create_token("acme", person.id, expires_at=tomorrow())
    for tenant in ("globex", None):
        with pytest.raises(NotFound):
            acme.set_roles(tenant, person.id, ["billing"])
        with pytest.raises(NotFound):
            acme.revoke_person(tenant, person.id)
        with pytest.raises(NotFound):
            acme.create_token(tenant, person.id, expires_at=tomorrow())
        with pytest.raises(NotFound):
            acme.revoke_token(tenant, person.id, token.id)


def test_a_token_of_one_person_is_not_found_under_another(acme):
    ada, bob = (acme.create_person("acme", name, ["dpo"]) for name in ("Ada", "Bob"))
    token, _ = acme.create_token("acme", ada.id, expires_at=tomorrow())
    with pytest.raises(NotFound):
        acme.revoke_token("acme", bob.id, token.id)


def test_setting_the_roles_one_has_changes_nothing(acme, events):
    person = acme.create_person("acme", "Ada", ["dpo"])
    del events[:]
    assert acme.set_roles("acme", person.id, ["dpo"]) == person
    assert events == []


def test_one_operator_always_remains(acme):
    first = acme.create_person(None, "Root", ["operator"])
    for lose in (
        lambda: acme.revoke_person(None, first.id),
        lambda: acme.set_roles(None, first.id, ["billing"]),
    ):
        with pytest.raises(Invalid, match="last operator"):
            lose()
    acme.create_person(None, "Second", ["operator"])
    assert acme.set_roles(None, first.id, ["billing"]).roles == ("billing",)


@pytest.mark.parametrize("life", [timedelta(0), -DAY, timedelta(days=367)])
def test_a_tokens_life_has_bounds(acme, life):
    person = acme.create_person("acme", "Ada", ["dpo"])
    with pytest.raises(Invalid, match="366 days"):
        acme.create_token("acme", person.id, expires_at=datetime.now(UTC) + life)


def test_a_bootstrap_token_works_once(control, inventory):
    record, _ = control.create_bootstrap_token()
    person, token, _ = control.bootstrap(record.id, "Root", expires_at=tomorrow())
    assert person.roles == ("operator",)
    assert inventory.tokens(None, person.id) == [token]
    with pytest.raises(NotFound):
        control.bootstrap(record.id, "Mallory", expires_at=tomorrow())
    with pytest.raises(Invalid, match="operator already"):
        control.create_bootstrap_token()


def test_a_new_bootstrap_token_ends_the_one_before(control):
    first, _ = control.create_bootstrap_token()
    second, _ = control.create_bootstrap_token()
    with pytest.raises(NotFound):
        control.bootstrap(first.id, "Root", expires_at=tomorrow())
    assert control.bootstrap(second.id, "Root", expires_at=tomorrow())


def test_a_bootstrap_that_fails_leaves_the_token(control):
    record, _ = control.create_bootstrap_token()
    with pytest.raises(Invalid):
        control.bootstrap(record.id, "bad\x00name", expires_at=tomorrow())
    assert control.bootstrap(record.id, "Root", expires_at=tomorrow())


def test_a_persons_token_is_no_bootstrap_token(acme):
    person = acme.create_person("acme", "Ada", ["dpo"])
    token, _ = acme.create_token("acme", person.id, expires_at=tomorrow())
    with pytest.raises(NotFound):
        acme.bootstrap(token.id, "Mallory", expires_at=tomorrow())
