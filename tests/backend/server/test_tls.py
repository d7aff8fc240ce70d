"""Only the one peer gets through the handshake: real connections, on both event loops."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from cryptography import x509

from backend.errors import ConfigError
from backend.server.tls import TlsFiles, reload_when_renewed, server_context, tls_files
from tests.backend.certificates import Authority, Files

PEER = "spiffe://domicile.test/tenant/acme/gateway"


def uri(*names: str) -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(name) for name in names]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    mine = authority.issue("backend", uri("spiffe://domicile.test/tenant/acme/region/eu/backend/1"))
    return server_context(TlsFiles(cert=mine.cert, key=mine.key, ca=authority.cert, peer_uri=PEER))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


def client(
    authority: Authority, files: Files | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority.cert)
    context.maximum_version = version
    if files is not None:
        context.load_cert_chain(files.cert, files.key)
    return context


def try_it(runner: asyncio.Runner, server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[bytes, list[bytes]]:
    """What the client got back for its bytes, and what the application behind the server was given."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(100))
        writer.write(b"welcome")
        await writer.drain()
        writer.close()

    def talk(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), 5) as raw:
            try:
                with client.wrap_socket(raw) as wrapped:
                    wrapped.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    return wrapped.recv(100)
            except OSError:  # SSLError is one
                return b""

    async def both() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # asyncio reports refused handshakes
        listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server)
        async with listener:
            return await asyncio.to_thread(talk, listener.sockets[0].getsockname()[1])

    return runner.run(both()), seen


def test_the_peer_is_served(runner: asyncio.Runner, authority: Authority, context: ssl.SSLContext) -> None:
    files = authority.issue("gateway", uri(PEER))
    answer, seen = try_it(runner, context, client(authority, files))
    assert answer == b"welcome"
    assert seen == [b"GET / HTTP/1.1\r\n\r\n"]


def test_a_dns_name_beside_the_uri_is_no_harm(
    runner: asyncio.Runner, authority: Authority, context: ssl.SSLContext
) -> None:
    files = authority.issue("with-dns", [*uri(PEER), x509.DNSName("gateway.test")])
    assert try_it(runner, context, client(authority, files))[0] == b"welcome"


REFUSED = {
    "another tenant": uri("spiffe://domicile.test/tenant/globex/gateway"),
    "another trust domain": uri("spiffe://domicile.evil/tenant/acme/gateway"),
    "a prefix of it": uri(PEER[:-1]),
    "it with a suffix": uri(PEER + "/x"),
    "it with a trailing slash": uri(PEER + "/"),
    "it in capitals": uri(PEER.replace("acme", "ACME")),
    "it and another": uri(PEER, "spiffe://domicile.test/tenant/globex/gateway"),
    "it twice": uri(PEER, PEER),
    "it as a DNS name": [x509.DNSName("spiffe-domicile.test")],
    "no name at all": [],
}


@pytest.mark.parametrize("name", REFUSED)
def test_everybody_else_is_refused_before_a_byte_is_read(
    runner: asyncio.Runner, authority: Authority, context: ssl.SSLContext, name: str
) -> None:
    files = authority.issue(name.replace(" ", "-"), REFUSED[name])
    assert try_it(runner, context, client(authority, files)) == (b"", [])


def test_without_a_certificate_nobody_is_served(
    runner: asyncio.Runner, authority: Authority, context: ssl.SSLContext
) -> None:
    assert try_it(runner, context, client(authority, None)) == (b"", [])


def test_the_right_name_from_another_authority_is_refused(
    runner: asyncio.Runner, authority: Authority, context: ssl.SSLContext, tmp_path: Path
) -> None:
    files = Authority(tmp_path).issue("gateway", uri(PEER))
    assert try_it(runner, context, client(authority, files)) == (b"", [])


@pytest.mark.parametrize("days", [(-3, -1), (1, 3)], ids=["expired", "not yet valid"])
def test_out_of_its_time_the_right_certificate_is_refused(
    runner: asyncio.Runner, authority: Authority, context: ssl.SSLContext, days: tuple[int, int]
) -> None:
    files = authority.issue("stale", uri(PEER), days=days)
    assert try_it(runner, context, client(authority, files)) == (b"", [])


def test_tls_1_2_is_not_spoken(runner: asyncio.Runner, authority: Authority, context: ssl.SSLContext) -> None:
    files = authority.issue("gateway", uri(PEER))
    old = client(authority, files, ssl.TLSVersion.TLSv1_2)
    assert try_it(runner, context, old) == (b"", [])


def test_a_renewed_certificate_is_shown_to_the_connections_to_come_and_a_broken_one_is_not(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    own = Authority(tmp_path)
    name = uri("spiffe://domicile.test/tenant/acme/region/eu/backend/1")
    mine = own.issue("backend", name)
    files = TlsFiles(cert=mine.cert, key=mine.key, ca=own.cert, peer_uri=PEER)
    server, peer = server_context(files), client(own, own.issue("gateway", uri(PEER)))

    async def shown(port: int) -> bytes:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=peer)
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.close()
        return certificate

    async def renewed() -> tuple[bytes, bytes, bytes]:
        listener = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=server)
        port = listener.sockets[0].getsockname()[1]
        reloading = asyncio.create_task(reload_when_renewed(server, files, every_s=0.01))
        async with listener:
            first = await shown(port)
            own.issue("backend", name)
            async with asyncio.timeout(30):
                while (second := await shown(port)) == first:
                    await asyncio.sleep(0.01)
            mine.cert.write_text("not a certificate")
            await asyncio.sleep(0.2)
            third = await shown(port)
        reloading.cancel()
        return first, second, third

    first, second, third = runner.run(renewed())
    assert first != second == third


def test_files_that_do_not_load_are_a_clear_error(authority: Authority, tmp_path: Path) -> None:
    mine = authority.issue("other", uri(PEER))
    stranger = authority.issue("stranger", uri(PEER))
    for cert, key, ca in (
        (tmp_path / "absent", mine.key, authority.cert),
        (mine.cert, stranger.key, authority.cert),
        (mine.cert, mine.key, mine.key),
    ):
        with pytest.raises(ConfigError, match="do not load"):
            server_context(TlsFiles(cert=cert, key=key, ca=ca, peer_uri=PEER))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.3.2.1"])
def test_without_tls_a_loopback_address_is_allowed(host: str) -> None:
    assert tls_files(None, None, None, None, host=host) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "backend.example", "", "127.0.0.1.example"])
def test_without_tls_any_other_address_is_refused_naming_the_options(host: str) -> None:
    with pytest.raises(ConfigError, match="--cert, --key, --ca, --peer-uri"):
        tls_files(None, None, None, None, host=host)


def test_some_of_the_tls_options_are_not_enough() -> None:
    with pytest.raises(ConfigError, match="missing: --ca, --peer-uri"):
        tls_files(Path("c"), Path("k"), None, "", host="127.0.0.1")
