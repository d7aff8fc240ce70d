"""docs/behind-a-proxy.md: its nginx and its HAProxy in front of a gateway, as the page configures all three."""

import asyncio
import getpass
import json
import re
import shutil
import signal
import ssl
import subprocess
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gateway.records.control import Scopes
from tests.fakes.lab import chat
from tests.fakes.needs import missing
from tests.fakes.ports import free_port
from tests.gateway.test_stopping import gateway, installation

TEXT = (Path(__file__).parents[2] / "docs" / "behind-a-proxy.md").read_text()
NGINX = """
daemon off; pid {folder}/pid; error_log stderr crit; worker_processes 1; user {user};
events {{ worker_connections 64; }}
http {{ access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
{page} }}
"""
STREAM = """
load_module {module};
daemon off; pid {folder}/pid; error_log stderr crit; worker_processes 1;
events {{ worker_connections 64; }}
stream {{
{page} }}
"""
STREAM_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
CHALLENGE = "/.well-known/acme-challenge/"
COMMANDS = {"nginx": ("-c", "{file}", "-p", "{folder}"), "haproxy": ("-db", "-f", "{file}")}
HERE, ELSEWHERE = "127.0.0.5", "127.0.0.6"


def block(kind, place=0):
    """The first of its kind on the page, or that at a place."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[place]


@contextmanager
def proxy(kind, folder, behind, acme=None):
    """The port of the page's proxy, in front of the gateway on `behind`. With nginx and `acme`, the page's server for
    ACME is on that port, too."""
    front, (key, chain) = free_port(), certificate()
    (folder / "ai.key").write_bytes(key)
    (folder / "ai.pem").write_bytes(chain + (key if kind == "haproxy" else b""))
    page = block(kind).replace("/etc/ssl/", f"{folder}/").replace("listen 443 ssl", f"listen 127.0.0.1:{front} ssl")
    if acme is not None:
        page += block("nginx", 2).replace("listen 80", f"listen 127.0.0.1:{acme}").replace("/var/www", str(folder))
    text = placed(page, front, behind)
    with process(
        kind, folder, NGINX.format(folder=folder, page=text, user=getpass.getuser()) if kind == "nginx" else text
    ):
        yield front


@contextmanager
def passing_through(kind, folder, behind):
    """The port of the page's proxy that leaves TLS alone and speaks the PROXY protocol."""
    front = free_port()
    text = placed(block(kind, 1), front, behind)
    if kind == "nginx":
        if not STREAM_MODULE.exists():
            missing("nginx's module stream is not installed: apt-get install libnginx-mod-stream")
        text = STREAM.format(module=STREAM_MODULE, folder=folder, page=text)
    with process(kind, folder, text):
        yield front


def placed(page, front, behind):
    """The page's block with addresses of this host."""
    page = page.replace("127.0.0.1:8400", f"127.0.0.1:{behind}").replace("listen 443;", f"listen 127.0.0.1:{front};")
    return re.sub("bind :443", f"bind 127.0.0.1:{front}", page)


@contextmanager
def process(kind, folder, text):
    command = shutil.which(kind) or shutil.which(f"/usr/sbin/{kind}")
    if command is None:
        missing(f"{kind} is not installed: apt-get install {kind}")
    file = folder / f"{kind}.conf"
    file.write_text(text)
    words = [command, *(each.format(file=file, folder=folder) for each in COMMANDS[kind])]
    with (folder / "proxy.log").open("w") as log, subprocess.Popen(words, stdout=log, stderr=log) as running:
        try:
            yield
        finally:
            running.terminate()


def certificate():
    """(key, certificate) in PEM, for one test."""
    now = datetime.now(UTC)
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem, made.sign(key, SHA256()).public_bytes(Encoding.PEM)


