import importlib
import pkgutil
import sqlite3
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlmodel import select

from gateway.database import tables
from gateway.database.database import Database
from gateway.database.errors import DatabaseUnavailable
from gateway.database.tables.control import Row, TenantRow

for each in pkgutil.iter_modules(tables.__path__, f"{tables.__name__}."):  # the model is that of all of them
    importlib.import_module(each.name)

ON_BOTH_DATABASES = True
pytestmark = pytest.mark.usefixtures("migrations_run")


def tenant(**more):
    return TenantRow(cell="demo", epoch=1, created_at=datetime.now(UTC), id="acme", display_name="Acme", **more)


def test_the_migrations_make_exactly_the_tables_of_the_model(database):
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Row.metadata) == []


def test_constraints_carry_the_names_of_the_model(database):
    inspector = sqlalchemy.inspect(database.engine)
    for table in Row.metadata.sorted_tables:
        assert inspector.get_pk_constraint(table.name)["name"] == table.primary_key.name
        found = {key["name"] for key in inspector.get_foreign_keys(table.name)}
        assert found == {key.name for key in table.foreign_key_constraints}


def test_a_new_database_is_private_and_opening_again_keeps_what_is_in_it(data):
    first = Database.open(data)
    with first.write() as session:
        session.add(tenant())
    first.close()
    assert stat.S_IMODE((data / "control.db").stat().st_mode) == 0o600
    again = Database.open(data)
    with again.read() as session:
        assert session.exec(select(TenantRow)).one().id == "acme"
    again.close()


def test_migrating_down_and_up_again_leaves_the_model(database):
    from alembic import command
    from alembic.config import Config

    from gateway.database.database import MIGRATIONS

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert sqlalchemy.inspect(database.engine).get_table_names() == ["alembic_version"]
    database.migrate()
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Row.metadata) == []


def test_processes_that_start_together_all_find_it_migrated(data):
    program = (
        f"from pathlib import Path; from gateway.database.database import Database; Database.open(Path({str(data)!r}))"
    )
    children = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]


def test_pragmas_hold_on_every_connection(data, database):
    with database.read() as session, database.read() as other:
        for each in (session, other):
            assert each.connection().exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert each.connection().exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
            assert each.connection().exec_driver_sql("PRAGMA busy_timeout").scalar() == 5000


def test_a_read_is_one_consistent_view_while_others_write(database):
    with database.read() as reader:
        assert reader.exec(select(TenantRow)).all() == []
        with database.write() as writer:
            writer.add(tenant())
        assert reader.exec(select(TenantRow)).all() == []
    with database.read() as reader:
        assert len(reader.exec(select(TenantRow)).all()) == 1


def test_a_block_that_raises_leaves_nothing(database):
    with pytest.raises(RuntimeError), database.write() as session:
        session.add(tenant())
        session.flush()
        raise RuntimeError
    with database.read() as session:
        assert session.exec(select(TenantRow)).all() == []


def test_an_instant_comes_back_in_utc_whatever_zone_it_went_in_with(database):
    there = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    with database.write() as session:
        session.add(tenant(revoked_at=there))
    with database.read() as session:
        back = session.exec(select(TenantRow)).one().revoked_at
    assert back == there
    assert back.tzinfo == UTC


def test_an_instant_without_a_zone_is_refused(database):
    with pytest.raises(sqlalchemy.exc.StatementError, match="without a zone"), database.write() as session:
        session.add(tenant(revoked_at=datetime(2026, 1, 1)))


def test_a_file_that_is_no_database_is_unavailable(data):
    data.mkdir()
    (data / "control.db").write_bytes(b"not a database" * 100)
    with pytest.raises(DatabaseUnavailable, match="not a database"):
        Database.open(data)


def test_a_database_of_a_newer_program_is_refused(data):
    Database.open(data).close()
    with sqlite3.connect(data / "control.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(DatabaseUnavailable, match="9999"):
        Database.open(data)


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseUnavailable):
        Database.open(tmp_path / "file" / "data")


def test_keys_of_the_first_revision_are_of_the_first_pepper_after_the_upgrade(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'old.db'}")
    database.migrate("0001")
    with database.engine.connect() as connection:
        for statement in (
            "INSERT INTO tenant VALUES ('demo', 1, '2026-01-01', 'acme', 'Acme', NULL)",
            "INSERT INTO project VALUES "
            "('demo', 1, '2026-01-01', 'acme', 'app', 'x', 'contract', '[]', 'high', NULL, NULL)",
            "INSERT INTO api_key VALUES "
            "('demo', 1, '2026-01-01', 'k1', 'acme', 'app', '', x'00', 'abcd', '{}', NULL, NULL)",
        ):
            connection.exec_driver_sql(statement)
        connection.commit()
    database.migrate()
    with database.engine.connect() as connection:
        kept = connection.exec_driver_sql("SELECT id, pepper, replaced_by, last_used_at FROM api_key").all()
        assert [tuple(row) for row in kept] == [("k1", 1, None, None)]
        assert compare_metadata(MigrationContext.configure(connection), Row.metadata) == []
    database.close()


@pytest.mark.parametrize("url", ["nonsense", "postgresql//u:secret@db/x"])
def test_what_is_no_url_is_told_by_the_variable_and_not_quoted(tmp_path, url):
    with pytest.raises(DatabaseUnavailable, match=r"DOMICILE_DATABASE_URL is no URL.*postgresql://") as refused:
        Database.open(tmp_path, url=url)
    assert "secret" not in str(refused.value)


def test_a_connection_that_is_in_use_when_the_database_closes_is_closed_when_it_comes_back(database):
    """As in a thread whose caller was cancelled: it is told of nothing, and the pool that it returns to is gone."""
    with database.read() as session:
        session.exec(select(TenantRow)).all()
        pooled = session.connection().connection
        driver = pooled.dbapi_connection
        database.close()
        session.exec(select(TenantRow)).all()
    assert is_closed(driver)


def test_a_closed_database_that_is_used_again_keeps_no_connection(database):
    database.close()
    with database.read() as session:
        session.exec(select(TenantRow)).all()
        driver = session.connection().connection.dbapi_connection
    assert is_closed(driver)


def is_closed(driver):
    if isinstance(driver, sqlite3.Connection):
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            driver.execute("SELECT 1")
        return True
    return driver.closed
