"""What the gateway signs, the backend opens; and nothing else does."""

import json
from base64 import urlsafe_b64encode
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from backend.errors import ConfigError
from backend.server.request_lock import COMMITS, MARK_KEY, PREFILL_KEY, RequestLock, TokenRefused, read_key
from gateway.upstream.request_token import LIFETIME_S, PrefillPlace, RequestSigner

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW = 1_790_000_000.0
BODY = b'{"model": "small"}'


def line(*, now=NOW, key=KEY, **changed):
    given = {
        "tenant": "acme", "backend": "acme-1", "method": "POST", "path": "/v1/chat/completions", "project": "",
        "decision": "acme/7/ab", "digest": sha256(changed.pop("body", BODY)).digest(),
    }  # fmt: skip
    return RequestSigner(key, now=lambda: now).field(**given | changed)


def token(**changed):
    return line(**changed).partition(": ")[2].strip().encode()


def lock(app=None, now=NOW):
    return RequestLock(app, KEY.public_key(), tenant="acme", backend="acme-1", now=lambda: now)


def forged(claims, head=b'{"alg":"EdDSA","typ":"domicile-request+jwt"}', key=KEY):
    def encoded(value):
        return urlsafe_b64encode(value).rstrip(b"=")

    signed = encoded(head) + b"." + encoded(claims)
    return signed + b"." + encoded(key.sign(signed))


def claims(**changed):
    whole = {
        "ten": "acme", "aud": "acme-1", "iat": NOW, "exp": NOW + 60, "bod": "AAAA", "jti": "a", "htm": "POST",
        "htu": "/v1/chat/completions", "prj": "",
    } | changed  # fmt: skip
    return json.dumps(whole).encode()


@pytest.fixture
def client():
    async def echo(request):
        return Response(await request.body())

    app = Starlette(routes=[Route("/v1/chat/completions", echo, methods=["POST"]), Route("/readyz", echo)])
    with TestClient(lock(app)) as client:
        yield client


def post(client, *tokens, body=BODY):
    return client.post("/v1/chat/completions", content=body, headers=[("x-domicile-token", t.decode()) for t in tokens])


def test_a_call_with_its_token_is_answered_and_its_body_arrives_whole(client):
    assert post(client, token()).content == BODY
    large = b"x" * 300_000
    assert post(client, token(body=large), body=large).content == large


def test_readiness_needs_no_token(client):
    assert client.get("/readyz").status_code == 200


def test_without_a_token_or_with_two_nothing_is_answered(client):
    for answer in (post(client), post(client, token(), token())):
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "request_token")


def test_another_body_than_the_signed_one_is_refused(client):
    assert post(client, token(), body=BODY + b" ").status_code == 401


@pytest.mark.parametrize("changed", [{"tenant": "globex"}, {"backend": "acme-2"}])
def test_of_another_tenant_or_backend_it_opens_nothing(changed):
    with pytest.raises(TokenRefused, match="another backend"):
        lock().check([token(**changed)])


def test_out_of_its_time_it_opens_nothing():
    lock(now=NOW + LIFETIME_S + 29).check([token()])
    lock(now=NOW - 29).check([token()])
    for now in (NOW + LIFETIME_S + 31, NOW - 31):
        with pytest.raises(TokenRefused, match="out of its time"):
            lock(now=now).check([token()])


def test_another_key_opens_nothing():
    with pytest.raises(TokenRefused):
        lock().check([token(key=Ed25519PrivateKey.generate())])


@pytest.mark.parametrize(
    "made",
    [
        forged(claims(), head=b'{"alg":"none"}'),
        forged(claims(), head=b'{"alg":"EdDSA","typ":"JWT"}'),
        forged(claims(iat=None)),
        forged(claims(bod=7)),
        forged(claims(bod="AA==")),
        forged(claims(exp="soon")),
        forged(b"[]"),
        forged(b"[" * 1500),
        forged(b'{"iat": NaN, "exp": NaN, "ten": "acme", "aud": "acme-1", "bod": ""}'),
        forged(claims(), key=Ed25519PrivateKey.generate()),
        b"",
        b".",
        b"...",
        b"a" * 5000,
        b"\xff.\xff.\xff",
    ],
)
def test_what_is_no_token_of_ours_is_refused_and_nothing_else_happens(made):
    with pytest.raises(TokenRefused):
        lock().check([made])


@given(st.data())
def test_whichever_bit_is_changed_it_opens_nothing(data):
    good = token()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(TokenRefused):
        lock().check([bytes(bad)])


def test_the_digest_is_that_of_the_body():
    assert lock().check([token()]).body == sha256(BODY).digest()


