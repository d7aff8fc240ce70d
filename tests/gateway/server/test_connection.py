"""What a client can do to a connection before anybody has read a request on it: little, and not for long."""

import asyncio
import gc
import ssl
import weakref
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from gateway.configuration.settings import Listen
from gateway.openai.asgi_client import SERVER_SIDE
from gateway.server import connection
from gateway.server.serve import serving
from regions.identity.authority import CertificateAuthority
from regions.identity.identity import BackendIdentity

SEEN = []
HEADERS = []
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
    HEADERS.append(dict(scope["headers"]))
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    said = b"ok" * (10 << 20 if scope["path"] == "/large" else 1)
    status = 401 if scope["path"] == "/refused" else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


@pytest.fixture(autouse=True)
def forget_requests():
    forget()


def forget():
    SEEN.clear()
    HEADERS.clear()


@asynccontextmanager
async def connected(monkeypatch, head_s=0.3, body_s=0.3):
    monkeypatch.setattr(connection, "BODY_MARGIN_S", 0)
    monkeypatch.setattr("gateway.server.serve.bounded", lambda body: connection.bounded(body, head_s))
    async with serving(application, Listen(port=0), body_s) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield reader, writer
        writer.close()


async def rest(reader):
    """All until the gateway closes. Raises TimeoutError if it goes on as long as the slowest sender below needs."""
    try:
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""


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
        said = await rest(reader)
    assert said == b""


@pytest.mark.parametrize("head", [ASK + b"x-a: " + b"a" * 500, b"\r\n" * 200, b"POST /" + b"a" * 500])
async def test_a_head_that_trickles_is_not_waited_for(monkeypatch, head):
    async with connected(monkeypatch) as (reader, writer):
        sending = asyncio.create_task(trickle(writer, head))
        said = await rest(reader)
        sending.cancel()
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")
    assert SEEN == []


