"""A gateway whose record is in PostgreSQL: it answers when that is well, and sends nothing anywhere when it is not."""

import asyncio

import psycopg
import pytest

from audit.storage.location import DATABASE_VARIABLE
from audit.storage.postgres import PostgresReader
from tests.fakes.lab import chat, lab


@pytest.fixture
def record_url(postgresql_url, monkeypatch):
    with psycopg.connect(postgresql_url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS domicile_audit CASCADE")
    monkeypatch.setenv(DATABASE_VARIABLE, postgresql_url)
    return postgresql_url


async def test_calls_are_on_record_in_the_database_and_refused_when_it_fails(tmp_path, record_url):
    async with lab(tmp_path) as made:
        answer = await made.post(chat("hi"))
        assert answer.status == 200
        assert not (tmp_path / "data" / "audit" / "log.db").exists()
        reader = PostgresReader.open(record_url)
        assert b"inference.completed" in [*reader.leaves("acme")][-1].payload
        reader.close()

        (backend,) = made.backends.values()
        seen = len(backend.bodies)
        with psycopg.connect(record_url, autocommit=True) as db:
            db.execute("ALTER SCHEMA domicile_audit RENAME TO gone")
            for _ in range(6):  # in which the gateway tries to open its record again
                answer = await made.post(chat("hi again"))
                assert answer.status == 503
                assert answer.json["error"]["code"] == "audit_unavailable"
                await asyncio.sleep(0.5)
            assert len(backend.bodies) == seen, "nothing was sent"
            missing = db.execute("SELECT to_regnamespace('domicile_audit') IS NULL").fetchone()
            assert missing == (True,), "an empty record in place of the one that is away is worse than none"
            db.execute("ALTER SCHEMA gone RENAME TO domicile_audit")
            async with asyncio.timeout(60):
                while (await made.post(chat("hi again"))).status != 200:
                    await asyncio.sleep(0.2)
