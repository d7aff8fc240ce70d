"""A lease: one holder at a time, by the database's clock, with a term that a suspended holder cannot use again."""

import pytest
import sqlalchemy

from gateway.database.leases import Lease, LeaseLost, database_time

ON_BOTH_DATABASES = True


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def lease(database):
    def make(holder, *, ttl_s=60.0, monotonic=None):
        return Lease(database, "leader", holder, ttl_s=ttl_s, **({"monotonic": monotonic} if monotonic else {}))

    return make


def check(database, lease, term):
    with database.write() as session:
        return lease.check(session.connection(), term)


def end(database, seconds_ago):
    with database.engine.begin() as connection:
        until = database_time(connection) - seconds_ago
        connection.execute(sqlalchemy.text("UPDATE lease SET until = :until"), {"until": until})


def test_one_holder_has_it_and_keeps_its_term_while_it_renews(lease):
    one, two = lease("one"), lease("two")
    assert one.take() == 1
    assert two.take() is None
    assert one.take() == 1
    assert two.take() is None


def test_a_lease_that_ran_out_is_taken_with_the_next_term(database, lease):
    one, two = lease("one"), lease("two")
    one.take()
    end(database, seconds_ago=1)
    assert two.take() == 2
    assert one.take() is None


def test_a_holder_that_let_it_run_out_comes_back_with_another_term(database, lease):
    one = lease("one")
    one.take()
    end(database, seconds_ago=1)
    assert one.take() == 2


def test_a_released_lease_is_free_at_once(lease):
    one, two = lease("one"), lease("two")
    one.take()
    one.release()
    assert two.take() == 2


def test_releasing_takes_nothing_from_another(lease):
    one, two = lease("one"), lease("two")
    one.take()
    two.release()
    assert two.take() is None


def test_only_the_present_holder_and_term_may_act(database, lease):
    one, two = lease("one"), lease("two")
    term = one.take()
    assert check(database, one, term) > 0
    for holder, other in ((one, term + 1), (two, term)):
        with pytest.raises(LeaseLost):
            check(database, holder, other)
    end(database, seconds_ago=1)
    with pytest.raises(LeaseLost):
        check(database, one, term)
    later = two.take()
    with pytest.raises(LeaseLost):
        check(database, one, term)
    assert check(database, two, later) > 0


def test_a_lease_that_is_not_renewed_is_over_though_the_clock_was_put_back(database, lease):
    clock = Clock()
    one, two = lease("one"), lease("two", monotonic=clock)
    one.take()
    end(database, seconds_ago=-100_000)  # the database's clock went back a day
    assert two.take() is None
    clock.now = 119.0
    assert two.take() is None
    clock.now = 121.0
    assert two.take() == 2


def test_a_lease_that_is_renewed_meanwhile_is_not_over(database, lease):
    clock = Clock()
    one, two = lease("one"), lease("two", monotonic=clock)
    one.take()
    assert two.take() is None
    end(database, seconds_ago=-70)  # renewed
    clock.now = 121.0
    assert two.take() is None
    clock.now = 240.0
    assert two.take() is None


def test_leases_of_other_names_are_apart(database, lease):
    assert lease("one").take() == 1
    assert Lease(database, "ledger", "two", ttl_s=60.0).take() == 1
