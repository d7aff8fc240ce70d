"""People come in through a real identity provider; roles follow its groups; every trick with the way in is refused."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from audit.files.secret_file import write_secret
from gateway.admin.app import build_admin
from gateway.configuration.settings import Oidc
from gateway.identity.provider import IdentityProvider
from tests.fakes.disk import bytes_of
from tests.fakes.idp import running_idp
from tests.gateway.admin.conftest import counted

ORIGIN = "https://gateway.example.eu"
CALLBACK = f"{ORIGIN}/callback"
ROLES = [
    {"group": "platform", "role": "operator", "staff": True},
    {"group": "acme-dpo", "role": "dpo", "tenant": "acme"},
    {"group": "acme-admin", "role": "tenant-admin", "tenant": "acme"},
    {"group": "globex-dev", "role": "developer", "tenant": "globex"},
    {"group": "ghost", "role": "developer", "tenant": "nowhere"},
]
SESSION, LOGIN = "__Host-domicile-session", "__Secure-domicile-login"


@pytest.fixture(scope="module")
def idp():
    with running_idp() as idp:
        yield idp


@pytest.fixture
def refused():
    return []


@pytest.fixture
def settings(idp, tmp_path):
    write_secret(tmp_path / "client-secret", b"s3cret")
    return Oidc(
        issuer=idp.issuer,
        client_id="domicile",
        client_secret_file=tmp_path / "client-secret",
        redirect_uri=CALLBACK,
        roles=ROLES,
        session_minutes=30,
    )


@pytest.fixture
def context(app, settings, refused):
    """With the provider. It and we look at the same clock, but for what a test moves."""
    return replace(
        app.state.context,
        provider=IdentityProvider(settings),
        on_refused=counted(refused),
    )


@pytest.fixture
def browse(context):
    """A browser: its own cookies, redirects shown."""
    opened = []

    def new():
        client = TestClient(
            build_admin(context), base_url=ORIGIN, raise_server_exceptions=False, follow_redirects=False
        )
        opened.append(client)
        return client

    yield new
    for client in opened:
        client.close()


@pytest.fixture
def browser(browse, acme):
    return browse()


def log_in(browser, idp, subject, **query):
    sent = browser.get("/login", params=query)
    assert sent.status_code == 303, sent.text
    return browser.get("/callback", params=answer_of(idp.consent(sent.headers["location"], subject)))


def answer_of(location):
    assert location.startswith(CALLBACK)
    return {name: value for name, (value,) in parse_qs(urlsplit(location).query).items()}


def cookie(response, name):
    jar = SimpleCookie()
    for header in response.headers.get_list("set-cookie"):
        jar.load(header)
    return jar[name]


# --- coming in -------------------------------------------------------------------------------------------------------


def test_somebody_logs_in_is_who_they_are_and_leaves(browser, idp, events, refused):
    idp.put("ada", name="Ada Lovelace", groups=["acme-dpo", "unrelated"])
    answer = log_in(browser, idp, "ada")
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    me = browser.get("/me").json()
    assert (me["person"], me["tenant"], me["roles"]) == (answer.json()["person"], "acme", ["dpo"])
    assert browser.get("/tenants/acme/policies").status_code == 200
    assert browser.get("/tenants/globex").status_code == 404
    person = browser.get(f"/tenants/acme/people/{me['person']}").json()
    assert (person["display_name"], person["federated"]) == ("Ada Lovelace", True)

    left = browser.post("/logout", headers={"origin": ORIGIN})
    assert left.status_code == 303, "the provider's session ends too"
    assert left.headers["location"].startswith(f"{idp.issuer}/") and "client_id=domicile" in left.headers["location"]
    assert browser.cookies.get(SESSION) is None
    assert browser.get("/me").status_code == 401
    did = [(event.action, event.actor.split(":")[0]) for event in events[-3:]]
    assert did == [("person.created", "system"), ("session.opened", "system"), ("session.closed", "key")]
    assert events[-2].detail == {"person": me["person"]}
    assert refused == ["missing"]


def test_a_browser_goes_on_to_the_console_by_a_page_of_ours(browser, idp):
    """A redirect would not do: the session goes with nothing that the provider's site began."""
    idp.put("ada", groups=["acme-dpo"])
    sent = browser.get("/login")
    params = answer_of(idp.consent(sent.headers["location"], "ada"))
    answer = browser.get("/callback", params=params, headers={"accept": "text/html,application/xhtml+xml"})
    assert answer.status_code == 200 and "location" not in answer.headers
    assert 'content="0;url=/console/"' in answer.text
    assert answer.headers["content-security-policy"] == "default-src 'none'"
    assert answer.headers["cache-control"] == "no-store"
    assert cookie(answer, SESSION).value not in answer.text
    assert browser.get("/me").json()["roles"] == ["dpo"]


