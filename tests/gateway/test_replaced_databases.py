"""A database removed, replaced or put back under a running gateway: nothing is forwarded, nothing is acknowledged."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from secrets import token_hex

import psycopg
import pytest
import sqlalchemy
from sqlmodel import select

from audit.errors import StoreError
from audit.private.value_location import open_values
from audit.storage.location import DATABASE_VARIABLE
from gateway.database.database import Database
from gateway.database.epoch import bump_epoch
from gateway.database.errors import DatabaseUnavailable
from gateway.database.tables.control import GatewayMarkRow
from gateway.database.watch import ControlWatch
from gateway.installation.installation import Installation
from gateway.installation.rotation import renew
from tests.fakes.lab import POLICY, chat, lab

KEEPING = POLICY.replace("content: none", "content: 'encrypted, 30d'")
FILES = ("audit/log.db", "audit/side.db", "control.db")

# Steps that touch a live database run in another process, as an operator's do.
SNAPSHOT = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as source, sqlite3.connect(sys.argv[2]) as copy:
    source.backup(copy)
    copy.execute("PRAGMA journal_mode=DELETE")
"""
RESTORE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[2]) as source, sqlite3.connect(sys.argv[1]) as target:
    source.backup(target)
"""
CHECKPOINT = """
import sqlite3, sys
sqlite3.connect(sys.argv[1]).execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
"""
OVERWRITE = """
import sys
with open(sys.argv[2], "rb") as source, open(sys.argv[1], "r+b") as target:
    content = source.read()
    target.write(content)
    target.truncate(len(content))
