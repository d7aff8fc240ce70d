"""Databases say which installation they are of, folders where their databases are: a stranger is refused by name, and
nothing is written."""

import json
import shutil
import sqlite3
from contextlib import closing
from secrets import token_hex

import psycopg
import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config
from typer.testing import CliRunner

from audit.keys.owner_keys import FileKeyProvider
from audit.keys.signer import FileSigner, key_of
from audit.private.value_store import ValueStore
from audit.storage.installation_identity import ForeignDatabaseError
from audit.storage.location import open_reader
from gateway.cli.app import app
from gateway.database.database import MIGRATIONS, Database
from gateway.database.errors import DatabaseUnavailable
from gateway.database.ownership import owner_of
from gateway.installation import backup
from gateway.installation.admin_record import recorded_admin
from gateway.installation.installation import Installation
from tests.fakes.lab import chat, lab
from tests.fakes.read_only import read_only

CONTROL, RECORD = "DOMICILE_DATABASE_URL", "DOMICILE_AUDIT_DATABASE_URL"


def domicile(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words], obj=recorded_admin, env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), "a traceback reached the user"
    return result.output + (result.stderr if code else "")


def fresh_database(postgresql_url, template=None):
    name = f"identity_{token_hex(4)}"
    with psycopg.connect(postgresql_url, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
    return sqlalchemy.make_url(postgresql_url).set(database=name).render_as_string(hide_password=False)


@pytest.fixture
def in_files(tmp_path, monkeypatch):
    """The folder of a cell with one tenant, its databases in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOMICILE_CONFIG", raising=False)
    return founded(tmp_path)


@pytest.fixture
def in_postgresql(tmp_path, monkeypatch, postgresql_url):
    """The same with its databases in PostgreSQL."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOMICILE_CONFIG", raising=False)
    monkeypatch.setenv(CONTROL, fresh_database(postgresql_url))
    monkeypatch.setenv(RECORD, fresh_database(postgresql_url))
    return founded(tmp_path)


@pytest.fixture(params=["in_files", "in_postgresql"])
def cell(request):
    return request.getfixturevalue(request.param)


def founded(tmp_path):
    domicile("init", "--cell", "eu-1", "--data", "prod")
    domicile("tenant", "create", "acme", "--data", "prod")
    return tmp_path / "prod"


def state(folder):
    """What must not change: sizes of all trees, tenants, and the names of all files but locks."""
    with closing(open_reader(folder / "audit" / "log.db")) as reader:
        sizes = reader.sizes()
    return sizes, [each["id"] for each in json.loads(domicile("tenant", "list", "--data", folder, "--json"))]


# --- the folder ------------------------------------------------------------------------------------------------------


COMMANDS = (
    "tenant create beta", "tenant list", "project list acme", "key list acme", "person bootstrap", "audit verify",
    "audit rotate", "audit show", "audit anchor", "audit selftest", "secrets show", "secrets rotate", "retention run",
    "backup create b", "doctor", "usage show", "deployment list acme", "database show", "database move", "cell list",
    "key rekey --stage",
)  # fmt: skip


def test_a_folder_that_is_not_there_is_refused_and_not_made(cell):
    before = state(cell)
    for line in COMMANDS:
        said = domicile(*line.split(), code=1)
        assert "domicile init" in said, (line, said)
        assert not (cell.parent / "domicile-data").exists(), line
    assert "is not a name" in domicile("tenant", "create", "Acme", code=1)
    assert not (cell.parent / "domicile-data").exists()
    assert state(cell) == before
    assert "The log holds" in domicile("audit", "verify", "--data", cell)


def test_a_refused_argument_leaves_no_trace(cell):
    before = state(cell)
    files = sorted(cell.rglob("*"))
    refused = {
        "tenant create Acme": 1,
        "tenant create acme": 1,
        "project create acme p --purpose x --legal-basis none": 2,
    }
    for line, code in refused.items():
        domicile(*line.split(), "--data", cell, code=code)
    assert state(cell) == before
    assert sorted(cell.rglob("*")) == files