def test_a_token_is_taken_once(client):
    once = token()
    assert post(client, once).status_code == 200
    again = post(client, once)
    assert again.status_code == 401 and "used already" in again.json()["error"]["message"]
    assert post(client, token()).status_code == 200, "another one of the same body is another call"


def test_a_token_with_another_body_is_not_used_up_by_it(client):
    once = token()
    assert post(client, once, body=b"{}").status_code == 401
    assert post(client, once).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/v1/completions", {}),
        ("PUT", "/v1/chat/completions", {}),
        ("POST", "/v1/chat/completions?x=1", {}),
        ("POST", "//v1/chat/completions", {}),
        ("POST", "/v1/chat/completions", {"x-domicile-project": "other"}),
    ],
)
def test_a_token_is_for_one_method_path_and_project(client, method, path, headers):
    answer = client.request(method, path, content=BODY, headers={"x-domicile-token": token().decode(), **headers})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "request_token")


def test_a_call_of_a_project_needs_its_header_as_it_was_signed(client):
    for project, status in (("main", 200), ("main2", 401), (None, 401)):
        headers = {"x-domicile-token": token(project="main").decode()}
        headers |= {} if project is None else {"x-domicile-project": project}
        assert client.post("/v1/chat/completions", content=BODY, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/sleep"), ("POST", "/wake"), ("POST", "/scrub"), ("GET", "/metrics"), ("POST", "/tokenize"),
     ("POST", "/detokenize"), ("GET", "/v1/models"), ("POST", "/readyz"), ("OPTIONS", "/healthz"), ("GET", "/")],
)  # fmt: skip
def test_everything_but_health_needs_a_token(client, method, path):
    assert client.request(method, path).status_code == 401
    signed = {"x-domicile-token": token(method=method, path=path, body=b"").decode()}
    assert client.request(method, path, headers=signed).status_code in (404, 405), "it reaches the application"


def test_what_is_remembered_is_bounded_and_forgotten_with_its_time(monkeypatch):
    monkeypatch.setattr("backend.server.request_lock.MAX_TAKEN", 3)
    clock = [NOW]
    one = RequestLock(None, KEY.public_key(), tenant="acme", backend="acme-1", now=lambda: clock[0])

    def take(claims):
        one._taken.take(claims.id, claims.expires)

    for _ in range(3):
        take(one.check([token()]))
    with pytest.raises(TokenRefused, match="more request tokens"):
        take(one.check([token()]))
    clock[0] = NOW + LIFETIME_S + 31
    take(one.check([token(now=clock[0])]))
    assert len(one._taken._taken) == 1


def test_a_key_file_that_is_none_is_told_by_its_name(tmp_path):
    file = tmp_path / "requests.pem"
    with pytest.raises(ConfigError, match=r"requests\.pem"):
        read_key(file)
    elliptic = generate_private_key(SECP256R1()).public_key()
    file.write_bytes(elliptic.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ConfigError, match="not Ed25519"):
        read_key(file)


def test_the_public_half_is_written_where_backends_read_it(tmp_path):
    from regions.identity.encrypted_file import PLAIN

    signer = RequestSigner.open(tmp_path / "secrets" / "requests", PLAIN)
    file = signer.write_public(tmp_path / "ca" / "requests.pem")
    again = RequestSigner.open(tmp_path / "secrets" / "requests", PLAIN)
    RequestLock(None, read_key(file), tenant="acme", backend="acme-1").check(
        [
            again.field(tenant="acme", backend="acme-1", method="GET", path="/", project="", decision="d", digest=b"")
            .partition(": ")[2]
            .strip()
            .encode()
        ]
    )
    assert (tmp_path / "secrets" / "requests").stat().st_mode & 0o077 == 0


def test_the_key_of_a_mark_reaches_the_application_with_its_token_and_in_no_other_way():
    seen = []

    async def note(request):
        seen.append(request.scope[MARK_KEY])
        return Response(b"")

    app = Starlette(routes=[Route("/v1/chat/completions", note, methods=["POST"])])
    with TestClient(lock(app)) as client:
        assert post(client, token(mark_key=b"k" * 32)).status_code == 200
        assert post(client, token()).status_code == 200
        body = b'{"wmk": "a2tr", "domicile.mark_key": "a2tr", "mark_key": "a2tr"}'
        assert post(client, token(body=body), body=body).status_code == 200
    assert seen == [b"k" * 32, None, None]


@pytest.mark.parametrize("key", ["", "AAAA", "A" * 44, "not base64!", 7, None, ["A"]])
def test_a_key_of_another_form_is_refused_unless_there_is_none(key):
    sent = [forged(claims(bod=urlsafe_b64encode(sha256(BODY).digest()).rstrip(b"=").decode(), wmk=key))]
    if key is None:
        assert lock().check(sent).mark_key is None
        return
    with pytest.raises(TokenRefused, match="not one of this cell's"):
        lock().check(sent)


