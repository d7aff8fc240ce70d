"""A tenant's own server, which is not our engine: the same gateway in front of it, trusted by its certificate alone."""

import asyncio
import ipaddress
import json
import ssl
from hashlib import sha256

import pytest
from cryptography import x509
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.database.errors import Invalid
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.backend.certificates import Authority
from tests.fakes.lab import POLICY, chat, lab

ANSWER = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "small",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Bonjour"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}  # fmt: skip
THEIRS = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-vllm")


class Server:
    """Speaks as much of OpenAI's API over TLS as a call takes, and keeps what it received."""

    def __init__(self, files):
        self.received = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.cert, files.key)

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.url = f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error):
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                if head.startswith(b"POST"):
                    self.received.append((head, json.loads(body)))
                said = json.dumps(ANSWER).encode()
                kind = b"content-type: application/json\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n%s" % (kind, len(said), said))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
def files(tmp_path):
    ca = Authority(tmp_path / "ca")
    return ca.issue("vllm", [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])


def pin_of(files):
    return sha256(ssl.PEM_cert_to_DER_cert(files.cert.read_text())).hexdigest()


def registering(url, trust, policy=POLICY, **facts):
    def set_up(made):
        made.tenant("acme", policy)
        made.control.register_backend(THEIRS, url=url, models=["small"], kind="openai", trust=trust, **facts)

    return set_up


async def test_it_is_called_with_its_key_redacted_recorded_and_with_evidence_of_who_answered(tmp_path, files):
    key = tmp_path / "key"
    key.write_text("sk-theirs\n")
    key.chmod(0o600)
    async with Server(files) as server:
        trust = Trust(pin=pin_of(files), key_file=str(key))
        async with lab(tmp_path, set_up=registering(server.url, trust), backends={}) as made:
            answer = await made.post(chat("write to jan@example.org"))
            assert (answer.status, answer.text) == (200, "Bonjour")
            assert answer.headers["x-domicile-country"] == "FR"
            assert answer.headers["x-domicile-operator"].startswith("Domicile France SAS")
            events = made.events()
    (head, body) = server.received[0]
    assert b"authorization: Bearer sk-theirs\r\n" in head and "jan@example.org" not in json.dumps(body)
    evidence = [event for event in events if event["type"] == "routing.connected"]
    assert {one["peer_sha256"] for one in evidence} == {pin_of(files)}
    assert evidence[0]["kind"] == "openai" and evidence[0]["address"] == server.url.removeprefix("https://")
    types = [event["type"] for event in events]
    assert types.index("routing.connected") < types.index("inference.completed")
    assert "sk-theirs" not in json.dumps(events)


@pytest.mark.parametrize("plain", [False, True])
async def test_what_is_not_openais_own_is_kept_from_a_server_that_would_refuse_it(tmp_path, files, plain):
    async with Server(files) as server:
        set_up = registering(server.url, Trust(pin=pin_of(files), plain=plain))
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            assert (await made.post(chat("hello"))).status == 200
    assert ("cache_salt" in server.received[0][1]) is not plain


@pytest.mark.parametrize(("trust", "place"), [({}, None), ({"priority": True}, -1), ({"plain": True}, None)], ids=str)
async def test_the_class_of_the_policy_reaches_a_server_that_queues_by_it_and_no_other(tmp_path, files, trust, place):
    async with Server(files) as server:
        set_up = registering(server.url, Trust(pin=pin_of(files), **trust), POLICY + "priority: high\n")
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            assert (await made.post(chat("hello", priority=-5))).status == 200
    assert server.received[0][1].get("priority") == place


async def test_another_certificate_gets_no_byte(tmp_path, files):
    async with (
        Server(files) as server,
        lab(tmp_path, set_up=registering(server.url, Trust(pin="0" * 64)), backends={}) as made,
    ):
        answer = await made.post(chat("hello"))
        assert answer.status == 503
        assert "routing.connected" not in made.types()
    assert server.received == []


@pytest.mark.parametrize(
    ("demand", "rule"),
    [("{kind: domicile}", "backend.kind"), ("{single_tenant: attested}", "backend.single_tenant")],
)
async def test_a_policy_may_ask_for_our_engine_or_for_an_attested_single_tenant(tmp_path, files, demand, rule):
    async with Server(files) as server:
        policy = POLICY + f"backend: {demand}\n"
        set_up = registering(server.url, Trust(pin=pin_of(files)), policy, single_tenant="declared")
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            answer = await made.post(chat("hello"))
            assert (answer.status, answer.error["code"]) == (403, "residency_denied")
            assert [reason["rule"] for reason in answer.error["reasons"]] == [rule]
    assert server.received == []


def test_a_server_that_cannot_prove_who_it_is_is_not_registered(control, acme):
    theirs = BackendIdentity("demo", "acme", "eu-fr-par", "acme-vllm")
    for wrong in (
        {"kind": "openai"}, {"kind": "openai", "trust": Trust(name="x")}, {"kind": "vllm"},
        {"kind": "openai", "trust": Trust(pin="0" * 64), "single_tenant": "attested"},
        {"kind": "domicile", "trust": Trust(pin="0" * 64)}, {"kind": "domicile", "single_tenant": "declared"},
    ):  # fmt: skip
        with pytest.raises(Invalid):
            control.register_backend(theirs, url="https://10.0.0.7:8000", models=["m"], **wrong)
    made = control.register_backend(
        theirs, url="https://10.0.0.7:8000", models=["m"], kind="openai", trust=Trust(pin="0" * 64)
    )
    assert (made.kind, made.single_tenant, made.trust.pin) == ("openai", None, "0" * 64)


def test_it_is_registered_listed_and_revoked_from_a_shell(tmp_path, files):
    def run(*arguments):
        return CliRunner().invoke(app, [*arguments, "--data", str(tmp_path / "data")], env={"COLUMNS": "200"})

    assert run("init").exit_code == 0
    assert run("tenant", "create", "acme").exit_code == 0
    command = ("backend", "create", "acme", "acme-vllm", "--region", "eu-fr-par", "--url", "https://10.0.0.7:8000",
               "--model", "small")  # fmt: skip
    assert "private CA or a pinned certificate" in run(*command).stderr
    made = run(*command, "--pin", str(files.cert), "--json")
    assert json.loads(made.output)["trust"] == {
        "ca": None,
        "name": None,
        "pin": pin_of(files),
        "key_file": None,
        "plain": False,
        "priority": False,
        "watermark": None,
        "public": False,
        "changed_key": "record",
    }
    assert "openai" in run("backend", "list", "acme").output
    assert json.loads(run("backend", "revoke", "acme", "acme-vllm", "--yes", "--json").output)["revoked_at"]
    for option, file, status in (
        ("--pin", "/none", 2),
        ("--ca", "/none", 2),
        ("--ca", files.key, 2),
        ("--pin", files.key, 2),
    ):
        refused = run(*command, option, str(file))
        assert refused.exit_code == status and refused.stderr.startswith("error: ")
