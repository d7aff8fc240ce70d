"""Changes are found by their noted places, of the types that are asked for, and are what the whole record says."""

from contextlib import closing

import pytest

from audit.log.changes import ChangeFilter, changes, types_of
from audit.storage.sqlite import SqliteReader
from gateway.database.tables.usage import ChangeCursorRow
from gateway.store.log_followers.change_places import ChangePlaces
from tests.audit.log.test_changes import changed
from tests.gateway.store.log_followers.test_ledger_writer import accepted, clock, record  # noqa: F401  (fixtures)

ON_BOTH_DATABASES = True
ALL = ChangeFilter(types_of(None))


@pytest.fixture
def some(record):  # noqa: F811
    """Changes of two tenants and a sign-in, each behind three calls."""
    log, path = record

    async def write(name="first"):
        for kind, tenant in (("policy.activated", "acme"), ("key.created", "globex"), ("session.opened", "acme")):
            for call in range(3):
                await log.append(accepted(f"{name}-{kind}-{call}"))
            await log.append(changed(kind, tenant=tenant))

    return write, lambda: SqliteReader.open(path)


def listed(places, open_reader, wanted=ALL, tenant="acme"):
    with closing(open_reader()) as reader:
        found = [line.seq for line in changes(reader, tenant, wanted, places.newest).changes]
        assert found == [line.seq for line in changes(reader, tenant, wanted).changes]
        return found


async def test_noted_changes_are_those_of_the_record(some, database, monkeypatch):
    monkeypatch.setattr("gateway.store.log_followers.record_places.AT_ONCE", 4)
    write, open_reader = some
    places = ChangePlaces(database, "log")
    await write()
    assert listed(places, open_reader) == [3], "not noted yet"
    places.follow(open_reader)
    assert listed(places, open_reader) == [3]
    assert listed(places, open_reader, ChangeFilter(types_of("sessions"))) == [10]
    assert listed(places, open_reader, tenant="globex") == [0]
    await write("second")
    assert listed(places, open_reader) == [14, 3], "the rest is read"
    places.follow(open_reader)
    with closing(open_reader()) as reader:
        assert places.newest(reader, "acme", types_of("policies"), 0, 99, 1) == (22, (14,))
        assert places.newest(reader, "acme", types_of("policies"), 4, 14, 9) == (22, ())
        assert places.newest(reader, "acme", types_of("incidents"), 0, 99, 9) == (22, ())
        assert ChangePlaces(database, "other").newest(reader, "acme", types_of(None), 0, 99, 9) == (0, ())


@pytest.mark.parametrize("value", [{"leaf_hash": bytes(32)}, {"next_seq": 10_000}])
async def test_where_the_log_is_another_one_it_is_read_as_a_whole(some, database, value):
    write, open_reader = some
    places = ChangePlaces(database, "log")
    await write()
    places.follow(open_reader)
    with database.write() as session:
        session.connection().execute(ChangeCursorRow.__table__.update().values(**value))
    assert listed(ChangePlaces(database, "log"), open_reader) == [3]
    ChangePlaces(database, "log").follow(open_reader)
    assert listed(ChangePlaces(database, "log"), open_reader) == [3]
