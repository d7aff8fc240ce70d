"""What a client can do to a connection before anybody has read a request on it: little, and not for long."""

import asyncio
import ssl
import time
from contextlib import asynccontextmanager

import pytest

from gateway import connection
from gateway.serve import serving
from gateway.settings import Listen
from regions.authority import CertificateAuthority
from regions.identity import BackendIdentity

SEEN = []
ASK = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


async def application(scope, receive, send):
    """Says what it was asked, and refuses /refused before a byte of the body."""
    body, more = b"", scope["path"] != "/refused"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    SEEN.append((scope["method"], scope["path"], body))
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    said = b"ok"
    status = 401 if scope["path"] == "/refused" else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


@pytest.fixture(autouse=True)
def forgotten():
    SEEN.clear()


@asynccontextmanager
async def connected(monkeypatch, head_s=0.3, body_s=0.3):
    monkeypatch.setattr(connection, "BODY_MARGIN_S", 0)
    monkeypatch.setattr("gateway.serve.bounded", lambda body: connection.bounded(body, head_s))
    async with serving(application, Listen(port=0), body_s) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield reader, writer
        writer.close()


async def rest(reader, within=3.0):
    """All until the gateway closes, and how long that took."""
    began = time.monotonic()
    try:
        said = await asyncio.wait_for(reader.read(), within)
    except ConnectionError:
        said = b""
    return said, time.monotonic() - began


async def trickle(writer, data, pause=0.05):
    try:
        for at in range(len(data)):
            writer.write(data[at : at + 1])
            await writer.drain()
            await asyncio.sleep(pause)
    except ConnectionError:
        pass


async def test_a_connection_that_says_nothing_is_closed(monkeypatch):
    async with connected(monkeypatch) as (reader, _):
        said, took = await rest(reader)
    assert said == b"" and took < 2


@pytest.mark.parametrize("head", [ASK + b"x-a: " + b"a" * 500, b"\r\n" * 200, b"POST /" + b"a" * 500])
async def test_a_head_that_trickles_is_not_waited_for(monkeypatch, head):
    async with connected(monkeypatch) as (reader, writer):
        sending = asyncio.create_task(trickle(writer, head))
        said, took = await rest(reader)
        sending.cancel()
    assert took < 2
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")
    assert SEEN == []


async def test_on_a_kept_connection_the_next_head_is_not_waited_for_either(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(ASK + b"content-length: 0\r\n\r\n")
        await reader.readuntil(b"ok")
        sending = asyncio.create_task(trickle(writer, ASK))
        said, took = await rest(reader)
        sending.cancel()
    assert took < 2 and said.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", [b"/refused", b"/read"])
async def test_a_body_that_drips_ends_with_its_time_refused_or_not(monkeypatch, path):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        sending = asyncio.create_task(trickle(writer, b"a" * 1000))
        said, took = await rest(reader)
        sending.cancel()
    assert took < 2
    assert said.startswith(b"HTTP/1.1 401 ") == (path == b"/refused")


async def test_an_answer_that_takes_long_is_not_cut_by_what_bounds_requests(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        ASK + b"x-a: " + b"a" * (70 << 10),
        ASK + b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(80)) + b"content-length: 0\r\n\r\n",
        ASK + b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(80)),
        b"GET /" + b"a" * (70 << 10) + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_a_head_without_end_is_refused_and_reaches_no_application(monkeypatch, head):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(head)
        said, _ = await rest(reader)
    assert said.startswith(b"HTTP/1.1 431 ") and said.count(b"HTTP/1.1") == 1
    assert SEEN == []


async def test_a_head_within_its_bounds_passes_with_a_large_body_behind_it(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(ASK + b"x-a: " + b"a" * (60 << 10) + b"\r\ncontent-length: 300000\r\n\r\n" + b"b" * 300_000)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
    assert [len(body) for *_, body in SEEN] == [300_000]


HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
        b"content-length: 0\r\ncontent-length: 50\r\n\r\n" + HIDDEN,
        b"content-length: 0, 50\r\n\r\n" + HIDDEN,
        b"content-length: +0\r\n\r\n" + HIDDEN,
        b"content-length: -1\r\n\r\n" + HIDDEN,
        b"content-length : 0\r\n\r\n" + HIDDEN,
        b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
        b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        b"transfer-encoding: chunked\r\n\r\n0x0\r\n\r\n" + HIDDEN,
        b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n" + HIDDEN,
        b"transfer-encoding: chunked\r\n\r\n1\nA\n0\n\n" + HIDDEN,
        b"x: a\rcontent-length: 5\r\n\r\n" + HIDDEN,
        b"x: a\x00b\r\ncontent-length: 0\r\n\r\n" + HIDDEN,
        b"x: a\r\n b: c\r\n\tcontent-length: 5\r\n\r\n" + HIDDEN,
        b"\x0bcontent-length: 5\r\n\r\n" + HIDDEN,
    ],
)
async def test_a_request_whose_end_two_readers_could_see_elsewhere_hides_no_other(monkeypatch, framing):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(ASK + framing)
        said, _ = await rest(reader)
    assert not said or said.startswith(b"HTTP/1.1 400 ")
    assert b"HTTP/1.1 200 " not in said
    assert "/hidden" not in [path for _, path, _ in SEEN]


async def test_rubbish_behind_a_request_does_not_get_into_its_answer(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"\x00\x01rubbish\r\n\r\n")
        said, _ = await rest(reader)
    assert b"400" not in said


@pytest.mark.parametrize(("version", "accepted"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_no_version_of_tls_below_1_2_is_spoken_whatever_the_system_allows(tmp_path, version, accepted):
    authority = CertificateAuthority.open(tmp_path / "ca", "eu-1")
    issued = authority.issue(BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1"), tmp_path / "own")
    listen = Listen(port=0, cert_file=issued.certificate, key_file=issued.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = ssl.TLSVersion[version]
    async with serving(application, listen) as port:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            writer.close()
            assert accepted
        except (ssl.SSLError, ConnectionError):
            assert not accepted
