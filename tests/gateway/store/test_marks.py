"""Keys of watermarks on both databases: one a month, wrapped under the tenant's own key, kept."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlmodel import select

from audit.errors import KeyLost
from audit.keys.owner_keys import FileKeyProvider
from gateway.database.tables.marks import MarkKeyRow
from gateway.store.marks import MarkKeys, period_at


@pytest.fixture
def ring(tmp_path):
    return FileKeyProvider.open(tmp_path / "keys")


@pytest.fixture
def keys(database, control, ring):
    for tenant in ("acme", "globex"):
        control.create_tenant(tenant)
    return MarkKeys(database, ring)


def test_a_month_has_one_key_and_a_tenant_s_are_its_own(keys):
    one = keys.used("acme", "2026-12", "small", "s/1")
    assert keys.used("acme", "2026-12", "other", "s/1").key == one.key
    assert keys.of("acme", "2026-12").key == one.key
    assert len({one.key, keys.used("acme", "2027-01", "small", "s/1").key}) == 2
    assert keys.used("globex", "2026-12", "small", "s/1").key != one.key
    assert keys.of("globex", "2027-01") is None


def test_all_months_stay_with_the_models_that_were_marked(keys):
    for period, model in (("2026-11", "small"), ("2026-12", "small"), ("2026-12", "large"), ("2026-12", "small")):
        keys.used("acme", period, model, "s/1")
    assert [(each.period, each.models) for each in keys.all("acme")] == [
        ("2026-12", ("large", "small")),
        ("2026-11", ("small",)),
    ]
    assert keys.all("globex") == []


def test_gateways_that_begin_a_month_together_agree_on_its_key(keys):
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda at: keys.used("acme", "2026-12", f"model-{at % 2}", "s/1").key, range(12)))
    assert len(set(made)) == 1


def test_the_database_does_not_hold_a_key_in_clear_and_no_representation_shows_one(keys, database):
    made = keys.used("acme", "2026-12", "small", "s/1")
    with database.read() as session:
        (row,) = session.exec(select(MarkKeyRow)).all()
    assert made.key not in row.wrapped
    assert repr(made.key) not in repr(made)


def test_without_the_tenant_s_key_nothing_opens(keys, ring):
    keys.used("acme", "2026-12", "small", "s/1")
    keys.used("globex", "2026-12", "small", "s/1")
    ring.destroy("acme")
    for attempt in (lambda: keys.all("acme"), lambda: keys.used("acme", "2026-12", "small", "s/1")):
        with pytest.raises(KeyLost):
            attempt()
    assert len(keys.all("globex")) == 1


def test_a_period_is_the_month_in_utc():
    assert period_at(datetime(2027, 1, 1, 0, 30, tzinfo=UTC)) == "2027-01"
    assert period_at(datetime.fromisoformat("2027-01-01T00:30:00+01:00")) == "2026-12"


def test_a_new_key_of_the_tenant_takes_its_marks_along(keys, ring):
    made = [keys.used("acme", period, "small", "s/1").key for period in ("2026-12", "2026-11")]
    ring.begin_renewal("acme")
    assert keys.rewrap("acme") == 2
    ring.end_renewal("acme")
    assert [each.key for each in keys.all("acme")] == made
    assert keys.rewrap("globex") == 0
