"""Keys of repeated calls: whose they are, and what becomes of them when a gateway is killed between any two steps."""

import signal
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from gateway.admin.app import build_admin
from gateway.identity.keys import KeyHasher
from gateway.store.control.control import Control
from gateway.store.idempotent_answers import LEASE, Answers, Claim, Pending, attempting
from tests.fakes.forks import forks
from tests.gateway.conftest import PEPPER
from tests.gateway.dying import KEYS, admin_context, make_a_key_and_die

ON_BOTH_DATABASES = True
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def operator(acme):
    person = acme.create_person(None, "Somebody", ["operator"])
    _, token = acme.create_token(None, person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
    return f"Bearer {token.token}"


def ask(database, operator, at):
    with TestClient(build_admin(admin_context(database, lambda: at)), raise_server_exceptions=False) as client:
        headers = {"authorization": operator, "idempotency-key": "k-1"}
        return client.post(KEYS, headers=headers, json={"project": "support"})


@pytest.mark.parametrize("step", ["claimed", "changed", "noted", "committed"])
def test_a_gateway_killed_between_any_two_steps_leaves_a_call_that_can_be_settled(
    step, database, operator, inventory, tmp_path
):
    url = "" if database.engine.dialect.name == "sqlite" else database.engine.url.render_as_string(hide_password=False)
    process = forks.Process(target=make_a_key_and_die, args=(step, url, tmp_path / "data", operator))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    process.close()

    first, later = ask(database, operator, datetime.now(UTC)), ask(database, operator, datetime.now(UTC) + LEASE)
    assert first.status_code == 409
    if step == "committed":
        (made,) = inventory.keys("acme")
        assert f"was made (key.created {made.id})" in first.json()["detail"]
        assert later.status_code == 409
    else:
        assert 1 <= int(first.headers["retry-after"]) <= 60
        assert later.status_code == 201
        assert [key.id for key in inventory.keys("acme")] == [later.json()["id"]]
        again = ask(database, operator, datetime.now(UTC))
        assert (again.status_code, again.json()) == (201, later.json())
    assert len(inventory.keys("acme")) == 1


def test_an_attempt_whose_key_was_taken_over_changes_nothing(database, acme, inventory):
    answers = Answers(database, "demo", "key:x", "secret")
    slow = answers.claim("k", NOW)
    with pytest.raises(Pending):
        answers.claim("k", NOW + LEASE - timedelta(seconds=1))
    fresh = answers.claim("k", NOW + LEASE)
    assert isinstance(fresh, Claim)
    with attempting(slow), pytest.raises(Pending, match="took over"):
        acme.create_key("acme", "support")
    assert inventory.keys("acme") == []
    answers.release(slow)
    answers.keep(slow, b"late")
    with attempting(fresh):
        acme.create_key("acme", "support")
    with pytest.raises(Pending, match="was made"):
        answers.claim("k", NOW + 3 * LEASE)
    answers.release(fresh)
    with pytest.raises(Pending, match="was made"):
        answers.claim("k", NOW + 3 * LEASE)
    assert len(inventory.keys("acme")) == 1


def test_a_key_is_not_taken_over_while_its_change_is_being_committed(database, control, inventory, acme):
    """The next attempt waits for the transaction, and then finds what it made."""
    answers, noted, go = Answers(database, "demo", "key:x", "secret"), threading.Event(), threading.Event()
    claim = answers.claim("k", NOW)
    said = []

    def change():
        def hold(event):
            noted.set()
            go.wait(10)

        slow = Control(database, cell="demo", hasher=KeyHasher(PEPPER), actor="cli", check_policy=None, on_event=hold)
        with attempting(claim), suppress(Pending):
            slow.create_key("acme", "support")

    def come_again():
        try:
            said.append(answers.claim("k", NOW + LEASE))
        except Pending as pending:
            said.append(str(pending))

    changing, coming = threading.Thread(target=change), threading.Thread(target=come_again)
    changing.start()
    assert noted.wait(10)
    coming.start()
    coming.join(0.3)
    go.set()
    for thread in (changing, coming):
        thread.join(20)
    keys = inventory.keys("acme")
    if isinstance(said[0], Claim):  # it came before the change was noted: then that one was refused
        assert keys == []
    else:
        assert "was made" in said[0] and len(keys) == 1


def test_an_answer_opens_only_for_who_shows_the_same_again(database):
    mine = Answers(database, "demo", "key:x", "secret")
    claim = mine.claim("k", NOW)
    with pytest.raises(Pending):
        mine.claim("k", NOW)
    mine.keep(claim, b"said")
    sealed = mine.claim("k", NOW)
    assert b"said" not in sealed
    assert mine.opened("k", sealed) == b"said"
    assert Answers(database, "demo", "key:x", "Secret").opened("k", sealed) is None
    assert mine.opened("k2", sealed) is None
    assert mine.opened("k", sealed[:-1] + bytes([sealed[-1] ^ 1])) is None
    mine.release(claim)
    assert isinstance(mine.claim("k", NOW), Claim)


def test_without_a_key_a_change_needs_no_row(acme, inventory):
    acme.create_key("acme", "support")
    assert len(inventory.keys("acme")) == 1
