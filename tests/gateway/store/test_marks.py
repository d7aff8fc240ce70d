"""Keys of watermarks on both databases: one a month, wrapped under the tenant's own key, kept."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlmodel import select

from audit.errors import KeyLost
from audit.keys.owner_keys import FileKeyProvider
from gateway.database.errors import Invalid, NotFound
from gateway.database.tables.marks import MarkKeyRow
from gateway.store.marks import AnswerSalts, MarkKeys, period_at


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


# --- salts of fingerprints -------------------------------------------------------------------------------------------


@pytest.fixture
def salts(database, keys, ring):
    return AnswerSalts(database, ring, now=lambda: datetime(2027, 1, 1, 12, tzinfo=UTC))


def test_a_month_has_one_salt_which_is_no_key_of_a_watermark(salts, keys):
    with ThreadPoolExecutor(6) as pool:
        made = set(pool.map(lambda _: salts.made("acme", "2026-12").key, range(12)))
    assert len(made) == 1
    assert made != {keys.used("acme", "2026-12", "small", "s/1").key}
    assert salts.made("globex", "2026-12").key not in made
    assert (salts.periods("acme"), salts.of("acme", "2026-11")) == (["2026-12"], None)


def test_salts_of_all_months_open_after_the_tenants_key_was_renewed(salts, ring):
    before = {salts.made("acme", period).key for period in ("2026-11", "2026-12")}
    ring.begin_renewal("acme")
    assert salts.rewrap("acme") == 2
    ring.end_renewal("acme")
    assert {salt.key for salt in salts.all("acme")} == before


def test_a_salt_is_destroyed_once_its_month_is_over_and_that_is_on_record_first(salts):
    for period in ("2026-11", "2026-12", "2027-01"):
        salts.made("acme", period)
    recorded = []
    for period, error in (("2027-01", Invalid), ("2026-12", Invalid), ("2026-10", NotFound)):
        with pytest.raises(error):
            salts.destroy("acme", period, lambda: recorded.append("no"))

    def unrecorded():
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        salts.destroy("acme", "2026-11", unrecorded)
    assert salts.periods("acme") == ["2027-01", "2026-12", "2026-11"] and not recorded
    salts.destroy("acme", "2026-11", lambda: recorded.append(tuple(salts.periods("acme"))))
    assert recorded == [("2027-01", "2026-12", "2026-11")]
    assert [salt.period for salt in salts.all("acme")] == ["2027-01", "2026-12"]
