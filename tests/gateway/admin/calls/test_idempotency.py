"""A call repeated with its key: once made, as often answered."""

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from gateway.admin.app import build_admin
from gateway.database.errors import DatabaseUnavailable
from gateway.store.control.control import Control
from gateway.store.idempotent_answers import KEPT_FOR, LEASE, Answers, Claim
from tests.fakes.disk import bytes_of
from tests.gateway.conftest import ACTIVITY

ON_BOTH_DATABASES = True

KEYS = "/tenants/acme/keys"


def keyed(headers, key="k-1", **more):
    return {**headers, "idempotency-key": key, **more}


def test_a_repeated_call_gets_the_same_answer_and_makes_nothing_more(client, operator, inventory):
    body = {"project": "support", "label": "web shop"}
    first, *again = (client.post(KEYS, headers=keyed(operator), json=body) for _ in range(3))
    assert first.status_code == 201
    assert "idempotency-replayed" not in first.headers
    for each in again:
        assert (each.status_code, each.content) == (first.status_code, first.content)
        assert each.json()["key"] == first.json()["key"]
        for name in ("etag", "cache-control", "content-type"):
            assert each.headers[name] == first.headers[name]
        assert each.headers["idempotency-replayed"] == "true"
    assert len(inventory.keys("acme")) == 1


def test_a_quoted_key_is_the_same_as_a_bare_one(client, operator, inventory):
    for key in ("k-1", '"k-1"'):
        assert client.post(KEYS, headers=keyed(operator, key), json={"project": "support"}).status_code == 201
    assert len(inventory.keys("acme")) == 1


def test_another_call_with_the_same_key_is_refused(client, operator, inventory):
    assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).status_code == 201
    for path, body in ((KEYS, {"project": "support", "label": "x"}), ("/tenants", {"id": "initech"})):
        other = client.post(path, headers=keyed(operator), json=body)
        assert other.status_code == 422
        assert "another call" in other.json()["detail"]
    other = client.post(KEYS, headers=keyed(operator, **{"if-match": '"x"'}), json={"project": "support"})
    assert other.status_code == 422
    assert len(inventory.keys("acme")) == 1


def test_a_key_is_one_callers_own(client, operator, login, inventory):
    other = login("acme", "developer")
    answers = [client.post(KEYS, headers=keyed(who), json={"project": "support"}) for who in (operator, other)]
    assert len({answer.json()["id"] for answer in answers}) == 2
    assert len(inventory.keys("acme")) == 2


def test_what_was_refused_may_be_repeated(client, operator, acme):
    body = {"id": "later", **ACTIVITY}
    assert client.post("/tenants/globex/projects", headers=keyed(operator), json=body).status_code == 404
    assert client.post("/tenants/acme/projects", headers=keyed(operator), json={**body, "id": "X"}).status_code == 422
    acme.create_tenant("globex")
    made = client.post("/tenants/globex/projects", headers=keyed(operator), json=body)
    assert made.status_code == 201
    assert "idempotency-replayed" not in made.headers


def test_who_may_not_any_more_is_told_so_and_not_what_was_answered(client, acme, login):
    admin = login("acme", "tenant-admin")
    assert client.post(KEYS, headers=keyed(admin), json={"project": "support"}).status_code == 201
    me = client.get("/me", headers=admin).json()["person"]
    acme.set_roles("acme", me, ["billing"])
    assert client.post(KEYS, headers=keyed(admin), json={"project": "support"}).status_code == 403
    assert client.post(KEYS, headers=keyed({}), json={"project": "support"}).status_code == 401


def test_for_a_day_the_key_is_kept_and_then_it_is_new(client, operator, clock, database):
    made = client.post(KEYS, headers=keyed(operator), json={"project": "support"}).json()
    clock.now += timedelta(hours=23)
    assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).json() == made
    answers = Answers(database, "demo", "key:x", "secret")
    answers.keep(answers.claim("k", clock.now), b"said")
    assert isinstance(answers.claim("k", clock.now + KEPT_FOR - timedelta(seconds=1)), bytes)
    assert isinstance(answers.claim("k", clock.now + KEPT_FOR), Claim)


def test_of_many_at_once_one_is_made_and_the_others_wait_or_get_its_answer(app, operator, inventory):
    seen, start = [], threading.Barrier(6)

    def call():
        with TestClient(app, raise_server_exceptions=False) as client:
            start.wait()
            seen.append(client.post(KEYS, headers=keyed(operator), json={"project": "support"}))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(answer.status_code for answer in seen)
    assert set(statuses) <= {201, 409}
    assert len({answer.json()["key"] for answer in seen if answer.status_code == 201}) == 1
    assert len(inventory.keys("acme")) == 1


