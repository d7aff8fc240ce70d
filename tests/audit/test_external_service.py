"""Calls to outside services against a server on loopback that is slow, endless, broken or gone."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest
from cryptography import x509

from audit import external_service
from audit.external_service import Breaker, Download, ExternalService, ExternalUnavailable
from tests.backend.certificates import Authority

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def serving(handler: Handler):
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


def saying(content: bytes) -> Handler:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()

    return answer


async def dripping(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"content-length: 1000\r\n\r\n")
    for _ in range(200):
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"connection: close\r\n\r\n")
    for _ in range(10_000):
        writer.write(b"x" * 1000)
        await writer.drain()


async def test_a_whole_answer_comes_with_status_headers_and_content():
    async with serving(saying(b"HTTP/1.1 403 No\r\nX-Why: so\r\ncontent-length: 2\r\n\r\nno")) as url:
        service = ExternalService("the test", deadline_s=5)
        answer = await service.ask("GET", url)
        await service.aclose()
    assert (answer.status, answer.headers["x-why"], answer.content) == (403, "so", b"no")


async def test_one_deadline_holds_for_the_whole_answer_however_often_a_byte_comes():
    async with serving(dripping) as url:
        service = ExternalService("the test", deadline_s=0.3)
        with pytest.raises(ExternalUnavailable, match=r"the test did not answer within 0\.3 seconds"):
            async with asyncio.timeout(3):
                await service.ask("GET", url)
        await service.aclose()


async def test_an_answer_without_an_end_is_given_up_on():
    async with serving(endless) as url:
        service = ExternalService("the test", deadline_s=20, max_bytes=10_000)
        with pytest.raises(ExternalUnavailable, match="the test"):
            await service.ask("GET", url)
        await service.aclose()


@pytest.mark.parametrize(
    "said",
    [b"rubbish\r\n\r\n", HEAD + b"content-encoding: gzip\r\ncontent-length: 1\r\n\r\nx"],
    ids=["rubbish", "gzip"],
)
async def test_an_answer_that_is_not_as_asked_is_refused(said: bytes):
    async with serving(saying(said)) as url:
        service = ExternalService("the test", deadline_s=5)
        with pytest.raises(ExternalUnavailable):
            await service.ask("GET", url)
        await service.aclose()


async def test_no_message_repeats_an_address():
    service = ExternalService("the test", deadline_s=5)
    with pytest.raises(ExternalUnavailable) as raised:
        await service.ask("GET", "http://someone:CANARY@127.0.0.1:1/")
    assert "CANARY" not in str(raised.value) and not raised.value.sent


@pytest.mark.parametrize("status", [200, 307, 500])
async def test_no_line_of_the_log_repeats_an_address_or_a_field(caplog, status: int):
    """Receivers of webhooks have secrets in their paths, time-stamping authorities a password before their host."""
    said = b"HTTP/1.1 %d X\r\nlocation: http://127.0.0.1/CANARY\r\ncontent-length: 0\r\n\r\n" % status
    with caplog.at_level(logging.DEBUG):
        async with serving(saying(said)) as url:
            service = ExternalService("the test", deadline_s=5)
            told = {"authorization": "Bearer CANARY"}
            address = url.replace("://", "://someone:CANARY@") + "CANARY?key=CANARY"
            assert (await service.ask("POST", address, content=b"CANARY", headers=told)).status == status
            await service.aclose()
    assert "CANARY" not in caplog.text


async def test_after_several_failures_the_service_is_not_asked_until_a_pause_is_over():
    now = [0.0]
    service = ExternalService("the test", deadline_s=5, breaker=Breaker(failures=2, pause_s=5, now=lambda: now[0]))
    for _ in range(2):
        with pytest.raises(ExternalUnavailable, match="cannot be reached"):
            await service.ask("GET", "http://127.0.0.1:1/")
    with pytest.raises(ExternalUnavailable, match="asked again in 5 s"):
        await service.ask("GET", "http://127.0.0.1:1/")
    now[0] = 6.0
    async with serving(saying(HEAD + b"content-length: 0\r\n\r\n")) as url:
        assert (await service.ask("GET", url)).status == 200
        assert (await service.ask("GET", url)).status == 200
    await service.aclose()


def test_a_breaker_pauses_twice_as_long_each_time_and_lets_one_call_through():
    now = [0.0]
    breaker = Breaker(failures=1, pause_s=1, longest_s=3, now=lambda: now[0])
    pauses = []
    for _ in range(4):
        breaker.failed()
        pauses.append(breaker.waits())
        now[0] += pauses[-1]
        assert breaker.waits() == 0
        assert breaker.waits() > 0  # the others wait for the one that tries
    assert pauses == [1, 2, 3, 3]


async def test_after_a_gateway_has_ended_the_next_one_in_the_process_can_call_again():
    async with serving(saying(HEAD + b"content-length: 2\r\n\r\nok")) as url:
        service = ExternalService("the test", deadline_s=5)
        await service.ask("GET", url)
        external_service.stop_within(0)
        with pytest.raises(ExternalUnavailable, match="this process ends"):
            await service.ask("GET", url)
        external_service.resume()
        assert (await service.ask("GET", url)).status == 200
        await service.aclose()


async def test_the_end_of_one_gateway_cuts_no_call_of_the_next():
    async with serving(dripping) as url:
        service = ExternalService("the test", deadline_s=1)
        external_service.stop_within(0.1)
        external_service.resume()
        with pytest.raises(ExternalUnavailable, match="within 1 seconds"):
            await service.ask("GET", url)
        await service.aclose()


class _Names:
    """A resolver under which every name has these addresses. Counts how often it was asked."""

    def __init__(self, *addresses):
        self.addresses, self.asked = addresses, []

    async def getaddrinfo(self, host, port, **_):
        self.asked.append(host)
        return [(0, 0, 0, "", (address, port)) for address in self.addresses]


@pytest.fixture
def names(monkeypatch):
    def named(*addresses):
        resolver = _Names(*addresses)
        monkeypatch.setattr(external_service._runner().loop, "getaddrinfo", resolver.getaddrinfo)
        return resolver

    return named


def loopback(address):
    return address.is_loopback


async def test_the_connection_goes_to_the_address_that_was_checked_and_the_name_is_said(names):
    resolver, heard = names("127.0.0.1"), []

    async def listen(reader, writer):
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(HEAD + b"content-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    service = ExternalService("the receiver", deadline_s=10, may_reach=loopback)
    try:
        assert (await service.ask("POST", f"http://hooks.example.eu:{port}/x", content=b"")).content == b"ok"
    finally:
        server.close()
    assert f"host: hooks.example.eu:{port}\r\n".encode() in heard[0].lower()
    assert resolver.asked == ["hooks.example.eu"], "a second question could be answered otherwise"


@pytest.mark.parametrize("addresses", [("10.0.0.1",), ("127.0.0.1", "10.0.0.1"), ("fe80::1%eth0",)], ids=str)
async def test_a_name_with_any_address_that_may_not_be_called_is_not_called(names, addresses):
    names(*addresses)
    service = ExternalService("the receiver", deadline_s=10, may_reach=loopback)
    with pytest.raises(ExternalUnavailable, match="may not be called from here") as error:
        await service.ask("POST", "http://hooks.example.eu:9/x")
    assert not error.value.sent and "example" not in str(error.value)


@pytest.mark.parametrize(("name", "good"), [("hooks.example.eu", True), ("other.example.eu", False)])
async def test_the_certificate_is_checked_for_the_name_and_not_for_the_address(names, tmp_path, name, good):
    names("127.0.0.1")
    ca = Authority(tmp_path)
    files = ca.issue("leaf", [x509.DNSName("hooks.example.eu"), x509.IPAddress(ip_address("127.0.0.1"))])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    answer = saying(HEAD + b"content-length: 2\r\n\r\nok")
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    tls = ssl.create_default_context(cafile=ca.cert)
    service = ExternalService("the receiver", deadline_s=10, tls=tls, may_reach=loopback)
    try:
        if good:
            assert (await service.ask("GET", f"https://{name}:{port}/")).status == 200
        else:
            with pytest.raises(ExternalUnavailable, match="not of an authority"):
                await service.ask("GET", f"https://{name}:{port}/")
    finally:
        server.close()


def in_pieces(status: str, pieces: int, pause_s: float = 0.0) -> Handler:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {pieces * 1000}\r\n\r\n".encode())
        for number in range(pieces):
            writer.write(b"%d" % (number % 10) * 1000)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


async def asked_for(handler: Handler, max_bytes: float, deadline_s: float = 20) -> tuple[int, bytes, bytes]:
    """Status, what was given to the download, and what came as the content."""
    taken = bytearray()
    async with serving(handler) as url:
        service = ExternalService("the test", deadline_s=deadline_s, max_bytes=5_000)
        try:
            answer = await asyncio.to_thread(service.request, "GET", url, into=Download(taken.extend, max_bytes))
        finally:
            await service.aclose()
    return answer.status, bytes(taken), answer.content


async def test_a_download_may_be_larger_than_any_answer_and_take_longer_than_the_deadline():
    whole = b"".join(b"%d" % (number % 10) * 1000 for number in range(8))
    assert await asked_for(in_pieces("200 OK", 8, pause_s=0.25), 8_000, deadline_s=1.2) == (200, whole, b"")


async def test_a_download_has_a_bound_and_a_piece_that_does_not_come_is_not_waited_for():
    with pytest.raises(ExternalUnavailable, match="larger than 7999 bytes"):
        await asked_for(in_pieces("200 OK", 8), 7_999)
    with pytest.raises(ExternalUnavailable, match=r"did not answer within 0\.3 seconds"):
        await asked_for(in_pieces("200 OK", 2, pause_s=30), 8_000, deadline_s=0.3)


async def test_a_download_that_breaks_off_is_an_error():
    with pytest.raises(ExternalUnavailable, match="cannot be reached"):
        await asked_for(saying(HEAD + b"content-length: 10\r\n\r\n12345"), 8_000)


async def test_what_an_error_says_is_no_part_of_a_download():
    status, taken, content = await asked_for(in_pieces("404 Not Found", 1), 8_000)
    assert (status, taken, len(content)) == (404, b"", 1000)
    with pytest.raises(ExternalUnavailable, match="larger than 5000 bytes"):
        await asked_for(in_pieces("404 Not Found", 8), 8_000)