@pytest.mark.parametrize(("query", "prompt", "age"), [({}, None, None), ({"again": "true"}, ["login"], [str(15 * 60)])])
def test_the_provider_is_told_to_ask_again_where_a_fresh_sign_in_is_wanted(browser, query, prompt, age):
    sent = browser.get("/login", params=query)
    asked = parse_qs(urlsplit(sent.headers["location"]).query)
    assert (asked.get("prompt"), asked.get("max_age")) == (prompt, age)


@pytest.fixture
def says(context, monkeypatch):
    """Makes the provider say when people showed who they are: so many seconds ago, or, with None, not at all."""

    def say(ago):
        verified = IdentityProvider.person

        def person(self, code, attempt):
            claims = {name: value for name, value in verified(self, code, attempt).items() if name != "auth_time"}
            if isinstance(ago, int) and ago is not True:
                return claims | {"auth_time": context.now().timestamp() - ago}
            return claims if ago is None else claims | {"auth_time": ago}

        monkeypatch.setattr(IdentityProvider, "person", person)

    return say


@pytest.mark.parametrize("ago", [0, 100, 3600, 86_400, None])
def test_a_session_knows_when_its_person_showed_who_they_are_as_the_provider_says(browser, idp, context, says, ago):
    says(ago)
    idp.put("ada", groups=["acme-dpo"])
    assert log_in(browser, idp, "ada").status_code == 200
    at = browser.get("/me").json()["authenticated_at"]
    assert at is None if ago is None else 0 <= age_of(at) - ago < 20


def age_of(at):
    return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()


@pytest.mark.parametrize(
    ("ago", "reason", "said"),
    [
        (None, "login_not_fresh", "configure it to send the claim auth_time"),
        (15 * 60 + 120, "login_not_fresh", "did not authenticate you again"),
        (-3600, "jwt_early", "compare the clocks"),
        ("yesterday", "jwt_times", "auth_time is not an instant"),
        (True, "jwt_times", "auth_time is not an instant"),
    ],
)
def test_a_sign_in_that_is_to_be_fresh_is_refused_where_the_provider_does_not_say_so(
    browser, idp, says, refused, events, ago, reason, said
):
    says(ago)
    idp.put("ada", groups=["acme-dpo"])
    answer = log_in(browser, idp, "ada", again="true")
    assert answer.status_code == 403 and said in answer.json()["detail"]
    assert refused == [reason] and browser.cookies.get(SESSION) is None
    assert [event.action for event in events if event.action == "session.opened"] == []


def test_a_fresh_sign_in_opens_a_session_in_which_the_person_just_showed_who_they_are(browser, idp, says):
    says(1)
    idp.put("ada", groups=["acme-dpo"])
    assert log_in(browser, idp, "ada", again="true").status_code == 200
    assert 0 <= age_of(browser.get("/me").json()["authenticated_at"]) < 20


def test_a_login_cookie_cannot_be_made_one_that_need_not_be_fresh(browser, idp, says, refused):
    says(None)
    idp.put("ada", groups=["acme-dpo"])
    sent = browser.get("/login", params={"again": "true"})
    kept = browser.cookies.get(LOGIN)
    browser.cookies.set(LOGIN, kept.replace(".again.", ".."), domain="gateway.example.eu", path="/callback")
    answer = browser.get("/callback", params=answer_of(idp.consent(sent.headers["location"], "ada")))
    assert answer.status_code == 403 and refused == ["login_state"]


