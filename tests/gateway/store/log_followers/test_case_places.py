"""Incidents are found without reading the calls between them, and are what the whole record says, whatever happened."""

import asyncio
import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import select

from audit.events.incident import Incident
from audit.incidents.incident import cases
from audit.incidents.known_cases import known_incidents
from audit.storage.sqlite import SqliteReader
from gateway.database.errors import DatabaseUnavailable
from gateway.database.tables.usage import CaseCursorRow, CasePlaceRow
from gateway.server.place_follower import PlaceFollower
from gateway.store.log_followers.case_places import CasePlaces
from tests.audit.incidents.test_known_cases import Counted
from tests.gateway.store.log_followers.test_ledger_writer import accepted, clock, record  # noqa: F401  (fixtures)

ON_BOTH_DATABASES = True


def name(number):
    return f"{number:08x}-0000-7000-8000-000000000000"


def of_incident(what, number, tenant="acme", **more):
    fields = {"type": f"incident.{what}", "tenant": tenant, "incident_id": name(number), "actor": "cli", **more}
    return Incident.model_validate(fields)


@pytest.fixture
def some(record):  # noqa: F811
    """Three incidents of two tenants, and calls between them."""
    log, path = record

    async def write(first=0):
        for number in range(first, first + 3):
            for call in range(5):
                await log.append(accepted(f"r{number}-{call}"))
            tenant = "globex" if number % 3 == 2 else "acme"
            await log.append(of_incident("opened", number, tenant, laws=("gdpr",)))
        await log.append(of_incident("closed", first, reason="resolved"))

    return write, lambda: SqliteReader.open(path)


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr("gateway.store.log_followers.record_places.AT_ONCE", 4)


def started(places, open_reader, tenant="acme"):
    """What a gateway that has just started knows of incidents, and how many records it read for that."""
    with closing(open_reader()) as reader:
        counted = Counted(reader)
        found = known_incidents(places.known).of(counted, tenant)
        assert found == cases(reader, tenant)
        return [int(case.incident_id[:8], 16) for case in found], len(counted.read)


async def test_a_start_reads_the_records_of_incidents_and_what_is_new(some, database, small_steps):
    write, open_reader = some
    await write()
    before, whole = started(CasePlaces(database, "log"), open_reader)
    CasePlaces(database, "log").follow(open_reader)
    again, read = started(CasePlaces(database, "log"), open_reader)
    assert before == again == [0, 1]
    assert whole > read == 3, "opened, opened, closed"
    assert started(CasePlaces(database, "log"), open_reader, "globex") == ([2], 1)
    await write(3)
    found, read = started(CasePlaces(database, "log"), open_reader)
    assert found == [0, 1, 3, 4] and read == 3 + whole, "as much as before is new"


async def test_two_gateways_that_follow_at_once_note_each_record_once(some, database, small_steps):
    write, open_reader = some
    both = [CasePlaces(database, "log") for _ in range(2)]
    for first in (0, 3, 6):
        await write(first)
        await asyncio.gather(*(asyncio.to_thread(one.follow, open_reader) for one in both))
    for one in both:
        one.follow(open_reader)
    with database.read() as session:
        cursors = session.connection().execute(select(CaseCursorRow.__table__)).mappings().all()
        seqs = session.connection().execute(select(CasePlaceRow.__table__.c.tenant)).scalars().all()
    with closing(open_reader()) as reader:
        assert {row["tenant"]: row["next_seq"] for row in cursors} == reader.sizes()
    assert sorted(seqs) == ["acme"] * 9 + ["globex"] * 3
    assert len(started(both[0], open_reader)[0]) == 6


@pytest.mark.parametrize("column", ["leaf_hash", "next_seq"])
async def test_where_the_log_is_another_one_nothing_is_known_and_all_is_noted_anew(some, database, small_steps, column):
    """As after a restore of one of the two: the last record that was read is not there, or is another."""
    write, open_reader = some
    await write()
    CasePlaces(database, "log").follow(open_reader)
    with database.write() as session:
        value = bytes(32) if column == "leaf_hash" else 3
        session.connection().execute(CaseCursorRow.__table__.update().values({column: value}))
        session.connection().execute(CasePlaceRow.__table__.delete())
    places = CasePlaces(database, "log")
    with closing(open_reader()) as reader:
        assert places.known(reader, "acme") == (0, ())
    started(places, open_reader)
    places.follow(open_reader)
    assert started(places, open_reader)[1] == 3


async def test_a_control_database_that_is_older_than_the_log_knows_less_and_misses_nothing(some, database):
    write, open_reader = some
    await write()
    CasePlaces(database, "log").follow(open_reader)
    await write(3)  # and the database of before is put back: it has what it had
    assert started(CasePlaces(database, "log"), open_reader)[0] == [0, 1, 3, 4]


async def test_a_log_that_is_older_than_the_control_database_is_read_as_a_whole(some, database):
    write, open_reader = some
    await write()
    CasePlaces(database, "log").follow(open_reader)
    with database.write() as session:
        session.connection().execute(CaseCursorRow.__table__.update().values(next_seq=10_000))
    places = CasePlaces(database, "log")
    assert started(places, open_reader)[0] == [0, 1]
    places.follow(open_reader)
    assert started(places, open_reader)[0] == [0, 1]


async def test_a_record_whose_content_was_deleted_is_no_incident_any_more(some, database, record):  # noqa: F811
    write, open_reader = some
    await write()
    CasePlaces(database, "log").follow(open_reader)
    with closing(sqlite3.connect(record[1])) as db, db:
        db.execute("UPDATE leaf SET payload = x'' WHERE instr(payload, '00000001-0000-7000') > 0")
    assert started(CasePlaces(database, "log"), open_reader)[0] == [0]


async def test_places_of_two_logs_are_apart(some, database):
    write, open_reader = some
    await write()
    CasePlaces(database, "one").follow(open_reader)
    with closing(open_reader()) as reader:
        assert CasePlaces(database, "two").known(reader, "acme") == (0, ())
        assert CasePlaces(database, "one").known(reader, "nobody") == (0, ())


async def test_a_database_that_is_away_is_told_once_and_tried_again(some, database, caplog, monkeypatch):
    write, open_reader = some
    await write()
    follower = PlaceFollower(CasePlaces(database, "log"), open_reader, "incidents and requests")
    with monkeypatch.context() as broken:
        broken.setattr(CasePlaces, "_move", fails)
        await follower.step()
        await follower.step()
    assert caplog.text.count("the places of incidents and requests wait") == 1
    await follower.step()
    assert started(CasePlaces(database, "log"), open_reader)[1] == 3


def fails(*arguments):
    raise DatabaseUnavailable("gone; try again")