@pytest.mark.parametrize(
    "line", ["init --cell Nope --data new", "init --pepper nowhere --data new", "init --keys nowhere --data new"]
)
def test_init_checks_its_arguments_before_it_makes_a_folder(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    domicile(*line.split(), code=1)
    assert not (tmp_path / "new").exists()


def test_a_folder_whose_cell_is_gone_is_not_founded_anew(cell):
    (cell / "cell").unlink()
    assert "put the key set back with: domicile init --keys" in domicile("init", "--data", cell, code=1)
    assert not (cell / "cell").exists()


# --- strangers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eu-2", "eu-1"])
def test_another_installations_folder_is_refused_by_name_before_it_writes(in_postgresql, name):
    """Another cell, and one of the same name with other keys."""
    before = state(in_postgresql)
    domicile("init", "--cell", name, "--data", "other")
    for line in ("tenant create beta", "person bootstrap", "audit rotate", "audit anchor", "secrets rotate"):
        said = domicile(*line.split(), "--data", "other", code=1)
        assert ("belongs to" in said) and "cell 'eu-1'" in said, said
    assert "belongs to" in domicile("audit", "verify", "--data", "other", code=1)
    assert state(in_postgresql) == before
    assert "The log holds" in domicile("audit", "verify", "--data", in_postgresql)


@pytest.mark.parametrize("file", ["control.db", "audit/log.db"])
def test_a_database_of_another_installation_in_the_folder_is_refused_by_name(in_files, file):
    cell, other = in_files, in_files.parent / "other"
    domicile("init", "--cell", "eu-2", "--data", "other")
    domicile("tenant", "create", "globex", "--data", "other")
    for name in (file, f"{file}-wal", f"{file}-shm"):
        (cell / name).unlink(missing_ok=True)
        if (other / name).exists():
            shutil.copy(other / name, cell / name)
    copied = (cell / file).read_bytes()
    said = domicile("tenant", "create", "beta", "--data", cell, code=1)
    assert "belongs to cell 'eu-2'" in said and "cell 'eu-1'" in said
    with closing(sqlite3.connect(f"file:{cell / file}?mode=ro", uri=True)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert (cell / file).read_bytes() == copied, "nothing was written"


def test_a_side_store_of_another_installation_is_refused_by_name(tmp_path):
    for name in ("one", "two"):
        ValueStore.open(tmp_path / name / "side.db", FileKeyProvider.open(tmp_path / name / "keys")).close()
    keys = [key_of(FileSigner.open(tmp_path / n / "signer.key", name=f"domicile.{n}/audit")) for n in ("one", "two")]
    with closing(
        ValueStore.open(tmp_path / "one" / "side.db", FileKeyProvider.open(tmp_path / "one" / "keys"))
    ) as side:
        assert side.claim(keys[0]).cell == "one"
        assert side.claim(keys[0]).cell == "one"
        with pytest.raises(
            ForeignDatabaseError, match=r"value store belongs to cell 'one'.*this data folder to cell 'two'"
        ):
            side.claim(keys[1])


def test_a_side_store_from_before_is_claimed_only_with_the_keys_that_open_it(tmp_path):
    ours, theirs = (FileKeyProvider.open(tmp_path / name) for name in ("ours", "theirs"))
    key = key_of(FileSigner.open(tmp_path / "signer.key", name="domicile.one/audit"))
    path = tmp_path / "side.db"
    with closing(ValueStore.open(path, ours)) as side:
        side.subject_index("acme", "alice@example.com")  # makes its pepper
        side.rows("DROP TABLE identity")
    theirs.wrap("acme", bytes(32))
    with (
        closing(ValueStore.open(path, theirs)) as side,
        pytest.raises(ForeignDatabaseError, match="another installation"),
    ):
        side.claim(key)
    with closing(ValueStore.open(path, ours)) as side:
        assert side.identity() is None, "the stranger wrote nothing"
        assert side.claim(key).log == "domicile.one/audit"


def test_the_control_database_of_one_with_the_record_of_another_is_refused(in_postgresql, monkeypatch, postgresql_url):
    """Also where the folder remembers neither, as one that was set up by an earlier version."""
    record = Installation.open(in_postgresql).urls.record
    monkeypatch.setenv(CONTROL, fresh_database(postgresql_url))
    monkeypatch.setenv(RECORD, fresh_database(postgresql_url))
    domicile("init", "--cell", "eu-2", "--data", "other")
    domicile("tenant", "create", "globex", "--data", "other")
    monkeypatch.setenv(RECORD, record)
    for folder, says in (
        (in_postgresql, "the control database belongs to cell 'eu-2'"),
        (in_postgresql.parent / "other", "the record belongs to cell 'eu-1'"),
    ):
        for marker in ("control.place", "audit/record.place"):
            (folder / marker).unlink()
        assert says in domicile("tenant", "create", "beta", "--data", folder, code=1)


# --- where they are --------------------------------------------------------------------------------------------------


def test_a_command_without_the_urls_says_where_the_databases_are_and_ends(in_postgresql, monkeypatch):
    control, record = (monkeypatch.delenv(name, raising=False) for name in (CONTROL, RECORD))
    for line in ("person bootstrap", "tenant list", "secrets rotate", "doctor", "up"):
        said = domicile(*line.split(), "--data", in_postgresql, code=1)
        assert f"(PostgreSQL), and no URL is set; set {CONTROL}, or database.url" in said
    for line in ("audit verify", "audit show", "audit rotate", "audit anchor"):
        said = domicile(*line.split(), "--data", in_postgresql, code=1)
        assert f"(PostgreSQL), and no URL is set; set {RECORD}, or database.record_url" in said
    assert not (in_postgresql / "control.db").exists()
    assert not list((in_postgresql / "audit").glob("log.db*"))
    assert (control, record) == (None, None)


def test_a_url_that_leads_elsewhere_is_refused_until_the_move_is_made_known(in_postgresql, monkeypatch, postgresql_url):
    before = state(in_postgresql)
    empty = fresh_database(postgresql_url)
    moved = fresh_database(postgresql_url, template=Installation.open(in_postgresql).settle()[0][1].server.database)
    for url in (empty, moved):
        monkeypatch.setenv(CONTROL, url)
        said = domicile("tenant", "create", "beta", "--data", in_postgresql, code=1)
        assert "if the database was moved, run: domicile database move" in said
    monkeypatch.setenv(CONTROL, empty)
    said = domicile("database", "move", "--data", in_postgresql, code=1)
    assert "holds no control database of this installation; move the content there first" in said
    with closing(Database(empty)) as database:
        assert sqlalchemy.inspect(database.engine).get_table_names() == [], "nothing was written"
    monkeypatch.setenv(CONTROL, moved)
    assert "of cell 'eu-1'" in domicile("database", "move", "--data", in_postgresql)
    assert state(in_postgresql) == before


def test_a_database_of_another_program_is_left_alone(tmp_path, monkeypatch, postgresql_url):
    monkeypatch.setenv(CONTROL, url := fresh_database(postgresql_url))
    with closing(Database(url)) as database, database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE wordpress (id int)")
    domicile("init", "--data", tmp_path / "data")
    said = domicile("tenant", "create", "acme", "--data", tmp_path / "data", code=1)
    assert "holds tables of another program (wordpress); name an empty database" in said


def test_markers_hold_no_user_and_no_password(in_postgresql):
    for file in (in_postgresql / "control.place", in_postgresql / "audit" / "record.place"):
        assert json.loads(file.read_text()).keys() == {"kind", "made", "host", "database"}
        assert "postgres:" not in file.read_text()


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "oracle", "made": true}', "[]", '{"kind": "postgresql"}'])
def test_a_damaged_marker_is_named_with_the_way_out(cell, text):
    (cell / "control.place").write_text(text)
    assert "control.place cannot be read" in domicile("tenant", "list", "--data", cell, code=1)


# --- installations from before ---------------------------------------------------------------------------------------


def made_by_an_earlier_version(folder, monkeypatch=None):
    """As the version before left it: no markers, no identities, the control database at its revision."""
    installation = Installation.open(folder)
    control = installation.urls.control or f"sqlite:///{folder / 'control.db'}"
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with closing(Database(control)) as database, database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0011")
        assert "installation" not in sqlalchemy.inspect(connection).get_table_names()
    if installation.urls.record is None:
        with closing(sqlite3.connect(folder / "audit" / "log.db", isolation_level=None)) as db:
            db.execute("DROP TABLE identity")
            db.execute("DROP TABLE succession")
    else:
        with psycopg.connect(installation.urls.record, autocommit=True) as db:
            db.execute("DROP TABLE domicile_audit.identity, domicile_audit.succession")
    for marker in ("control.place", "audit/record.place"):
        (folder / marker).unlink()


def test_an_installation_from_before_is_adopted_once(cell):
    made_by_an_earlier_version(cell)
    assert "The log holds" in domicile("audit", "verify", "--data", cell), "reading needs no adoption"
    domicile("tenant", "create", "beta", "--data", cell)
    shown = json.loads(domicile("database", "show", "--data", cell, "--json"))
    assert [one["of"] is not None for one in shown][:2] == [True, True]
    assert (cell / "control.place").exists() and (cell / "audit" / "record.place").exists()
    assert "The log holds" in domicile("audit", "verify", "--data", cell)


@pytest.mark.parametrize("name", ["eu-2", "eu-1"])
def test_a_stranger_does_not_adopt_an_installation_from_before(in_postgresql, name):
    made_by_an_earlier_version(in_postgresql)
    domicile("init", "--cell", name, "--data", "other")
    assert "belongs to" in domicile("audit", "rotate", "--data", "other", code=1)
    if name == "eu-2":
        assert "belongs to cell 'eu-1'" in domicile("tenant", "create", "beta", "--data", "other", code=1)
    installation = Installation.open(in_postgresql)
    with closing(Database(installation.urls.control)) as database:
        if name == "eu-2":
            assert owner_of(database) is None, "it was not even migrated"
    with closing(installation.open_reader()) as reader:
        assert reader.identity() is None


def test_a_folder_from_before_without_urls_and_files_is_not_given_new_databases(in_postgresql, monkeypatch):
    made_by_an_earlier_version(in_postgresql)
    monkeypatch.delenv(CONTROL)
    monkeypatch.delenv(RECORD)
    said = domicile("person", "bootstrap", "--data", in_postgresql, code=1)
    assert f"the place of the control database of {in_postgresql} is not known; set {CONTROL}" in said
    assert not (in_postgresql / "control.db").exists()


# --- half of a backup ------------------------------------------------------------------------------------------------


def test_a_record_without_its_control_database_is_refused(in_postgresql, monkeypatch, postgresql_url):
    monkeypatch.setenv(CONTROL, fresh_database(postgresql_url))
    (in_postgresql / "control.place").unlink()
    said = domicile("tenant", "create", "beta", "--data", in_postgresql, code=1)
    assert "the control database is empty, but the record holds events of acme" in said
    assert "restore both from the same backup" in said


async def test_a_control_database_with_an_older_record_is_refused(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.post(chat("hello"))).status == 200
        backup.create(Installation.open(made.data), tmp_path / "copy")
        assert (await made.post(chat("hello again"))).status == 200
    shutil.copy(tmp_path / "copy" / "data" / "audit" / "log.db", made.data / "audit" / "log.db")
    said = domicile("tenant", "create", "beta", "--data", made.data, code=1)
    assert "only one of the two was restored; restore both from the same backup" in said
    with pytest.raises(DatabaseUnavailable, match="only one of the two was restored"):
        async with lab(tmp_path, set_up=lambda made: None, backends={}):
            pass


@pytest.mark.parametrize("file", ["control.db", "audit/log.db"])
def test_a_file_that_was_lost_is_named_and_not_made_anew(in_files, file):
    cell = in_files
    for name in (file, f"{file}-wal", f"{file}-shm"):
        (cell / name).unlink(missing_ok=True)
    said = domicile("tenant", "create", "beta", "--data", cell, code=1)
    assert f"{cell / file}" in said and "is missing; put it back from a backup with: domicile backup restore" in said
    assert not (cell / file).exists()


# --- media -----------------------------------------------------------------------------------------------------------


def test_a_folder_on_a_medium_that_cannot_be_written_is_read_and_every_change_refused(in_files):
    with read_only(in_files):
        assert "The log holds" in domicile("audit", "verify", "--data", in_files)
        for line in (
            "tenant create beta",
            "audit rotate",
            "audit anchor",
            "secrets rotate",
            "key rekey",
            "tenant list",
        ):
            said = domicile(*line.split(), "--data", in_files, code=1)
            assert "read-only" in said.replace("readonly", "read-only").lower() or "writable" in said, (line, said)
    domicile("tenant", "create", "beta", "--data", in_files)
