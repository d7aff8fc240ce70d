import asyncio
import json
import sqlite3

import httpx2
import pytest

from audit.files.secret_file import write_secret
from gateway.configuration.settings import Settings
from gateway.installation.admin_record import recorded_admin
from gateway.installation.installation import Installation
from gateway.server.assembly import open_gateway
from tests.fakes.idp import running_idp
from tests.gateway.conftest import ACTIVITY


@pytest.fixture
async def gateway(data):
    installation = Installation.create(data, "demo")
    installation.authority()
    async with open_gateway(Settings(data=data, node="gw")) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway):
    transport = httpx2.ASGITransport(app=gateway.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.fixture
def bootstrap(data):
    def token():
        installation = Installation.open(data)
        database = installation.database()
        try:
            with recorded_admin(installation) as on_event:
                return installation.control(database, actor="cli", on_event=on_event).create_bootstrap_token()[1].token
        finally:
            database.close()

    return token


async def test_a_running_gateway_is_administered_and_every_change_is_in_its_log(client, gateway, data, bootstrap):
    token = await asyncio.to_thread(bootstrap)
    answer = await client.post(
        "/admin/v1/bootstrap", headers={"authorization": f"Bearer {token}"}, json={"display_name": "Canary Name"}
    )
    assert answer.status_code == 201, answer.text
    secret = answer.json()["token"]["token"]
    operator = {"authorization": f"Bearer {secret}"}
    for path, body in (
        ("tenants", {"id": "acme"}),
        ("tenants/acme/projects", {"id": "support", **ACTIVITY}),
        ("tenants/acme/keys", {"project": "support"}),
    ):
        answer = await client.post(f"/admin/v1/{path}", headers=operator, json=body)
        assert answer.status_code == 201, answer.text
    key = answer.json()["key"]
    models = await client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    assert models.status_code == 200
    wrong = await client.get("/v1/models", headers=operator)
    assert wrong.status_code == 401
    with sqlite3.connect(data / "audit" / "log.db") as log:
        recorded = "\n".join(log.iterdump())
    log.close()
    for action in ("token.created", "person.created", "tenant.created", "project.created", "key.created"):
        assert f"admin.{action}" in recorded or f"admin.{action}".encode().hex() in recorded.lower(), action
    for hidden in (secret, key, token, "Canary Name"):
        assert hidden not in recorded
        assert hidden.encode().hex() not in recorded.lower()


@pytest.mark.parametrize("path", ["/admin", "/admin/", "/admin/v2/tenants", "/admin/v1/nothing", "/admin/v1/a%0Ab"])
async def test_what_is_not_there_is_told_as_administration_is(client, path):
    answer = await client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert (await client.get("/elsewhere")).headers["content-type"] == "application/json"


async def test_a_key_revoked_over_the_api_stops_working_within_a_second(client, data, bootstrap):

    token = await asyncio.to_thread(bootstrap)
    welcome = await client.post(
        "/admin/v1/bootstrap", headers={"authorization": f"Bearer {token}"}, json={"display_name": "Root"}
    )
    operator = {"authorization": f"Bearer {welcome.json()['token']['token']}"}
    await client.post("/admin/v1/tenants", headers=operator, json={"id": "acme"})
    await client.post("/admin/v1/tenants/acme/projects", headers=operator, json={"id": "support", **ACTIVITY})
    made = (await client.post("/admin/v1/tenants/acme/keys", headers=operator, json={"project": "support"})).json()
    caller = {"authorization": f"Bearer {made['key']}"}
    assert (await client.get("/v1/models", headers=caller)).status_code == 200
    await client.post(f"/admin/v1/tenants/acme/keys/{made['id']}/revoke", headers=operator)
    async with asyncio.timeout(30):  # that it is soon: test_directory
        while (await client.get("/v1/models", headers=caller)).status_code == 200:
            await asyncio.sleep(0.02)


async def test_a_key_for_another_network_is_refused_over_http(client, bootstrap):
    token = await asyncio.to_thread(bootstrap)
    welcome = await client.post(
        "/admin/v1/bootstrap", headers={"authorization": f"Bearer {token}"}, json={"display_name": "Root"}
    )
    operator = {"authorization": f"Bearer {welcome.json()['token']['token']}"}
    await client.post("/admin/v1/tenants", headers=operator, json={"id": "acme"})
    await client.post("/admin/v1/tenants/acme/projects", headers=operator, json={"id": "support", **ACTIVITY})
    seen = []
    for network in ("127.0.0.0/8", "192.0.2.0/24"):
        body = {"project": "support", "scopes": {"networks": [network]}}
        key = (await client.post("/admin/v1/tenants/acme/keys", headers=operator, json=body)).json()["key"]
        seen.append(
            await client.get("/v1/models", headers={"authorization": f"Bearer {key}", "x-forwarded-for": "192.0.2.1"})
        )
    assert [answer.status_code for answer in seen] == [200, 401]
    assert seen[1].json()["error"]["code"] == "api_key_address"


@pytest.fixture(scope="module")
def idp():
    with running_idp() as idp:
        yield idp


async def test_a_login_through_the_whole_gateway_and_one_that_is_refused_are_on_record(data, tmp_path, idp):
    installation = Installation.create(data, "demo")
    installation.authority()
    write_secret(tmp_path / "secret", b"s3cret")
    oidc = {
        "issuer": idp.issuer, "client_id": "domicile", "client_secret_file": tmp_path / "secret",
        "redirect_uri": "http://127.0.0.1:8400/admin/v1/callback",
        "roles": [{"group": "platform", "role": "operator", "staff": True}],
    }  # fmt: skip
    idp.put("canary-subject", name="Canary Name", groups=["platform"])
    async with open_gateway(Settings(data=data, node="gw", oidc=oidc)) as gateway:
        transport = httpx2.ASGITransport(app=gateway.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8400") as browser:
            began = await browser.get("/admin/v1/login")
            back = await asyncio.to_thread(idp.consent, began.headers["location"], "canary-subject")
            came = await browser.get(back)
            assert (came.status_code, came.json()["roles"]) == (200, ["operator"])
            assert (await browser.get("/admin/v1/me")).json()["roles"] == ["operator"]
            made = await browser.post(
                "/admin/v1/tenants", json={"id": "acme"}, headers={"origin": "http://127.0.0.1:8400"}
            )
            assert made.status_code == 201
            assert (await browser.get(back)).status_code == 403
            session = browser.cookies["domicile-session"]
            assert (
                await browser.post("/admin/v1/logout", headers={"origin": "http://127.0.0.1:8400"})
            ).status_code == 303  # on to the provider, where its session ends as well
            assert (await browser.get("/admin/v1/me")).status_code == 401
    with sqlite3.connect(data / "audit" / "log.db") as log:
        events = [json.loads(payload) for (payload,) in log.execute("select payload from leaf order by seq")]
        everything = "\n".join(log.iterdump())
    log.close()
    kinds = {event["type"] for event in events}
    assert kinds >= {"admin.person.created", "admin.session.opened", "admin.session.closed", "admin.tenant.created"}
    assert {event["reason"] for event in events if event["type"] == "auth.failed"} == {"login_state", "missing"}
    for hidden in (session, session.split("_")[3], "canary-subject", "Canary Name", "s3cret"):
        assert hidden not in everything
