"""The same commands on a log in PostgreSQL."""

import json
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from audit.errors import StoreError
from audit.events.private_value import Private
from audit.storage.location import DATABASE_VARIABLE, is_there, open_reader, open_store
from audit.storage.postgres import PostgresReader
from audit.storage.sqlite import SqliteReader, SqliteStore
from tests.audit.conftest import Home, accepted, completed


def run(home: Home, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--data", str(home.path.parent.parent)], terminal_width=200, color=False)


@pytest.fixture
async def home(tmp_path: Path, empty_database: str) -> Home:
    home = Home(tmp_path, empty_database)
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "x"}, "alice@example.com"))
        await context.record(completed("a"))
    return home


def test_the_commands_work_on_a_log_in_a_database(home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, str(home.url))
    assert is_there(home.path) and not home.path.exists()
    for words in (
        ["verify"],
        ["show"],
        ["retention", "--dry-run"],
        ["incident", "create", "acme"],
        ["rotate"],
    ):
        done = run(home, *words)
        assert done.exit_code == 0, done.output
    done = run(home, "erase", "acme", "--subject", "alice@example.com", "--yes", "--json")
    assert done.exit_code == 1, "the incident's hold stands"
    done = run(home, "export", "acme", "--output", str(tmp_path / "p.zip"), "--json")
    assert json.loads(done.stdout)["ok"], done.output
    assert home.types("acme")[-1] == "log.exported"
    assert not home.path.exists()


def test_without_the_variable_a_log_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATABASE_VARIABLE, raising=False)
    path = tmp_path / "log.db"
    assert not is_there(path)
    store = open_store(path, "gw-1", "boot")
    assert isinstance(store, SqliteStore)
    reader = open_reader(path)
    assert isinstance(reader, SqliteReader)
    reader.close()
    store.close()


def test_with_the_variable_it_is_the_database_whatever_the_path(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, str(home.url))
    reader = open_reader(home.path)
    assert isinstance(reader, PostgresReader)
    reader.close()
    monkeypatch.setenv(DATABASE_VARIABLE, "")
    assert not is_there(home.path)


def test_a_record_that_was_in_a_database_is_not_made_again_where_it_is_missing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATABASE_VARIABLE, str(home.url))
    open_store(home.path, "gw-1", "boot").close()
    with psycopg.connect(str(home.url), autocommit=True) as db:
        db.execute("ALTER SCHEMA domicile_audit RENAME TO gone")
        with pytest.raises(StoreError, match="no schema domicile_audit, where the record of this data folder was"):
            open_store(home.path, "gw-1", "boot")
        assert db.execute("SELECT to_regnamespace('domicile_audit') IS NULL").fetchone() == (True,)
        db.execute("ALTER SCHEMA gone RENAME TO domicile_audit")
    open_store(home.path, "gw-1", "boot").close()
