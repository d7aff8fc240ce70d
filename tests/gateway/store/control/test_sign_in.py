"""One-time tokens for the console: each begins one session, while its person and its time last."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from gateway.database.errors import Invalid, NotFound
from gateway.identity.keys import KeyHasher, KeyMalformed, KeyRefused, parse_key
from gateway.store.bearers import find_bearer
from gateway.store.control.sessions import SIGN_IN_LIFE
from tests.gateway.conftest import PEPPER

ON_BOTH_DATABASES = True
HOUR = timedelta(hours=1)


@pytest.fixture
def ada(acme):
    return acme.create_person("acme", "Ada", ["dpo"]).id


def test_a_token_begins_one_session_and_both_are_on_record(acme, ada, events):
    record, token = acme.create_sign_in("acme", ada)
    person, session, key = acme.sign_in(record.id, life=HOUR)
    assert (person.id, session.label) == (ada, "login")
    assert token.token.startswith("dom_once_") and key.token.startswith("dom_admin_")
    assert [event.action for event in events][-3:] == ["token.created", "token.revoked", "session.opened"]
    with pytest.raises(NotFound, match="was used or has expired"):
        acme.sign_in(record.id, life=HOUR)


def test_of_many_at_once_one_gets_in(acme, ada):
    record, _ = acme.create_sign_in("acme", ada)

    def attempt(_):
        try:
            return acme.sign_in(record.id, life=HOUR)[1].id
        except NotFound:
            return None

    with ThreadPoolExecutor(4) as threads:
        sessions = list(threads.map(attempt, range(8)))
    assert len([each for each in sessions if each]) == 1


def test_a_token_ends_with_its_time_and_its_person(acme, ada, control):
    late, _ = acme.create_sign_in("acme", ada)
    revoked, _ = acme.create_sign_in("acme", ada)
    acme._now = lambda: datetime.now(UTC) + SIGN_IN_LIFE
    with pytest.raises(NotFound):
        acme.sign_in(late.id, life=HOUR)
    acme._now = lambda: datetime.now(UTC)
    acme.revoke_person("acme", ada)
    with pytest.raises((NotFound, Invalid)):
        acme.sign_in(revoked.id, life=HOUR)


def test_no_other_token_begins_a_session(acme, ada):
    record, _ = acme.create_token("acme", ada, expires_at=datetime.now(UTC) + HOUR)
    bootstrap, _ = acme.create_bootstrap_token()
    for token in (record.id, bootstrap.id, "nothing1"):
        with pytest.raises(NotFound):
            acme.sign_in(token, life=HOUR)


def test_a_sign_in_token_is_no_access_token_under_any_name(acme, ada, database):
    _, token = acme.create_sign_in("acme", ada)
    with pytest.raises(KeyMalformed):
        parse_key(token.token, "admin")
    renamed = token.token.replace("dom_once_", "dom_admin_")
    with pytest.raises(KeyRefused):
        find_bearer(database, "demo", KeyHasher(PEPPER), parse_key(renamed, "admin"), datetime.now(UTC))


def test_people_of_the_identity_provider_come_in_there(acme):
    (person,) = acme.apply_groups("f" * 64, "Bob", {"acme": ("dpo",)})
    with pytest.raises(Invalid, match="identity provider"):
        acme.create_sign_in("acme", person.id)
