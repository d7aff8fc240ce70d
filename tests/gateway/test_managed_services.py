"""Managed services: known by a public authority and their name, watched by their key, and sent redacted prompts alone.

The test's authority stands for the public ones: `SSL_CERT_FILE` names it as the system's store.
"""

import asyncio
import json
import ssl
from contextlib import AsyncExitStack
from hashlib import sha256

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from typer.testing import CliRunner

from gateway.cli.app import _recorded_admin, app
from gateway.database.errors import InvalidValue, NotFound, NotReady
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.backend.certificates import Authority, Files
from tests.fakes.lab import OPEN_POLICY, POLICY, Lab, chat, lab
from tests.gateway.test_own_servers import ANSWER

REDACTING = POLICY.replace("card: mask", "card: mask, national_id: mask", 1)
LOOSE = POLICY + "backend: {managed: unredacted}\n"
IDENTITY = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-cloud")
RECORDING, REFUSING = Trust(public=True), Trust(public=True, changed_key="refuse")


@pytest.fixture
def ca(tmp_path, monkeypatch):
    made = Authority(tmp_path / "public")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.cert))
    return made


def new_key():
    return ec.generate_private_key(ec.SECP256R1())


def spki(key):
    return sha256(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def issued(ca, key, name="localhost", days=(-1, 1)):
    """A certificate for that key, as the authority would issue it again."""
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    builder = ca._builder(x509.Name([]), key.public_key(), *days).add_extension(names, critical=True)
    serial = x509.random_serial_number()
    files = Files(ca._folder / f"{serial}.pem", ca._folder / f"{serial}.key")
    files.cert.write_bytes(builder.sign(ca._key, SHA256()).public_bytes(Encoding.PEM))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


class Service:
    """Speaks as much of OpenAI's API over TLS as a call takes, on a port that it keeps. `status` of its answers."""

    def __init__(self, files, status=200):
        self.received, self.status, self.port = [], status, 0
        self.show(files)

    def show(self, files):
        """To connections to come; those that are open are closed after their next answer."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.cert, files.key)

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"https://localhost:{self.port}"
        return self

    async def __aexit__(self, *error):
        self._server.close()

    async def restarted(self, files):
        self._server.close()
        self.show(files)
        await self.__aenter__()

    async def _serve(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            if head.startswith(b"POST"):
                self.received.append((head, json.loads(body)))
            said = json.dumps(ANSWER if self.status == 200 else {"error": {"message": "no"}}).encode()
            more = b"content-type: application/json\r\nconnection: close\r\nlocation: https://elsewhere.example/\r\n"
            writer.write(b"HTTP/1.1 %d X\r\n%scontent-length: %d\r\n\r\n%s" % (self.status, more, len(said), said))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def registering(service, trust=RECORDING, policy=REDACTING, url=None):
    def set_up(made):
        made.tenant("acme", policy)
        made.control.register_backend(IDENTITY, url=url or service.url, models=["small"], kind="managed", trust=trust)

    return set_up


def of_keys(made):
    return [event for event in made.events() if event["type"].startswith("backend.key_")]


async def test_it_gets_redacted_prompts_with_its_token_and_who_answered_is_on_record(tmp_path, ca):
    token = tmp_path / "token"
    token.write_text("scw-secret\n")
    token.chmod(0o600)
    key = new_key()
    async with Service(issued(ca, key)) as service:
        trust = Trust(public=True, key_file=str(token))
        async with lab(tmp_path, set_up=registering(service, trust), backends={}) as made:
            answer = await made.post(chat("write to jan@example.org", cache_salt="x"))
            assert (answer.status, answer.text) == (200, "Bonjour")
            assert (await made.post(chat("again"))).status == 200
            events, keys = made.events(), of_keys(made)
    head, body = service.received[0]
    assert b"authorization: Bearer scw-secret\r\n" in head and f"host: localhost:{service.port}".encode() in head
    assert "jan@example.org" not in json.dumps(body) and "cache_salt" not in body, "nothing that is not OpenAI's own"
    connected = [event for event in events if event["type"] == "routing.connected"]
    assert {event["kind"] for event in connected} == {"managed"} and keys == []
    assert "scw-secret" not in json.dumps(events)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (OPEN_POLICY, "email, iban, card, phone, national_id, secret"),
        (POLICY, "national_id"),
        (REDACTING.replace("email: pseudonymise", "email: tag"), "email"),
        (REDACTING.replace("iban: pseudonymise, ", ""), "iban"),
        (POLICY + "backend: {managed: redacted}\n", "national_id"),
    ],
    ids=["nothing", "one", "tagged", "missing", "said"],
)
async def test_a_policy_that_does_not_redact_keeps_prompts_from_it(tmp_path, ca, policy, named):
    async with (
        Service(issued(ca, new_key())) as service,
        lab(tmp_path, set_up=registering(service, policy=policy), backends={}) as made,
    ):
        answer = await made.post(chat("hello"))
        assert answer.status == 403
        assert f"the policy leaves {named} of prompts as they are" in answer.body.decode()
    assert service.received == []


async def test_a_policy_that_says_so_lets_it_have_prompts_as_they_are(tmp_path, ca):
    async with Service(issued(ca, new_key())) as service:
        policy = OPEN_POLICY + "backend: {managed: unredacted}\n"
        async with lab(tmp_path, set_up=registering(service, policy=policy), backends={}) as made:
            assert (await made.post(chat("write to jan@example.org"))).status == 200
    assert "jan@example.org" in json.dumps(service.received[0][1])


@pytest.mark.parametrize("wanted", ["{single_tenant: declared}", "{single_tenant: attested}", "{kind: openai}"])
async def test_rules_that_ask_for_more_than_a_managed_service_is_refuse_it(tmp_path, ca, wanted):
    async with Service(issued(ca, new_key())) as service:
        policy = f"{REDACTING}backend: {wanted}\n"
        async with lab(tmp_path, set_up=registering(service, policy=policy), backends={}) as made:
            assert (await made.post(chat("hello"))).status == 403
    assert service.received == []


@pytest.mark.parametrize("wrong", ["name", "expired", "authority"])
async def test_not_one_byte_goes_to_a_wrong_certificate(tmp_path, ca, wrong):
    files = {
        "name": lambda: issued(ca, new_key(), "other.example"),
        "expired": lambda: issued(ca, new_key(), days=(-9, -1)),
        "authority": lambda: issued(Authority(tmp_path / "private"), new_key()),
    }[wrong]()
    async with Service(files) as service, lab(tmp_path, set_up=registering(service), backends={}) as made:
        answer = await made.post(chat("hello"))
        assert answer.status == 503 and answer.error["code"] in ("backend_identity", "backend_unavailable")
    assert service.received == []


async def test_the_name_may_be_another_than_the_hosts(tmp_path, ca):
    async with Service(issued(ca, new_key(), "api.cloud.example")) as service:
        trust = Trust(public=True, name="api.cloud.example")
        async with lab(tmp_path, set_up=registering(service, trust), backends={}) as made:
            assert (await made.post(chat("hello"))).status == 200


async def test_a_changed_key_is_on_record_before_a_request_and_each_key_once(tmp_path, ca):
    first, second = new_key(), new_key()
    async with (
        Service(issued(ca, first)) as service,
        lab(tmp_path, set_up=registering(service), backends={}) as made,
    ):
        assert (await made.post(chat("one"))).status == 200
        await service.restarted(issued(ca, first))
        assert (await made.post(chat("renewed"))).status == 200
        assert of_keys(made) == [], "another certificate for the same key"
        for key in (second, first, second):  # two machines behind one name
            await service.restarted(issued(ca, key))
            assert (await made.post(chat("two"))).status == 200
        (changed,) = of_keys(made)
        types = [event["type"] for event in made.events()]
    assert changed["type"] == "backend.key_changed" and changed["backend_id"] == "acme-cloud"
    assert (changed["before"], changed["after"]) == (spki(first), spki(second))
    assert changed["name"] == "localhost" and changed["issuer"] == "test CA"
    assert len(service.received) == 5
    last = max(n for n, kind in enumerate(types) if kind == "inference.completed")
    assert types.index("backend.key_changed") < last


async def test_where_a_changed_key_is_refused_nothing_is_sent_until_it_is_accepted(tmp_path, ca):
    first, second = new_key(), new_key()
    async with (
        Service(issued(ca, first)) as service,
        lab(tmp_path, set_up=registering(service, REFUSING), backends={}) as made,
    ):
        assert (await made.post(chat("one"))).status == 200
        await service.restarted(issued(ca, second))
        answer = await made.post(chat("two"))
        assert (answer.status, answer.error["code"]) == (503, "backend_identity")
        assert len(service.received) == 1
        refused = of_keys(made)
        assert {event["type"] for event in refused} == {"backend.key_refused"}
        made.control.accept_backend_key("acme", "acme-cloud", refused[0]["after"])
        await made.taken_over()
        async with asyncio.timeout(60):
            while (await made.post(chat("three"))).status != 200:
                await asyncio.sleep(0.2)
        await service.restarted(issued(ca, first))
        assert (await made.post(chat("back"))).status == 200, "the first stays known"
    assert refused[0]["after"] == spki(second)


async def test_a_server_at_another_url_begins_anew(tmp_path, ca):
    async with (
        Service(issued(ca, new_key())) as one,
        Service(issued(ca, new_key())) as two,
        lab(tmp_path, set_up=registering(one, REFUSING), backends={}) as made,
    ):
        assert (await made.post(chat("one"))).status == 200
        made.control.register_backend(IDENTITY, url=two.url, models=["small"], kind="managed", trust=REFUSING)
        await made.taken_over()
        assert (await made.post(chat("two"))).status == 200
        assert of_keys(made) == []
    assert len(two.received) == 1


async def test_a_gateway_that_starts_later_knows_the_same_keys(tmp_path, ca):
    first, second = new_key(), new_key()
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(Service(issued(ca, first)))
        async with lab(tmp_path, set_up=registering(service, REFUSING), backends={}) as made:
            assert (await made.post(chat("one"))).status == 200
        await service.restarted(issued(ca, second))
        async with lab(tmp_path, set_up=lambda made: made.project("acme", "later"), backends={}) as made:
            assert (await made.post(chat("two"), key="acme/later")).status == 503
    assert len(service.received) == 1


@pytest.mark.parametrize(("status", "seen"), [(401, 502), (403, 502), (302, 502)])
async def test_a_token_that_was_revoked_and_a_redirect_are_failures_and_told_to_nobody(
    tmp_path, ca, status, seen, caplog
):
    token = tmp_path / "token"
    token.write_text("scw-secret\n")
    token.chmod(0o600)
    async with Service(issued(ca, new_key())) as service:
        trust = Trust(public=True, key_file=str(token))
        async with lab(tmp_path, set_up=registering(service, trust), backends={}) as made:
            assert (await made.post(chat("one"))).status == 200
            service.status = status
            answer = await made.post(chat("two"))
            assert answer.status == seen
    assert "scw-secret" not in answer.body.decode() + caplog.text and "elsewhere.example" not in answer.body.decode()
    assert all(head.startswith(b"POST /v1/chat/completions") for head, _ in service.received)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"trust": Trust(public=True), "url": "http://127.0.0.1:9"}, "is reached by https"),
        ({"trust": Trust(public=True), "single_tenant": "declared"}, "serves others too"),
        ({"trust": Trust(pin="0" * 64)}, "trusted by public authorities"),
        ({"trust": None}, "trusted by public authorities"),
        ({"trust": Trust(public=True, priority=True)}, "no priorities"),
        ({"trust": Trust(public=True), "kind": "openai"}, "register it as managed"),
    ],
    ids=lambda v: str(v)[:30],
)
async def test_what_makes_no_managed_service_is_refused(tmp_path, more, said):
    async with lab(tmp_path, backends={}) as made:
        given = {"url": "https://api.cloud.example", "models": ["small"], "kind": "managed", **more}
        with pytest.raises(InvalidValue, match=said):
            made.control.register_backend(IDENTITY, **given)


def test_a_ca_or_a_pin_and_public_authorities_exclude_each_other(ca):
    for more in ({"ca": ca.cert.read_text()}, {"pin": "0" * 64}):
        with pytest.raises(ValueError, match="leave ca and pin out"):
            Trust(public=True, **more)


async def test_keys_are_accepted_of_managed_services_alone_and_by_their_whole_name(tmp_path, ca):
    async with lab(tmp_path, set_up=None) as made:
        with pytest.raises(NotReady, match="no managed service"):
            made.control.accept_backend_key("acme", "acme-1", "0" * 64)
        with pytest.raises(InvalidValue, match="64 hex digits"):
            made.control.accept_backend_key("acme", "acme-1", "0" * 63)
        with pytest.raises(NotFound):
            made.control.accept_backend_key("globex", "acme-1", "0" * 64)


def test_from_a_shell_it_is_registered_listed_and_its_key_accepted(tmp_path, monkeypatch):
    monkeypatch.setenv("DOMICILE_DATA", str(tmp_path / "data"))

    def run(*words, status=0):
        said = CliRunner().invoke(app, [*words, "--json"] if status == 0 else [*words], obj=_recorded_admin)
        assert said.exit_code == status, said.output
        return json.loads(said.stdout) if status == 0 else said.output

    run("init", "--cell", "eu-1")
    run("tenant", "create", "acme")
    create = [
        "backend",
        "create",
        "acme",
        "cloud",
        "--region",
        "eu-fr-par",
        "--model",
        "m",
        "--url",
        "https://a.example",
    ]
    made = run(*create, "--managed", "--refuse-changed-key")
    assert made["kind"] == "managed" and made["single_tenant"] is None
    assert made["trust"]["public"] and made["trust"]["changed_key"] == "refuse"
    assert run("backend", "update", "acme", "cloud", "--accept-key", "0" * 64)["id"] == "cloud"
    (listed,) = run("backend", "list", "acme")
    assert listed["kind"] == "managed"
    acts = [event["type"] for event in Lab(tmp_path / "data", None).events()]
    assert "admin.backend.registered" in acts and acts[-1] == "admin.backend.key_accepted"
    assert "add --managed" in run(*create, "--refuse-changed-key", status=2)
    run(*create, "--managed", "--single-tenant", status=2)