@asynccontextmanager
async def calling_from(address, base):
    """Calls over connections from that address, which the proxy sees."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(local_addr=(address, 0), ssl=trusting)

    async with aiohttp.ClientSession(base, connector=connector) as http:

        async def call(key, **headers):
            sent = {"authorization": f"Bearer {key}", **headers}
            async with http.post("/v1/chat/completions", json=chat("hi", stream=True), headers=sent) as answer:
                return answer.status, [line async for line in answer.content if line.startswith(b"data: ")]

        yield http, call


async def up(http):
    async with asyncio.timeout(30):
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get("/readyz") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_the_proxy_of_the_page_streams_and_says_who_calls(kind, tmp_path):
    page = yaml.safe_load(block("yaml"))
    settings = {**page, "listen": {**page["listen"], "port": 0, "lame_duck_s": 0}, "log": {"access": True}}
    async with installation(tmp_path) as (made, _):
        bound = bound_key(made)
        async with gateway(made, tmp_path, **settings) as (_, direct):
            acme = free_port() if kind == "nginx" else None
            with proxy(kind, tmp_path, urlsplit(direct).port, acme) as port:
                await check_who_calls(f"https://127.0.0.1:{port}", bound)
                await check_http2(f"https://127.0.0.1:{port}", bound)
                if acme is not None:
                    await check_challenge(tmp_path, acme)
            async with calling_from("127.0.0.1", direct) as (_, call):
                assert (await call(bound))[0] == 401, "a trusted proxy that names no client"
                assert (await call(bound, **{"x-forwarded-for": HERE}))[0] == 200
    check_access_log(tmp_path, bound)


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
async def test_a_proxy_that_passes_tls_through_says_who_calls_by_the_proxy_protocol(kind, tmp_path):
    page = yaml.safe_load(block("yaml", 1))
    files = {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")}
    settings = {**page, "listen": {**page["listen"], "port": 0, **files}, "log": {"access": True}}
    before = renew(tmp_path)
    async with installation(tmp_path) as (made, _):
        bound = bound_key(made)
        async with gateway(made, tmp_path, **settings) as (running, direct):
            with passing_through(kind, tmp_path, urlsplit(direct).port) as port:
                await check_who_calls(f"https://127.0.0.1:{port}", bound)
                assert shown(port) == before
                after = renew(tmp_path)
                running.send_signal(signal.SIGHUP)
                async with asyncio.timeout(30):
                    while await asyncio.to_thread(shown, port) != after:
                        await asyncio.sleep(0.1)
            async with calling_from("127.0.0.1", direct) as (_, call):
                with pytest.raises(aiohttp.ClientError):
                    await call(bound)
            async with calling_from(HERE, direct) as (_, call):
                assert (await call(bound))[0] == 200, "not a proxy's address"
    check_access_log(tmp_path, bound)


def bound_key(made):
    return made.control.create_key("acme", "main", scopes=Scopes(networks=[f"{HERE}/32"]))[1].token


async def check_who_calls(base, bound):
    """A key bound to HERE opens from there and from nowhere else, whatever a client says."""
    async with calling_from(HERE, base) as (http, call):
        await up(http)
        status, events = await call(bound)
        assert status == 200
        assert events[-1] == b"data: [DONE]\n"
        assert (await call(bound, **{"x-forwarded-for": "192.0.2.9"}))[0] == 200, "nobody believes it"
    async with calling_from(ELSEWHERE, base) as (http, call):
        assert (await call(bound))[0] == 401
        assert (await call(bound, **{"x-forwarded-for": HERE, "forwarded": f"for={HERE}"}))[0] == 401
        async with http.get("/metrics") as answer:
            assert answer.status == 404, "not an operator's address"


async def check_http2(base, bound):
    """A stream over HTTP/2, which curl speaks; by `%{http_version}` it says what was spoken."""
    curl = shutil.which("curl") or missing("curl is not installed: apt-get install curl")
    sent = json.dumps(chat("hi", stream=True))
    headers = ("-H", f"authorization: Bearer {bound}", "-H", "content-type: application/json")
    call = await asyncio.create_subprocess_exec(
        curl,
        "-sSkN",
        "--http2",
        "--interface",
        HERE,
        *headers,
        "-d",
        sent,
        "-w",
        "HTTP/%{http_version} %{http_code}",
        f"{base}/v1/chat/completions",
        stdout=subprocess.PIPE,
    )
    said, _ = await call.communicate()
    assert said.endswith(b"data: [DONE]\n\nHTTP/2 200"), said[-200:]


async def check_challenge(folder, port):
    """The answer to a challenge of ACME comes from the folder; all else is sent on to https."""
    file = folder / "acme" / CHALLENGE.strip("/") / "token"
    file.parent.mkdir(parents=True)
    file.write_text("token.thumbprint")
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        async with http.get(f"{CHALLENGE}token") as answer:
            assert await answer.text() == "token.thumbprint"
        async with http.get("/v1/models?x=1", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["location"]) == (308, "https://127.0.0.1/v1/models?x=1")


def check_access_log(folder, bound):
    lines = [line for line in (folder / "up.log").read_text().splitlines() if " domicile.access " in line]
    assert any(f"status=200 address={HERE} tenant=acme" in line for line in lines)
    assert all(bound not in line for line in lines)


def renew(folder):
    """A new certificate of the gateway; as DER."""
    key, chain = certificate()
    for name, content in (("key.pem", key), ("cert.pem", chain)):
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return ssl.PEM_cert_to_DER_cert(chain.decode())


def shown(port):
    """The certificate that a new connection is shown."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))