def test_a_call_that_was_cut_off_after_its_change_says_what_was_made(app, operator, inventory, monkeypatch):
    """The gateway fell over after the change and before the answer."""
    monkeypatch.setattr("gateway.admin.keys.tagged", lambda *_: 1 / 0)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).status_code == 500
        monkeypatch.undo()
        again = client.post(KEYS, headers=keyed(operator), json={"project": "support"})
    (made,) = inventory.keys("acme")
    assert again.status_code == 409
    assert f"was made (key.created {made.id}) and its answer is lost" in again.json()["detail"]
    assert "retry-after" not in again.headers


def test_a_call_that_failed_before_its_change_is_made_when_it_is_repeated(app, operator, inventory, monkeypatch):
    monkeypatch.setattr("gateway.store.change.bump_epoch", lambda *_: 1 / 0)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).status_code == 500
        monkeypatch.undo()
        assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).status_code == 201
    assert len(inventory.keys("acme")) == 1


def test_after_a_database_that_broke_off_before_the_commit_the_call_is_made_when_it_is_repeated(
    client, operator, inventory, monkeypatch
):
    def broken_off(*_):
        raise DatabaseUnavailable("the control database failed: server closed the connection unexpectedly")

    monkeypatch.setattr("gateway.store.change.note_change", broken_off)
    assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).status_code == 503
    assert inventory.keys("acme") == []
    monkeypatch.undo()
    assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).status_code == 201
    assert len(inventory.keys("acme")) == 1


def test_after_a_database_that_broke_off_in_the_middle_of_a_commit_nothing_is_made_twice(
    client, operator, inventory, monkeypatch
):
    """It was committed, and the connection broke before the database could say so."""
    created = Control.create_key

    def broken_off(self, *args, **more):
        created(self, *args, **more)
        raise DatabaseUnavailable("the control database failed: server closed the connection unexpectedly")

    monkeypatch.setattr(Control, "create_key", broken_off)
    assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).status_code == 503
    monkeypatch.undo()
    again = client.post(KEYS, headers=keyed(operator), json={"project": "support"})
    assert again.status_code == 409
    assert "see what there is" in again.json()["detail"]
    assert len(inventory.keys("acme")) == 1


def test_while_a_call_runs_its_repetition_is_told_when_to_come_again(client, operator, database, clock):
    token = operator["authorization"].split()[1]
    actor = f"key:{token.split('_')[2]}"
    assert isinstance(Answers(database, "demo", actor, token).claim("k-1", clock.now), Claim)
    waits = client.post(KEYS, headers=keyed(operator), json={"project": "support"})
    assert waits.status_code == 409
    assert waits.headers["retry-after"] == "60"
    clock.now += LEASE
    assert client.post(KEYS, headers=keyed(operator), json={"project": "support"}).status_code == 201


@pytest.mark.parametrize("key", ["", "a b", '"', '""', '"a', "é", "x" * 256, "a\tb"])
def test_a_key_has_a_grammar(client, operator, inventory, key):
    answer = client.post(KEYS, headers=keyed(operator, key.encode()), json={"project": "support"})
    assert answer.status_code == 422
    assert inventory.keys("acme") == []


def test_reading_takes_no_key(client, operator):
    assert client.get("/tenants", headers=keyed(operator)).status_code == 200
    assert client.post("/tenants", headers=keyed(operator), json={"id": "initech"}).status_code == 201


def test_no_secret_that_was_shown_lies_in_the_database(client, operator, data):
    made = client.post(KEYS, headers=keyed(operator), json={"project": "support", "label": "canary label"})
    key, token = made.json()["key"], operator["authorization"].split()[1]
    stored = b"".join(bytes_of(file) for file in data.glob("control.db*"))
    for secret in (key, key.split("_")[3], token, token.split("_")[3]):
        assert secret.encode() not in stored
    assert b"canary label" in stored, "in the key's own row, so the file was read"


def test_a_machine_with_a_fresh_token_is_told_that_the_answer_cannot_be_shown(app, acme):
    from gateway.configuration.settings import Oidc
    from gateway.identity.provider import IdentityProvider
    from tests.fakes.issuer import ISSUER, NOW, Issuer

    issuer = Issuer()
    roles = [{"group": "platform", "role": "operator", "staff": True}]
    settings = Oidc(issuer=ISSUER, audience="domicile-api", roles=roles)
    provider = IdentityProvider(settings, transport=issuer.transport, now=lambda: NOW)
    with TestClient(build_admin(replace(app.state.context, provider=provider))) as client:
        statuses = [
            client.post(
                KEYS,
                headers=keyed({"authorization": f"Bearer {issuer.token(exp=NOW + life)}"}),
                json={"project": "support"},
            ).status_code
            for life in (60, 60, 61)
        ]
    assert statuses == [201, 201, 409]
