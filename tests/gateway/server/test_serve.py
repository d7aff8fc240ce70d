"""The socket: where it listens, and how it stops."""

import asyncio
import os
import signal
import socket
import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest

from gateway.configuration.settings import Listen
from gateway.server import serve
from gateway.server.serve import TO_STOP, Signals, serving
from regions.identity.authority import CertificateAuthority
from regions.identity.identity import GatewayIdentity
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import chat, lab


async def hello(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@asynccontextmanager
async def answer(url, **options):
    async with aiohttp.ClientSession() as http, http.get(url, **options) as got:
        yield got


async def test_port_zero_takes_a_free_one_and_says_which():
    async with serving(hello, Listen(port=0)) as port, answer(f"http://127.0.0.1:{port}/") as got:
        assert await got.read() == b"hi"
        assert "server" not in got.headers


@pytest.mark.parametrize(("keep_alive_s", "is_closed"), [(0, True), (serve.KEEP_ALIVE_S, False)])
async def test_an_idle_connection_is_kept_for_longer_than_load_balancers_keep_theirs(
    monkeypatch, keep_alive_s, is_closed
):
    monkeypatch.setattr(serve, "KEEP_ALIVE_S", keep_alive_s)
    async with serving(hello, Listen(port=0)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(1 if is_closed else 2):  # a kept connection takes another request
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        if is_closed:
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this host has no IPv6")
async def test_it_listens_on_ipv6_where_it_is_told_to():
    async with serving(hello, Listen(host="::1", port=0)) as port, answer(f"http://[::1]:{port}/") as got:
        assert got.status == 200


async def test_a_taken_address_is_named_and_leaves_the_first_one_alone():
    async with serving(hello, Listen(port=0)) as port:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            async with serving(hello, Listen(port=port)):
                pytest.fail("both listen")
        async with answer(f"http://127.0.0.1:{port}/") as got:
            assert got.status == 200


async def test_it_ends_tls_itself_where_it_has_a_certificate(tmp_path):
    authority = CertificateAuthority.open(tmp_path / "ca", "eu-1")
    files = authority.issue(GatewayIdentity("eu-1", "acme"), tmp_path / "leaf")
    trusting = ssl.create_default_context(cafile=str(files.root))
    trusting.check_hostname = False
    listen = Listen(port=0, cert_file=files.certificate, key_file=files.key)
    async with serving(hello, listen) as port:
        async with answer(f"https://127.0.0.1:{port}/", ssl=trusting) as got:
            assert got.status == 200
        with pytest.raises(aiohttp.ClientError):
            async with answer(f"http://127.0.0.1:{port}/"):
                pass


async def test_when_it_has_stopped_nobody_can_connect():
    async with serving(hello, Listen(port=0)) as port:
        pass
    with pytest.raises(aiohttp.ClientConnectorError):
        async with answer(f"http://127.0.0.1:{port}/"):
            pass


async def test_an_answer_that_outlasts_the_grace_is_cut_and_recorded_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.server.serve.GRACE_S", 0.3)
    backend = FakeBackend(delay_s=20)
    async with aiohttp.ClientSession() as http:
        async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
            headers = {"authorization": f"Bearer {made.key()}"}
            post = http.post(f"{made.base}/v1/chat/completions", json=chat("hi"), headers=headers)
            waiting = asyncio.ensure_future(post)
            while not backend.bodies:
                await asyncio.sleep(0.01)
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(outcome, aiohttp.ClientError) or outcome.status >= 500
    assert made.acts()[-1]["reason"] == "gateway_stopped"
    assert made.events("_system")[-1]["type"] == "system.stop"
    assert made.verify().ok


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_either_signal_asks_to_stop_and_ends_nothing_by_itself(number):
    loop = asyncio.get_running_loop()
    signals = Signals(*TO_STOP)
    try:
        os.kill(os.getpid(), number)
        assert await asyncio.wait_for(signals.next(), 2) is number
    finally:
        for installed in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(installed)


@pytest.mark.parametrize(("content", "why"), [(None, "No such file or directory"), ("no PEM", "not a certificate")])
async def test_a_certificate_that_cannot_be_used_is_named_with_its_setting(tmp_path, content, why):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    if content is not None:
        certificate.write_text(content)
        key.write_text(content)
    with pytest.raises(OSError, match=rf"listen\.cert_file .*cert\.pem or listen\.key_file .*key\.pem: {why}"):
        async with serving(hello, Listen(port=0, cert_file=certificate, key_file=key)):
            pass