def test_the_cookie_is_out_of_reach_of_scripts_other_sites_and_plain_http(browser, idp):
    idp.put("ada", groups=["acme-dpo"])
    sent = browser.get("/login")
    begun = cookie(sent, LOGIN)
    assert begun["secure"] and begun["httponly"] and begun["samesite"] == "lax" and begun["path"] == "/callback"
    answer = browser.get("/callback", params=answer_of(idp.consent(sent.headers["location"], "ada")))
    session = cookie(answer, SESSION)
    assert session["secure"] and session["httponly"] and session["samesite"] == "strict" and session["path"] == "/"
    assert session["domain"] == ""
    assert session["max-age"] == "1800"
    assert cookie(answer, LOGIN)["max-age"] == "0"
    assert session.value not in answer.text


def test_a_new_login_ends_the_session_that_the_browser_had(browse, acme, idp, events):
    idp.put("ada", groups=["acme-dpo"])
    browser, elsewhere = browse(), browse()
    log_in(elsewhere, idp, "ada")
    log_in(browser, idp, "ada")
    old = browser.cookies.get(SESSION)
    sent = browser.get("/login")
    browser.cookies.delete(SESSION)  # a browser does not send it along when it comes from the provider
    assert browser.get("/callback", params=answer_of(idp.consent(sent.headers["location"], "ada"))).status_code == 200
    assert browser.get("/me").status_code == 200 and elsewhere.get("/me").status_code == 200
    assert browse().get("/me", headers={"authorization": f"Bearer {old}"}).status_code == 401
    assert [event.action for event in events][-2:] == ["session.closed", "session.opened"]


def test_a_login_cookie_that_was_changed_begins_nothing(browse, acme, idp, refused):
    for at in (0, 50, 100, 140, -1):
        browser = browse()
        answer = begun(browser, idp)
        value = browser.cookies.get(LOGIN)
        other = "A" if value[at] != "A" else "B"
        changed = value[:at] + other + (value[at + 1 :] if at != -1 else "")
        browser.cookies.set(LOGIN, changed, domain="gateway.example.eu", path="/callback")
        assert browser.get("/callback", params=answer).status_code == 403
    assert set(refused) == {"login_state"}


def test_logging_out_with_a_token_says_nothing_to_the_provider(browser, idp, login):
    idp.put("ada", groups=["acme-dpo"])
    log_in(browser, idp, "ada")
    assert browser.post("/logout", headers=login("acme", "developer")).status_code == 204


def test_a_session_is_stored_as_a_hash_and_ends_with_its_time_or_its_person(browse, acme, idp, clock, database, data):
    idp.put("ada", groups=["acme-dpo"])
    browser = browse()
    person = log_in(browser, idp, "ada").json()["person"]
    token = browser.cookies.get(SESSION)
    stored = b"".join(bytes_of(file) for file in data.glob("control.db*"))
    assert token.encode() not in stored
    assert token.split("_")[3].encode() not in stored
    clock.now += timedelta(minutes=29)
    assert browser.get("/me").status_code == 200
    clock.now += timedelta(minutes=1)
    assert browser.get("/me").status_code == 401
    clock.now -= timedelta(minutes=30)
    assert log_in(browser, idp, "ada").status_code == 200
    acme.revoke_person("acme", person)
    assert browser.get("/me").status_code == 401
    assert log_in(browser, idp, "ada").status_code == 403


def test_over_plain_http_on_this_machine_the_cookie_is_one_that_browsers_send_there(app, settings, acme, idp):
    here = settings.model_copy(update={"redirect_uri": "http://127.0.0.1:8400/admin/v1/callback"})
    context = replace(app.state.context, provider=IdentityProvider(here))
    with TestClient(build_admin(context), base_url="http://127.0.0.1:8400", follow_redirects=False) as browser:
        begun = cookie(browser.get("/login"), "domicile-login")
    assert not begun["secure"]
    assert begun["httponly"]


# --- groups ----------------------------------------------------------------------------------------------------------


def test_roles_are_those_of_the_groups_at_each_login(browse, acme, idp, events):
    browser = browse()
    idp.put("ada", groups=["acme-dpo", "acme-admin"])
    assert log_in(browser, idp, "ada").json()["roles"] == ["tenant-admin", "dpo"]
    idp.put("ada", groups=["acme-dpo"])
    assert log_in(browse(), idp, "ada").json()["roles"] == ["dpo"]
    assert browser.get("/me").json()["roles"] == ["dpo"], "the session from before is theirs too"
    assert "person.changed" in [event.action for event in events]
    idp.put("ada", groups=[])
    refused = log_in(browse(), idp, "ada")
    assert refused.status_code == 403
    assert "groups" in refused.json()["detail"]
    assert browser.get("/me").json()["roles"] == []
    assert browser.get("/tenants/acme").status_code == 403
    idp.put("ada", groups=["acme-admin"])
    assert log_in(browser, idp, "ada").json()["roles"] == ["tenant-admin"]


