"""Keys of content outside of the value store: a person's key goes with the person, a holder's with the holder."""

import sqlite3
from contextlib import closing

import pytest

from audit.errors import HeldError
from audit.keys.owner_keys import FileKeyProvider
from audit.private import content_keys
from audit.private.content_keys import lend, opened, release, share
from audit.private.deletion import DeletionRequest, Recorded, erase_subject, erase_tenant, expire, sweep
from audit.private.renewal import renew
from audit.private.value_store import ValueStore

NOTHING = Recorded(lambda seqs: {})


@pytest.fixture
def keys(tmp_path):
    return FileKeyProvider.open(tmp_path / "keys")


@pytest.fixture
def side(tmp_path, keys):
    with closing(ValueStore.open(tmp_path / "side.db", keys)) as opened_:
        yield opened_


def request(side, scope="subject", tenant="acme"):
    return DeletionRequest("0192f0c0-0000-7000-8000-000000000001", tenant, "erasure", scope, 0, 30)


def hold(side, key_id=None):
    with side.transaction() as db:
        db.execute(
            "INSERT INTO hold (id, tenant, key_id, first, last, reason, placed)"
            " VALUES ('h', 'acme', ?, NULL, NULL, 'x', 0)",
            (key_id,),
        )


def test_a_person_has_one_key_for_all_holders_and_a_holder_one_of_its_own(side):
    first = lend(side, "acme", "file-1", ["alice", "bob", None])
    second = lend(side, "acme", "file-2", ["Alice", None])
    assert first["alice"].id == second["Alice"].id
    assert len({key.id for key in (*first.values(), *second.values())}) == 4
    assert lend(side, "acme", "file-1", [None])[None].id == first[None].id
    assert lend(side, "globex", "file-3", ["alice"])["alice"].id != first["alice"].id
    nonce = bytes(12)
    sealed = first["alice"].cipher.encrypt(nonce, b"of alice", b"")
    assert opened(side, "acme", [first["alice"].id])[first["alice"].id].decrypt(nonce, sealed, b"") == b"of alice"
    assert opened(side, "globex", [first["alice"].id]) == {}


def test_an_erased_person_takes_the_key_along(side):
    keys = lend(side, "acme", "file-1", ["alice", "bob", None])
    certificate = erase_subject(side, request(side), keys["alice"].id, NOTHING)
    assert certificate.keys_destroyed == (keys["alice"].id,)
    assert set(opened(side, "acme", [key.id for key in keys.values()])) == {keys["bob"].id, keys[None].id}


def test_an_erased_tenant_takes_all(side):
    keys = lend(side, "acme", "file-1", ["alice", None])
    erase_tenant(side, request(side, "tenant"), NOTHING)
    assert opened(side, "acme", [key.id for key in keys.values()]) == {}


def test_a_key_stays_while_a_value_or_a_holder_uses_it(side):
    keys = lend(side, "acme", "file-1", ["alice", None])
    share(side, "acme", "file-1", "batch-1")
    ids = [key.id for key in keys.values()]
    sweep(side, "acme", [])
    expire(side, DeletionRequest("x" * 36, "acme", "retention", None, 10**15, 30), NOTHING)
    assert release(side, "acme", "file-1") == 0
    assert set(opened(side, "acme", ids)) == set(ids)
    assert release(side, "acme", "batch-1") == 2
    assert opened(side, "acme", ids) == {}
    assert release(side, "acme", "batch-1") == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_hold_keeps_the_keys(side, whole):
    keys = lend(side, "acme", "file-1", ["alice"])
    hold(side, None if whole else keys["alice"].id)
    with pytest.raises(HeldError):
        release(side, "acme", "file-1")
    with pytest.raises(HeldError):
        erase_subject(side, request(side), keys["alice"].id, NOTHING)
    assert content_keys.is_held(side, "acme", "file-1")
    assert not content_keys.is_held(side, "acme", "file-2")


def test_a_restricted_person_is_not_opened(side):
    keys = lend(side, "acme", "file-1", ["alice"])
    with side.transaction() as db:
        db.execute("UPDATE data_key SET restricted = 1")
    assert opened(side, "acme", [keys["alice"].id]) == {}


def test_a_new_key_of_the_tenant_opens_them_still(side, keys):
    key = lend(side, "acme", "file-1", ["alice"])["alice"]
    sealed = key.cipher.encrypt(bytes(12), b"content", b"")
    renew(side, keys, "acme")
    assert opened(side, "acme", [key.id])[key.id].decrypt(bytes(12), sealed, b"") == b"content"


def test_a_side_store_from_before_gets_the_table(tmp_path, keys):
    ValueStore.open(tmp_path / "side.db", keys).close()
    with closing(sqlite3.connect(tmp_path / "side.db")) as db:
        db.execute("DROP TABLE key_use")
        db.commit()
    with closing(ValueStore.open(tmp_path / "side.db", keys)) as side:
        assert release(side, "acme", "file-1") == 0
        sweep(side, "acme", [])
        assert not content_keys.is_held(side, "acme", "file-1")
        assert lend(side, "acme", "file-1", ["alice"])
