"""`domicile login` by the device flow, against a gateway and an identity provider on loopback."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import aiohttp
import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.cli.remote import credentials, device
from gateway.cli.remote.device import DeviceClient, DeviceFlow, DeviceLoginFailed
from gateway.cli.remote.sessions import fresh
from tests.fakes.device_provider import CLIENT, DeviceProvider
from tests.fakes.lab import lab

STAFF = {"group": "platform", "role": "operator", "staff": True}
ROLES = [STAFF, *({"group": "two", "role": "dpo", "tenant": each} for each in ("acme", "bank"))]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DOMICILE_DATA", "DOMICILE_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "config" / "domicile" / "credentials"


@asynccontextmanager
async def served(tmp_path, **oidc):
    def tenants(made):
        made.tenant("acme")
        made.tenant("bank")

    async with DeviceProvider().running() as provider:
        provider.claims = {"groups": ["platform"]}
        settings = {"issuer": provider.url, "device_client_id": CLIENT, "roles": ROLES, **oidc}
        async with lab(tmp_path / "served", set_up=tenants, backends={}, oidc=settings) as made:
            yield SimpleNamespace(url=made.base, provider=provider, made=made)


async def ran(*words, **more):
    return await asyncio.to_thread(CliRunner().invoke, app, words, **more)


async def logged_in(at, *more):
    said = await ran("login", "--url", at.url, *more)
    assert said.exit_code == 0, said.output
    return said


async def exchange(at, token, **more):
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{at.url}/admin/v1/device-login", json={"id_token": token, **more}) as answer,
    ):
        return answer.status, await answer.text()


async def renewed(at):
    return await asyncio.to_thread(fresh, at.url, lambda: datetime.now(UTC) + timedelta(minutes=59, seconds=30))


async def test_a_person_logs_in_by_a_code_works_and_leaves(tmp_path, home):
    async with served(tmp_path) as at:
        at.provider.says = ["authorization_pending", "authorization_pending"]
        said = await logged_in(at)
        assert "open " + at.provider.url + "/activate and enter the code WDJB-MJHT" in said.stderr
        assert "of the installation's staff: operator" in said.stdout
        assert at.provider.asked[0] == {"client_id": CLIENT, "scope": "openid profile offline_access"}
        assert {file.stat().st_mode & 0o777 for file in home.iterdir()} == {0o600}
        kept = credentials.load(at.url)
        assert kept.token not in said.output and kept.renewal.refresh not in said.output
        assert "acme" in (await ran("tenant", "list")).stdout
        left = await ran("logout")
        assert left.exit_code == 0, left.output
        assert at.provider.refresh_tokens == set(), "the login at the provider has ended"
        headers = {"authorization": f"Bearer {kept.token}"}
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{at.url}/admin/v1/me", headers=headers) as answer,
        ):
            assert answer.status == 401, "and so has the session"
        kinds = [event["type"] for event in at.made.events("_system")]
        assert "admin.session.opened" in kinds and kinds[-1] == "admin.session.closed"


async def test_a_session_is_renewed_before_it_ends_and_by_one_of_two_commands_at_once(tmp_path):
    async with served(tmp_path) as at:
        await logged_in(at)
        first = credentials.load(at.url)
        assert await asyncio.to_thread(fresh, at.url) == first, "not due yet"
        one, other = await asyncio.gather(renewed(at), renewed(at))
        assert len(at.provider.spent) >= 1 and at.provider.refresh_tokens, "no refresh token was used twice"
        assert first.token not in (one.token, other.token)
        assert (await ran("tenant", "list")).exit_code == 0


async def test_roles_of_a_group_that_is_gone_are_not_renewed(tmp_path):
    async with served(tmp_path) as at:
        await logged_in(at)
        at.provider.claims = {"groups": ["nothing"]}
        with pytest.raises(Exception, match="none of your groups has a role here"):
            await renewed(at)


async def test_a_refresh_that_the_provider_refuses_says_what_to_do(tmp_path):
    async with served(tmp_path) as at:
        await logged_in(at)
        at.provider.refresh_tokens.clear()
        kept = credentials.load(at.url)
        with pytest.raises(DeviceLoginFailed, match="run `domicile login` again") as refused:
            await renewed(at)
        assert kept.renewal.refresh not in str(refused.value)


async def test_without_a_refresh_token_the_session_ends_in_words(tmp_path):
    async with served(tmp_path) as at:
        at.provider.refreshes = False
        await logged_in(at)
        with pytest.raises(credentials.CredentialsError, match="has ended; run: domicile login"):
            await renewed(at)


async def test_a_logout_deletes_what_is_kept_and_says_what_goes_on_while_the_provider_is_down(tmp_path, home):
    async with served(tmp_path) as at:
        await logged_in(at)
        at.provider.down = True
        left = await ran("logout")
        assert left.exit_code == 1
        assert "what was kept here is deleted, but the login at" in left.stderr
        assert not list(home.glob("*.json"))


async def test_who_has_roles_in_two_tenants_names_one(tmp_path):
    async with served(tmp_path) as at:
        at.provider.claims = {"groups": ["two"]}
        said = await ran("login", "--url", at.url)
        assert said.exit_code == 1 and "several tenants" in said.stderr
        assert "of tenant bank: dpo" in (await logged_in(at, "bank")).stdout
        assert (await renewed(at)).renewal.tenant == "bank"


@pytest.mark.parametrize("error, words", [("access_denied", "was refused"), ("expired_token", "in time"), ("x", "ask")])
async def test_a_login_that_the_provider_refuses_leaves_nothing(tmp_path, home, error, words):
    async with served(tmp_path) as at:
        at.provider.says = ["authorization_pending", error]
        said = await ran("login", "--url", at.url)
        assert said.exit_code == 1 and words in said.stderr
        assert not home.exists()


async def test_an_id_token_opens_one_session_if_it_is_new_and_for_this_client(tmp_path):
    async with served(tmp_path, client_id="domicile", redirect_uri="http://127.0.0.1/cb", audience="api") as at:
        token = at.provider.id_token()
        assert (await exchange(at, token))[0] == 201
        status, said = await exchange(at, token)
        assert status == 403 and "already used" in said
        both = await asyncio.gather(*(exchange(at, each) for each in [at.provider.id_token()] * 2))
        assert sorted(status for status, _ in both) == [201, 403]
        old = datetime.now(UTC).timestamp() - 400
        for claims, words in [
            ({"aud": "domicile"}, "another audience"),
            ({"aud": "api"}, "another audience"),
            ({"aud": [CLIENT, "domicile"]}, "another client"),
            ({"azp": "domicile"}, "another client"),
            ({"iat": int(old)}, "too long ago"),
            ({"iss": "https://evil.example"}, "issuer"),
            ({"exp": int(old), "iat": int(old) - 9}, "expired"),
            ({"groups": []}, "none of your groups"),
        ]:
            status, said = await exchange(at, at.provider.id_token(**claims))
            assert status == 403 and words in said, (claims, said)
        forged = at.provider.id_token()[:-8] + "AAAAAAAA"
        status, said = await exchange(at, forged)
        assert status == 403 and "signature" in said
        status, said = await exchange(at, at.provider.id_token(), tenant="nowhere")
        assert status == 403


async def test_where_it_is_not_set_up_an_access_token_is_asked_for(tmp_path):
    async with lab(tmp_path / "served", backends={}) as made:
        at = SimpleNamespace(url=made.base)
        assert (await exchange(at, "a.b.c"))[0] == 404
        said = await ran("login", "--url", made.base, input="nonsense\n")
        assert said.exit_code == 2 and "no access token" in said.stderr


# --- the flow itself


class Clock:
    def __init__(self):
        self.now, self.waits = 0.0, []

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


def flow(provider, monkeypatch, answers, **begun):
    """A flow whose provider answers with these (status, object), or does not at None."""
    clock, client = Clock(), DeviceClient(provider, CLIENT, "openid")
    made = DeviceFlow(client, wait=clock.wait, monotonic=lambda: clock.now)
    first = {
        "device_code": "d", "user_code": "U", "verification_uri": "https://id.example/a", "expires_in": 60, **begun,
    }  # fmt: skip
    said = iter([(200, first), *answers])

    def post(endpoint, form):
        if (answer := next(said)) is None:
            raise device._Silent("silent; try again")
        return answer

    monkeypatch.setattr(made, "_post", post)
    return made, clock


PENDING, SLOWER = (400, {"error": "authorization_pending"}), (400, {"error": "slow_down"})
GIVEN = (200, {"id_token": "a.b.c"})


def test_it_asks_as_often_as_the_provider_wants(monkeypatch):
    made, clock = flow("https://id.example", monkeypatch, [PENDING, SLOWER, PENDING, None, GIVEN])
    assert made.tokens(lambda shown: None).id_token == "a.b.c"
    assert clock.waits == [5, 5, 10, 10, 20]


def test_it_ends_when_the_code_does(monkeypatch):
    made, clock = flow("https://id.example", monkeypatch, [PENDING] * 20)
    with pytest.raises(DeviceLoginFailed, match="in time"):
        made.tokens(lambda shown: None)
    assert clock.now == 60


@pytest.mark.parametrize(
    "begun",
    [
        {"verification_uri": "http://evil.example/a"},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri_complete": "http://evil.example/a?x=1"},
        {"user_code": "A\x1b[2J"},
        {"user_code": "A" * 65},
        {"expires_in": "soon"},
        {"device_code": None, "interval": []},
    ],
)
def test_an_answer_that_could_mislead_a_person_is_not_shown(monkeypatch, begun):
    made, _ = flow("https://id.example", monkeypatch, [GIVEN], **begun)
    with pytest.raises(DeviceLoginFailed):
        made.tokens(lambda shown: pytest.fail("shown"))


@pytest.mark.parametrize("said", [{}, {"id_token": 7}, {"id_token": "a.b.c", "refresh_token": 7}])
def test_an_answer_without_tokens_is_refused(monkeypatch, said):
    made, _ = flow("https://id.example", monkeypatch, [(200, said)])
    with pytest.raises(DeviceLoginFailed, match="no ID token"):
        made.tokens(lambda shown: None)


def test_credentials_of_before_are_read(home):
    credentials.save(credentials.Credentials("https://a.example", "t"))
    (file,) = home.glob("*.json")
    old = {key: value for key, value in json.loads(file.read_text()).items() if key != "renewal"}
    file.write_text(json.dumps(old))
    assert credentials.load("https://a.example").renewal is None