def test_staff_by_group_see_every_tenant(browser, idp):
    idp.put("root", groups=["platform", "acme-dpo"])
    answer = log_in(browser, idp, "root").json()
    assert (answer["tenant"], answer["roles"]) == (None, ["operator"])
    assert browser.get("/tenants").status_code == 200


def test_the_last_operator_by_group_loses_the_role_and_the_shell_lets_another_in(browser, acme, idp, control):
    idp.put("root", groups=["platform"])
    log_in(browser, idp, "root")
    idp.put("root", groups=[])
    assert log_in(browser, idp, "root").status_code == 403
    assert browser.get("/tenants").status_code == 403
    assert control.create_bootstrap_token()


def test_with_roles_in_several_tenants_one_says_which(browse, acme, idp):
    acme.create_tenant("globex")
    idp.put("eve", groups=["acme-dpo", "globex-dev"])
    unsaid = log_in(browse(), idp, "eve")
    assert unsaid.status_code == 403
    assert "acme, globex" in unsaid.json()["detail"]
    for tenant in ("acme", "globex"):
        assert log_in(browse(), idp, "eve", tenant=tenant).json()["tenant"] == tenant
    elsewhere = log_in(browse(), idp, "eve", tenant="initech")
    assert elsewhere.status_code == 403
    assert elsewhere.json() == log_in(browse(), idp, "eve", tenant="nowhere").json()


@pytest.mark.parametrize("groups", [["ghost"], ["operator"], "platform-x", {"platform": True}, None, [["platform"]]])
def test_nobody_comes_in_by_a_group_that_means_nothing_here(browser, idp, groups, refused, inventory):
    idp.put("mallory", groups=groups)
    assert log_in(browser, idp, "mallory").status_code == 403
    assert refused == ["login_groups"]
    assert inventory.people("acme") == inventory.people(None) == []


def test_a_revoked_tenant_lets_nobody_in(browser, acme, idp):
    idp.put("ada", groups=["acme-dpo"])
    acme.revoke_tenant("acme")
    assert log_in(browser, idp, "ada").status_code == 403


def test_roles_and_lasting_tokens_of_such_people_are_not_made_here(browser, acme, idp, login):
    idp.put("ada", groups=["acme-dpo"])
    person = log_in(browser, idp, "ada").json()["person"]
    operator = login(None, "operator")
    browser.cookies.clear()
    url = f"/tenants/acme/people/{person}"
    roles = browser.put(f"{url}/roles", headers=operator, json={"roles": ["tenant-admin"]})
    token = browser.post(f"{url}/tokens", headers=operator, json={"expires_at": "2026-12-24T00:00:00Z"})
    assert (roles.status_code, token.status_code) == (422, 422)
    assert "identity provider" in roles.json()["detail"]


# --- tricks ----------------------------------------------------------------------------------------------------------


def begun(browser, idp, subject="ada", groups=("acme-dpo",)):
    idp.put(subject, groups=list(groups))
    sent = browser.get("/login")
    return answer_of(idp.consent(sent.headers["location"], subject))


def test_a_callback_that_this_browser_did_not_begin_is_refused(browse, acme, idp, refused):
    answer = begun(browse(), idp)
    for params in (answer, {**answer, "state": "x"}, {"code": answer["code"]}, {}):
        assert browse().get("/callback", params=params).status_code == 403
    other = browse()
    begun(other, idp)
    assert other.get("/callback", params=answer).status_code == 403
    assert set(refused) == {"login_state"}


def test_a_callback_works_once(browser, idp, refused):
    answer = begun(browser, idp)
    kept = browser.cookies.get(LOGIN)
    assert browser.get("/callback", params=answer).status_code == 200
    assert browser.get("/callback", params=answer).status_code == 403
    browser.cookies.set(LOGIN, kept, domain="gateway.example.eu", path="/callback")
    assert browser.get("/callback", params=answer).status_code == 403
    assert refused == ["login_state", "login_used"]


