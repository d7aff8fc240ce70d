"""Two gateways on one PostgreSQL, each with a folder of its own as on two hosts: every rotation is carried from one to
the other by documented commands, under load, and no call is refused."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager, closing

import aiohttp
import pytest
from typer.testing import CliRunner

from audit.tree.tlog_checkpoint import open_checkpoint, origin_of
from gateway.cli.app import app
from gateway.configuration.settings import load_settings
from gateway.installation.admin_record import recorded_admin
from gateway.installation.installation import Installation, InstallationError
from gateway.installation.key_set import export_keys, import_keys
from gateway.server.assembly import open_gateway
from gateway.server.serve import serving
from tests.fakes.lab import chat, lab
from tests.gateway.test_installation_identity import CONTROL, RECORD, fresh_database


async def domicile(*words, code=0):
    result = await asyncio.to_thread(CliRunner().invoke, app, [str(word) for word in words], obj=recorded_admin)
    assert result.exit_code == code, result.output + str(result.exception)
    return result.output + (result.stderr if code else "")


@asynccontextmanager
async def second_host(folder, keys):
    """The base URL of a gateway whose folder was made from the key set."""
    await domicile("init", "--keys", keys, "--data", folder)
    config = load_settings(data=folder, node="gw-2", audit={"reserve_bytes": 1 << 20})
    listen = config.listen.model_copy(update={"port": 0})
    async with open_gateway(config) as gateway, serving(gateway.app, listen) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def load(bases, keys):
    """Calls to every gateway with every key, one after the other, while the block runs; yields what they answered."""
    answers, stop = Counter(), asyncio.Event()

    async def call(base, http):
        while not stop.is_set():
            for key in keys:
                headers = {"authorization": f"Bearer {key}"}
                async with http.post(f"{base}/v1/chat/completions", json=chat("hello"), headers=headers) as response:
                    answers[base, response.status] += 1
                    await response.read()
            await asyncio.sleep(0.02)

    async with aiohttp.ClientSession() as http:
        calling = [asyncio.create_task(call(base, http)) for base in bases]
        try:
            yield answers
        finally:
            stop.set()
            await asyncio.gather(*calling)


def signed_by(data, tenant="acme"):
    """The public key of the newest checkpoint of a tenant's tree."""
    installation = Installation.open(data)
    with closing(installation.open_reader()) as reader:
        note = reader.last_checkpoint(tenant).note
    for key in installation.owner.public_keys:
        try:
            open_checkpoint(note, origin_of(installation.owner.name, tenant), key)
        except Exception:
            continue
        return key
    raise AssertionError("no key of the folder signed it")


async def eventually(holds):
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


def hashed_before(data):
    installation = Installation.open(data)
    with closing(installation.database()) as database:
        return installation.inventory(database).hashed_before(installation.hasher().generation)


async def more(answers, bases, calls=3):
    """Wait until each gateway has answered some calls more."""
    before = dict(answers)
    async with asyncio.timeout(20):
        while any(answers[base, 200] < before.get((base, 200), 0) + calls for base in bases):
            await asyncio.sleep(0.02)


async def test_both_rotations_and_the_pepper_are_carried_to_another_host_under_load(
    tmp_path, monkeypatch, postgresql_url, caplog
):
    monkeypatch.setenv(CONTROL, fresh_database(postgresql_url))
    monkeypatch.setenv(RECORD, fresh_database(postgresql_url))
    monkeypatch.setenv("DOMICILE__AUDIT__ANCHOR_EVERY_S", "1")
    safe, two = tmp_path / "safe", tmp_path / "two"
    async with lab(tmp_path) as made:
        one = made.data
        await domicile("init", "--data", one, "--export-keys", safe / "1")
        async with second_host(two, safe / "1") as other:
            bases = [made.base, other]
            async with load(bases, [made.key()]) as answers:
                await more(answers, bases)
                old = Installation.open(one).owner.public_key

                # the key that signs the record
                await domicile("audit", "rotate", "--data", one)
                new = Installation.open(one).owner.public_key
                assert new != old
                await eventually(lambda: signed_by(one) == new)  # the gateway beside it took it up
                await more(answers, bases)
                assert "The log holds" in await domicile("audit", "verify", "--data", two), "before it has the key"
                await domicile("tenant", "create", "globex", "--data", two)  # a tree that begins under the old key
                refused = await domicile("audit", "rotate", "--data", two, code=1)
                assert "was replaced on another host already" in refused
                await domicile("init", "--keys", safe / "1", "--data", one)  # a pod that starts with the old Secret
                assert Installation.open(one).owner.public_key == new

                # the master key
                await domicile("secrets", "rotate", "--data", one)
                await domicile("init", "--data", one, "--export-keys", safe / "2")
                for _ in range(2):  # at each start of the pod
                    await domicile("init", "--keys", safe / "2", "--data", two)
                    await domicile("init", "--keys", safe / "2", "--data", one)
                await domicile("secrets", "rewrap", "--data", two)
                await domicile(
                    "project", "create", "globex", "main", "--purpose", "x", "--legal-basis", "contract", "--data", two
                )  # and goes on under the new one
                assert signed_by(two, "globex") == new
                assert Installation.open(two).owner.public_key == new
                status = json.loads(await domicile("secrets", "show", "--data", two, "--json"))
                assert status["master"]["versions"] == [1, 2] and status["waiting"] == {}
                await more(answers, bases)

                # the pepper of API keys
                await domicile("key", "rekey", "--stage", "--data", one)
                await domicile("init", "--data", one, "--export-keys", safe / "3")
                await domicile("init", "--keys", safe / "3", "--data", two)
                await domicile("key", "rekey", "--data", one)
                await more(answers, bases, 6)
                made_there = json.loads(await domicile("key", "create", "acme", "main", "--data", one, "--json"))
                made_here = json.loads(await domicile("key", "create", "acme", "main", "--data", two, "--json"))
                async with load(bases, [made_there["key"], made_here["key"]]) as fresh:
                    await more(fresh, bases, 4)
                await eventually(lambda: Installation.open(two).hasher().generation == 2)
                await more(answers, bases)
            assert {status for _, status in [*answers, *fresh]} == {200}
    made.control._database.close()
    assert "could not be done" not in caplog.text and "older log" not in caplog.text
    assert hashed_before(one) == 0, "what was used is hashed anew"
    for data in (one, two):
        await domicile("key", "rekey", "--finish", "--yes", "--data", data)
        assert Installation.open(data).hasher().generation == 2
        assert "The log holds" in await domicile("audit", "verify", "--data", data)
        for number in ("2", "3"):
            await domicile("init", "--keys", safe / number, "--data", data)