"""


def python(program, *arguments):
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True)


def keeping(made):
    made.tenant("acme", KEEPING)


def remove(file, old):
    file.unlink()


def remove_with_sidecars(file, old):
    for name in file.parent.glob(f"{file.name}*"):
        name.unlink()


def remove_the_write_ahead_log(file, old):
    file.with_name(f"{file.name}-wal").unlink()


def remove_the_shared_memory(file, old):
    file.with_name(f"{file.name}-shm").unlink()


def move_away(file, old):
    file.rename(file.with_name("elsewhere"))


def replace_by_an_older_copy(file, old):
    shutil.copy(old, file.with_name("new"))
    file.with_name("new").replace(file)


def replace_by_the_same_content(file, old):
    python(SNAPSHOT, file, file.with_name("new"))
    file.with_name("new").replace(file)


def restore_by_hand(file, old):
    remove_with_sidecars(file, old)
    shutil.copy(old, file)


def restore_through_sqlite(file, old):
    python(RESTORE, file, old)


def overwrite_in_place(file, old):
    python(CHECKPOINT, file)
    python(OVERWRITE, file, old)


def overwrite_with_nothing(file, old):
    python(CHECKPOINT, file)
    os.truncate(file, 0)


HARMS = (
    remove,
    remove_with_sidecars,
    remove_the_write_ahead_log,
    remove_the_shared_memory,
    move_away,
    replace_by_an_older_copy,
    replace_by_the_same_content,
    restore_by_hand,
    restore_through_sqlite,
    overwrite_in_place,
    overwrite_with_nothing,
)
AT_ONCE = HARMS[:8]
"""Those that the very next call must meet; the others are found by the round, within seconds."""


async def noticed(made, name):
    async with asyncio.timeout(20):
        while not (trouble := made.gateway.watches.trouble):
            await asyncio.sleep(0.05)
    assert name in trouble
    return trouble


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
async def test_a_database_that_is_no_longer_what_the_gateway_opened_stops_it(tmp_path, name, harm):
    async with lab(tmp_path, set_up=keeping) as made:
        file, old = made.data / name, tmp_path / "old.db"
        python(SNAPSHOT, file, old)
        for _ in range(3):
            assert (await made.post(chat("hi"))).status == 200
        made.project("acme", "more")
        if harm not in AT_ONCE:
            await asyncio.to_thread(made.gateway.watches.look_closely)  # a round marks what was written
        (backend,) = made.backends.values()
        seen = len(backend.bodies)
        harm(file, old)
        if harm not in AT_ONCE:
            await noticed(made, name)
        answer = await made.post(chat("hi again"))
        refused = {"audit_unavailable"} | ({"directory_unavailable"} if name == "control.db" else set())
        assert answer.status == 503, answer.body
        assert answer.error["code"] in refused, answer.body
        assert len(backend.bodies) == seen, "nothing was forwarded"
        await noticed(made, name)
        ready = await made.get("/readyz")
        assert ready.status == 503
        assert name in ready.json["parts"]["databases"]["because"]
        if harm is remove:
            assert not file.exists(), "no empty database is put in its place"


@pytest.mark.parametrize("name", FILES)
async def test_a_database_that_was_moved_away_and_back_is_taken_up_again(tmp_path, name):
    async with lab(tmp_path, set_up=keeping) as made:
        assert (await made.post(chat("hi"))).status == 200
        file = made.data / name
        file.rename(tmp_path / "elsewhere")
        assert (await made.post(chat("hi"))).status == 503
        (tmp_path / "elsewhere").rename(file)
        async with asyncio.timeout(20):
            while (await made.post(chat("hi"))).status != 200:
                await asyncio.sleep(0.2)
        assert (await made.get("/readyz")).status == 200
    assert made.verify().ok


@pytest.mark.parametrize("sidecars", [False, True], ids=["alone", "with its write-ahead log"])
async def test_no_other_part_of_the_gateway_makes_a_new_value_store_while_it_is_away(tmp_path, sidecars):
    """Retention, an access request, an erasure and a rotation open it on their own."""
    async with lab(tmp_path, set_up=keeping) as made:
        assert (await made.post(chat("hi"))).status == 200
        installation, file = Installation.open(made.data), made.data / "audit/side.db"
        moved = [file, *(file.parent.glob("side.db-*") if sidecars else ())]
        for one in moved:
            one.rename(tmp_path / one.name)
        for opening in (lambda: open_values(file, installation.keys), lambda: renew(installation, "acme", print, "me")):
            with pytest.raises(StoreError, match=r"side\.db.* is missing"):
                opening()
        assert not file.exists()
        for one in moved:
            (tmp_path / one.name).rename(one)
        with contextlib.closing(open_values(file, installation.keys)) as side:
            assert list(side.kept("acme")), "what was kept is there"
    assert made.verify().ok


async def test_what_others_do_to_the_databases_by_sqlite_is_no_fault(tmp_path):
    async with lab(tmp_path, set_up=keeping) as made:
        for name in FILES:
            python(CHECKPOINT, made.data / name)
            python("import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('VACUUM')", made.data / name)
            python(SNAPSHOT, made.data / name, tmp_path / "copy.db")
        for _ in range(3):
            assert (await made.post(chat("hi"))).status == 200
            await asyncio.to_thread(made.gateway.watches.look_closely)
        assert made.gateway.watches.trouble is None
        assert (await made.get("/readyz")).status == 200


@pytest.fixture
def replaceable(postgresql_url, monkeypatch):
    """A server's database of its own that record and control plane are in; calling it drops and makes it anew."""
    name = f"replaced_{token_hex(4)}"

    def drop(again=True):
        with psycopg.connect(postgresql_url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            if again:
                admin.execute(f"CREATE DATABASE {name}")

    drop()
    url = sqlalchemy.make_url(postgresql_url).set(database=name).render_as_string(hide_password=False)
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    monkeypatch.setenv("DOMICILE_DATABASE_URL", url)
    drop.url = url
    yield drop
    drop(again=False)


def drop_and_create(replaceable):
    replaceable()


def shorten_the_record(replaceable):
    with psycopg.connect(replaceable.url) as db:
        db.execute("DELETE FROM domicile_audit.leaf WHERE seq >= 1")
        db.execute("UPDATE domicile_audit.tree SET size = 1")


def recreate_the_record(replaceable):
    with psycopg.connect(replaceable.url) as db:
        db.execute("ALTER TABLE domicile_audit.tree RENAME TO old")
        db.execute("CREATE TABLE domicile_audit.tree AS TABLE domicile_audit.old")


def put_the_control_database_back(replaceable):
    with psycopg.connect(replaceable.url) as db:
        db.execute("UPDATE config_epoch SET value = 1")


def recreate_the_control_database(replaceable):
    with psycopg.connect(replaceable.url) as db:
        db.execute("ALTER TABLE config_epoch RENAME TO old_epoch")
        db.execute("CREATE TABLE config_epoch AS TABLE old_epoch")


def put_the_control_database_back_and_let_it_grow(replaceable):
    """To the state before the last change, with more changes since then than there were."""
    with psycopg.connect(replaceable.url) as db:
        db.execute("UPDATE gateway_mark SET mark = before.mark FROM before WHERE before.gateway = gateway_mark.gateway")
        db.execute("UPDATE config_epoch SET value = value + 5")


def put_the_control_database_back_to_before_this_gateway(replaceable):
    with psycopg.connect(replaceable.url) as db:
        db.execute("DELETE FROM gateway_mark")
        db.execute("UPDATE config_epoch SET value = value + 5")


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (put_the_control_database_back_and_let_it_grow, "the control database was put back"),
        (put_the_control_database_back_to_before_this_gateway, "the control database was put back"),
        (drop_and_create, "database"),
        (shorten_the_record, "the audit database was put back"),
        (recreate_the_record, "the audit database was dropped or replaced"),
        (put_the_control_database_back, "the control database was put back"),
        (recreate_the_control_database, "the control database was dropped or replaced"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
async def test_a_database_on_a_server_that_was_replaced_stops_the_gateway(tmp_path, replaceable, harm, name):
    async with contextlib.AsyncExitStack() as stack, lab(tmp_path) as made:
        assert (await made.post(chat("hi"))).status == 200
        stack.callback(made.control._database.close)
        with psycopg.connect(replaceable.url) as db:
            db.execute("CREATE TABLE before AS TABLE gateway_mark")
        made.control.create_tenant("globex")
        await asyncio.to_thread(made.gateway.watches.look_closely)
        assert made.gateway.watches.trouble is None
        (backend,) = made.backends.values()
        seen = len(backend.bodies)
        harm(replaceable)
        await noticed(made, name)
        answer = await made.post(chat("hi again"))
        assert (answer.status, answer.error["code"]) == (503, "audit_unavailable"), answer.body
        assert len(backend.bodies) == seen
        ready = await made.get("/readyz")
        assert ready.status == 503
        assert name in ready.json["parts"]["databases"]["because"]
        if harm is drop_and_create:
            with psycopg.connect(replaceable.url) as db:
                assert db.execute("SELECT to_regclass('domicile_audit.tree')").fetchone() == (None,), "not made anew"


async def test_two_gateways_on_a_server_raise_no_alarm_while_both_change_and_one_ends(tmp_path, replaceable):
    with contextlib.closing(Database(replaceable.url)) as database:
        database.migrate()
        first, second = ControlWatch(database, "eu-1"), ControlWatch(database, "eu-1")
        for _ in range(3):
            with database.write() as session:
                bump_epoch(session, "eu-1")
            first.look_closely()
            second.look_closely()
        second.close()
        first.look_closely()
        with database.read() as session:
            assert len(session.exec(select(GatewayMarkRow)).all()) == 1
        first.close()


async def test_a_mark_of_which_nobody_knows_whether_it_was_written_raises_no_alarm(tmp_path, replaceable, monkeypatch):
    with contextlib.closing(Database(replaceable.url)) as database:
        database.migrate()
        watch = ControlWatch(database, "eu-1")
        written = watch._put

        def lost(mark, *, after):
            if after:
                written(mark)
            raise DatabaseUnavailable("the connection broke")

        for after in (True, False, True):
            with database.write() as session:
                bump_epoch(session, "eu-1")
            monkeypatch.setattr(watch, "_put", lambda mark, after=after: lost(mark, after=after))
            watch.look_closely()
            monkeypatch.setattr(watch, "_put", written)
            watch.look_closely()
            watch.look_closely()
        watch.close()
