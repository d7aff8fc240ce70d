"""A machine's token of the identity provider opens /v1 as a key of its project does, and nothing else does."""

import asyncio
from base64 import urlsafe_b64encode
from contextlib import asynccontextmanager

import pytest

from gateway.configuration.settings import ProjectGrant
from gateway.identity.jwt import JwtRefused
from gateway.identity.login import ProviderUnavailable
from gateway.identity.machines import HOLDS_FOR_S, MAX_KNOWN, MAX_WAITING, Machines
from gateway.identity.provider import IdentityProvider
from gateway.limits.limit_kinds import LimitFigures
from tests.fakes.issuer import ISSUER, NOW, Issuer, key
from tests.fakes.lab import chat, lab

GRANTS = [
    {"group": "ci-acme", "tenant": "acme", "project": "main"},
    {"group": "ci-other", "tenant": "acme", "project": "other"},
    {"group": "ci-ghost", "tenant": "acme", "project": "ghost"},
]
OIDC = {"issuer": ISSUER, "audience": "domicile-api", "projects": GRANTS}


@pytest.fixture
def issuer():
    return Issuer()


@asynccontextmanager
async def machine_lab(tmp_path, monkeypatch, issuer, set_up=None, **more):
    def provider(settings):
        return IdentityProvider(settings, transport=issuer.transport, now=lambda: NOW)

    monkeypatch.setattr("gateway.server.assembly._provider", provider)
    async with lab(tmp_path, set_up=set_up, oidc=OIDC | more) as made:
        yield made


async def test_it_calls_under_the_policy_and_the_limits_of_its_project_and_the_record_names_it(
    tmp_path, monkeypatch, issuer
):
    def set_up(made):
        made.tenant("acme")
        made.control.set_limits("acme", LimitFigures(requests_per_minute=3), project="main")

    async with machine_lab(tmp_path, monkeypatch, issuer, set_up) as made:
        token = issuer.token(groups=["ci-acme", "unrelated"])
        answer = await made.post(chat("mail ada@example.eu"), key=token)
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert b"ada@example.eu" not in made.backends["acme-1"].bodies[0]
        assert [model["id"] for model in (await made.get("/v1/models", key=token)).json["data"]] == ["small"]
        (accepted,) = [event for event in made.events() if event["type"] == "inference.accepted"]
        assert accepted["project"] == "main"
        assert accepted["key_id"].startswith("machine:") and len(accepted["key_id"]) == 24
        assert "robot" not in accepted["key_id"]
        with_key = await made.post(chat("hi"))
        assert with_key.headers["x-ratelimit-remaining-requests"] == "1", "a key of the project has the same quota"
        assert (await made.post(chat("hi"), key=token)).status == 200
        assert (await made.post(chat("hi"), key=token)).error["code"] == "rate_limit_exceeded"
        await asyncio.to_thread(made.verify)


FORGED = {
    "a MAC with the public key": {"signer": key("k1", "oct"), "alg": "HS256"},
    "another's key under our kid": {"signer": key("k1", use="sig")},
    "a key that nobody knows": {"header": {"kid": "k9"}},
    "its own key": {"header": {"jwk": {"kty": "RSA"}}},
    "a URL of its key": {"header": {"jku": "https://evil.example/jwks"}},
    "another issuer": {"iss": "https://evil.example"},
    "another audience": {"aud": "somebody-else"},
    "no audience": {"aud": None},
    "expired": {"iat": NOW - 700, "exp": NOW - 61},
    "not yet": {"iat": NOW + 61},
    "not before": {"nbf": NOW + 61},
    "no end": {"exp": None},
    "a life of a year": {"exp": NOW + 365 * 86400},
    "no subject": {"sub": None},
    "said twice": {"payload": '{"iss": "a", "iss": "b"}'},
    "no group": {"groups": []},
    "a group without a project": {"groups": ["platform"]},
    "groups of two projects": {"groups": ["ci-acme", "ci-other"]},
    "a project that is not there": {"groups": ["ci-ghost"]},
    "groups as a number": {"groups": 7},
}


async def test_what_is_forged_expired_or_meant_for_somebody_else_opens_nothing(tmp_path, monkeypatch, issuer):
    async with machine_lab(tmp_path, monkeypatch, issuer) as made:
        for name, wrong in FORGED.items():
            token = issuer.token(**({"groups": ["ci-acme"]} | wrong))
            for answer in (await made.post(chat("hi"), key=token), await made.get("/v1/models", key=token)):
                assert answer.status == 401, name
                assert token[:40] not in answer.body.decode() + str(answer.headers), name
        assert made.backends["acme-1"].bodies == []
        _, claims, signature = issuer.token(groups=["ci-acme"]).split(".")
        none = urlsafe_b64encode(b'{"alg": "none", "typ": "JWT"}').decode()
        for unsigned in (f"{none}.{claims}.", f"{none}.{claims}.{signature}"):
            assert (await made.post(chat("hi"), key=unsigned)).status == 401


