import pytest

from gateway.database.errors import DatabaseUnavailable
from gateway.database.persistent_connection import PersistentConnection

NAMES = (
    "SELECT name FROM limit_bucket WHERE name = ANY(%s) ORDER BY name",
    (["a", "b'; DROP TABLE limit_bucket; --"],),
)
OWN = ("SELECT pg_backend_pid()", ())


def insert(name):
    return "INSERT INTO limit_bucket (name, level, held, at) VALUES (%s, 0, 0, 0)", (name,)


@pytest.fixture
def kept(postgresql):
    kept = PersistentConnection(postgresql)
    yield kept
    kept.close()


def end(database, kept):
    """As a restart of the database would."""
    ((pid,),) = kept.ask(OWN)[0]
    with database.write() as session:
        session.connection().exec_driver_sql("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def test_it_reads_at_the_beginning_and_writes_with_the_commit(kept):
    with kept.transaction(NAMES, OWN) as step:
        assert step.read[0] == []
        step.write += [insert("a"), insert("b'; DROP TABLE limit_bucket; --")]
    assert kept.ask(NAMES) == [[("a",), ("b'; DROP TABLE limit_bucket; --",)]], "values are quoted, whatever is in them"


def test_what_fails_in_the_middle_leaves_nothing(kept):
    with pytest.raises(ZeroDivisionError), kept.transaction(insert("a")):
        raise ZeroDivisionError
    with pytest.raises(DatabaseUnavailable), kept.transaction(insert("a")) as step:
        step.write.append(insert("a"))  # twice
    assert kept.ask(NAMES) == [[]]


def test_a_connection_that_ended_meanwhile_is_replaced(postgresql, kept):
    end(postgresql, kept)
    with kept.transaction(NAMES) as step:
        step.write.append(insert("a"))
    assert kept.ask(NAMES) == [[("a",)]]


def test_a_connection_that_ends_before_the_commit_fails_the_transaction(postgresql, kept):
    with pytest.raises(DatabaseUnavailable), kept.transaction(NAMES) as step:
        step.write.append(insert("a"))
        end(postgresql, kept)
    assert kept.ask(NAMES) == [[]]


def test_it_goes_back_to_the_pool_as_no_other_will_find_it(postgresql, kept):
    kept.ask(OWN)
    assert postgresql.engine.pool.checkedout() == 1
    kept.close()
    assert postgresql.engine.pool.checkedout() == 0
    with postgresql.engine.connect() as other:
        assert other.connection.dbapi_connection.autocommit is False
