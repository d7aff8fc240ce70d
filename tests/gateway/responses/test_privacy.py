"""What is kept of responses is encrypted, erasable per person, shown to the person, held, and deleted in time."""

import asyncio
import json
import re
import sqlite3
import sys
from contextlib import closing

import openai
import pytest

from gateway.database.leases import Lease
from gateway.responses.retention import ResponseRetention
from tests.gateway.batches.conftest import client, gateway, jsonl, line
from tests.gateway.responses.conftest import backends, over
from tests.gateway.test_rotation_on_two_hosts import domicile
from tests.test_docs import TREE

DAY_S = 86_400


def rows(made):
    with made.control._database.engine.connect() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM stored_response").scalar_one()


def keys(made):
    with closing(sqlite3.connect(made.data / "audit" / "side.db")) as side:
        return side.execute("SELECT count(*) FROM key_use").fetchone()[0]


def set_forward(made, days):
    responses = made.gateway.responses.responses
    now = responses.now
    object.__setattr__(responses, "now", lambda: now() + days * DAY_S)


async def program(*words):
    """What the program says, which knows where content of persons is kept besides the record."""
    command = (sys.executable, "-m", "gateway", *map(str, words))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=TREE)
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return out.decode()


async def said_by(sdk, person, text, **more):
    return await sdk.responses.create(model="small", input=text, safety_identifier=person, **more)


async def gone(sdk, response):
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.create(model="small", input="x", previous_response_id=response.id)


async def test_a_person_sees_what_is_kept_and_is_erased_with_a_certificate(kept, tmp_path):
    sdk = kept.sdk
    alice, bob = await said_by(sdk, "alice", "I am Zeppelin"), await said_by(sdk, "bob", "I am Bob")
    later = await said_by(sdk, "alice", "and more", previous_response_id=bob.id)
    file = jsonl(line(1, "of a line not called", user="alice"), line(2, "of bob's", user="bob"))
    await sdk.files.create(file=("a.jsonl", file), purpose="batch")
    package = json.loads(await program("audit", "dsar", "acme", "--subject", "alice", "--data", kept.data))
    content = {(one["kind"], one["id"], one["line"]): one["value"] for one in package["content"]}
    assert {(kind, id_) for kind, id_, _ in content if kind == "response"} == {
        ("response", alice.id),
        ("response", later.id),
    }
    assert "I am Zeppelin" in content["response", alice.id, None]
    assert "You said I am Zeppelin" in content["response", alice.id, None]
    (listed,) = [value for (kind, _, number), value in content.items() if (kind, number) == ("file_line", 1)]
    assert "of a line not called" in listed
    assert "of bob's" not in json.dumps(package)
    page = await program("audit", "dsar", "acme", "--subject", "alice", "--html", "de", "--data", kept.data)
    assert "Zeile einer Datei mit Anfragen" in page and "of a line not called" in page
    await domicile("audit", "restrict", "acme", "--subject", "alice", "--data", kept.data)
    await gone(sdk, alice)
    await domicile("audit", "restrict", "acme", "--subject", "alice", "--lift", "--data", kept.data)
    assert (await sdk.responses.retrieve(alice.id)).output_text == "You said I am Zeppelin"
    note = tmp_path / "certificate.note"
    erase = ("audit", "erase", "acme", "--subject", "alice", "--yes", "-o", note, "--data", kept.data)
    await domicile(*erase)
    assert '"keys_destroyed":["' in note.read_text().replace(" ", "")
    await gone(sdk, alice)
    await gone(sdk, later)
    assert (await sdk.responses.retrieve(bob.id)).output_text == "You said I am Bob"
    assert kept.verify().findings == []


async def test_a_hold_keeps_a_response_from_deletion_and_from_the_end_of_its_time(kept, monkeypatch):
    monkeypatch.setattr("gateway.responses.retention.AT_ONCE", 1)  # a held one does not stand in the way of others
    retention = ResponseRetention(kept.gateway.responses.responses, Lease(kept.control._database, "t", "t", ttl_s=60))
    held, free = await said_by(kept.sdk, "alice", "one"), await said_by(kept.sdk, "bob", "two")
    said = await domicile("audit", "hold", "place", "acme", "--subject", "alice", "--data", kept.data)
    [hold] = re.findall(r"[0-9a-f-]{36}", said)
    with pytest.raises(openai.ConflictError):
        await kept.sdk.responses.delete(held.id)
    assert await retention.expire() == 0
    set_forward(kept, 7.1)
    assert await retention.expire() == 1
    await gone(kept.sdk, free)
    await gone(kept.sdk, held)  # its time is over, and it is not used any more
    assert rows(kept) == 1
    await domicile("audit", "hold", "release", "acme", hold, "--data", kept.data)
    assert await retention.expire() == 1
    assert (rows(kept), keys(kept)) == (0, 0)
    expired = [event["responses"] for event in kept.events() if event["type"] == "response.expired"]
    assert expired == [1, 1]


async def test_what_is_deleted_leaves_neither_row_nor_key(kept):
    for response in [await said_by(kept.sdk, person, "x") for person in ("alice", "alice", None)]:
        await kept.sdk.responses.delete(response.id)
    assert (rows(kept), keys(kept)) == (0, 0)


async def test_nothing_of_a_response_is_readable_in_the_databases(tmp_path):
    async with gateway(tmp_path, backends=backends("acme")) as made, client(made) as sdk:
        asked = {"model": "small", "instructions": "Montevideo", "metadata": {"note": "Timbuktu"}}
        first = await said_by(sdk, "alice", "Zeppelin")
        queued = await sdk.responses.create(input="zanzibar", background=True, previous_response_id=first.id, **asked)
        assert (await over(sdk, queued)).status == "completed"
        await sdk.responses.create(input="Zeppelin", **asked)
    said = b"".join(path.read_bytes() for path in made.data.rglob("*") if path.is_file())
    for word in (b"Zeppelin", b"Montevideo", b"zanzibar", b"Timbuktu", b"You said"):
        assert word not in said, word


async def test_no_log_line_or_metric_says_what_was_asked(kept, caplog):
    caplog.set_level("DEBUG")
    first = await said_by(kept.sdk, "alice", "Zeppelin", background=True)
    await over(kept.sdk, first)
    await kept.sdk.responses.create(model="small", input="Zeppelin", previous_response_id=first.id)
    for wrong in ({"previous_response_id": "Zeppelin"}, {"input": [{"type": "item_reference", "id": "Zeppelin"}]}):
        answer = await kept.post({"model": "small", "input": "x", **wrong}, "/v1/responses")
        assert answer.status == 404 and b"Zeppelin" not in answer.body
    assert (await kept.get("/v1/responses/Zeppelin")).status == 404
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("domicile")]
    assert "Zeppelin" not in " ".join(ours)
    assert b"Zeppelin" not in (await kept.get("/metrics")).body
    assert "Zeppelin" not in json.dumps(kept.events())
