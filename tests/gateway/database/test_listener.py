import threading
from threading import Event

import pytest
import sqlalchemy

from gateway.database.database import Database
from gateway.database.listener import EpochListener

ON_BOTH_DATABASES = True


@pytest.fixture
def news():
    return Event()


@pytest.fixture
def listener(database, news):
    listener = EpochListener(database, "demo", news.set)
    listener.start()
    yield listener
    listener.close()


def test_a_change_is_told_with_its_commit_where_the_database_can(database, control, listener, news):
    if not database.notifies_changes:
        control.create_tenant("acme")
        assert not news.wait(0.3)
        return
    assert news.wait(5)  # when it begins to listen
    news.clear()
    control.create_tenant("acme")
    assert news.wait(2)


def test_what_was_rolled_back_and_what_is_of_another_cell_is_not_told(database, acme, listener, news):
    if not database.notifies_changes:
        return
    assert news.wait(5)
    news.clear()
    with pytest.raises(Exception, match="exists already"):
        acme.create_tenant("acme")
    with database.engine.begin() as connection:
        connection.execute(sqlalchemy.text("SELECT pg_notify('domicile_epoch', 'other')"))
    assert not news.wait(0.7)


def test_a_broken_connection_is_made_again(database, control, listener, news, caplog):
    if not database.notifies_changes:
        return
    assert news.wait(5)
    news.clear()
    with database.engine.begin() as connection:
        ended = connection.execute(
            sqlalchemy.text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        ).scalar_one()
    assert ended == 1
    assert news.wait(5)  # it listens again
    assert [record.name for record in caplog.records] == ["gateway.database.listener"], "one sentence, no traceback"
    news.clear()
    control.create_tenant("acme")
    assert news.wait(2)


def test_closing_waits_for_the_end_of_the_thread(database, news):
    listener = EpochListener(database, "demo", news.set)
    listener.start()
    listener.close()
    assert [thread.name for thread in threading.enumerate() if thread.name == "epoch-listener"] == []


def test_processes_that_start_together_migrate_an_empty_postgresql_once(data, postgresql_url):
    from concurrent.futures import ThreadPoolExecutor

    admin = Database(postgresql_url)
    with admin.engine.begin() as connection:
        connection.execute(sqlalchemy.text("DROP SCHEMA IF EXISTS together CASCADE"))
        connection.execute(sqlalchemy.text("CREATE SCHEMA together"))
    url = admin.engine.url.update_query_dict({"options": "-csearch_path=together"})
    with ThreadPoolExecutor(4) as threads:
        opened = list(
            threads.map(lambda _: Database.open(data, url=url.render_as_string(hide_password=False)), range(4))
        )
    for database in opened:
        with database.read() as session:
            assert session.connection().exec_driver_sql("SELECT count(*) FROM together.tenant").scalar() == 0
        database.close()
    with admin.engine.begin() as connection:
        connection.execute(sqlalchemy.text("DROP SCHEMA together CASCADE"))
    admin.close()


@pytest.mark.parametrize("url", ["nonsense", "postgresql://127.0.0.1:1/none", "oracle://x/y", "mysql+nodriver://x"])
def test_a_database_that_is_not_there_is_unavailable(data, url):
    from gateway.database.errors import DatabaseUnavailable

    with pytest.raises(DatabaseUnavailable):
        Database.open(data, url=url)