# --- what is not taken over ------------------------------------------------------------------------------------------


def contents(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def made(tmp_path):
    installation = Installation.create(tmp_path / "one", "eu-1")
    export_keys(installation, tmp_path / "keys")
    return installation


@pytest.mark.parametrize("cell", ["eu-1", "eu-2"])
def test_the_key_set_of_another_installation_is_refused_and_nothing_written(tmp_path, made, cell):
    export_keys(Installation.create(tmp_path / "other", cell), tmp_path / "theirs")
    before = contents(made.data)
    with pytest.raises(InstallationError, match=r"key of another installation|belongs to cell 'eu-1', the key set"):
        import_keys(made.data, tmp_path / "theirs")
    assert contents(made.data) == before


@pytest.mark.parametrize("name", ["secrets__redaction", "secrets__requests", "ca__ca.key", "audit__keys__root.key"])
def test_a_key_set_of_which_one_file_is_another_installations_is_refused_and_nothing_written(tmp_path, made, name):
    export_keys(Installation.create(tmp_path / "other", "eu-1"), tmp_path / "theirs")
    (tmp_path / "keys" / name).write_bytes((tmp_path / "theirs" / name).read_bytes())
    (tmp_path / "keys" / "secrets__pepper.2").write_bytes(bytes(32))
    before = contents(made.data)
    with pytest.raises(InstallationError, match="is there already and differs"):
        import_keys(made.data, tmp_path / "keys")
    assert contents(made.data) == before


def test_a_pepper_that_two_hosts_began_is_named(tmp_path, made):
    for number, host in enumerate(("a", "b")):
        (made.data / "secrets" / "pepper.2").write_bytes(bytes([number]) * 32)
        (made.data / "secrets" / "pepper.2").chmod(0o600)
        export_keys(made, tmp_path / host)
    with pytest.raises(InstallationError, match="generation 2 of the pepper was made on two hosts"):
        import_keys(made.data, tmp_path / "a")


def test_a_tenants_own_key_and_an_erased_one_stay_the_folders(tmp_path, made):
    import_keys(tmp_path / "two", tmp_path / "keys")
    two = Installation.create(tmp_path / "two", "eu-1", here=False)
    for installation in (made, two):
        installation.keys.wrap("acme", bytes(32))
    made.keys.wrap("globex", bytes(32))
    two.keys.wrap("globex", bytes(32))
    two.keys.destroy("globex")
    export_keys(made, tmp_path / "later")
    before = (two.data / "audit" / "keys" / "acme.kek").read_bytes()
    import_keys(two.data, tmp_path / "later")
    assert (two.data / "audit" / "keys" / "acme.kek").read_bytes() == before
    assert (two.data / "audit" / "keys" / "globex.kek").read_bytes() == b"", "what was erased does not come back"


def test_a_version_that_was_retired_or_finished_here_does_not_come_back(tmp_path, made):
    made.keys.rotate_master(1, lambda version: None)
    made.keys.retire_master(2)
    (made.data / "secrets" / "pepper.2").write_bytes(bytes(32))
    (made.data / "secrets" / "pepper.2").chmod(0o600)
    (made.data / "secrets" / "pepper").unlink()
    import_keys(made.data, tmp_path / "keys")
    assert not (made.data / "audit" / "keys" / "root.key").exists()
    assert not (made.data / "secrets" / "pepper").exists()
