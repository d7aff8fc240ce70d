"""Gateways on several hosts that keep content: private values and the keys above them in PostgreSQL."""

import asyncio
import json
import sqlite3
from contextlib import closing

import psycopg
import pytest

from audit.private.postgres_values import KeyTable
from audit.private.value_location import VALUES_VARIABLE
from gateway.installation.installation import Installation
from tests.fakes.lab import POLICY, chat, lab
from tests.gateway.test_installation_identity import CONTROL, RECORD, fresh_database
from tests.gateway.test_rotation_on_two_hosts import domicile, load, more, second_host

KEEPING = POLICY.replace("content: none", "content: 'encrypted, 30d'")
ALICE, BOB = "alice@example.org", "bob@example.org"


@pytest.fixture
def urls(monkeypatch, postgresql_url):
    """Three databases, as the environment of every host names them."""
    named = {variable: fresh_database(postgresql_url) for variable in (CONTROL, RECORD, VALUES_VARIABLE)}
    for variable, url in named.items():
        monkeypatch.setenv(variable, url)
    return named


def keeping(made):
    made.tenant("acme", KEEPING)


async def ask(made, base, subject, text):
    headers = {"authorization": f"Bearer {made.key()}", "x-domicile-subject": subject}
    async with made.http.post(f"{base}/v1/chat/completions", json=chat(text), headers=headers) as response:
        assert response.status == 200, await response.text()
        await response.read()


async def access(data, subject, code=0):
    said = await domicile("audit", "dsar", "acme", "--subject", subject, "--data", data, code=code)
    return json.JSONDecoder().raw_decode(said)[0] if code == 0 else said


def texts(package):
    return {
        message["content"]
        for record in package["records"]
        if "input" in record["values"]
        for message in json.loads(record["values"]["input"]["value"])["messages"]
    }


async def test_what_two_hosts_keep_of_a_person_is_disclosed_and_erased_whole_from_either(tmp_path, urls):
    two = tmp_path / "two"
    async with lab(tmp_path, set_up=keeping) as made:
        await domicile("init", "--data", made.data, "--export-keys", tmp_path / "set")
        async with second_host(two, tmp_path / "set") as other:
            async with asyncio.TaskGroup() as group:
                for number in range(6):
                    for base in (made.base, other):
                        port = base.rpartition(":")[2]
                        group.create_task(ask(made, base, ALICE, f"alice {number} {port}"))
                        group.create_task(ask(made, base, BOB, f"bob {number} {port}"))
            for data in (made.data, two):
                assert len(texts(await access(data, ALICE))) == 12
                assert not (data / "audit" / "side.db").exists()
                assert not list((data / "audit" / "keys").glob("*.kek"))
            await domicile("audit", "erase", "acme", "--subject", ALICE, "--yes", "--data", two)
            assert "nothing is kept" in await access(made.data, ALICE, code=1)
            assert len(texts(await access(made.data, BOB))) == 12
            await ask(made, made.base, ALICE, "alice again")
            assert texts(await access(two, ALICE)) == {"alice again"}
            for data in (made.data, two):
                assert "The log holds" in await domicile("audit", "verify", "--keys", "--data", data)
            said = await domicile("database", "show", "--data", two)
            assert "value store: database" in said and said.count("of cell 'eu-1'") == 3


async def test_the_master_key_is_replaced_under_load_on_two_hosts_that_share_the_keys(tmp_path, urls):
    safe, two = tmp_path / "safe", tmp_path / "two"
    async with lab(tmp_path, set_up=keeping) as made:
        await domicile("init", "--data", made.data, "--export-keys", safe / "1")
        async with second_host(two, safe / "1") as other:
            bases = [made.base, other]
            async with load(bases, [made.key()]) as answers:
                await more(answers, bases)
                said = await domicile("secrets", "rotate", "--data", made.data)
                assert "give every other host the new key set" in said
                await more(answers, bases)
                await domicile("init", "--data", made.data, "--export-keys", safe / "2")
                await domicile("init", "--keys", safe / "2", "--data", two)
                await domicile("secrets", "rewrap", "--data", two)
                await more(answers, bases)
                await domicile("secrets", "renew", "acme", "--data", made.data)
                await more(answers, bases)
            assert {status for _, status in answers} == {200}
        for data in (made.data, two):
            status = json.loads(await domicile("secrets", "show", "--data", data, "--json"))
            assert status["waiting"] == {} and status["master"]["versions"] == [1, 2]
            assert "The log holds" in await domicile("audit", "verify", "--keys", "--data", data)