async def test_on_a_kept_connection_the_next_head_is_not_waited_for_either(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(ASK + b"content-length: 0\r\n\r\n")
        await reader.readuntil(b"ok")
        sending = asyncio.create_task(trickle(writer, ASK))
        said = await rest(reader)
        sending.cancel()
    assert said.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", [b"/refused", b"/read"])
async def test_a_body_that_drips_ends_with_its_time_refused_or_not(monkeypatch, path):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"POST " + path + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        sending = asyncio.create_task(trickle(writer, b"a" * 1000))
        said = await rest(reader)
        sending.cancel()
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
        said = await rest(reader)
    assert said.startswith(b"HTTP/1.1 431 ") and said.count(b"HTTP/1.1 ") == 1
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
        said = await rest(reader)
    assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1 ") == 1
    assert b"HTTP/1.1 200 " not in said
    assert "/hidden" not in [path for _, path, _ in SEEN]


async def test_rubbish_behind_a_request_does_not_get_into_its_answer(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"\x00\x01rubbish\r\n\r\n")
        said = await rest(reader)
    answer, behind = said.split(b"\r\n\r\nok", 1)
    assert answer.startswith(b"HTTP/1.1 200 "), "the answer is whole"
    assert behind.startswith(b"HTTP/1.1 400 ") and behind.count(b"HTTP/1.1 ") == 1, "then the refusal, by itself"


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


UPGRADES = [
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\n",
    b"connection: keep-alive, Upgrade\r\nupgrade: foo\r\n",
    b"upgrade: foo\r\nconnection: close\r\nconnection: upgrade\r\n",
    b"upgrade: foo\r\n",
]


@pytest.mark.parametrize("apart", [False, True], ids=["one segment", "body apart"])
@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize(
    "framed",
    [
        b"content-length: %d\r\n\r\n%s" % (len(HIDDEN), HIDDEN),
        b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
    ],
    ids=["length", "chunked"],
)
async def test_an_upgrade_is_ignored_and_the_body_belongs_to_its_request(monkeypatch, upgrade, framed, apart):
    async with connected(monkeypatch) as (reader, writer):
        head, _, body = framed.partition(b"\r\n\r\n")
        writer.write(ASK + upgrade + head + b"\r\n\r\n" + (b"" if apart else body))
        if apart:
            await asyncio.sleep(0.05)
            writer.write(body)
        await reader.readuntil(b"ok")
        if b"close" not in upgrade:
            writer.write(b"GET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        said = await rest(reader)
    expected = [("POST", "/v1/chat/completions", HIDDEN), ("GET", "/next", b"")]
    assert (expected[:1] if b"close" in upgrade else expected) == SEEN
    assert said.count(b"HTTP/1.1 ") == len(SEEN) - 1
    assert "upgrade" not in str(HEADERS).replace("upgrade: foo", "") or b"connection" not in upgrade


async def test_many_upgrades_in_one_segment_are_each_one_request(monkeypatch):
    one = b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: foo\r\n\r\n"
    async with connected(monkeypatch) as (reader, writer):
        writer.write(one * 90 + b"GET /z HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        said = await rest(reader)
    assert said.count(b"HTTP/1.1 200 ") == len(SEEN) == 91


@pytest.mark.parametrize("apart", [False, True], ids=["one segment", "trailer apart"])
async def test_a_trailer_is_no_header_field(monkeypatch, apart):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(ASK + b"transfer-encoding: chunked\r\ntrailer: authorization\r\n\r\n2\r\nab\r\n0\r\n")
        if apart:
            await asyncio.sleep(0.05)
        writer.write(b"authorization: Bearer KEY\r\nhost: evil\r\nx-domicile-subject: p\r\n\r\n")
        await reader.readuntil(b"ok")
    assert SEEN == [("POST", "/v1/chat/completions", b"ab")]
    assert HEADERS[0].keys() == {b"host", b"transfer-encoding", b"trailer"} and HEADERS[0][b"host"] == b"x"


async def test_trailers_without_end_are_bounded_like_a_head(monkeypatch):
    async with connected(monkeypatch, body_s=3) as (reader, writer):
        writer.write(ASK + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n" + b"x: %s\r\n" % (b"a" * 900) * 80)
        said = await rest(reader)
    assert said.startswith(b"HTTP/1.1 431 ") and SEEN == []


async def test_chunk_extensions_without_end_are_refused_long_before_the_body_is_late(monkeypatch):
    async with connected(monkeypatch, body_s=15) as (reader, writer):
        writer.write(ASK + b"transfer-encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.write((b"1;" + b"a" * 8000 + b"\r\na\r\n") * 9)
        said = await rest(reader)
    assert said.startswith(b"HTTP/1.1 400 ") and b"chunk extensions" in said and SEEN == []


async def test_a_body_of_very_small_chunks_with_short_extensions_passes(monkeypatch):
    async with connected(monkeypatch, body_s=15) as (reader, writer):
        writer.write(ASK + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"1;n=1234567\r\na\r\n" * 1000)
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")
        said = await rest(reader)
    assert said.startswith(b"HTTP/1.1 200 ") and SEEN[0][2] == b"a" * 20_000


HEADS = [
    (b"GET / HTTP/1.1\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: a, b\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: a,b\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: a b\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: user@a\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: a/b\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: a#@\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: a:b\r\n", 400),
    (b"GET / HTTP/1.1\r\nhost: [::1]:80\r\n", 200),
    (b"GET / HTTP/1.1\r\nhost: xn--bcher-kva.example:8400\r\n", 200),
    (b"GET / HTTP/1.1\r\nhost:\r\n", 200),
    (b"GET / HTTP/1.0\r\n", 200),
    (b"GET / HTTP/1.0\r\nhost: a\r\nhost: b\r\n", 400),
    (b"GET / HTTP/0.9\r\nhost: a\r\n", 505),
    (b"GET / HTTP/2.0\r\nhost: a\r\n", 505),
    (b"GET / HTTP/1.2\r\nhost: a\r\n", 400),
    (b"POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n", 400),
    (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n", 501),
    (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n", 501),
    (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n", 400),
    (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", 400),
    (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n", 400),
    (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n", 400),
    (b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 200-ok\r\ncontent-length: 1\r\n", 417),
    (b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue, x\r\ncontent-length: 1\r\n", 417),
    (b"GET / HTTP/1.0\r\nhost: a\r\nexpect: 200-ok\r\n", 200),
    (b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n", 501),
    (b"GET\r\nhost: a\r\n", 400),
    (b"PRI * HTTP/2.0\r\n", 400),
]


async def test_what_the_rfcs_ask_of_a_head():
    async with serving(application, Listen(port=0)) as port:
        for head, status in HEADS:
            forget()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + b"connection: close\r\n\r\n")
            said = await rest(reader)
            writer.close()
            assert said.startswith(b"HTTP/1.1 %d " % status) and said.count(b"HTTP/1.1 ") == 1, head
            assert bool(SEEN) == (status == 200), head
            if status != 200:
                assert b"connection: close\r\n" in said and b'"message":"' in said


@pytest.mark.parametrize(
    "body", [b"zz\r\n", b"1;\x00\r\n", b"1\r\nab\r\n0\r\n\r\n", b"-1\r\n", b"fffffffffffffffff\r\n"]
)
async def test_a_body_with_bad_framing_is_400_also_when_the_application_reads_it_already(monkeypatch, body):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(ASK + b"transfer-encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.write(body)
        said = await rest(reader)
    assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1 ") == 1
    assert SEEN == []


async def test_bad_framing_behind_an_answer_to_the_same_request_is_not_answered_twice(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.write(b"zz\r\n")
        said = await rest(reader)
    assert said == b""


async def test_bad_framing_in_a_pipelined_request_is_answered_after_the_one_before(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        slow = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"
        writer.write(slow + ASK + b"transfer-encoding: chunked\r\n\r\nzz\r\n")
        said = await rest(reader)
    assert [said[at : at + 12] for at in range(len(said)) if said.startswith(b"HTTP/1.1 ", at)] == [
        b"HTTP/1.1 200",
        b"HTTP/1.1 400",
    ]
    assert [path for _, path, _ in SEEN] == ["/slow"]


async def test_what_follows_the_last_request_is_dropped_and_the_answer_is_whole(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + HIDDEN + b"\x00rubbish")
        said = await rest(reader)
    assert said.startswith(b"HTTP/1.1 200 ") and said.endswith(b"\r\n\r\nok") and len(SEEN) == 1


async def test_a_refusal_without_a_100_leaves_no_room_for_a_guess_whether_the_body_comes(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 50\r\n\r\n")
        said = await rest(reader)
    assert said.startswith(b"HTTP/1.1 401 ") and said.count(b"HTTP/1.1 ") == 1


async def test_a_body_that_is_expected_comes_after_its_100(monkeypatch):
    async with connected(monkeypatch) as (reader, writer):
        writer.write(ASK + b"Expect: 100-Continue\r\ncontent-length: 2\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"ab")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
    assert SEEN == [("POST", "/v1/chat/completions", b"ab")]


async def test_a_refused_body_is_dropped_up_to_a_bound(monkeypatch):
    monkeypatch.setattr(connection, "MAX_DISCARDED", 1 << 20)
    async with connected(monkeypatch, body_s=30) as (reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (8 << 20))
        await reader.readuntil(b"ok")
        with pytest.raises(ConnectionError):
            for _ in range(80):
                writer.write(b"a" * 100_000)
                await writer.drain()
                await asyncio.sleep(0.01)


async def test_a_refused_body_is_not_read_at_the_speed_of_the_network(monkeypatch):
    reads = []
    discard = connection.BoundedConnection._discard

    def noted(self, size):
        reads.append(size)
        discard(self, size)

    monkeypatch.setattr(connection.BoundedConnection, "_discard", noted)
    monkeypatch.setattr(connection, "DISCARD_PAUSE_S", 3600)
    async with connected(monkeypatch, body_s=30) as (reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (8 << 20))
        await reader.readuntil(b"ok")
        writer.write(b"a" * (8 << 20))
        await asyncio.sleep(0.3)
        assert len(reads) == 1 and reads[0] <= 256 << 10, "one read, then a pause"


async def test_a_request_behind_a_refused_body_is_answered(monkeypatch):
    async with connected(monkeypatch, body_s=30) as (reader, writer):
        writer.write(b"POST /refused HTTP/1.1\r\nhost: x\r\ncontent-length: 2000000\r\n\r\n" + b"a" * 2_000_000)
        await reader.readuntil(b"ok")
        writer.write(b"POST /next HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
    assert [path for _, path, _ in SEEN] == ["/refused", "/next"]


LARGE = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_a_client_who_takes_nothing_of_its_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(connection, "UNREAD_S", 0.2)
    cut = asyncio.Event()
    lost = connection.BoundedConnection.connection_lost
    monkeypatch.setattr(
        connection.BoundedConnection, "connection_lost", lambda self, error: (cut.set(), lost(self, error))
    )
    async with connected(monkeypatch) as (_, writer):
        writer.transport.pause_reading()
        writer.write(LARGE)
        await asyncio.wait_for(cut.wait(), 20)


async def test_a_client_who_reads_slowly_gets_all_of_its_answer(monkeypatch):
    monkeypatch.setattr(connection, "UNREAD_S", 1.0)
    async with connected(monkeypatch) as (reader, writer):
        writer.write(LARGE)
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while got < 20 << 20:
            got += len(await reader.read(1 << 20))
            await asyncio.sleep(0.01)
        assert got == 20 << 20


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (ASK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (ASK + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n" + b"x: %s\r\n" % (b"a" * 900) * 80, 431),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5, 5\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
    ids=["chunk size", "trailers", "length list", "HTTP/2"],
)
async def test_a_refusal_reaches_a_client_who_is_still_sending(monkeypatch, sent, status):
    async with connected(monkeypatch, body_s=15) as (reader, writer):
        writer.write(sent)
        for _ in range(20):
            writer.write(b"a" * 50_000)
            await asyncio.sleep(0.01)
        said = await asyncio.wait_for(reader.read(), 20)
    assert said.startswith(b"HTTP/1.1 %d " % status) and said.count(b"HTTP/1.1 4") == 1 and SEEN == []


async def test_a_client_who_keeps_sending_after_a_refusal_is_cut_off(monkeypatch):
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    async with connected(monkeypatch, body_s=15) as (reader, writer):
        writer.write(b"GARBAGE\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        with pytest.raises(ConnectionError):
            for _ in range(400):
                writer.write(b"a" * 1000)
                await writer.drain()
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("field", [b"a:\r\n", b"x-a: b\r\n"])
async def test_a_head_of_very_many_very_small_fields_is_refused(monkeypatch, field):
    most = connection.MAX_HEAD // (connection.FIELD_FRAME + 2)
    for number, status in ((most // 2, 200), (most + 100, 431)):
        async with connected(monkeypatch) as (reader, writer):
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + field * number + b"\r\n")
            said = await rest(reader)
        assert said.startswith(b"HTTP/1.1 %d " % status)
    assert len(SEEN) == 1


@pytest.mark.parametrize("body", [b"", b"hello" * 60])
async def test_requests_sent_ahead_are_all_answered_in_their_order(monkeypatch, body):
    many = 5000 if not body else 500
    one = b"POST /%d HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
    async with connected(monkeypatch) as (reader, writer):
        writer.write(b"".join(one % (number, len(body), body) for number in range(many)))
        writer.write(b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        said = await rest(reader)
    assert said.count(b"HTTP/1.1 200 OK") == said.count(b"HTTP/1.1 ") == many + 1
    assert [*(("POST", f"/{number}", body) for number in range(many)), ("GET", "/last", b"")] == SEEN


async def test_chunks_sent_ahead_are_put_together_wherever_pieces_and_reads_end(monkeypatch):
    said_in = b"".join(b"%x\r\n%s\r\n" % (size, b"x" * size) for size in (1, 2, 700, 5, 3000, 1) * 40) + b"0\r\n\r\n"
    one = b"POST /%d HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n%s"
    async with connected(monkeypatch, body_s=15) as (reader, writer):
        writer.write(b"".join(one % (number, said_in) for number in range(7)))
        writer.write(b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        said = await rest(reader)
    assert said.count(b"HTTP/1.1 200 OK") == said.count(b"HTTP/1.1 ") == 8
    assert [*(("POST", f"/{number}", b"x" * 40 * 3709) for number in range(7)), ("GET", "/last", b"")] == SEEN


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 9000,
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" * 4000,
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx" * 5000,
        ASK + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 40_000 + b"0\r\n\r\n",
        ASK + b"a:\r\n" * 1000 + b"\r\n",
        b"\r\n" * 60_000,
    ],
    ids=["ahead", "upgrades", "bodies", "chunks", "fields", "blank lines"],
)
async def test_no_turn_of_the_loop_parses_much_of_one_connection(monkeypatch, message):
    """What came in one read: at most a dozen pieces in a row, and at most as many requests as a piece has."""
    turn, fed = 0, Counter()
    feed = connection.BoundedConnection._feed

    def counted(self, data, size):
        fed[turn] += size
        return feed(self, data, size)

    async def turns():
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    monkeypatch.setattr(connection.BoundedConnection, "_feed", counted)
    monkeypatch.setattr(connection, "perf_counter", Clock(0.0001))
    async with connected(monkeypatch, body_s=15) as (reader, writer):
        counting = asyncio.create_task(turns())
        writer.write(message)
        await reader.read(1)
        for _ in range(300):
            await asyncio.sleep(0)
        counting.cancel()
    assert sum(fed.values()) and max(fed.values()) <= 12 * connection.PIECE


class Clock:
    """Each look at it takes `seconds`."""

    def __init__(self, seconds):
        self.now, self.seconds = 1.0, seconds

    def __call__(self):
        self.now += self.seconds
        return self.now


async def test_another_connection_is_answered_before_what_was_sent_ahead(monkeypatch):
    async with serving(application, Listen(port=0), 15) as port:
        many = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for _, writer in many:
            writer.write(b"GET /ahead HTTP/1.1\r\nhost: x\r\n\r\n" * 500)
        while not SEEN:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        before = len(SEEN)
        writer.write(b"POST /other HTTP/1.1\r\nhost: x\r\ncontent-length: 3000\r\n\r\n" + b"a" * 3000)
        await reader.readuntil(b"ok")
        between = len(SEEN) - before
        for _, each in [*many, (reader, writer)]:
            each.close()
    assert ("POST", "/other", b"a" * 3000) in SEEN
    assert between <= 100, "of 10,000"


class Later:
    """A loop on which only `call_later` works; `pauses` are those that were asked for, and pass at once on `clock`."""

    def __init__(self, clock):
        self.clock, self.pauses, self.works = clock, [], []

    def call_later(self, pause, work):
        self.clock.now += pause
        self.pauses.append(pause)
        self.works.append(work)

    def call_soon(self, work):
        self.works.append(work)

    def turn(self):
        works, self.works = self.works, []
        for each in works:
            each()


@pytest.fixture
def shared(monkeypatch):
    """Turns on a loop of the test, by a clock; what was done, as a list of names."""
    clock = Clock(connection.BURST_S / 4)
    loop, turns, done = Later(clock), connection.Turns(), []
    monkeypatch.setattr(connection, "get_running_loop", lambda: loop)
    monkeypatch.setattr(connection, "perf_counter", clock)

    def take(said, caller, *, goes_on):
        turns.take(lambda: done.append(said), caller, goes_on=goes_on)

    return loop, turns, take, done


def test_work_that_goes_on_has_one_turn_at_a_time_and_rests_after_a_burst(shared):
    loop, turns, take, done = shared
    for number in range(16):
        take(f"{number}", "a", goes_on=True)
    assert done == [] and turns.busy
    while turns.busy:
        before = len(done)
        loop.turn()
        assert len(done) == before + 1 and len(loop.works) == turns.busy
    assert done == [f"{number}" for number in range(16)]
    rests = [number for number, pause in enumerate(loop.pauses) if pause]
    assert rests == [5, 10, 15]
    assert min(loop.pauses[number] for number in rests) >= connection.REST_S / 2


def test_work_that_begins_does_not_wait_for_work_that_goes_on_and_never_takes_a_turn_for_long(shared):
    loop, turns, take, done = shared
    for name in "ab":
        for number in range(8):
            take(f"{name}{number}", name, goes_on=name == "a")
    while any(f"b{number}" not in done for number in range(8)):
        before = len(done)
        loop.turn()
        assert len(done) - before <= 6, "by a clock on which a burst has at most five pieces; and one that goes on"
    assert len([said for said in done if said.startswith("a")]) <= 3
    while turns.busy:
        loop.turn()
    assert len(done) == len(set(done)) == 16 and loop.works == []


@pytest.mark.parametrize("goes_on", [False, True])
def test_turns_go_from_caller_to_caller_however_much_one_of_them_has(shared, goes_on):
    loop, turns, take, done = shared
    for number in range(500):
        take(f"many{number}", "many", goes_on=goes_on)
    for caller in ("one", "other"):
        take(caller, caller, goes_on=goes_on)
    take("one again", "one", goes_on=goes_on)
    while turns.busy:
        loop.turn()
    assert done[:6] == ["many0", "one", "other", "many1", "one again", "many2"]
    assert done[6:] == [f"many{number}" for number in range(3, 500)]


def test_a_turn_of_the_loop_admits_so_many_inputs_and_none_before_those_that_wait(shared):
    loop, turns, take, _ = shared
    for _ in range(2):
        assert [turns.admits() for _ in range(20)] == [True] * connection.AT_ONCE + [False] * (20 - connection.AT_ONCE)
        loop.turn()
    take("waits", "a", goes_on=False)
    assert not turns.admits()
    loop.turn()
    assert turns.admits()


async def test_of_many_requests_at_once_each_turn_of_the_loop_begins_few(monkeypatch):
    """400 connections of 40 tenants, each with a request at the same moment, and then with another one."""
    turn, begun = 0, Counter()

    async def counted(scope, receive, send):
        begun[turn] += 1
        scope["extensions"][SERVER_SIDE].caller = scope["path"]
        await application(scope, receive, send)

    async def turns():
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    async with serving(counted, Listen(port=0), 15) as port:
        many = [await asyncio.open_connection("127.0.0.1", port) for _ in range(400)]
        counting = asyncio.create_task(turns())
        for _ in range(2):
            for number, (_, writer) in enumerate(many):
                writer.write(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % (number // 10))
            for reader, _ in many:
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        counting.cancel()
        for _, writer in many:
            writer.close()
    assert begun.total() == 800 and max(begun.values()) <= 2 * connection.AT_ONCE


async def test_a_tenant_waits_for_no_more_than_one_request_of_another_tenant_and_not_for_its_address(monkeypatch):
    """Here all connections are of one address; the tenant of each is known from the request before."""
    order = []

    async def named(scope, receive, send):
        scope["extensions"][SERVER_SIDE].caller = scope["path"]
        order.append(scope["path"])
        await application(scope, receive, send)

    async with serving(named, Listen(port=0), 15) as port:
        many = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        names = [b"/many"] * 199 + [b"/one"]
        for _ in range(2):
            order.clear()
            for name, (_, writer) in zip(names, many, strict=True):
                writer.write(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % name)
            for reader, _ in many:
                await reader.readuntil(b"ok")
        for _, writer in many:
            writer.close()
    assert len(order) == 200 and order.index("/one") < 199


async def test_work_that_fails_keeps_no_other_from_its_turn():
    turns, done, failed = connection.Turns(), [], []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context["exception"]))
    for goes_on in (False, True):
        turns.take(lambda: 1 // 0, "a", goes_on=goes_on)
        turns.take(lambda: done.append(1), "a", goes_on=goes_on)
        while turns.busy:
            await asyncio.sleep(0.001)
    assert done == [1, 1] and [type(error) for error in failed] == [ZeroDivisionError] * 2


@pytest.mark.parametrize("sent", [b"", b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n", ASK + b"content-length: 9\r\n\r\na"])
async def test_a_connection_that_has_ended_leaves_no_garbage_to_collect(monkeypatch, sent):
    made = []
    begin = connection.BoundedConnection.connection_made

    def noted(self, transport):
        made.append(weakref.ref(self))
        begin(self, transport)

    monkeypatch.setattr(connection.BoundedConnection, "connection_made", noted)
    async with serving(application, Listen(port=0), 15) as port:
        gc.collect()
        gc.disable()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            await asyncio.sleep(0.05)
            writer.close()
            async with asyncio.timeout(20):
                while not made or made[0]() is not None:
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()
