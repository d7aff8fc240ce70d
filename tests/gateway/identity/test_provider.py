"""What is published is read rarely, kept for a bounded time, and believed only if it is whole."""

import threading
import time
from base64 import urlsafe_b64encode
from hashlib import sha256
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from audit.files.secret_file import LoosePermissions, write_secret
from gateway.configuration.settings import Oidc
from gateway.identity.jwt import JwtRefused
from gateway.identity.provider import (
    ASK_EVERY_S,
    REFRESH_AFTER_S,
    CodeRefused,
    IdentityProvider,
    LoginAttempt,
    ProviderUnavailable,
)
from tests.fakes.issuer import ISSUER, NOW, Issuer, key

SETTINGS = Oidc(
    issuer=ISSUER,
    client_id="domicile",
    redirect_uri="https://gateway.example.eu/admin/v1/callback",
    audience="domicile-api",
    keys_max_age_s=3600,
)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def issuer():
    return Issuer(key("k1"), key("k2", "EC"))


@pytest.fixture
def provider(issuer, clock):
    return IdentityProvider(SETTINGS, transport=issuer.transport, now=lambda: NOW, monotonic=clock)


def reason(provider, token):
    with pytest.raises(JwtRefused) as refused:
        provider.machine(token)
    return refused.value.reason


def test_a_machine_is_known_by_its_token_and_the_keys_are_asked_for_once(provider, issuer):
    for _ in range(3):
        assert provider.machine(issuer.token())["sub"] == "robot"
    assert provider.machine(issuer.token(key("k2", "EC"), alg="ES256"))
    assert len(issuer.asked) == 2


def test_a_key_that_is_new_is_fetched_and_one_that_is_gone_is_gone(provider, issuer, clock):
    old = issuer.token()
    provider.machine(old)
    issuer.keys = [key("k3")]
    clock.now += ASK_EVERY_S
    assert provider.machine(issuer.token())
    assert reason(provider, old) == "jwt_key"


def test_strangers_who_name_unknown_keys_cost_the_provider_next_to_nothing(provider, issuer, clock):
    provider.machine(issuer.token())
    for number in range(200):
        assert reason(provider, issuer.token(header={"kid": f"x{number}"})) == "jwt_key"
        clock.now += 0.1
    assert len(issuer.asked) <= 2 * (1 + 20 / ASK_EVERY_S)


@pytest.mark.parametrize("kid", ["https://evil.example/k1", "../../k1", "k1'--", "K1", "", "k1\0"])
def test_a_kid_is_a_name_and_nothing_is_fetched_from_it(provider, issuer, kid):
    assert reason(provider, issuer.token(header={"kid": kid})) == "jwt_key"
    assert {path.rsplit("/", 1)[1] for path in issuer.asked} == {"openid-configuration", "jwks"}


def test_a_token_without_kid_is_for_the_only_key_there_is(provider, issuer, clock):
    assert reason(provider, issuer.token(header={"kid": None})) == "jwt_key"
    issuer.keys = [key("k1")]
    clock.now += REFRESH_AFTER_S + 1
    assert provider.machine(issuer.token(header={"kid": None}))


def test_two_keys_of_one_name_are_none(clock):
    issuer = Issuer(key("k1"), key("k1", "EC"))
    provider = IdentityProvider(SETTINGS, transport=issuer.transport, now=lambda: NOW, monotonic=clock)
    assert reason(provider, issuer.token()) == "jwt_key"


def test_known_keys_serve_while_the_provider_is_down_but_not_for_ever(provider, issuer, clock):
    token = issuer.token()
    provider.machine(token)
    issuer.down = True
    clock.now += 3599
    assert provider.machine(token)
    clock.now += 2
    with pytest.raises(ProviderUnavailable):
        provider.machine(token)
    issuer.down = False
    clock.now += ASK_EVERY_S
    assert provider.machine(token)


def test_with_a_provider_that_is_down_an_unknown_key_is_not_called_wrong(provider, issuer, clock):
    provider.machine(issuer.token())
    issuer.down = True
    clock.now += ASK_EVERY_S
    with pytest.raises(ProviderUnavailable):
        provider.machine(issuer.token(header={"kid": "new"}))


