"""docs/behind-a-proxy.md: its nginx and its HAProxy in front of a gateway, as the page configures all three."""

import asyncio
import re
import shutil
import socket
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
from tests.gateway.test_stopping import gateway, installation

TEXT = (Path(__file__).parents[2] / "docs" / "behind-a-proxy.md").read_text()
NGINX = """
daemon off; pid {folder}/pid; error_log stderr crit; worker_processes 1;
events {{ worker_connections 64; }}
http {{ access_log off;
  client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
{page} }}
"""
COMMANDS = {"nginx": ("-c", "{file}", "-p", "{folder}"), "haproxy": ("-db", "-f", "{file}")}
HERE, ELSEWHERE = "127.0.0.5", "127.0.0.6"


def block(kind):
    """The first of its kind on the page."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)[0]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def proxy(kind, folder, behind):
    """The port of the page's proxy, in front of the gateway on `behind`."""
    command = shutil.which(kind) or shutil.which(f"/usr/sbin/{kind}")
    if command is None:
        missing(f"{kind} is not installed: apt-get install {kind}")
    front, (key, chain) = free_port(), certificate()
    (folder / "ai.key").write_bytes(key)
    (folder / "ai.pem").write_bytes(chain + (key if kind == "haproxy" else b""))
    page = block(kind).replace("/etc/ssl/", f"{folder}/").replace("127.0.0.1:8400", f"127.0.0.1:{behind}")
    page = page.replace("listen 443 ssl", f"listen 127.0.0.1:{front} ssl").replace(
        "bind :443", f"bind 127.0.0.1:{front}"
    )
    file = folder / f"{kind}.conf"
    file.write_text(NGINX.format(folder=folder, page=page) if kind == "nginx" else page)
    words = [command, *(each.format(file=file, folder=folder) for each in COMMANDS[kind])]
    with (folder / "proxy.log").open("w") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            yield front
        finally:
            process.terminate()


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
        bound = made.control.create_key("acme", "main", scopes=Scopes(networks=[f"{HERE}/32"]))[1].token
        async with gateway(made, tmp_path, **settings) as (_, direct):
            behind = urlsplit(direct).port
            with proxy(kind, tmp_path, behind) as port:
                base = f"https://127.0.0.1:{port}"
                async with calling_from(HERE, base) as (http, call):
                    await up(http)
                    status, events = await call(bound)
                    assert status == 200
                    assert events[-1] == b"data: [DONE]\n"
                    assert (await call(bound, **{"x-forwarded-for": "192.0.2.9"}))[0] == 200, "nobody believes it"
                async with calling_from(ELSEWHERE, base) as (http, call):
                    assert (await call(bound))[0] == 401
                    assert (await call(bound, **{"x-forwarded-for": HERE}))[0] == 401
                    async with http.get("/metrics") as answer:
                        assert answer.status == 404, "not an operator's address"
            async with calling_from("127.0.0.1", direct) as (_, call):
                assert (await call(bound))[0] == 401, "a trusted proxy that names no client"
                assert (await call(bound, **{"x-forwarded-for": HERE}))[0] == 200
    lines = [line for line in (tmp_path / "up.log").read_text().splitlines() if " domicile.access " in line]
    assert any(f"status=200 address={HERE} tenant=acme" in line for line in lines)
    assert all(bound not in line for line in lines)
