"""A server that is not ours is reached only if it is the one that was named: by a private CA, or by its certificate."""

import asyncio
import ipaddress
import ssl
from hashlib import sha256

import pytest
from cryptography import x509
from pydantic import ValidationError

from regions.identity.trust import Trust, check_pin, trusted_context
from tests.backend.certificates import Authority

HOST = [x509.DNSName("vllm.internal"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]


def pin_of(files):
    return sha256(ssl.PEM_cert_to_DER_cert(files.cert.read_text())).hexdigest()


async def attempt(files, trust, name="127.0.0.1"):
    """Bytes that a server with `files` receives from a client that trusts by `trust`."""
    received = []

    async def serve(reader, writer):
        received.append(await reader.read(100))
        writer.close()

    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(files.cert, files.key)
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=served) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusted_context(trust), server_hostname=name
            )
        except ssl.SSLCertVerificationError:
            return received
        writer.write(b"prompt")
        await writer.drain()
        writer.close()
        await asyncio.sleep(0.05)
    return received


@pytest.fixture
def ca(tmp_path):
    return Authority(tmp_path / "ca")


async def test_its_own_ca_or_its_pinned_certificate_or_both_let_a_request_through(ca, tmp_path):
    files = ca.issue("vllm", HOST)
    root, pin = ca.cert.read_text(), pin_of(files)
    for trust in (Trust(ca=root), Trust(pin=pin), Trust(ca=root, pin=pin)):
        assert await attempt(files, trust) == [b"prompt"]
    assert await attempt(files, Trust(ca=root, name="vllm.internal"), "vllm.internal") == [b"prompt"]


async def test_not_one_byte_leaves_for_any_other(ca, tmp_path):
    files, twin = ca.issue("vllm", HOST), ca.issue("twin", HOST)
    stranger = Authority(tmp_path / "other").issue("vllm", HOST)
    elsewhere = ca.issue("elsewhere", [x509.DNSName("other.internal")])
    root, pin = ca.cert.read_text(), pin_of(files)
    for shown, trust in (
        (stranger, Trust(ca=root)), (stranger, Trust(pin=pin)), (twin, Trust(pin=pin)), (twin, Trust(ca=root, pin=pin)),
        (elsewhere, Trust(ca=root)), (ca.issue("old", HOST, days=(-3, -2)), Trust(ca=root)),
    ):  # fmt: skip
        assert [data for data in await attempt(shown, trust) if data] == []


def test_who_names_nothing_trusts_nobody():
    for trust in (Trust(), Trust(name="x"), Trust(key_file="/k")):
        assert not trust.proves
        with pytest.raises(ValueError, match="neither a CA nor a certificate"):
            trusted_context(trust)


@pytest.mark.parametrize("wrong", [{"pin": "AB" * 32}, {"pin": "ab"}, {"ca": "no PEM"}, {"url": "x"}])
def test_what_is_no_trust_is_refused(wrong):
    with pytest.raises(ValidationError):
        Trust(**wrong)


def test_a_server_that_refuses_what_is_not_openais_own_takes_no_priority():
    with pytest.raises(ValidationError, match="does not take priority"):
        Trust(pin="0" * 64, plain=True, priority=True)


def test_a_pin_without_a_certificate_fits_nothing():
    with pytest.raises(ssl.SSLCertVerificationError, match="none"):
        check_pin(None, "0" * 64)
