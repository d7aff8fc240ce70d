import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from gateway.admin.app import build_admin
from gateway.admin.calls.access import AdminContext, RequirePermission
from gateway.admin.models import Defaults
from gateway.database.errors import Invalid
from gateway.identity.keys import KeyHasher, generate_key
from gateway.identity.roles import INSTALLATION, ROLE_TABLE
from gateway.records.model_names import DEFAULTS
from tests.gateway.admin.conftest import BODIES
from tests.gateway.conftest import ACTIVITY, PEPPER
from tests.gateway.parts import COMPILER

ON_BOTH_DATABASES = True

ROLES = tuple(ROLE_TABLE)
OPEN = {"login", "callback", "show_device_login", "device_login"}
"""Routes for who has no token yet."""
UNASKED = {"bootstrap", "me", "logout", "list_sessions", "end_session", "list_regions", "show_region"} | OPEN
ENDS_ONCE = {"end_hold", "close_incident", "notify_incident", "extend_request", "close_request"}
"""Routes that have no state to be asked of: the second caller who may is told that it is over."""
OF_THE_INSTALLATION = {"/operator/changes/{change_number}", "/operator/changes/{change_number}/proof"}
"""Routes of the installation's own record, which is empty here."""
"""Routes that ask for no permission: the first takes the bootstrap token, the next any valid one; the catalogue holds
nothing of any tenant."""


def routes():
    """(name, method, path, permission) of every route there is."""
    found = []
    for path, name, method, dependant in _walk(build_admin(None)):
        needs = [need.call for need in _calls(dependant) if isinstance(need.call, RequirePermission)]
        assert len(needs) <= 1
        found.append((name, method, path, needs[0].permission if needs else None))
    return found


def _walk(app):
    from fastapi.routing import APIRoute, iter_route_contexts

    for context in iter_route_contexts(app.routes):
        if isinstance(context.original_route, APIRoute):
            for method in context.methods:
                yield context.path, context.name, method, context.dependant


def _calls(dependant):
    for inner in dependant.dependencies:
        yield inner
        yield from _calls(inner)


ROUTES = routes()


def test_every_route_but_the_entrance_asks_for_a_permission_and_every_permission_is_asked_for():
    assert len(ROUTES) > 25
    assert {name for name, _, _, permission in ROUTES if permission is None} == UNASKED
    assert {permission for *_, permission in ROUTES} - {None} == frozenset().union(*ROLE_TABLE.values())


@pytest.mark.parametrize("role", ROLES)
def test_every_route_opens_to_exactly_the_roles_of_the_table(client, objects, login, role):
    staff = login(None, role)
    own = login("acme", role) if role != "operator" else None
    for name, method, path, permission in ROUTES:
        if permission is None:
            continue
        for headers in filter(None, (staff, own)):
            url = path.format(**{**objects, **(_staff(client, login) if "staff" in path else {})})
            allowed = permission in ROLE_TABLE[role] and not (permission in INSTALLATION and headers is own)
            # What would end an object is asked for a state it is not in: it is let through, and then changes nothing.
            ends = "revoke" in name or name in {"set_roles", "rotate_key", "delete_model_name", "delete_adapter"}
            stale = {"if-match": '"stale"'} if ends else {}
            answer = client.request(method, url, headers={**headers, **stale}, json=BODIES.get(name))
            absent = (404, 422) if name in ENDS_ONCE or path in OF_THE_INSTALLATION else ()
            let_through = (412,) if stale else (200, 201, 202, 409, *absent)
            assert answer.status_code in (let_through if allowed else (403,)), (name, role, answer.text)
            if not allowed:
                assert role in answer.json()["detail"] or "do not reach" in answer.json()["detail"]


