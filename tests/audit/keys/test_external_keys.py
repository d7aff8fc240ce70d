"""A tenant's own key above its content: taken away, nothing of it can be read after a bounded time; others go on."""

import threading
import time

import pytest

from audit.errors import KeyLost, KeyProviderError, KeyRefused
from audit.events.private_value import Sealed
from audit.keys.external_keys import (
    AGAIN_S,
    KNOWN_S,
    MAX_WAITING,
    PAUSE_S,
    ExternalKeys,
    ExternalMaster,
    brief_waits,
)
from audit.keys.key_files import KeyFolder
from audit.keys.master import FileMaster
from audit.keys.owner_keys import FileKeyProvider, KeyRing
from audit.private.renewal import renew
from audit.private.value_store import ValueStore

KEY = bytes(range(32))


class Holder:
    """A tenant's Vault or HSM, whose key is a file master's. `away`: what a call raises or waits for."""

    def __init__(self, folder):
        folder.mkdir()
        self.master = FileMaster.open(folder / "root.key")
        self.away = None
        self.asked = 0

    provider = "file"

    def _used(self, name, *given):
        self.asked += 1
        if isinstance(self.away, Exception):
            raise self.away
        if self.away is not None:
            self.away.wait(30)
        return getattr(self.master, name)(*given)

    def wrap(self, context, key):
        return self._used("wrap", context, key)

    def unwrap(self, context, wrapped):
        return self._used("unwrap", context, wrapped)

    def rewrap(self, context, wrapped):
        return self._used("rewrap", context, wrapped)

    def state(self):
        return self._used("state")


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def holder(tmp_path):
    return Holder(tmp_path / "holder")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ring(tmp_path, holder, clock):
    return opened(tmp_path, holder, clock)


def opened(tmp_path, holder, clock):
    """As another process has it: nothing but the folder and the holder is shared."""
    masters = {"acme-hsm": ExternalMaster("acme-hsm", lambda: holder)}
    return FileKeyProvider.open(tmp_path / "keys", None, ExternalKeys(masters, clock))


def eventually(holds):
    for _ in range(500):
        if holds():
            return True
        time.sleep(0.01)
    return False


def test_an_owners_key_goes_under_the_external_key_and_back(ring, tmp_path, holder, clock):
    before = ring.wrap("acme", KEY)
    assert ring.give_to("acme", "acme-hsm") and not ring.give_to("acme", "acme-hsm")
    assert ring.external_of("acme") == "acme-hsm" and ring.external_of("globex") is None
    assert ring.unwrap("acme", before) == KEY == opened(tmp_path, holder, clock).unwrap("acme", before)
    assert ring.unwrap("acme", ring.wrap("acme", KEY)) == KEY
    assert ring.state_of("acme").wrapped_under == {1: ("acme-hsm", 1)}
    assert ring.give_to("acme", None) and ring.external_of("acme") is None
    holder.away = KeyProviderError("away")
    assert ring.unwrap("acme", before) == KEY


def test_a_tenant_without_a_key_begins_under_the_external_one(ring, holder):
    assert ring.give_to("new", "acme-hsm")
    assert ring.unwrap("new", ring.wrap("new", KEY)) == KEY
    assert ring.external_of("new") == "acme-hsm"


@pytest.mark.parametrize("away", [KeyRefused("403: denied"), KeyLost("the key is gone"), KeyProviderError("no answer")])
def test_a_key_taken_away_closes_its_tenant_within_the_bound_in_every_process(ring, tmp_path, holder, clock, away):
    rings = [ring, opened(tmp_path, holder, clock)]
    ring.give_to("acme", "acme-hsm")
    mine, theirs = ring.wrap("acme", KEY), ring.wrap("globex", KEY)
    assert [one.unwrap("acme", mine) for one in rings] == [KEY, KEY]
    holder.away = away
    clock.now = KNOWN_S
    for one in rings:
        with pytest.raises(KeyProviderError):
            one.unwrap("acme", mine)
        with pytest.raises(KeyProviderError):
            one.wrap("acme", KEY)
        assert one.unwrap("globex", theirs) == KEY
    holder.away = None
    for one in rings:
        with pytest.raises(KeyProviderError):
            one.unwrap("acme", mine)  # it is not asked again at once
    clock.now += PAUSE_S
    assert [one.unwrap("acme", mine) for one in rings] == [KEY, KEY], "the key came back"


def test_a_refusal_takes_effect_as_soon_as_it_is_noticed(ring, holder, clock):
    ring.give_to("acme", "acme-hsm")
    mine = ring.wrap("acme", KEY)
    holder.away = KeyRefused("denied")
    clock.now = AGAIN_S
    ring.unwrap("acme", mine)  # asked in the background meanwhile
    assert eventually(lambda: ring.external._known["acme"].opened is None)
    clock.now = AGAIN_S + PAUSE_S
    with pytest.raises(KeyRefused):
        ring.unwrap("acme", mine)


