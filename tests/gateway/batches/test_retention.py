"""What is over its time is deleted, with its keys; what is held, or still read, stays."""

import asyncio
import re
import sqlite3
from contextlib import asynccontextmanager, closing

import openai
import pytest

from gateway.batches.retention import FileRetention
from gateway.database.leases import Lease
from tests.fakes.backend import FakeBackend
from tests.gateway.batches.conftest import begin, client, gateway, line, over, upload
from tests.gateway.test_rotation_on_two_hosts import domicile

DAY_S = 86_400


@asynccontextmanager
async def kept(tmp_path, **backend):
    """A gateway, its SDK, and its retention by a clock that the test sets forward."""
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(**backend)}
    async with gateway(tmp_path, backends=backends) as made, client(made) as sdk:
        batches = made.gateway.batches.retention.batches
        now = batches.now
        ahead = [0.0]
        retention = FileRetention(batches, Lease(made.control._database, "test", "test", ttl_s=60))
        object.__setattr__(batches, "now", lambda: now() + ahead[0])
        yield made, sdk, retention, ahead


def rows(made):
    with made.control._database.engine.connect() as connection:
        tables = ("stored_file", "file_part", "batch", "batch_result")
        return [connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() for table in tables]


def keys_in_use(made):
    with closing(sqlite3.connect(made.data / "audit" / "side.db")) as side:
        return side.execute("SELECT count(*) FROM key_use").fetchone()[0]


async def test_files_and_batches_go_when_their_time_is_over_with_their_keys(tmp_path):
    async with kept(tmp_path) as (made, sdk, retention, ahead):
        batch = await over(sdk, await begin(sdk, line(1, user="alice"), line(2, model="no")))
        assert rows(made) == [3, 2, 1, 2]
        assert await retention.expire() == 0
        ahead[0] = 6.9 * DAY_S
        assert await retention.expire() == 0
        ahead[0] = 7.1 * DAY_S
        assert await retention.expire() == 4
        assert rows(made) == [0, 0, 0, 0]
        assert keys_in_use(made) == 0
        with pytest.raises(openai.NotFoundError):
            await sdk.batches.retrieve(batch.id)
        expired = [event["reason"] for event in made.events() if event["type"] == "file.deleted"]
        assert expired == ["expired"] * 3


async def test_a_held_file_stays_until_the_hold_is_released(tmp_path):
    async with kept(tmp_path) as (made, sdk, retention, ahead):
        await upload(sdk, line(1, user="alice"))
        free = await upload(sdk, line(1, user="bob"))
        said = await domicile("audit", "hold", "place", "acme", "--subject", "alice", "--data", made.data)
        [hold] = re.findall(r"[0-9a-f-]{36}", said)
        ahead[0] = 8 * DAY_S
        assert await retention.expire() == 1
        with pytest.raises(openai.NotFoundError):
            await sdk.files.retrieve(free.id)
        await domicile("audit", "hold", "release", "acme", hold, "--data", made.data)
        assert await retention.expire() == 1
        assert rows(made)[:2] == [0, 0]


async def test_held_files_do_not_keep_later_ones_from_being_deleted(tmp_path):
    async with kept(tmp_path) as (made, sdk, retention, ahead):
        object.__setattr__(retention, "at_once", 2)
        for user in ("alice", "alice", "alice", "bob", "bob"):
            await upload(sdk, line(1, user=user))
        await domicile("audit", "hold", "place", "acme", "--subject", "alice", "--data", made.data)
        ahead[0] = 8 * DAY_S
        assert await retention.expire() == 2
        assert rows(made)[0] == 3
        assert await retention.expire() == 0


async def test_a_file_that_a_batch_reads_stays_until_the_batch_is_over(tmp_path):
    async with kept(tmp_path, delay_s=0.3) as (_made, sdk, retention, ahead):
        file = await upload(sdk, *(line(number) for number in range(24)), expires_after=SOON)
        batch = await sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        ahead[0] = 2 * 3600
        assert await retention.expire() == 0
        ahead[0] = 0
        await over(sdk, batch)
        ahead[0] = 2 * 3600
        assert await retention.expire() == 1


SOON = {"anchor": "created_at", "seconds": 3600}


async def test_lines_that_are_not_done_within_the_window_are_expired(tmp_path):
    async with kept(tmp_path, delay_s=0.2) as (_made, sdk, _, ahead):
        batch = await begin(sdk, *(line(number) for number in range(200)))
        async with asyncio.timeout(20):
            while (await sdk.batches.retrieve(batch.id)).request_counts.completed < 8:
                await asyncio.sleep(0.02)
        ahead[0] = 25 * 3600
        batch = await over(sdk, batch)
        assert (batch.status, batch.request_counts.total) == ("expired", 200)
        assert batch.request_counts.completed + batch.request_counts.failed == 200
        content = (await sdk.files.content(batch.error_file_id)).text
        assert content.count('"code":"batch_expired"') == batch.request_counts.failed


async def test_an_upload_that_broke_off_leaves_nothing_for_long(tmp_path):
    async with kept(tmp_path) as (made, sdk, retention, ahead):
        file = await upload(sdk, line(1))
        with made.control._database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE stored_file SET state = 'uploading'")
        with pytest.raises(openai.NotFoundError):
            await sdk.files.retrieve(file.id)
        assert await retention.expire() == 0
        ahead[0] = 2 * 3600
        assert await retention.expire() == 1
        assert (rows(made)[:2], keys_in_use(made)) == ([0, 0], 0)