async def test_the_providers_clock_may_differ_by_as_much_as_is_allowed(tmp_path, monkeypatch, issuer):
    async with machine_lab(tmp_path, monkeypatch, issuer) as made:
        for times in ({"iat": NOW - 600, "exp": NOW - 59}, {"iat": NOW + 59, "exp": NOW + 600}):
            token = issuer.token(groups=["ci-acme"], **times)
            assert (await made.post(chat("hi"), key=token)).status == 200


async def test_a_key_that_the_provider_took_up_since_is_asked_for(tmp_path, monkeypatch, issuer):
    async with machine_lab(tmp_path, monkeypatch, issuer) as made:
        assert (await made.post(chat("hi"), key=issuer.token(groups=["ci-acme"]))).status == 200
        issuer.keys.insert(0, key("k2", "EC"))
        monkeypatch.setattr("gateway.identity.provider.ASK_EVERY_S", 0)
        assert (await made.post(chat("hi"), key=issuer.token(alg="ES256", groups=["ci-acme"]))).status == 200


async def test_while_the_provider_is_down_machines_wait_and_keys_work_on(tmp_path, monkeypatch, issuer):
    issuer.down = True
    async with machine_lab(tmp_path, monkeypatch, issuer) as made:
        answer = await made.post(chat("hi"), key=issuer.token(groups=["ci-acme"]))
        assert (answer.status, answer.error["code"]) == (503, "identity_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert (await made.post(chat("hi"))).status == 200


async def test_a_project_or_tenant_that_is_revoked_is_closed_to_its_machines_too(tmp_path, monkeypatch, issuer):
    async with machine_lab(tmp_path, monkeypatch, issuer) as made:
        token = issuer.token(groups=["ci-acme"])
        assert (await made.post(chat("hi"), key=token)).status == 200
        made.control.revoke_tenant("acme")
        await made.taken_over()
        assert (await made.post(chat("hi"), key=token)).status == 401


async def test_without_projects_in_the_settings_no_token_opens_anything(tmp_path, monkeypatch, issuer):
    async with machine_lab(tmp_path, monkeypatch, issuer, projects=[]) as made:
        assert (await made.post(chat("hi"), key=issuer.token(groups=["ci-acme"]))).status == 401
        assert issuer.asked == []


class Counting:
    """Believes everything, and counts."""

    def __init__(self, **claims):
        self.claims, self.asked = {"iss": ISSUER, "sub": "robot", "groups": ["ci-acme"], "exp": 1000} | claims, 0

    def machine(self, token):
        self.asked += 1
        if isinstance(self.claims, Exception):
            raise self.claims
        return self.claims


class Clock:
    at = 0.0

    def __call__(self):
        return self.at


@pytest.fixture
def clock():
    return Clock()


def machines(provider, clock):
    grants = [ProjectGrant(**grant) for grant in GRANTS]
    return Machines(provider, grants, "groups", monotonic=clock, now=clock)


async def test_a_token_is_checked_once_a_minute_and_again_when_it_ends(clock):
    provider = Counting(exp=100)
    async with machines(provider, clock) as some:
        first = await some.identify("a.b.c")
        assert (first.tenant, first.project) == ("acme", "main")
        assert await some.identify("a.b.c") is first
        assert provider.asked == 1
        clock.at = HOLDS_FOR_S + 1
        await some.identify("a.b.c")
        assert provider.asked == 2
        clock.at = 100
        await some.identify("a.b.c")
        assert provider.asked == 3, "whether it ended is the provider's rule to say, with the skew it allows"


async def test_what_was_refused_is_not_remembered_as_let_in(clock):
    provider = Counting()
    async with machines(provider, clock) as some:
        await some.identify("a.b.c")
        provider.claims = JwtRefused("jwt_expired", "the token has expired")
        clock.at = HOLDS_FOR_S + 1
        for _ in range(2):
            with pytest.raises(JwtRefused):
                await some.identify("a.b.c")
        assert provider.asked == 3


async def test_neither_many_tokens_nor_many_who_wait_fill_the_memory(clock, monkeypatch):
    async with machines(Counting(), clock) as some:
        monkeypatch.setattr("gateway.identity.machines.MAX_KNOWN", 4)
        for each in range(20):
            await some.identify(f"a.b.{each}")
        assert len(some._known) <= 4 < MAX_KNOWN
        some._waiting = MAX_WAITING
        with pytest.raises(ProviderUnavailable):
            await some.identify("a.b.new")
        await some.identify("a.b.19")