def test_what_is_used_is_asked_again_before_it_expires_and_nobody_waits(ring, holder, clock):
    ring.give_to("acme", "acme-hsm")
    mine = ring.wrap("acme", KEY)
    for _ in range(10):
        clock.now += AGAIN_S
        asked = holder.asked
        with brief_waits():
            assert ring.unwrap("acme", mine) == KEY
        assert eventually(lambda before=asked: holder.asked > before and ring.external.is_ready("acme"))


def test_a_holder_that_hangs_is_waited_for_by_few_and_briefly_by_who_serves_all(ring, holder, clock):
    ring.give_to("acme", "acme-hsm")
    mine = ring.wrap("acme", KEY)
    clock.now = KNOWN_S
    holder.away = threading.Event()
    with brief_waits(), pytest.raises(KeyProviderError, match="has not answered yet"):
        ring.unwrap("acme", mine)
    asked, found = holder.asked, []
    waiting = [threading.Thread(target=lambda: found.append(ring.unwrap("acme", mine))) for _ in range(MAX_WAITING)]
    for one in waiting:
        one.start()
    assert eventually(lambda: ring.external._known["acme"].waiting == MAX_WAITING)
    with pytest.raises(KeyProviderError, match="has not answered yet"):
        ring.unwrap("acme", mine)
    assert holder.asked == asked, "one question for all"
    holder.away.set()
    for one in waiting:
        one.join(30)
    assert found == [KEY] * MAX_WAITING


def test_what_expired_is_taken_out_of_memory_without_being_asked_for(tmp_path, holder, monkeypatch):
    monkeypatch.setattr("audit.keys.external_keys.KNOWN_S", 0.2)
    ring = opened(tmp_path, holder, time.monotonic)
    ring.give_to("acme", "acme-hsm")
    ring.wrap("acme", KEY)
    assert ring.external._known
    assert eventually(lambda: not ring.external._known)


def test_a_key_that_is_not_configured_here_is_named(ring, tmp_path):
    with pytest.raises(KeyProviderError, match=r"no external key other is configured; set secrets\.external\.other"):
        ring.give_to("acme", "other")
    ring.give_to("acme", "acme-hsm")
    mine = ring.wrap("acme", KEY)
    bare = FileKeyProvider.open(tmp_path / "keys")
    with pytest.raises(KeyProviderError, match=r"set secrets\.external\.acme-hsm"):
        bare.unwrap("acme", mine)
    assert bare.unwrap("globex", bare.wrap("globex", KEY)) == KEY


def test_a_destroyed_key_is_given_to_nobody(ring):
    ring.wrap("acme", KEY)
    ring.destroy("acme")
    with pytest.raises(KeyLost, match="was destroyed"):
        ring.give_to("acme", "acme-hsm")
    ring.give_to("globex", "acme-hsm")
    mine = ring.wrap("globex", KEY)
    ring.destroy("globex")
    with pytest.raises(KeyLost, match="was destroyed"):
        ring.unwrap("globex", mine)


def test_while_the_holder_is_away_nothing_is_given_and_nothing_is_lost(ring, holder):
    mine = ring.wrap("acme", KEY)
    holder.away = KeyProviderError("away")
    with pytest.raises(KeyProviderError):
        ring.give_to("acme", "acme-hsm")
    assert (ring.external_of("acme"), ring.unwrap("acme", mine)) == (None, KEY)


def test_versions_of_the_master_and_of_the_external_key_are_rotated_apart(ring, holder, clock):
    ring.give_to("acme", "acme-hsm")
    mine, theirs = ring.wrap("acme", KEY), ring.wrap("globex", KEY)
    ring.rotate_master(1, lambda version: None)
    assert (ring.rewrap("globex"), ring.rewrap("acme")) == (True, False)
    ring.retire_master(2)
    holder.master.rotate()
    assert ring.rewrap("acme") and ring.state_of("acme").wrapped_under == {1: ("acme-hsm", 2)}
    holder.master.retire(2)
    clock.now = KNOWN_S
    assert (ring.unwrap("acme", mine), ring.unwrap("globex", theirs)) == (KEY, KEY)


def test_after_a_renewal_what_was_wrapped_before_opens_nothing(ring, tmp_path, holder):
    """A backup of the key's file from before it was given away opens under the master alone, and nothing by it."""
    side = ValueStore.open(tmp_path / "side.db", ring)
    side.put([("acme", 0, sealed())])
    backup = (tmp_path / "keys" / "acme.kek").read_bytes()
    ring.give_to("acme", "acme-hsm")
    generation, wrapped = renew(side, ring, "acme")
    assert (generation, wrapped) == (2, 1)
    assert ring.state_of("acme").wrapped_under == {2: ("acme-hsm", 1)}
    (tmp_path / "keys" / "acme.kek").write_bytes(backup)
    (row,) = side.rows("SELECT wrapped FROM data_key WHERE tenant = 'acme'")
    with pytest.raises(KeyLost):
        KeyRing(KeyFolder(tmp_path / "keys"), ring.master).unwrap("acme", bytes(row[0]))
    side.close()


def sealed(field="input"):
    return Sealed(
        event_id="e1",
        field=field,
        commitment="0" * 64,
        plaintext=b"content",
        subject=None,
        retention_class="content_7d",
        expires=None,
    )
