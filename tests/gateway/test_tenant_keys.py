"""A tenant's own key, in its own Vault or HSM, above what is kept of it: two gateways and commands beside them."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest
import yaml

from audit.errors import KeyProviderError
from audit.keys import external_keys
from gateway.configuration.settings import load_settings
from gateway.installation.doctor import configuration_warnings, observe
from gateway.installation.installation import Installation
from gateway.secrets.pkcs11 import Pkcs11Client, Pkcs11Master
from gateway.server.assembly import open_gateway
from gateway.server.serve import serving
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab
from tests.fakes.softhsm import softhsm
from tests.fakes.vault import TOKEN, running_vault

KEPT = POLICY.replace("content: none", 'content: "encrypted, 7d"')


def set_up(made):
    for tenant in ("acme", "globex"):
        made.tenant(tenant, KEPT)


PLACES = ("acme/eu-fr-par/acme-1", "globex/eu-fr-par/globex-1")


@pytest.fixture
def quick(monkeypatch):
    """The bounds in the small, so that no test waits for the real ones."""
    for name, seconds in {"KNOWN_S": 1.5, "AGAIN_S": 0.5, "PAUSE_S": 0.2}.items():
        monkeypatch.setattr(external_keys, name, seconds)


@pytest.fixture
def vault(tmp_path):
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    with running_vault() as running:
        running.manage("acme", "", {"type": "aes256-gcm96", "derived": True})
        running.settings = {
            "address": running.url,
            "token_file": str(token),
            "key": "acme",
            "retries": 0,
            "timeout_s": 2,
        }
        yield running


@pytest.fixture
def secrets(tmp_path, vault, monkeypatch):
    """The configuration of gateways and, by DOMICILE_CONFIG, of commands."""
    given = {"external": {"acme-vault": {"provider": "vault", "vault": vault.settings}}}
    file = tmp_path / "domicile.yaml"
    file.write_text(yaml.safe_dump({"secrets": given}))
    monkeypatch.setenv("DOMICILE_CONFIG", str(file))
    return given


def command(made, *words):
    """In a process of its own; exit code and what it says."""
    line = [sys.executable, "-m", "gateway", *words, "--data", str(made.data), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


async def commanded(made, *words):
    return await asyncio.to_thread(command, made, *words)


@asynccontextmanager
async def second(made, secrets):
    """Another gateway on the same folder, with keys of its own in memory; posts to it."""
    config = load_settings(data=made.data, node="second", audit={"reserve_bytes": 1 << 20}, secrets=secrets)
    listen = config.listen.model_copy(update={"port": 0})
    async with (
        aiohttp.ClientSession() as http,
        open_gateway(config) as gateway,
        serving(gateway.app, listen) as port,
    ):

        async def post(body, key="acme/main"):
            url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"authorization": f"Bearer {made.key(key)}"}
            async with http.post(url, json=body, headers=headers) as answer:
                await answer.read()
                return answer.status

        yield post


async def reached(post, wanted):
    for _ in range(400):
        if (status := await post(chat("hello"))) == wanted:
            return status
        await asyncio.sleep(0.05)
    return status


async def test_a_tenant_takes_its_key_away_and_gives_it_back_in_two_gateways(tmp_path, quick, vault, secrets):
    backends = {place: FakeBackend() for place in PLACES}
    async with lab(tmp_path, set_up=set_up, backends=backends, secrets=secrets) as made, second(made, secrets) as other:

        async def first(body, key="acme/main"):
            return (await made.post(body, key=key)).status

        assert [await post(chat("before")) for post in (first, other)] == [200, 200]
        assert (await commanded(made, "tenant", "update", "acme", "--key", "nobody"))[0] == 1
        code, said = await commanded(made, "tenant", "update", "acme", "--key", "acme-vault")
        assert code == 0, said
        assert json.loads(said)["generation"] == 2 and json.loads(said)["rewrapped"] >= 2
        assert [await reached(post, 200) for post in (first, other)] == [200, 200]  # the bounds are short here
        code, said = await commanded(made, "audit", "read", "acme", "--seq", "0")
        assert code == 0 and "before" in said, said
        code, said = await commanded(made, "secrets", "show")
        assert json.loads(said)["external"] == {"acme": "acme-vault"}

        vault.tokens.clear()  # the tenant revokes what it gave the gateway
        assert [await reached(post, 503) for post in (first, other)] == [503, 503]
        seen = len(made.backends["acme-1"].bodies)
        for post in (first, other):
            assert await post(chat("while it is away")) == 503
            assert await post(chat("hello"), key="globex/main") == 200
        assert len(made.backends["acme-1"].bodies) == seen, "nothing was sent"
        code, said = await commanded(made, "audit", "read", "acme", "--seq", "0")
        assert code == 1 and "before" not in said and "; " in said, said
        assert (await commanded(made, "audit", "read", "globex", "--seq", "0"))[0] == 0
        installation = Installation.open(made.data)
        config = load_settings(data=made.data, secrets=secrets)
        found = await asyncio.to_thread(lambda: observe(config, installation, made.control._database))
        assert "external_key_away" in {one.code for one in configuration_warnings(config, found)}

        vault.tokens.add(TOKEN)
        assert [await reached(post, 200) for post in (first, other)] == [200, 200]
        code, said = await commanded(made, "audit", "read", "acme", "--seq", "0")
        assert code == 0 and "before" in said
        code, said = await commanded(made, "tenant", "update", "acme", "--key", "installation")
        assert (code, json.loads(said)["generation"]) == (0, 3), said
        vault.tokens.clear()
        for post in (first, other):
            assert await post(chat("the master again")) == 200
        types = [event["type"] for event in made.events() if event["type"].startswith("admin.keyring")]
        given = [event.get("provider") for event in made.events() if event["type"] == "admin.keyring.given"]
    assert types == ["admin.keyring.given", "admin.keyring.renewed"] * 2
    assert given == ["acme-vault", "file"]
    assert made.verify().ok


async def test_a_key_whose_holder_hangs_holds_up_nobody_else(tmp_path, quick, vault, secrets):
    backends = {place: FakeBackend() for place in PLACES}
    async with lab(tmp_path, set_up=set_up, backends=backends, secrets=secrets) as made:
        assert (await commanded(made, "tenant", "update", "acme", "--key", "acme-vault"))[0] == 0
        assert (await made.post(chat("hello"))).status == 200
        vault.fail = ["hang"] * 1000
        await asyncio.sleep(external_keys.KNOWN_S)
        waiting = [asyncio.create_task(made.post(chat("hello"))) for _ in range(20)]
        for _ in range(5):
            assert (await made.post(chat("hello"), key="globex/main")).status == 200
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {503}
        vault.fail.clear()
        for _ in range(400):
            if (await made.post(chat("hello"))).status == 200:
                break
            await asyncio.sleep(0.05)
        assert (await made.post(chat("hello"))).status == 200


def test_an_external_key_is_never_made_here(tmp_path, vault, secrets):
    del vault.keys["acme"]
    Installation.create(tmp_path / "data", "eu-1")
    ring = Installation.open(tmp_path / "data", load_settings(data=tmp_path / "data", secrets=secrets).secrets).keys
    with pytest.raises(KeyProviderError):
        ring.give_to("acme", "acme-vault")
    assert "acme" not in vault.keys


def test_a_key_in_the_tenants_hsm_is_used_and_taken_away(tmp_path, monkeypatch, quick):
    with softhsm(tmp_path / "hsm", monkeypatch) as hsm:
        settings = hsm.settings(hsm.token("acme"), key="acme")
        theirs = Pkcs11Client(settings)  # the tenant, in a process of its own
        Pkcs11Master.open(theirs)
        Installation.create(tmp_path / "data", "eu-1")
        given = {"external": {"acme-hsm": {"provider": "pkcs11", "pkcs11": settings.model_dump(mode="json")}}}
        secrets = load_settings(data=tmp_path / "data", secrets=given).secrets
        rings = [Installation.open(tmp_path / "data", secrets).keys for _ in range(2)]
        rings[0].give_to("acme", "acme-hsm")
        mine, other = rings[0].wrap("acme", b"k" * 32), rings[0].wrap("globex", b"k" * 32)
        assert [ring.unwrap("acme", mine) for ring in rings] == [b"k" * 32] * 2
        theirs.ask("make", version=2)
        assert rings[1].rewrap("acme") and rings[1].state_of("acme").wrapped_under == {1: ("acme-hsm", 2)}
        theirs.ask("retire", below=3)
        for ring in rings:
            with pytest.raises(KeyProviderError, match="; "):
                refused(ring, mine)
            assert ring.unwrap("globex", other) == b"k" * 32
        theirs.close()


def refused(ring, mine):
    import time

    for _ in range(200):
        ring.unwrap("acme", mine)
        time.sleep(0.05)
