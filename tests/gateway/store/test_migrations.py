"""An upgrade from every revision there was, with a row in every table, on both databases: nothing is lost."""

import subprocess
import sys
from datetime import UTC, datetime
from secrets import token_hex

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from gateway.database.database import MIGRATIONS, Database, _heads
from gateway.database.tables.control import Row
from gateway.database.tables.usage import DailySumRow
from gateway.store.log_followers import daily_sums

pytestmark = pytest.mark.usefixtures("migrations_run")


def revisions():
    """Oldest first."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return [script.revision for script in reversed(list(ScriptDirectory.from_config(config).walk_revisions()))]


REVISIONS = revisions()
DAILY = DailySumRow.__table__


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(tmp_path, request):
    """A database without tables."""
    if request.param == "sqlite":
        database = Database(f"sqlite:///{tmp_path / 'control.db'}")
        yield database
        database.close()
        return
    name = f"upgrade_{token_hex(4)}"
    url = request.getfixturevalue("postgresql_url")
    server = sqlalchemy.create_engine(
        url.replace("postgresql://", "postgresql+psycopg://", 1), isolation_level="AUTOCOMMIT"
    )
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    database = Database(sqlalchemy.make_url(url).set(database=name).render_as_string(hide_password=False))
    yield database
    database.close()
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name}")
    server.dispose()


def some_value(column):
    """One that fits; texts are all alike, so that every reference finds what it refers to."""
    match column.type:
        case sqlalchemy.JSON():
            return {"a": ["b"]}
        case sqlalchemy.String():
            return "x"
        case sqlalchemy.Boolean():
            return True
        case sqlalchemy.DateTime():
            return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        case sqlalchemy.Integer():
            return 7
        case sqlalchemy.Float():
            return 1.5
        case sqlalchemy.LargeBinary():
            return bytes(range(32))
    raise AssertionError(f"a type that is new here: {column.type!r}")


def tables_of(database):
    metadata = sqlalchemy.MetaData()
    metadata.reflect(database.engine)
    return {table.name: table for table in metadata.sorted_tables if table.name != "alembic_version"}


def rows_of(database, tables):
    with database.engine.connect() as connection:
        return {
            name: [dict(row) for row in connection.execute(table.select()).mappings()] for name, table in tables.items()
        }


@pytest.mark.parametrize("revision", REVISIONS)
def test_an_upgrade_from_every_revision_keeps_every_row_and_ends_at_the_model(empty, revision):
    empty.migrate(revision)
    before = tables_of(empty)
    assert len(before) >= 6
    with empty.engine.begin() as connection:
        for table in before.values():
            connection.execute(table.insert(), {column.name: some_value(column) for column in table.columns})
    kept = rows_of(empty, before)
    empty.migrate()
    after = rows_of(empty, tables_of(empty))
    for name, (row,) in kept.items():
        (now,) = after[name]
        assert row.items() <= now.items(), name
    with empty.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Row.metadata) == []
    empty.migrate()
    assert rows_of(empty, tables_of(empty)) == after, "and again changes nothing"


def test_an_upgrade_adds_up_the_calls_that_are_over(empty):
    empty.migrate("0034")
    ledger = tables_of(empty)["ledger"]
    some = {column.name: some_value(column) for column in ledger.columns} | {"day": "2026-11-20", "tenant": "acme"}
    rows = [
        {"outcome": "completed", "keep_days": None, "nano_eur": 5},
        {"outcome": "aborted", "keep_days": 400, "energy_mj": None},
        {"outcome": "refused", "nano_eur": None, "estimated": False},
        {"outcome": "completed", "day": "2026-11-21", "project": "y", "nano_eur": None, "energy_mj": None},
        {"outcome": None, "day": None},
    ]
    with empty.engine.begin() as connection:
        connection.execute(ledger.insert(), [some | row | {"request_id": f"r{at}"} for at, row in enumerate(rows)])
    empty.migrate()
    with empty.write() as session:
        connection = session.connection()
        by_migration = connection.execute(DAILY.select().order_by(DAILY.c.day)).mappings().all()
        assert [(row["day"], row["requests"], row["keep_days"]) for row in by_migration] == [
            ("2026-11-20", 3, 400),
            ("2026-11-21", 1, 7),
        ]
        assert daily_sums.take_rest(connection, 10) == [], "all that is over is in them"
        connection.execute(DAILY.delete())
        connection.execute(sqlalchemy.text("UPDATE ledger SET summed = NULL"))
        daily_sums.add(connection, daily_sums.take_rest(connection, 10))
        assert connection.execute(DAILY.select().order_by(DAILY.c.day)).mappings().all() == by_migration


def test_revisions_are_one_line():
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert len(ScriptDirectory.from_config(config).get_heads()) == 1


def test_whether_the_database_is_of_this_version_is_known_without_alembic(tmp_path):
    """Which takes a fifth of a second to load, at every start."""
    assert _heads() == set(ScriptDirectory(str(MIGRATIONS)).get_heads())
    Database.open(tmp_path).close()
    again = f"""
import sys
from pathlib import Path
from gateway.database.database import Database
Database.open(Path({str(tmp_path)!r})).close()
print([name for name in sys.modules if name.startswith("alembic")])
"""
    said = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
