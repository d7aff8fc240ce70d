"""How busy a tenant's backends are, and what the planner says could run, over the API."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from gateway.admin.app import build_admin
from gateway.database.errors import Invalid
from regions.fleet.deployment import Deployment
from regions.fleet.engine_figures import EngineFigures
from regions.fleet.fleet import Backend, EngineReport, Fleet
from regions.identity.identity import BackendIdentity
from tests.gateway.admin.conftest import planned

WISH = Deployment(tenant="acme", id="small", model="small", weights="small.gguf", regions=("eu-fr-par",))


def backend(tenant, name):
    identity = BackendIdentity("demo", tenant, "eu-fr-par", name)
    return Backend(
        id=name, tenant=tenant, region="eu-fr-par", url="https://10.0.0.7:8000", uri=identity.uri, models=("small",)
    )


@pytest.fixture
def fleet():
    clock = [0.0]
    fleet = Fleet(now=lambda: clock[0])
    ours, quiet, theirs = backend("acme", "acme-1"), backend("acme", "acme-2"), backend("globex", "globex-1")
    fleet.replace([ours, quiet, theirs])
    fleet.mark_report(ours, EngineReport(3, 2, 0.75))
    fleet.mark_figures(ours, EngineFigures(written=100, joules=1000, gpu_use=0.5, watts=80))
    clock[0] = 2.0
    fleet.mark_figures(ours, EngineFigures(written=400, joules=1600, gpu_use=0.75, watts=300))
    return fleet


@pytest.fixture
def asked(app, fleet):
    """The planner refuses what wants more than two replicas."""
    wanted = []

    def check(deployment):
        wanted.append(deployment)
        if deployment.max_replicas > 2:
            raise Invalid("3 replicas need 24 GB; ask for 2")

    def plan(weights, cards, more):
        wanted.append((weights, str(cards), more))
        return planned(weights, cards, more)

    context = replace(app.state.context, fleet=fleet, check_deployment=check, plan=plan)
    with TestClient(build_admin(context), raise_server_exceptions=False) as client:
        client.wanted = wanted
        yield client


def test_queue_and_cache_are_as_the_backend_reported_and_unknown_where_it_did_not(asked, acme, operator):
    rows = asked.get("/tenants/acme/backend-loads", headers=operator).json()
    assert [(one["backend"], one["running"], one["waiting"], one["kv_use"]) for one in rows] == [
        ("acme-1", 3, 2, 0.75),
        ("acme-2", None, None, None),
    ]
    assert [one["available"] for one in rows] == [True, True]


def test_speed_and_cards_are_told_where_the_backend_tells_of_them_and_its_role_always(asked, acme, operator):
    rows = asked.get("/tenants/acme/backend-loads", headers=operator).json()
    names = ("role", "tokens_per_s", "first_token_ms", "joules_per_1000_tokens", "gpu_use", "gpu_memory", "watts")
    assert [[one[name] for name in names] for one in rows] == [
        ["mixed", 150, None, 2000, 0.75, None, 300],
        ["mixed", *[None] * 6],
    ]


def test_another_tenants_backends_are_not_listed(asked, acme, operator, control):
    control.create_tenant("globex")
    rows = asked.get("/tenants/globex/backend-loads", headers=operator).json()
    assert [one["backend"] for one in rows] == ["globex-1"]
    assert asked.get("/tenants/nowhere/backend-loads", headers=operator).status_code == 404


@pytest.mark.parametrize(("replicas", "feasible"), [(1, True), (2, True), (3, False)])
def test_the_planner_answers_what_could_run_and_nothing_is_made(asked, acme, operator, replicas, feasible):
    url = "/tenants/acme/deployments"
    body = {"weights": "m.gguf", "gpu": "2xh100", "replicas": replicas}
    answer = asked.post(f"{url}/check", json=body, headers=operator)
    assert answer.status_code == 200 and answer.json()["feasible"] is feasible
    assert ("ask for 2" in answer.json()["because"]) is not feasible
    (wanted,) = asked.wanted
    assert (wanted.weights, wanted.gpu, wanted.max_replicas, wanted.tenant) == ("m.gguf", "2xh100", replicas, "acme")
    assert asked.get(url, headers=operator).json()["items"] == []


@pytest.mark.parametrize(
    "wrong", [{"weights": "../secret"}, {"replicas": 0}, {"replicas": "2x"}, {"gpu": "auto"}, {"gpu": "abacus 3"}]
)
def test_what_makes_no_sense_is_refused_before_the_planner_is_asked(asked, acme, operator, wrong):
    body = {"weights": "m.gguf", "gpu": "cpu", "replicas": 1} | wrong
    answer = asked.post("/tenants/acme/deployments/check", json=body, headers=operator)
    assert answer.status_code == 422 and asked.wanted == []


def test_a_plan_is_the_planners_with_what_a_million_tokens_cost(asked, acme, operator):
    body = {"weights": "m", "gpu": "2xh100", "context": 8192, "concurrency": 4, "quantization": "fp8"}
    url = "/tenants/acme/deployments/plan"
    made = asked.post(url, json=body | {"eur_per_hour": 3.6}, headers=operator).json()
    assert asked.wanted == [("m", "2xh100", {"calls": 4, "context": 8192, "quantization": "fp8"})]
    assert (made["tokens_per_s"], made["eur_per_million_tokens"], made["refusal"]) == (1000, 1.0, None)
    assert (made["weights_bytes"], made["cache_bytes"], made["peak_bytes"]) == (10, 20, 40)
    assert asked.post(url, json=body, headers=operator).json()["eur_per_million_tokens"] is None
    small = asked.post(url, json={"weights": "m", "gpu": "h100", "eur_per_hour": 3.6}, headers=operator).json()
    assert (small["refusal"], small["eur_per_million_tokens"], small["fewest_cards"]) == ("on 2 cards it fits", None, 2)


@pytest.mark.parametrize(
    "wrong",
    [{"weights": "../secret"}, {"gpu": "cpu"}, {"gpu": "auto"}, {"gpu": "abacus"}, {"context": 0},
     {"concurrency": 5000}, {"quantization": "fp1"}, {"eur_per_hour": -1}],
)  # fmt: skip
def test_a_plan_of_what_makes_no_sense_is_refused_before_the_planner_is_asked(asked, acme, operator, wrong):
    body = {"weights": "m", "gpu": "h100"} | wrong
    answer = asked.post("/tenants/acme/deployments/plan", json=body, headers=operator)
    assert answer.status_code == 422 and asked.wanted == []


@pytest.mark.parametrize("act", ["sleep", "wake"])
def test_a_deployment_is_put_to_sleep_and_woken_by_its_managers_alone(asked, acme, operator, control, act):
    control.create_tenant("globex")
    control.create_deployment(WISH)
    url = f"/tenants/{{}}/deployments/small/{act}"
    made = asked.post(url.format("acme"), headers=operator)
    assert made.status_code == 200 and made.json()["asked"] == {"sleep": "asleep", "wake": "awake"}[act]
    assert asked.post(url.format("globex"), headers=operator).status_code == 404
    assert asked.post(url.format("acme")).status_code == 401
    control.drain_deployment("acme", "small")
    refused = asked.post(url.format("acme"), headers=operator)
    assert refused.status_code == 409 and "scale it first" in refused.json()["detail"]