def test_no_representation_of_a_token_shows_the_key():
    assert "kkk" not in repr(lock().check([token(mark_key=b"k" * 32)]))


ASKER = "spiffe://domicile.eu-1/tenant/acme/region/eu-fr/backend/acme-1"
PLACE = PrefillPlace(
    "acme-2", "spiffe://domicile.eu-1/tenant/acme/region/eu-fr/backend/acme-2", "10.0.0.2", 9000, ASKER
)


def pair(**changed):
    """The tokens of a call whose prompt another backend computes: of the call, and of the transfer."""
    return tuple(value.partition(": ")[2].encode() for value in line(prefill=PLACE, **changed).splitlines())


def other():
    """The lock of the backend that computes the prompt."""
    return RequestLock(None, KEY.public_key(), tenant="acme", backend="acme-2", now=lambda: NOW)


def granted(*headers):
    """What the application behind the lock is told of the backend that computes the prompt."""
    found = []

    async def note(request):
        found.append(request.scope[PREFILL_KEY])
        return Response()

    app = Starlette(routes=[Route("/v1/chat/completions", note, methods=["POST"])])
    with TestClient(lock(app)) as client:
        sent = [(name, value.decode()) for name, value in headers]
        assert client.post("/v1/chat/completions", content=BODY, headers=sent).status_code == 200
    return found[0]


def test_a_call_brings_the_backend_that_computes_its_prompt_and_the_token_for_it():
    call, transfer = pair()
    found = granted(("x-domicile-token", call), ("x-domicile-prefill", transfer))
    assert (found.backend, found.uri, found.host, found.port) == (PLACE.backend, PLACE.uri, "10.0.0.2", 9000)
    assert found.token == transfer
    assert transfer.decode() not in repr(found)


def test_without_the_other_token_or_the_claim_no_other_backend_is_asked():
    call, transfer = pair()
    assert granted(("x-domicile-token", call)) is None
    assert granted(("x-domicile-token", token()), ("x-domicile-prefill", transfer)) is None
    twice = [("x-domicile-prefill", transfer)] * 2
    assert granted(("x-domicile-token", call), *twice) is None


def test_a_transfer_is_admitted_once_for_the_backend_that_is_named():
    _, transfer = pair(project="web")
    one = other()
    with pytest.raises(TokenRefused, match="to show"):
        one.admit_transfer(transfer, PLACE.uri)
    assert one.admit_transfer(transfer, ASKER) == "web"
    with pytest.raises(TokenRefused, match="used already"):
        one.admit_transfer(transfer, ASKER)


def test_a_token_of_a_call_admits_no_transfer_and_that_of_a_transfer_no_call(client):
    call, transfer = pair()
    for wrong in (call, token(), token(backend="acme-2")):
        with pytest.raises(TokenRefused):
            other().admit_transfer(wrong, ASKER)
    assert post(client, transfer).status_code == 401
    with pytest.raises(TokenRefused, match="another backend"):
        lock().admit_transfer(transfer, ASKER)


@pytest.mark.parametrize(
    "claim",
    [{"ask": 3}, {"pre": "acme-2"}, {"pre": {"id": "a", "uri": "b", "host": "c"}},
     {"pre": {"id": "a", "uri": "b", "host": "c", "port": 0}},
     {"pre": {"id": "a", "uri": "b", "host": "c", "port": 65536}},
     {"pre": {"id": 1, "uri": "b", "host": "c", "port": 1}}],
)  # fmt: skip
def test_a_claim_of_another_shape_opens_nothing(claim):
    with pytest.raises(TokenRefused, match="not one of this cell's"):
        lock().check([forged(claims(**claim))])


def test_that_an_answer_commits_reaches_the_application_with_its_token_and_in_no_other_way():
    seen = []

    async def note(request):
        seen.append(request.scope[COMMITS])
        return Response(b"")

    app = Starlette(routes=[Route("/v1/chat/completions", note, methods=["POST"])])
    with TestClient(lock(app)) as client:
        assert post(client, token(commits=True)).status_code == 200
        assert post(client, token()).status_code == 200
        body = b'{"act": true, "domicile.commits": true, "commits": true}'
        assert post(client, token(body=body), body=body).status_code == 200
    assert seen == [True, False, False]


@pytest.mark.parametrize("said", ["true", 1, 0, [], {}])
def test_a_wish_of_another_form_is_refused(said):
    sent = [forged(claims(bod=urlsafe_b64encode(sha256(BODY).digest()).rstrip(b"=").decode(), act=said))]
    with pytest.raises(TokenRefused, match="not one of this cell's"):
        lock().check(sent)