async def test_a_tenant_erased_on_one_host_can_keep_nothing_on_the_other(tmp_path, urls):
    two = tmp_path / "two"
    async with lab(tmp_path, set_up=keeping) as made:
        await domicile("init", "--data", made.data, "--export-keys", tmp_path / "set")
        async with second_host(two, tmp_path / "set") as other:
            await ask(made, other, ALICE, "hi")
            await domicile("audit", "erase", "acme", "--all", "--yes", "--data", made.data)
            headers = {"authorization": f"Bearer {made.key()}"}
            async with made.http.post(f"{other}/v1/chat/completions", json=chat("hi"), headers=headers) as response:
                assert response.status >= 400
        assert KeyTable(urls[VALUES_VARIABLE]).read("acme") == b""


@pytest.mark.parametrize(
    ("harm", "because"),
    [
        ("UPDATE watch_mark SET mark = 'older'", "the value store's database was put back"),
        ("ALTER TABLE value RENAME TO v; CREATE TABLE value AS TABLE v", "the value store's database was dropped or"),
    ],
)
async def test_a_side_store_that_was_put_back_or_replaced_stops_the_gateway(tmp_path, urls, harm, because):
    async with lab(tmp_path, set_up=keeping) as made:
        assert (await made.post(chat("hi"))).status == 200
        (backend,) = made.backends.values()
        seen = len(backend.bodies)
        with psycopg.connect(urls[VALUES_VARIABLE], options="-c search_path=domicile_values") as db:
            db.execute(harm)
        async with asyncio.timeout(20):
            while not made.gateway.watches.trouble:
                await asyncio.sleep(0.05)
        assert because in made.gateway.watches.trouble
        answer = await made.post(chat("hi again"))
        assert (answer.status, answer.error["code"]) == (503, "audit_unavailable")
        assert len(backend.bodies) == seen


async def test_calls_that_keep_content_are_refused_while_the_side_store_is_away(tmp_path, urls):
    async with lab(tmp_path, set_up=keeping) as made:
        assert (await made.post(chat("hi"))).status == 200
        (backend,) = made.backends.values()
        seen = len(backend.bodies)
        with psycopg.connect(urls[VALUES_VARIABLE], autocommit=True) as db:
            db.execute("ALTER SCHEMA domicile_values RENAME TO gone")
            answer = await made.post(chat("hi again"))
            assert (answer.status, answer.error["code"]) == (503, "audit_unavailable"), answer.body
            assert len(backend.bodies) == seen, "nothing was sent"
            db.execute("ALTER SCHEMA gone RENAME TO domicile_values")
        async with asyncio.timeout(20):
            while (await made.post(chat("hi"))).status != 200:
                await asyncio.sleep(0.2)


async def test_a_folder_is_moved_to_the_database_by_a_documented_command(tmp_path, monkeypatch, postgresql_url):
    monkeypatch.setenv(CONTROL, fresh_database(postgresql_url))
    monkeypatch.setenv(RECORD, fresh_database(postgresql_url))
    async with lab(tmp_path, set_up=keeping) as made:
        await ask(made, made.base, ALICE, "from before")
    assert (made.data / "audit" / "side.db").exists()
    url = fresh_database(postgresql_url)
    monkeypatch.setenv(VALUES_VARIABLE, url)
    said = await domicile("audit", "dsar", "acme", "--subject", ALICE, "--data", made.data, code=1)
    assert "domicile database move" in said, said
    said = await domicile("database", "move", "--data", made.data)
    assert "value store: database" in said
    (made.data / "audit" / "side.db").rename(tmp_path / "old")
    assert texts(await access(made.data, ALICE)) == {"from before"}
    monkeypatch.delenv(VALUES_VARIABLE)
    said = await domicile("audit", "dsar", "acme", "--subject", ALICE, "--data", made.data, code=1)
    assert f"set {VALUES_VARIABLE}, or database.values_url" in said
    with closing(sqlite3.connect(tmp_path / "old")) as db:
        assert db.execute("SELECT count(*) FROM value").fetchone() > (0,), "the file stays for the operator to remove"


async def test_a_second_host_without_the_key_set_makes_no_master_key_of_its_own(tmp_path, urls):
    async with lab(tmp_path, set_up=keeping) as made:
        await ask(made, made.base, ALICE, "hi")
        stranger = tmp_path / "stranger"
        stranger.mkdir(mode=0o700)
        (stranger / "cell").write_text("eu-1\n")
        (stranger / "cell").chmod(0o600)
        with pytest.raises(Exception, match="take over the key set of another host"):
            Installation.open(stranger).keys  # noqa: B018
        assert not (stranger / "audit" / "keys" / "root.key").exists()