def test_a_code_for_another_login_is_refused(browse, acme, idp, refused):
    """What a thief of codes would try: their own login's state and cookie, the victim's code."""
    victim = begun(browse(), idp)
    thief = browse()
    own = begun(thief, idp, "mallory", ())
    assert thief.get("/callback", params={**own, "code": victim["code"]}).status_code == 403
    assert refused[0] in {"login_code", "jwt_nonce"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"error": "access_denied"}, "login_denied"),
        ({"code": ""}, "login_denied"),
        ({"iss": "https://evil.example"}, "login_issuer"),
        ({"code": "made up"}, "login_code"),
        ({"code": "x\r\nset-cookie: a=b"}, "login_code"),
        ({"state": "\x00é"}, "login_state"),
    ],
)
def test_an_answer_that_is_not_what_it_should_be_is_refused_and_on_record(browser, idp, refused, change, reason):
    answer = browser.get("/callback", params={**begun(browser, idp), **change})
    assert answer.status_code == 403
    assert refused == [reason]
    assert SESSION not in answer.headers.get("set-cookie", "")


def test_who_says_no_at_the_provider_is_not_let_in(browser, idp, refused):
    location = idp.deny(browser.get("/login").headers["location"])
    assert browser.get("/callback", params=answer_of(location) | {"state": state_of(browser)}).status_code == 403
    assert refused == ["login_denied"]


def state_of(browser):
    return browser.cookies.get(LOGIN).split(".")[0]


@pytest.mark.parametrize("tenant", ["a.b", "acme; path=/", "acme\r\nx: y", "ACME", "аcme", "x" * 40])
def test_a_tenant_to_log_in_to_has_a_tenants_name(browser, tenant):
    assert browser.get("/login", params={"tenant": tenant}).status_code == 422


def test_a_session_changes_nothing_for_a_page_of_somebody_else(browser, idp, login):
    idp.put("boss", groups=["acme-admin"])
    log_in(browser, idp, "boss")
    body = {"project": "support"}
    for origin in (None, "https://evil.example", "null", "http://gateway.example.eu", f"{ORIGIN}.evil.example", ""):
        headers = {} if origin is None else {"origin": origin}
        forged = browser.post("/tenants/acme/keys", json=body, headers=headers)
        assert forged.status_code == 403, origin
        assert browser.post("/logout", headers=headers).status_code == 403
    assert browser.post("/tenants/acme/keys", json=body, headers={"origin": ORIGIN}).status_code == 201
    token = login("acme", "developer")
    assert browser.post("/tenants/acme/keys", json=body, headers=token).status_code == 201, "a token is no cookie"


def test_a_session_is_no_way_around_a_bad_token(browser, idp):
    idp.put("boss", groups=["acme-admin"])
    log_in(browser, idp, "boss")
    assert browser.get("/me", headers={"authorization": "Bearer x"}).status_code == 401
    two = [("authorization", "Bearer x"), ("authorization", f"Bearer {browser.cookies.get(SESSION)}")]
    assert browser.get("/me", headers=two).status_code == 401


def test_a_client_secret_that_the_provider_refuses_is_not_the_persons_mistake(app, settings, acme, idp):
    """The provider lets no client in without a secret."""
    idp.put("ada", groups=["acme-dpo"])
    bare = settings.model_copy(update={"client_secret_file": None})
    context = replace(app.state.context, provider=IdentityProvider(bare))
    with TestClient(build_admin(context), base_url=ORIGIN, follow_redirects=False) as browser:
        answer = log_in(browser, idp, "ada")
    assert answer.status_code == 503
    assert "client secret" in answer.json()["detail"]


def test_where_no_provider_is_configured_there_is_no_login(client, operator):
    assert client.get("/login", follow_redirects=False).status_code == 404
    assert client.get("/callback").status_code == 404
    assert client.post("/logout", headers=operator).status_code == 204
    assert client.get("/me", headers=operator).status_code == 401


def test_while_the_provider_is_down_nobody_logs_in_and_tokens_work_on(app, acme, settings, login):
    with running_idp() as fleeting:
        pass
    gone = settings.model_copy(update={"issuer": fleeting.issuer})
    context = replace(app.state.context, provider=IdentityProvider(gone))
    with TestClient(build_admin(context), base_url=ORIGIN, follow_redirects=False) as browser:
        answer = browser.get("/login")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert browser.get("/me", headers=login("acme", "dpo")).status_code == 200
