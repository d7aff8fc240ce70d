"""The PROXY protocol at the listener, over real sockets, with TLS and without."""

import asyncio
import logging
import ssl
from collections import Counter
from contextlib import asynccontextmanager
from ipaddress import ip_network

import pytest

from gateway.configuration.settings import Listen
from gateway.server.connection import AT_ONCE
from gateway.server.proxies import proxied_listener
from gateway.server.serve import serving
from regions.identity.authority import CertificateAuthority
from regions.identity.identity import GatewayIdentity
from tests.gateway.server.proxies.test_proxy_header import FOUR, SIGNATURE, SIX, v2

LINE = b"PROXY TCP4 203.0.113.7 10.0.0.1 4711 443\r\n"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
PROXY, ELSEWHERE = "127.0.0.5", "127.0.0.6"


async def who(scope, receive, send):
    """Answers with the address of the client."""
    body = str(scope["client"] and scope["client"][0]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def listen(**settings):
    return Listen(port=0, proxy_protocol_from=(ip_network(f"{PROXY}/32"),), **settings)


async def said(port, *pieces, address=PROXY, pause=0.0, tls=None):
    """What comes back for bytes in these pieces; with `tls`, of which the first is sent in front of the handshake."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        for place, piece in enumerate(pieces):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
            if tls is not None and place == 0:
                await writer.start_tls(tls)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return head.split(b"\r\n")[0].split(b" ", 1)[1] + b" " + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
        return b""
    finally:
        writer.transport.abort()


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """(settings, the client's context) with a certificate of its own."""
    folder = tmp_path_factory.mktemp("tls")
    authority = CertificateAuthority.open(folder / "ca", "eu-1")
    files = authority.issue(GatewayIdentity("eu-1", "acme"), folder / "leaf")
    trusting = ssl.create_default_context(cafile=str(files.root))
    trusting.check_hostname = False
    return {"cert_file": files.certificate, "key_file": files.key}, trusting


@pytest.mark.parametrize(
    "header, client",
    [
        (LINE, b"203.0.113.7"),
        (v2(body=FOUR), b"203.0.113.7"),
        (v2(family=0x21, body=SIX), b"2001:db8::7"),
        (v2(command=0x20), b"None"),
        (b"PROXY UNKNOWN\r\n", b"None"),
    ],
)
async def test_the_client_is_the_one_that_the_proxy_names_and_nobody_where_it_names_none(header, client, tls):
    settings, trusting = tls
    async with serving(who, listen()) as port:
        assert await said(port, header + GET) == b"200 OK " + client
        assert await said(port, header, GET) == b"200 OK " + client
    async with serving(who, listen(**settings)) as port:
        assert await said(port, header, GET, tls=trusting) == b"200 OK " + client


@pytest.mark.parametrize("header", [LINE, v2(body=FOUR + b"\x04\x00\x03abc")])
async def test_a_header_may_come_byte_by_byte(header):
    pieces = [header[at : at + 1] for at in range(len(header))]
    async with serving(who, listen()) as port:
        assert await said(port, *pieces, GET, pause=0.001) == b"200 OK 203.0.113.7"


async def test_from_elsewhere_calls_are_served_without_a_header_and_refused_with_one(tls):
    settings, trusting = tls
    for settings_of_listener in (listen(), Listen(port=0)):
        async with serving(who, settings_of_listener) as port:
            assert await said(port, GET, address=ELSEWHERE) == b"200 OK " + ELSEWHERE.encode()
            for header in (LINE, v2(body=FOUR)):
                answer = await said(port, header + GET, address=ELSEWHERE)
                assert answer.startswith(b"400 "), answer
                assert b"203.0.113.7" not in answer
    async with serving(who, listen(**settings)) as port:
        assert await said(port, b"", GET, address=ELSEWHERE, tls=trusting) == b"200 OK " + ELSEWHERE.encode()
        assert await said(port, LINE, GET, address=ELSEWHERE, tls=trusting) == b""


@pytest.mark.parametrize(
    "data", [GET, b"PROXY TCP4 a b 1 2\r\n", SIGNATURE + b"\x41\x11\x00\x00", b"PROXY " + b"x" * 200]
)
async def test_a_proxy_without_a_valid_header_gets_no_answer_and_one_line_in_the_log(data, caplog):
    with caplog.at_level(logging.WARNING, "domicile.gateway"):
        async with serving(who, listen()) as port:
            assert await said(port, data + GET) == b""
            assert await said(port, data + GET) == b""
            assert await said(port, LINE + GET) == b"200 OK 203.0.113.7", "others are served on"
    assert len([r for r in caplog.records if "was refused" in r.message]) == 1
    assert "xxx" not in caplog.text


async def test_a_header_that_does_not_come_ends_the_connection(monkeypatch):
    monkeypatch.setattr(proxied_listener, "HEADER_S", 0.05)
    async with serving(who, listen()) as port:
        assert await said(port, b"PROXY TC") == b""


async def test_a_header_on_its_way_delays_nobody_and_no_stop():
    async with unfinished() as (port, reader), asyncio.timeout(3):
        assert await said(port, LINE + GET) == b"200 OK 203.0.113.7"
    assert await reader.read() == b""


@asynccontextmanager
async def unfinished():
    """A server at which a connection waits in the middle of its header."""
    async with serving(who, listen()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(PROXY, 0))
        writer.write(LINE[:9])
        await asyncio.sleep(0.05)
        yield port, reader
    writer.close()


async def test_a_kept_connection_is_of_one_client_through_all_its_calls():
    async with serving(who, listen()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(PROXY, 0))
        writer.write(LINE + GET + GET)
        for _ in range(2):
            assert (await reader.readuntil(b"203.0.113.7")).startswith(b"HTTP/1.1 200")
        writer.write(LINE + GET)
        assert (await reader.read()).startswith(b"HTTP/1.1 400"), "a second header is no request"
        writer.close()


def client_hello():
    reads, writes = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(reads, writes, server_hostname="x").do_handshake()
    return writes.read()


async def test_of_many_handshakes_at_once_each_turn_of_the_loop_begins_few_and_no_address_waits_for_another(
    tls, monkeypatch
):
    settings, trusting = tls
    loop, begun, turn = asyncio.get_running_loop(), [], 0
    take_over = loop.connect_accepted_socket

    async def counted(make, connection, **options):
        begun.append((turn, connection.getpeername()[0]))
        return await take_over(make, connection, **options)

    async def turns():
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(loop, "connect_accepted_socket", counted)
    async with serving(who, Listen(port=0, **settings)) as port:
        addresses = [PROXY] * 150 + [ELSEWHERE]
        many = [await asyncio.open_connection("127.0.0.1", port, local_addr=(each, 0)) for each in addresses]
        while len(asyncio.all_tasks()) < len(many):
            await asyncio.sleep(0)
        assert begun == [], "none has begun its handshake"
        counting = asyncio.create_task(turns())
        for _, writer in many:
            writer.write(client_hello())
        while len(begun) < len(many):
            await asyncio.sleep(0.001)
        counting.cancel()
        for _, writer in many:
            writer.transport.abort()
        assert await said(port, b"", GET, tls=trusting) == b"200 OK " + PROXY.encode(), "others are served on"
    per_turn = Counter(turn for turn, _ in begun)
    assert len(begun) == 152 and max(per_turn.values()) <= AT_ONCE
    assert [address for _, address in begun].index(ELSEWHERE) < 150


async def test_a_connection_that_begins_no_handshake_is_closed_and_keeps_nobody_from_theirs(tls, monkeypatch):
    settings, trusting = tls
    monkeypatch.setattr(proxied_listener, "HANDSHAKE_S", 0.3)
    async with serving(who, Listen(port=0, **settings)) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        monkeypatch.undo()
        assert await said(port, b"", GET, tls=trusting) == b"200 OK " + PROXY.encode()
        async with asyncio.timeout(20):
            assert {await reader.read() for reader, _ in silent} == {b""}
        for _, writer in silent:
            writer.close()


async def test_what_is_no_handshake_is_refused_and_the_next_one_is_served(tls):
    settings, trusting = tls
    async with serving(who, Listen(port=0, **settings)) as port:
        assert await said(port, GET) == b""
        assert await said(port, b"", GET, tls=trusting) == b"200 OK " + PROXY.encode()
