"""Tokens of the places where machines run open what their subject is pinned to, and nothing else does."""

from contextlib import asynccontextmanager

import httpx2
import pytest
from pydantic import ValidationError

from gateway.configuration.settings import Oidc, WorkloadIssuer, load_settings
from gateway.identity.jwt import JwtRefused, stated_issuer
from gateway.identity.login import ProviderUnavailable
from gateway.identity.provider import IdentityProvider
from gateway.identity.workloads import Workloads, provider_of
from tests.fakes.issuer import ISSUER, NOW, Issuer, key
from tests.fakes.lab import chat, lab

CLUSTER, CI = "https://kubernetes.default.svc", "https://ci.example.eu"
NIGHTLY = "system:serviceaccount:batch:nightly"
BRANCH = "repo:acme/policies:ref:refs/heads/main"
SETTINGS = [
    {
        "issuer": CLUSTER,
        "audience": "domicile",
        "grants": [
            {"subject": NIGHTLY, "tenant": "acme", "project": "main"},
            {"subject": NIGHTLY, "tenant": "acme", "role": "billing"},
            {"subject": "two", "tenant": "acme", "project": "main"},
            {"subject": "two", "tenant": "acme", "project": "other"},
        ],
    },
    {
        "issuer": CI,
        "audience": "domicile",
        "max_minutes": 10,
        "grants": [
            {"subject": BRANCH, "tenant": "acme", "role": "developer"},
            {"subject": BRANCH, "tenant": "acme", "role": "dpo"},
            {"subject": BRANCH, "tenant": "globex", "role": "auditor"},
            {"subject": "deployer", "staff": True, "role": "operator"},
        ],
    },
]


@pytest.fixture
def cluster():
    """As Kubernetes: it publishes keys, and no endpoints for people."""
    return Issuer(key("k1"), issuer=CLUSTER, authorization_endpoint=None, token_endpoint=None)


@pytest.fixture
def ci():
    return Issuer(key("c1", "EC"), issuer=CI)


@pytest.fixture
def workloads(cluster, ci):
    transports = {CLUSTER: cluster.transport, CI: ci.transport}

    def make(settings):
        oidc = Oidc(issuer=settings.issuer, audience=settings.audience)
        return IdentityProvider(oidc, transport=transports[settings.issuer], now=lambda: NOW)

    return Workloads([WorkloadIssuer.model_validate(each) for each in SETTINGS], make)


def of_cluster(cluster, subject=NIGHTLY, **claims):
    return cluster.token(**{"sub": subject, "aud": ["domicile"], "groups": None, **claims})


def of_ci(ci, subject=BRANCH, **claims):
    return ci.token(alg="ES256", **{"sub": subject, "aud": "domicile", **claims})


def test_a_subject_has_the_project_and_the_roles_that_it_is_pinned_to(workloads, cluster, ci):
    claims, tenant, project = workloads.project(of_cluster(cluster))
    assert (claims["sub"], tenant, project) == (NIGHTLY, "acme", "main")
    assert workloads.roles(of_cluster(cluster))[1] == {"acme": ("billing",)}
    assert workloads.roles(of_ci(ci))[1] == {"acme": ("developer", "dpo"), "globex": ("auditor",)}
    assert workloads.roles(of_ci(ci, "deployer"))[1] == {None: ("operator",)}


@pytest.mark.parametrize(
    "claims, reason",
    [
        ({"sub": NIGHTLY + "x"}, "jwt_subject"),
        ({"sub": NIGHTLY.upper()}, "jwt_subject"),
        ({"sub": "deployer"}, "jwt_subject"),  # of the other issuer
        ({"sub": None}, "jwt_subject"),
        ({"aud": "api"}, "jwt_audience"),
        ({"aud": None}, "jwt_audience"),
        ({"exp": NOW + 3601, "iat": NOW}, "jwt_times"),
        ({"exp": NOW - 61, "iat": NOW - 600}, "jwt_expired"),
        ({"iss": CI}, "jwt_key"),  # of the one, signed by the other
        ({"iss": ISSUER}, "jwt_issuer"),
    ],
)
def test_what_differs_in_one_part_opens_nothing(workloads, cluster, claims, reason):
    for ask in (workloads.roles, workloads.project):
        with pytest.raises(JwtRefused) as refused:
            ask(of_cluster(cluster, **claims))
        assert refused.value.reason == reason


def test_each_issuer_has_its_own_bound_on_life_and_one_subject_is_for_one_project(workloads, cluster, ci):
    with pytest.raises(JwtRefused, match="longer than 10 minutes"):
        workloads.roles(of_ci(ci, exp=NOW + 601, iat=NOW))
    with pytest.raises(JwtRefused, match="not pinned to one project"):
        workloads.project(of_cluster(cluster, "two"))
    with pytest.raises(JwtRefused, match="not pinned to one project"):
        workloads.project(of_ci(ci))
    with pytest.raises(JwtRefused, match="no subject"):
        workloads.roles(of_cluster(cluster, "two"))


