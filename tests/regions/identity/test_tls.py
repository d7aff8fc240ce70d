"""Real handshakes on loopback. The server counts the bytes of every request that reaches it."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from regions.identity.authority import CertificateAuthority, CredentialFiles
from regions.identity.identity import BackendIdentity, GatewayIdentity
from regions.identity.tls import client_context

EXPECTED = BackendIdentity("demo", "acme", "eu-fr-par", "acme-1")
GATEWAY = GatewayIdentity("demo", "acme")
LOOPS = pytest.mark.parametrize(
    "loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


def server_context(files, *, require_client=True):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.root)
    context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_NONE
    return context


def leaf_with(authority, folder, names):
    """A leaf no honest authority of ours would issue: signed by its key, with any SANs at all."""
    good = authority.issue(EXPECTED, folder)
    key = ec.generate_private_key(ec.SECP256R1())
    root_key = serialization.load_pem_private_key((authority.root_file.parent / "ca.key").read_bytes(), None)
    model = x509.load_pem_x509_certificate(good.certificate.read_bytes())
    builder = (
        x509.CertificateBuilder()
        .subject_name(model.subject)
        .issuer_name(model.issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(model.not_valid_before_utc)
        .not_valid_after(model.not_valid_after_utc)
    )
    for extension in model.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            if names:
                builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        elif isinstance(extension.value, x509.SubjectKeyIdentifier):
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        else:
            builder = builder.add_extension(extension.value, extension.critical)
    good.certificate.write_bytes(builder.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    good.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return good


async def try_request(server_files, client_files, expected=EXPECTED, context=None):
    """POST through aiohttp to a TLS server. Returns (status or the exception, request bytes received)."""
    received = bytearray()

    async def serve(reader, writer):
        try:
            received.extend(await reader.readuntil(b"secret prompt"))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            received.extend(getattr(error, "partial", b""))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context(server_files))
    port = server.sockets[0].getsockname()[1]
    context = context or client_context(client_files, expected)
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"https://127.0.0.1:{port}/", data=b"secret prompt", ssl=context) as response,
        ):
            outcome = response.status
    except Exception as error:
        outcome = error
    await asyncio.sleep(0.05)
    server.close()
    await server.wait_closed()
    return outcome, bytes(received)


def run(loop_factory, *args, **kwargs):
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(try_request(*args, **kwargs))


@LOOPS
def test_the_backend_that_is_meant_is_reached(authority, tmp_path, loop_factory):
    outcome, received = run(
        loop_factory, authority.issue(EXPECTED, tmp_path / "s"), authority.issue(GATEWAY, tmp_path / "c")
    )
    assert outcome == 200
    assert received.endswith(b"secret prompt")


URI = x509.UniformResourceIdentifier
WRONG_NAMES = {
    "another tenant": [URI(BackendIdentity("demo", "globex", "eu-fr-par", "acme-1").uri)],
    "another cell": [URI(BackendIdentity("other", "acme", "eu-fr-par", "acme-1").uri)],
    "another region": [URI(BackendIdentity("demo", "acme", "us-east", "acme-1").uri)],
    "another backend": [URI(BackendIdentity("demo", "acme", "eu-fr-par", "acme-2").uri)],
    "the gateway itself": [URI(GATEWAY.uri)],
    "a prefix": [URI(EXPECTED.uri[:-1])],
    "a suffix": [URI(EXPECTED.uri + "0")],
    "a sub-path": [URI(EXPECTED.uri + "/x")],
    "another case": [URI(EXPECTED.uri.replace("acme-1", "ACME-1"))],
    "two URIs, the right one first": [URI(EXPECTED.uri), URI(EXPECTED.uri + "0")],
    "two URIs, the right one last": [URI(EXPECTED.uri + "0"), URI(EXPECTED.uri)],
    "the right URI twice": [URI(EXPECTED.uri), URI(EXPECTED.uri)],
    "no SAN": [],
    "the URI as a DNS name": [x509.DNSName(EXPECTED.uri)],
    "a DNS name of the host": [x509.DNSName("127.0.0.1")],
}


@LOOPS
@pytest.mark.parametrize("names", WRONG_NAMES.values(), ids=WRONG_NAMES.keys())
def test_not_one_byte_leaves_for_a_peer_with_other_names(authority, tmp_path, names, loop_factory):
    outcome, received = run(
        loop_factory, leaf_with(authority, tmp_path / "s", names), authority.issue(GATEWAY, tmp_path / "c")
    )
    assert isinstance(outcome, aiohttp.ClientConnectorError | ssl.SSLCertVerificationError)
    assert received == b""


@LOOPS
@pytest.mark.parametrize("fault", ["other authority", "expired", "not yet valid"])
def test_not_one_byte_leaves_for_a_certificate_that_does_not_verify(authority, tmp_path, fault, loop_factory):
    client = authority.issue(GATEWAY, tmp_path / "c")
    if fault == "other authority":
        server = CertificateAuthority.open(tmp_path / "two", "demo").issue(EXPECTED, tmp_path / "s")
        server = CredentialFiles(server.certificate, server.key, client.root)
    else:
        days = -2 if fault == "expired" else 2
        server = authority.issue(EXPECTED, tmp_path / "s", now=lambda: datetime.now(UTC) + timedelta(days=days))
    outcome, received = run(loop_factory, server, client)
    assert isinstance(outcome, aiohttp.ClientConnectorCertificateError)
    assert received == b""


def test_a_server_that_speaks_only_tls_1_2_is_refused(authority, tmp_path):
    files = authority.issue(EXPECTED, tmp_path / "s")
    context = server_context(files)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def connect():
        server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        try:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(
                    "127.0.0.1", port, ssl=client_context(files, EXPECTED), server_hostname=""
                )
        finally:
            server.close()
            await server.wait_closed()

    asyncio.run(connect())


def test_a_blocking_socket_cannot_slip_past_the_check(authority, tmp_path):
    context = client_context(authority.issue(GATEWAY, tmp_path / "c"), EXPECTED)
    with pytest.raises(ssl.SSLError, match="asyncio"):
        context.wrap_socket(None)


@LOOPS
def test_a_renewed_leaf_is_shown_by_the_context_that_is_in_use(authority, tmp_path, loop_factory):
    server = authority.issue(EXPECTED, tmp_path / "s")
    expired = authority.issue(GATEWAY, tmp_path / "c", now=lambda: datetime.now(UTC) - timedelta(days=2))

    async def main():
        context = client_context(expired, EXPECTED)
        outcome, received = await try_request(server, None, context=context)
        assert isinstance(outcome, aiohttp.ClientError)
        assert received == b""
        renewed = authority.issue(GATEWAY, tmp_path / "c")
        context.load_cert_chain(renewed.certificate, renewed.key)
        outcome, _ = await try_request(server, None, context=context)
        assert outcome == 200

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_contexts_do_not_share_their_pin(authority, tmp_path):
    files = authority.issue(GATEWAY, tmp_path / "c")
    other = BackendIdentity("demo", "acme", "eu-fr-par", "acme-2")
    one, two = client_context(files, EXPECTED), client_context(files, other)
    assert one.sslobject_class is not two.sslobject_class
    assert ssl.create_default_context().sslobject_class is ssl.SSLObject
