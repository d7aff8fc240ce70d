"""The other ways in, a machine's token and a browser's session: they open what an access token does, and no more."""

from dataclasses import replace
from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from gateway.admin.app import build_admin
from gateway.configuration.settings import Oidc
from gateway.identity.provider import IdentityProvider
from gateway.identity.roles import INSTALLATION, ROLE_TABLE
from tests.fakes.issuer import ISSUER, NOW, Issuer, key
from tests.gateway.admin.conftest import BODIES, counted
from tests.gateway.admin.test_app import OF_TENANTS, OF_THE_INSTALLATION, ROUTES

ORIGIN = "https://gateway.example.eu"
ROLES = [
    *({"group": f"staff-{role}", "role": role, "staff": True} for role in ROLE_TABLE),
    *({"group": f"acme-{role}", "role": role, "tenant": "acme"} for role in ROLE_TABLE if role != "operator"),
    {"group": "globex-tenant-admin", "role": "tenant-admin", "tenant": "globex"},
    {"group": "ghost", "role": "developer", "tenant": "nowhere"},
]


@pytest.fixture
def issuer():
    return Issuer()


@pytest.fixture
def refused():
    return []


@pytest.fixture
def client(app, issuer, refused, acme):
    settings = Oidc(
        issuer=ISSUER, audience="domicile-api", roles=ROLES, client_id="domicile", redirect_uri=f"{ORIGIN}/callback"
    )
    provider = IdentityProvider(settings, transport=issuer.transport, now=lambda: NOW)
    context = replace(app.state.context, provider=provider, on_refused=counted(refused))
    with TestClient(build_admin(context), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def machine(issuer):
    def headers(*groups, **claims):
        return {"authorization": f"Bearer {issuer.token(groups=list(groups), **claims)}"}

    return headers


@pytest.fixture(params=["machine", "session"])
def come_in(request, machine, control):
    """Headers of somebody who comes in this way, with a role in a tenant or as staff."""

    def by_token(tenant, role):
        return machine(f"{tenant or 'staff'}-{role}")

    def by_session(tenant, role):
        person = control.create_person(tenant, "Somebody", [role])
        _, session = control.open_session(tenant, person.id, life=timedelta(hours=1))
        return {"cookie": f"__Host-domicile-session={session.token}", "origin": ORIGIN}

    return by_token if request.param == "machine" else by_session


def test_it_is_itself_in_the_tenant_of_its_group(client, machine, events):
    me = client.get("/me", headers=machine("acme-developer", "unrelated")).json()
    assert (me["tenant"], me["roles"]) == ("acme", ["developer"])
    del events[:]
    made = client.post("/tenants/acme/keys", headers=machine("acme-developer"), json={"project": "support"})
    assert made.status_code == 201
    assert [(event.action, event.actor) for event in events] == [("key.created", f"machine:{me['person']}")]
    assert client.get("/me", headers=machine("acme-developer", sub="other")).json()["person"] != me["person"]


@pytest.mark.parametrize("role", ROLE_TABLE)
def test_every_route_opens_to_exactly_the_roles_of_the_table(client, objects, come_in, role):
    staff = come_in(None, role)
    own = come_in("acme", role) if role != "operator" else None
    for name, method, path, permission in ROUTES:
        if permission is None or "staff/" in path:
            continue
        for headers in filter(None, (staff, own)):
            allowed = permission in ROLE_TABLE[role] and not (permission in INSTALLATION and headers is own)
            ends = "revoke" in name or name in {"set_roles", "rotate_key", "delete_model_name", "delete_adapter"}
            stale = {"if-match": '"stale"'} if ends else {}
            answer = client.request(method, path.format(**objects), headers={**headers, **stale}, json=BODIES.get(name))
            let_through = (412,) if stale else (200, 201, 202, 409)
            if name in {"end_hold", "close_incident", "extend_request", "close_request"} and headers is own and staff:
                let_through = (404, 422)  # the staff has just ended it
            if path in OF_THE_INSTALLATION:
                let_through = (404,)
            assert answer.status_code in (let_through if allowed else (403,)), (name, role, answer.text)


def test_another_tenants_things_are_not_there(client, objects, control, come_in, events):
    control.create_tenant("globex")
    stranger = come_in("globex", "tenant-admin")
    del events[:]
    for name, method, path, permission in OF_TENANTS:
        answer = client.request(method, path.format(**objects), headers=stranger, json=BODIES.get(name))
        assert answer.status_code == 404, name
        if path.count("{") > 1:
            own = path.format(**{**objects, "tenant": "globex"})
            refused = 403 if permission in INSTALLATION else 404
            said = client.request(method, own, headers=stranger, json=BODIES.get(name))
            assert said.status_code == refused, name
    assert events == []


def test_with_roles_in_several_tenants_it_acts_in_the_one_that_it_asks_for(client, control, machine):
    control.create_tenant("globex")
    both = machine("acme-billing", "globex-tenant-admin")
    assert client.get("/tenants/acme", headers=both).status_code == 200
    assert client.get("/tenants/globex/keys", headers=both).status_code == 200
    assert client.get("/tenants/acme/keys", headers=both).status_code == 403
    assert client.get("/tenants/acme/keys", headers=machine("globex-tenant-admin", "ghost")).status_code == 404
    assert client.get("/tenants", headers=both).status_code == 403


def test_a_group_without_meaning_here_opens_nothing(client, machine, refused, acme):
    for groups in ((), ("operator",), ("ghost",), ("globex-tenant-admin",)):
        assert client.get("/me", headers=machine(*groups)).status_code == 401
    acme.revoke_tenant("acme")
    assert client.get("/me", headers=machine("acme-dpo")).status_code == 401
    assert refused == ["jwt_groups"] * 5


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"aud": "domicile"}, "jwt_audience"),
        ({"iss": "https://evil.example"}, "jwt_issuer"),
        ({"exp": NOW - 60}, "jwt_expired"),
        ({"nbf": NOW + 120}, "jwt_early"),
        ({"header": {"kid": "https://evil.example/k1"}}, "jwt_key"),
        ({"signer": key("k1", use="sig")}, "jwt_signature"),
    ],
)
def test_a_forged_or_replayed_token_is_refused_as_everybody_is_and_put_on_record(
    client, machine, refused, claims, reason
):
    answer = client.get("/tenants", headers=machine("staff-operator", **claims))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"
    assert refused == [reason]