def test_the_table_in_the_documentation_is_the_one_in_force():
    lines = Path("docs/roles.md").read_text().splitlines()
    table = [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    header, *rows = table
    assert header[1:] == list(ROLE_TABLE)
    said = {role: {row[0] for row in rows if row[1 + at] == "yes"} for at, role in enumerate(header[1:])}
    assert said == {role: set(permissions) for role, permissions in ROLE_TABLE.items()}


def _staff(client, login):
    headers = login(None, "billing")
    me = client.get("/me", headers=headers).json()
    tokens = client.get(f"/staff/{me['person']}/tokens", headers=login(None, "operator")).json()["items"]
    return {"person": me["person"], "token": tokens[0]["id"]}


# A call that is refused changes nothing, so that one store serves the calls of all routes.
OF_TENANTS = [route for route in ROUTES if "{tenant}" in route[2]]


@pytest.mark.parametrize("role", ["tenant-admin", "auditor"])
def test_another_tenants_things_are_not_there(client, objects, control, login, events, role):
    control.create_tenant("globex")
    stranger = login("globex", role)
    del events[:]
    assert len(OF_TENANTS) > 50
    for name, method, path, _ in OF_TENANTS:
        answer = client.request(method, path.format(**objects), headers=stranger, json=BODIES.get(name))
        assert answer.status_code == 404, name
        nowhere = path.format(**{**objects, "tenant": "nowhere"})
        other = client.request(method, nowhere, headers=stranger, json=BODIES.get(name))
        assert other.json() == json.loads(answer.text.replace("acme", "nowhere")), name
    assert events == []


def test_things_are_not_there_through_ones_own_tenants_paths_either(client, objects, control, login, events):
    control.create_tenant("globex")
    stranger = login("globex", "tenant-admin")
    del events[:]
    nested = [route for route in OF_TENANTS if route[2].count("{") > 1 and route[3] not in INSTALLATION]
    assert len(nested) > 20
    for name, method, path, _ in nested:
        own = path.format(**{**objects, "tenant": "globex"})
        answer = client.request(method, own, headers=stranger, json=BODIES.get(name))
        assert answer.status_code == 404, (name, answer.text)
    assert events == []


def test_nobody_gets_in_without_a_token(client, objects, events):
    tokens = ({}, {"authorization": "Bearer x"}, {"authorization": f"Bearer {generate_key(kind='admin').token}"})
    del events[:]
    for name, method, path, _ in ROUTES:
        if name in OPEN:
            continue
        for headers in tokens:
            answer = client.request(method, path.format(**objects), headers=headers, json=BODIES.get(name))
            assert answer.status_code == 401, name
            assert answer.headers["www-authenticate"].startswith("Bearer"), name
            assert answer.headers["content-type"] == "application/problem+json", name
    assert events == []


def test_a_projects_key_is_no_token(client, acme):
    _, key = acme.create_key("acme", "support")
    assert client.get("/me", headers={"authorization": f"Bearer {key.token}"}).status_code == 401


def test_the_first_operator_comes_in_by_the_bootstrap_token_once(client, control):
    _, bootstrap = control.create_bootstrap_token()
    headers = {"authorization": f"Bearer {bootstrap.token}"}
    assert client.get("/me", headers=headers).status_code == 401
    welcome = client.post("/bootstrap", headers=headers, json={"display_name": "Root"})
    assert welcome.status_code == 201
    assert welcome.headers["cache-control"] == "no-store"
    mine = {"authorization": f"Bearer {welcome.json()['token']['token']}"}
    assert client.get("/me", headers=mine).json()["roles"] == ["operator"]
    assert client.post("/tenants", headers=mine, json={"id": "acme"}).status_code == 201
    assert client.post("/bootstrap", headers=headers, json={"display_name": "Root"}).status_code == 401


def test_an_access_token_is_no_bootstrap_token(client, operator):
    assert client.post("/bootstrap", headers=operator, json={"display_name": "Root"}).status_code == 401


def test_a_token_ends_with_itself_its_person_its_tenant_or_its_time(client, acme, login, clock):
    ended = []
    for _ in range(4):
        headers = login("acme", "developer")
        me = client.get("/me", headers=headers).json()
        ended.append((headers, me["person"]))
    (one, first), (two, second), (three, _), (four, _) = ended
    acme.revoke_token("acme", first, one["authorization"].split("_")[2])
    assert client.get("/me", headers=one).status_code == 401
    acme.revoke_person("acme", second)
    assert client.get("/me", headers=two).status_code == 401
    clock.now += timedelta(days=2)
    assert client.get("/me", headers=three).status_code == 401
    clock.now -= timedelta(days=2)
    assert client.get("/me", headers=three).status_code == 200
    acme.revoke_tenant("acme")
    assert client.get("/me", headers=four).status_code == 401


def test_a_change_is_on_record_under_the_token_that_made_it(client, operator, events):
    del events[:]
    client.post("/tenants", headers=operator, json={"id": "initech"})
    token = operator["authorization"].split("_")[2]
    assert [(e.action, e.target, e.actor) for e in events] == [("tenant.created", "initech", f"key:{token}")]


def test_a_key_is_in_the_answer_that_makes_it_and_nowhere_else(client, operator):
    made = client.post("/tenants/acme/keys", headers=operator, json={"project": "support", "label": "web shop"})
    secret = made.json()["key"]
    assert made.headers["cache-control"] == "no-store"
    for path in (f"/tenants/acme/keys/{made.json()['id']}", "/tenants/acme/keys"):
        assert secret not in client.get(path, headers=operator).text
    rotated = client.post(f"/tenants/acme/keys/{made.json()['id']}/rotate", headers=operator, json={"grace_hours": 1})
    assert rotated.status_code == 201
    assert rotated.json()["label"] == "web shop"
    assert (
        client.get(f"/tenants/acme/keys/{made.json()['id']}", headers=operator).json()["replaced_by"]
        == (rotated.json()["id"])
    )


def test_pages_together_are_the_whole_once(client, acme, operator):
    made = {acme.create_key("acme", "support")[0].id for _ in range(7)}
    seen, after = [], None
    while True:
        page = client.get(
            "/tenants/acme/keys", headers=operator, params={"limit": 3, **({"after": after} if after else {})}
        ).json()
        seen += [item["id"] for item in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert len(seen) == 7
    assert set(seen) == made


@pytest.mark.parametrize("limit", [0, 201, "many"])
def test_a_page_size_out_of_bounds_is_refused(client, operator, limit):
    answer = client.get("/tenants", headers=operator, params={"limit": limit})
    assert answer.status_code == 422
    assert "query.limit" in answer.json()["errors"]


def test_what_was_changed_meanwhile_is_not_overwritten(client, acme, operator):
    person = acme.create_person("acme", "Ada", ["developer"])
    url = f"/tenants/acme/people/{person.id}"
    tag = client.get(url, headers=operator).headers["etag"]
    acme.set_roles("acme", person.id, ["billing"])
    answer = client.put(f"{url}/roles", headers={**operator, "if-match": tag}, json={"roles": ["dpo"]})
    assert answer.status_code == 412
    assert client.get(url, headers=operator).json()["roles"] == ["billing"]
    tag = client.get(url, headers=operator).headers["etag"]
    answer = client.put(f"{url}/roles", headers={**operator, "if-match": tag}, json={"roles": ["dpo"]})
    assert answer.status_code == 200
    assert answer.headers["etag"] != tag


def test_a_tenants_admin_makes_no_operator(client, acme, login):
    admin = login("acme", "tenant-admin")
    answer = client.post("/tenants/acme/people", headers=admin, json={"display_name": "Eve", "roles": ["operator"]})
    assert answer.status_code == 422
    me = client.get("/me", headers=admin).json()["person"]
    assert (
        client.put(f"/tenants/acme/people/{me}/roles", headers=admin, json={"roles": ["operator"]}).status_code == 422
    )
    assert client.get("/tenants", headers=admin).status_code == 403


def test_who_acted_is_told_by_name_to_those_who_may_see_people(client, acme, operator, login):
    admin, developer = login("acme", "tenant-admin"), login("acme", "developer")
    ada = acme.create_person("acme", "Ada", ["developer"])
    acme.create_tenant("globex")
    other = acme.create_person("globex", "Eve", ["developer"])
    token, _ = acme.create_token("acme", ada.id, expires_at=datetime.now(UTC) + timedelta(days=1))
    staff = client.get("/me", headers=operator).json()["person"]
    asked = {"of": [f"key:{token.id}", ada.id, other.id, staff, "cli", "key:nobodyxx", "nobodyxx"]}
    found = {
        one["actor"]: one["person"] for one in client.get("/tenants/acme/actors", headers=admin, params=asked).json()
    }
    of_ada = {"id": ada.id, "staff": False, "display_name": "Ada"}
    assert found == {
        f"key:{token.id}": of_ada, ada.id: of_ada, staff: {"id": staff, "staff": True, "display_name": None}
    }  # fmt: skip
    seen = client.get("/tenants/acme/actors", headers=operator, params=asked).json()
    assert {one["person"]["display_name"] for one in seen} >= {"Ada"} and None not in {
        one["person"]["display_name"] for one in seen
    }
    above = client.get("/operator/actors", headers=operator, params=asked).json()
    assert [one["actor"] for one in above] == [staff], "no tenant's people"
    for path, who in (("/tenants/acme/actors", developer), ("/operator/actors", admin)):
        assert client.get(path, headers=who, params=asked).status_code == 403
    assert client.get("/tenants/acme/actors", headers=admin).json() == []
    many = client.get("/tenants/acme/actors", headers=admin, params={"of": ["x"] * 501})
    assert many.status_code == 422


def test_the_last_operator_stays(client, operator):
    me = client.get("/me", headers=operator).json()["person"]
    assert client.post(f"/staff/{me}/revoke", headers=operator).status_code == 422
    assert client.put(f"/staff/{me}/roles", headers=operator, json={"roles": ["billing"]}).status_code == 422
    assert client.get("/me", headers=operator).json()["roles"] == ["operator"]


def test_revocations_do_what_they_say(client, objects, operator):
    for path in (
        "/tenants/acme/people/{person}/tokens/{token}",
        "/tenants/acme/people/{person}",
        "/tenants/acme/keys/{key}",
        "/tenants/acme/projects/support",
        "/tenants/acme",
    ):
        answer = client.post(f"{path.format(**objects)}/revoke", headers=operator)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.json()["revoked_at"] is not None, path


def test_a_wrong_field_is_named_and_its_value_is_not(client, operator):
    secret = "canary-5f1d"
    answer = client.post("/tenants/acme/keys", headers=operator, json={"project": [secret], secret: 1})
    assert answer.status_code == 422
    assert "body.project" in answer.json()["errors"]
    answer = client.post("/tenants/acme/keys", headers=operator, json={"project": {"x": secret}})
    assert secret not in answer.text


@pytest.mark.parametrize(
    "tenant", ["аcme", "ACME", "acme\r\nx: y", "acme' OR 1=1 --", "..", "a" * 64, "acme\u200b", ""]
)
def test_a_name_outside_the_grammar_is_refused(client, operator, tenant):
    assert client.post("/tenants", headers=operator, json={"id": tenant}).status_code == 422


def test_a_failure_says_nothing_of_what_failed(client, app, operator, monkeypatch):
    monkeypatch.setattr("gateway.store.pagination.Pages.tenants", lambda *_: 1 / 0)
    answer = client.get("/tenants", headers=operator)
    assert answer.status_code == 500
    assert "division" not in answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_change_that_cannot_be_recorded_is_not_made(database, clock, operator, client, app):
    from dataclasses import replace

    from audit.errors import AuditUnavailable

    def no_record(event):
        raise AuditUnavailable("the disk is full")

    broken = build_admin(replace(app.state.context, on_event=no_record))
    with TestClient(broken, raise_server_exceptions=False) as elsewhere:
        assert elsewhere.post("/tenants", headers=operator, json={"id": "initech"}).status_code == 503
    assert client.get("/tenants/initech", headers=operator).status_code == 404


def test_the_openapi_document_is_published_and_loads_nothing_from_elsewhere(client):
    document = client.get("/openapi.json").json()
    assert document["servers"] == [{"url": "/admin/v1"}]
    assert {path for _, _, path, _ in ROUTES} == set(document["paths"])
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


WITH_BODY = [route for route in ROUTES if route[0] in BODIES.keys() - OPEN]


async def test_not_a_byte_is_read_of_the_body_of_who_may_not_come_in(app, objects, login):
    without = {role: login(None, role) for role in ROLES}
    assert len(WITH_BODY) > 20
    for name, method, path, permission in WITH_BODY:
        cases = [({}, 401), ({"authorization": f"Bearer {generate_key(kind='admin').token}"}, 401)]
        if permission:
            cases.append((without[next(role for role in ROLES if permission not in ROLE_TABLE[role])], 403))
        for headers, status in cases:
            assert await answered_without_a_body(app, method, path.format(**objects), headers) == status, name


async def answered_without_a_body(app, method, path, headers):
    """The status of the answer. Raises AssertionError if the body is asked for."""
    answered = []

    async def receive():
        raise AssertionError("the body was asked for")

    async def send(message):
        answered.append(message)

    sent = {"content-type": "application/json", "content-length": "1000000", "idempotency-key": "k1", **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "root_path": "",
        "headers": [(key.encode(), value.encode()) for key, value in sent.items()],
    }
    await app(scope, receive, send)
    return answered[0]["status"]


def test_the_page_of_routes_in_the_documentation_is_complete():
    page = Path("docs/admin-api.md").read_text()
    for _, method, path, permission in ROUTES:
        assert f"`{method} {path}`" in page, f"{method} {path}"
        assert permission is None or f"`{permission}`" in page


def test_a_token_must_end_within_a_year(client, objects, operator):
    url = f"/tenants/acme/people/{objects['person']}/tokens"
    for days in (-1, 400):
        expires_at = (datetime.now(UTC) + timedelta(days=days)).isoformat()
        assert client.post(url, headers=operator, json={"expires_at": expires_at}).status_code == 422
    assert client.post(url, headers=operator, json={"expires_at": "2026-12-01T00:00:00"}).status_code == 422


def test_a_project_is_made_and_shown(client, operator):
    made = client.post("/tenants/acme/projects", headers=operator, json={"id": "extra", **ACTIVITY})
    assert made.status_code == 201
    shown = client.get("/tenants/acme/projects/extra", headers=operator)
    assert shown.json() == made.json()
    assert shown.headers["etag"] == made.headers["etag"]
    again = client.post("/tenants/acme/projects", headers=operator, json={"id": "extra", **ACTIVITY})
    assert again.status_code == 409


@pytest.mark.parametrize("path", ["tenants/%00", "tenants/acme/keys/%00", "tenants?after=%00", "staff/%00/tokens"])
def test_a_name_that_no_database_can_hold_is_the_callers_mistake(client, operator, path):
    assert client.get(f"/{path}", headers=operator).status_code in (200, 404, 422)


def test_an_ai_systems_id_is_one_line(client, operator):
    body = {"id": "extra", **ACTIVITY, "ai_system_id": "a\x00b"}
    assert client.post("/tenants/acme/projects", headers=operator, json=body).status_code == 422


@pytest.mark.parametrize("path", ["/me", "/tenants", "/nothing-here", "/openapi.json"])
def test_no_answer_is_kept_by_a_cache_or_taken_for_a_page(client, operator, path):
    for headers in (operator, {}):
        answer = client.get(path, headers=headers)
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_no_page_of_another_origin_may_read_an_answer(client, operator, method):
    asks = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    answer = client.request(method, "/tenants", headers=operator | asks)
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_a_deployment_that_cannot_run_is_refused_with_the_reason(operator, database, events):
    def refuse(wanted):
        raise Invalid(f"{wanted.weights} cannot start on {wanted.gpu}: the weights take 131.42 GiB")

    context = AdminContext(
        database,
        cell="demo",
        hasher=lambda: KeyHasher(PEPPER),
        check_policy=COMPILER.check,
        on_event=events.append,
        check_deployment=refuse,
    )
    new = {"id": "large", "model": "large", "weights": "large", "regions": ["eu-fr-par"], "gpu": "l40s"}
    with TestClient(build_admin(context), raise_server_exceptions=False) as client:
        answer = client.post("/tenants/acme/deployments", headers=operator, json=new)
        assert answer.status_code in (400, 422) and "131.42 GiB" in answer.text
        assert client.get("/tenants/acme/deployments", headers=operator).json()["items"] == []


@pytest.mark.parametrize(
    ("gpu", "said"), [("16xh100", "1 to 8 cards, not 16"), ("2xcpu", "write cpu"), ("h 100", "gpu"), ("4xh100", None)]
)
def test_a_replica_has_as_many_cards_as_a_host_may_have(client, operator, gpu, said):
    new = {"id": "large", "model": "large", "weights": "large", "regions": ["eu-fr-par"], "gpu": gpu}
    answer = client.post("/tenants/acme/deployments", headers=operator, json=new)
    if said is None:
        assert (answer.status_code, answer.json()["gpu"]) == (201, "4xh100")
    else:
        assert answer.status_code == 422 and said in answer.text


def test_figures_that_could_not_be_met_are_refused_with_the_reason(operator, database, events):
    def refuse(present, scale):
        raise Invalid(f"{present.id}: {scale.max_replicas} replicas need a GPU each")

    context = AdminContext(
        database,
        cell="demo",
        hasher=lambda: KeyHasher(PEPPER),
        check_policy=COMPILER.check,
        on_event=events.append,
        check_scale=refuse,
    )
    new = {"id": "small", "model": "small", "weights": "small", "regions": ["eu-fr-par"]}
    with TestClient(build_admin(context), raise_server_exceptions=False) as client:
        made = client.post("/tenants/acme/deployments", headers=operator, json=new)
        headers = operator | {"if-match": made.headers["etag"]}
        scaled = client.put("/tenants/acme/deployments/small/scale", headers=headers, json={"max_replicas": 9})
        assert (scaled.status_code, "9 replicas need a GPU each" in scaled.text) == (422, True)
        assert client.get("/tenants/acme/deployments/small", headers=operator).json()["max_replicas"] == 1


MODELS = "/tenants/acme/projects/support/models"


def test_a_name_of_models_is_set_replaced_and_deleted(client, objects, operator):
    made = client.put(MODELS, headers=operator, json={"name": "org/helper:1", "targets": ["small"]})
    assert made.status_code == 200 and made.json()["targets"] == ["small"]
    assert [one["name"] for one in client.get(MODELS, headers=operator).json()] == ["assistant", "org/helper:1"]
    body = {"name": "org/helper:1", "targets": ["large", "small"], "defaults": {"max_tokens": 9}}
    stale = {**operator, "if-match": '"0"'}
    assert client.put(MODELS, headers=stale, json=body).status_code == 412
    replaced = client.put(MODELS, headers={**operator, "if-match": made.headers["etag"]}, json=body)
    assert replaced.json()["defaults"] == {"max_tokens": 9} and replaced.headers["etag"] != made.headers["etag"]
    assert client.get(MODELS, headers=operator, params={"name": "org/helper:1"}).json() == [replaced.json()]
    gone = client.post(f"{MODELS}/delete", headers=operator, json={"name": "org/helper:1"})
    assert gone.status_code == 200 and gone.json()["deleted_at"]
    assert client.post(f"{MODELS}/delete", headers=operator, json={"name": "org/helper:1"}).status_code == 404


def test_every_parameter_that_may_have_a_default_is_in_the_document():
    assert Defaults.model_fields.keys() == DEFAULTS


@pytest.mark.parametrize(
    "wrong",
    [
        {"targets": ["nothing"]},
        {"targets": ["assistant"]},
        {"targets": []},
        {"targets": ["small"], "defaults": {"temperature": 9}},
        {"targets": ["small"], "defaults": {"model": 1}},
        {"targets": ["small"], "sunset_at": "2027-01-01T00:00:00Z"},
        {"targets": ["small"], "replacement": "nothing"},
        {"targets": ["small"], "name": "two words"},
    ],
)
def test_a_name_that_leads_nowhere_is_refused_with_what_to_do(client, objects, operator, wrong):
    answer = client.put(MODELS, headers=operator, json={"name": "helper", **wrong})
    assert answer.status_code in (409, 422), answer.json()


def test_origins_are_a_projects_and_each_is_one_page(client, objects, operator):
    url = "/tenants/acme/projects/support/origins"
    body = {"origins": ["https://app.example.org"]}
    assert client.put(url, headers=operator, json=body).json()["origins"] == body["origins"]
    assert client.put(url, headers=operator, json={"origins": ["*"]}).status_code in (409, 422)
    assert client.put(url, headers=operator, json={"origins": []}).json()["origins"] == []
