"""A tenant's key replaced while its values are in use, and killed in the middle."""

import sqlite3
from contextlib import closing

import pytest

from audit.errors import KeyLost, KeyProviderError
from audit.events.private_value import Private, seal
from audit.private import renewal
from audit.private.renewal import renew, waiting
from audit.private.value_store import ValueStore
from tests.audit.conftest import Home, accepted

ON_BOTH_STORES = True

EVENT = "01932b5e-0000-7000-8000-000000000000"


def keep(side: ValueStore, seq: int, subject: str | None, tenant: str = "acme") -> None:
    _, sealed = seal(accepted(tenant=tenant), EVENT, Private({"input": f"text {seq}"}, subject))
    side.put([(tenant, seq, value) for value in sealed])


def shown(side: ValueStore, tenant: str = "acme") -> set[str]:
    return {side.disclose(kept).value for kept in side.kept(tenant) if kept.field == "input"}


def test_everything_opens_before_between_and_after_and_the_old_key_is_gone(home: Home) -> None:
    ring = home.keys
    with closing(home.side(ring)) as side:
        for seq in range(6):
            keep(side, seq, "alice" if seq % 2 else None)
        keep(side, 0, "bob", "globex")
        index = side.subject_index("acme", "alice")
        counted: list[int] = []
        assert renew(side, ring, "acme", counted.append) == (2, 5)  # three records, alice, the pepper
        assert sum(counted) == 5
        assert shown(side) == {f"text {seq}" for seq in range(6)}
        assert side.subject_index("acme", "alice") == index, "a person is still found"
        assert set(ring.state_of("acme").wrapped_under) == {2}
        assert set(ring.state_of("globex").wrapped_under) == {1}
        keep(side, 6, "alice")
        assert shown(side, "globex") == {"text 0"}
    with closing(home.side()) as again:
        assert len(shown(again)) == 7
        assert renew(again, home.keys, "acme")[0] == 3, "a new one each time it is asked for"


@pytest.mark.parametrize("die_at", [0, 1, 2])
def test_killed_in_the_middle_it_goes_on_where_it_was(home: Home, monkeypatch: pytest.MonkeyPatch, die_at: int) -> None:
    monkeypatch.setattr(renewal, "BATCH", 2)
    ring = home.keys
    with closing(home.side(ring)) as side:
        for seq in range(5):
            keep(side, seq, None)
        real, seen = side.transaction, []

        def dies() -> object:
            seen.append(1)
            if len(seen) > die_at:
                raise sqlite3.OperationalError("killed")
            return real()

        monkeypatch.setattr(side, "transaction", dies)
        with pytest.raises(sqlite3.OperationalError):
            renew(side, ring, "acme")
    with closing(home.side()) as side:
        assert len(shown(side)) == 5, "nothing is lost in between"
        assert waiting(side, "acme", 2) == 5 - 2 * die_at
        keep(side, 9, None)
        assert renew(side, home.keys, "acme") == (2, 5 - 2 * die_at)
        assert len(shown(side)) == 6
    assert set(home.keys.state_of("acme").wrapped_under) == {2}


def test_a_tenant_without_a_key_or_whose_key_is_gone_has_none_to_renew(home: Home) -> None:
    with closing(home.side()) as side:
        keep(side, 0, None)
        home.keys.destroy("acme")
        with pytest.raises(KeyLost):
            renew(side, home.keys, "acme")
        with pytest.raises(KeyProviderError, match="nobody has no key in"):
            renew(side, home.keys, "nobody")