def test_while_the_provider_is_down_and_its_keys_are_not_known_a_machine_waits(client, machine, issuer):
    issuer.down = True
    answer = client.get("/tenants", headers=machine("staff-operator"))
    assert answer.status_code == 503
    assert "identity provider" in answer.json()["detail"]


def test_a_machine_neither_logs_out_nor_bootstraps_nor_comes_by_cookie(client, machine):
    token = machine("staff-operator")
    assert client.post("/logout", headers=token).status_code == 422
    assert client.post("/bootstrap", headers=token, json={"display_name": "x"}).status_code == 401
    client.cookies.set("domicile-session", token["authorization"].split()[1])
    assert client.get("/me").status_code == 401


@pytest.mark.parametrize(
    "bearer",
    [
        "' OR '1'='1", "x'; DROP TABLE person; --", "dom_admin_00000000_' OR 1=1", "a.b.c", "a" * 10_000,
        "dom_admin_%00000000_x", "dom_live_", "Ꭰom_admin_00000000_" + "0" * 49, "..", "null", "undefined",
    ],
)  # fmt: skip
def test_an_injection_in_the_bearer_is_a_wrong_token(client, bearer):
    answer = client.get("/tenants", headers={"authorization": b"Bearer " + bearer.encode("utf-8")})
    assert answer.status_code == 401
    assert bearer[:12] not in answer.text