def test_one_that_was_never_reached_lets_nobody_in_and_is_asked_again_later(provider, issuer, clock):
    issuer.down = True
    for _ in range(5):
        with pytest.raises(ProviderUnavailable):
            provider.machine(issuer.token())
    assert len(issuer.asked) == 1
    issuer.down = False
    clock.now += ASK_EVERY_S
    assert provider.machine(issuer.token())


def test_of_many_who_come_at_once_one_asks_and_the_others_wait(issuer):
    slow = issuer.transport.handler

    def handler(request):
        time.sleep(0.05)
        return slow(request)

    provider = IdentityProvider(SETTINGS, transport=httpx2.MockTransport(handler), now=lambda: NOW)
    token, seen = issuer.token(), []
    threads = [threading.Thread(target=lambda: seen.append(provider.machine(token)["sub"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == ["robot"] * 8
    assert len(issuer.asked) == 2


@pytest.mark.parametrize(
    "said",
    [
        {"issuer": "https://id.example.eu/realms/other"},
        {"issuer": None},
        {"jwks_uri": "http://id.example.eu/jwks"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"token_endpoint": "https://user:secret@id.example.eu/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": f"{ISSUER}/elsewhere"},
    ],
)
def test_a_provider_that_says_something_else_than_it_should_is_not_believed(said, clock):
    issuer = Issuer(key(), **said)
    provider = IdentityProvider(SETTINGS, transport=issuer.transport, now=lambda: NOW, monotonic=clock)
    with pytest.raises(ProviderUnavailable):
        provider.machine(issuer.token())


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, content=b"[]"),
        httpx2.Response(200, content=b"<html>"),
        httpx2.Response(200, content=b'{"a":' * 100_000),
        httpx2.Response(200, content=b" " * (2 << 20) + b"{}"),
        httpx2.Response(302, headers={"location": "https://evil.example/"}),
        httpx2.Response(500),
    ],
    ids=["list", "html", "deep", "huge", "redirect", "error"],
)
def test_an_answer_that_is_no_document_is_an_outage(answer, clock):
    provider = IdentityProvider(SETTINGS, transport=httpx2.MockTransport(lambda request: answer), monotonic=clock)
    with pytest.raises(ProviderUnavailable):
        provider.machine(Issuer().token())


def test_a_provider_without_a_key_that_may_sign_lets_nobody_in(clock):
    issuer = Issuer(key("mac", "oct"))
    provider = IdentityProvider(SETTINGS, transport=issuer.transport, monotonic=clock)
    with pytest.raises(ProviderUnavailable, match="no key"):
        provider.machine(Issuer().token())


def test_without_an_audience_no_token_is_accepted(issuer, clock):
    people = SETTINGS.model_copy(update={"audience": None})
    provider = IdentityProvider(people, transport=issuer.transport, monotonic=clock)
    assert reason(provider, issuer.token()) == "jwt_audience"
    assert issuer.asked == []


def test_the_browser_is_sent_with_a_challenge_and_never_with_the_verifier(provider):
    attempt = LoginAttempt.new()
    url = urlsplit(provider.authorization_url(attempt))
    sent = {name: value for name, (value,) in parse_qs(url.query).items()}
    assert f"{url.scheme}://{url.netloc}{url.path}" == f"{ISSUER}/authorize"
    assert sent["response_type"] == "code"
    assert sent["code_challenge_method"] == "S256"
    assert sent["redirect_uri"] == SETTINGS.redirect_uri
    assert (sent["state"], sent["nonce"]) == (attempt.state, attempt.nonce)
    assert attempt.verifier not in url.query
    assert (
        len({*(LoginAttempt.new().state for _ in range(50)), *(LoginAttempt.new().verifier for _ in range(50))}) == 100
    )


def test_neither_nonce_nor_verifier_shows_in_a_log_of_an_attempt():
    attempt = LoginAttempt.new()
    assert attempt.verifier not in repr(attempt)
    assert attempt.nonce not in repr(attempt)


def test_the_clients_secret_comes_from_a_file_that_nobody_else_may_read(tmp_path, issuer):
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    settings = SETTINGS.model_copy(update={"client_secret_file": file})
    file.chmod(0o640)
    with pytest.raises(LoosePermissions):
        IdentityProvider(settings, transport=issuer.transport)
    file.chmod(0o600)
    assert IdentityProvider(settings, transport=issuer.transport)


# --- redeeming a code ------------------------------------------------------------------------------------------------


ATTEMPT = LoginAttempt("a state", "a nonce", "v" * 43)


def id_token(issuer, **claims):
    said = {"aud": "domicile", "nonce": ATTEMPT.nonce, "sub": "ada"} | claims
    return httpx2.Response(200, json={"access_token": "x", "token_type": "Bearer", "id_token": issuer.token(**said)})


def test_a_code_is_redeemed_with_the_verifier_of_the_challenge(provider, issuer):
    issuer.redeems = id_token(issuer)
    assert provider.person("a code", ATTEMPT)["sub"] == "ada"
    assert issuer.sent["grant_type"] == "authorization_code"
    assert (issuer.sent["code"], issuer.sent["redirect_uri"]) == ("a code", SETTINGS.redirect_uri)
    challenge = urlsafe_b64encode(sha256(issuer.sent["code_verifier"].encode()).digest()).rstrip(b"=").decode()
    assert f"code_challenge={challenge}" in provider.authorization_url(ATTEMPT)


@pytest.mark.parametrize("methods", [None, ["client_secret_post"], ["client_secret_post", "client_secret_basic"]])
def test_the_client_shows_its_secret_as_the_provider_wants_it(tmp_path, clock, methods):
    write_secret(tmp_path / "secret", b"s3cret")
    issuer = Issuer(key(), **({"token_endpoint_auth_methods_supported": methods} if methods else {}))
    issuer.redeems = id_token(issuer)
    settings = SETTINGS.model_copy(update={"client_secret_file": tmp_path / "secret"})
    provider = IdentityProvider(settings, transport=issuer.transport, now=lambda: NOW, monotonic=clock)
    assert provider.person("a code", ATTEMPT)
    in_body = methods == ["client_secret_post"]
    assert (issuer.sent.get("client_secret") == "s3cret") == in_body
    assert (issuer.sent["authorization"] is None) == in_body


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"nonce": "another"}, "jwt_nonce"),
        ({"nonce": None}, "jwt_nonce"),
        ({"aud": "domicile-api"}, "jwt_audience"),
        ({"aud": ["domicile", "another"]}, "jwt_audience"),
        ({"azp": "another"}, "jwt_audience"),
        ({"exp": NOW - 60}, "jwt_expired"),
        ({"iss": "https://evil.example"}, "jwt_issuer"),
        ({"signer": key("k1", use="sig")}, "jwt_signature"),
        ({"header": {"kid": "other"}}, "jwt_key"),
    ],
)
def test_an_id_token_that_is_not_for_this_login_is_refused(provider, issuer, claims, reason):
    issuer.redeems = id_token(issuer, **claims)
    with pytest.raises(JwtRefused) as refused:
        provider.person("a code", ATTEMPT)
    assert refused.value.reason == reason


def test_an_id_token_is_no_machines_token_nor_the_other_way_round(provider, issuer):
    assert reason(provider, issuer.token(aud="domicile", nonce=ATTEMPT.nonce)) == "jwt_audience"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx2.Response(400, json={"error": "invalid_grant"}), CodeRefused),
        (httpx2.Response(401, json={"error": "invalid_client"}), ProviderUnavailable),
        (httpx2.Response(500), ProviderUnavailable),
        (httpx2.Response(200, content=b"<html>"), ProviderUnavailable),
        (httpx2.Response(200, json=[]), ProviderUnavailable),
        (httpx2.Response(200, json={"access_token": "x"}), ProviderUnavailable),
        (httpx2.Response(200, json={"access_token": "x", "id_token": 7}), ProviderUnavailable),
        (httpx2.Response(302, headers={"location": "https://evil.example"}), ProviderUnavailable),
    ],
)
def test_what_else_the_provider_answers_to_a_code_lets_nobody_in(provider, issuer, answer, error):
    issuer.redeems = answer
    with pytest.raises(error):
        provider.person("a code", ATTEMPT)