def test_a_forged_token_opens_nothing_whatever_it_says(workloads, cluster):
    forged = cluster.token(key("k1", "RSA", use="sig"), sub=NIGHTLY, aud="domicile", header={"kid": "k1"})
    with pytest.raises(JwtRefused, match="signature"):
        workloads.project(forged)


def test_an_issuer_that_does_not_answer_lets_nobody_in(workloads, cluster, ci):
    cluster.down = True
    with pytest.raises(ProviderUnavailable):
        workloads.project(of_cluster(cluster))
    assert workloads.roles(of_ci(ci)), "the other one is not concerned"


@pytest.mark.parametrize("token", ["", "a.b", "a.b.c", "dom_live_x", "x" * 9000, "e30.W10.x", "e30.eyJpc3MiOjF9.x"])
def test_what_names_no_issuer_is_nobodys(workloads, token):
    assert stated_issuer(token) is None
    assert not workloads.issued(token)


def test_what_a_cluster_publishes_is_read_with_the_gateways_own_token_of_now(tmp_path, cluster, monkeypatch):
    asked = []

    def answer(request):
        asked.append(request.headers.get("authorization"))
        return cluster._answer(request)

    file = tmp_path / "token"
    made = provider_of(WorkloadIssuer.model_validate({**SETTINGS[0], "token_file": file}))
    provider = IdentityProvider(
        made.settings,
        bearer_file=file,
        transport=httpx2.MockTransport(answer),
        now=lambda: NOW,
        monotonic=lambda: at[0],
    )
    at = [0.0]
    with pytest.raises(ProviderUnavailable, match="mount the gateway's own token"):
        provider.machine(of_cluster(cluster))
    for at[0], words in ((100.0, "one\n"), (1000.0, "two")):
        file.write_text(words)
        provider.machine(of_cluster(cluster))
    assert asked == ["Bearer one"] * 2 + ["Bearer two"] * 2


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "http://ci.example.eu"},
        {"grants": []},
        {"grants": [{"subject": "x", "tenant": "acme"}]},
        {"grants": [{"subject": "x", "tenant": "acme", "role": "dpo", "project": "main"}]},
        {"grants": [{"subject": "x", "role": "dpo"}]},
        {"grants": [{"subject": "x", "staff": True, "tenant": "acme", "role": "dpo"}]},
        {"grants": [{"subject": "x", "staff": True, "project": "main"}]},
        {"grants": [{"subject": "x", "tenant": "acme", "role": "operator"}]},
        {"max_minutes": 1441},
    ],
)
def test_settings_that_would_grant_by_omission_are_refused(changed):
    with pytest.raises(ValidationError):
        WorkloadIssuer.model_validate({**SETTINGS[1], **changed})


def test_an_issuer_has_one_rule(tmp_path):
    with pytest.raises(ValueError, match="name each issuer once"):
        load_settings(data=tmp_path, workloads=[SETTINGS[0], SETTINGS[0]])
    with pytest.raises(ValueError, match="name each issuer once"):
        load_settings(data=tmp_path, workloads=SETTINGS, oidc={"issuer": CI, "audience": "x"})


@asynccontextmanager
async def workload_lab(tmp_path, monkeypatch, workloads):
    monkeypatch.setattr("gateway.server.assembly._workloads", lambda settings: workloads)
    async with lab(tmp_path, workloads=SETTINGS) as made:
        yield made


async def test_a_service_account_calls_models_and_the_admin_api_and_is_on_record(
    tmp_path, monkeypatch, workloads, cluster, ci
):
    monkeypatch.setattr("gateway.identity.machines.time.time", lambda: NOW)
    async with workload_lab(tmp_path, monkeypatch, workloads) as made:
        assert (await made.post(chat("hi"), key=of_cluster(cluster))).status == 200
        (accepted,) = [event for event in made.events() if event["type"] == "inference.accepted"]
        assert accepted["project"] == "main" and accepted["key_id"].startswith("machine:")
        assert "nightly" not in accepted["key_id"]
        assert (await made.post(chat("hi"), key=of_ci(ci))).status == 401
        assert (await made.post(chat("hi"), key=of_cluster(cluster, "stranger"))).status == 401

        async def ask(token, path):
            headers = {"authorization": f"Bearer {token}"}
            async with made.http.get(f"{made.base}/admin/v1{path}", headers=headers) as answer:
                return answer.status, await answer.json()

        status, me = await ask(of_ci(ci), "/tenants/acme/policies")
        assert status == 200
        status, me = await ask(of_ci(ci, "deployer"), "/me")
        assert (status, me["tenant"], me["roles"]) == (200, None, ["operator"])
        assert (await ask(of_cluster(cluster, "stranger"), "/me"))[0] == 401
        assert (await ask(of_cluster(cluster), "/tenants"))[0] == 403
