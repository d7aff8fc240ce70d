"""The gateway's certificates: each tenant's own, pinned to one backend, renewed in time."""

import asyncio
import shutil
import ssl
from datetime import UTC, datetime

import pytest
from cryptography import x509

from gateway.errors import BackendUnavailable
from gateway.upstream.credentials import TenantCredentials
from regions.fleet.fleet import Backend
from regions.identity.authority import LEAF_LIFETIME, CertificateAuthority
from regions.identity.identity import BackendIdentity, GatewayIdentity

CELL = "eu-1"


@pytest.fixture
def authority(tmp_path):
    return CertificateAuthority.open(tmp_path / "ca", CELL)


def aged(authority, tmp_path, tenant, share):
    """A leaf for `tenant`'s calls that has used up `share` of its life."""
    issued = datetime.now(UTC) - LEAF_LIFETIME * share
    authority.issue(GatewayIdentity(CELL, tenant), tmp_path / "gateway" / tenant, now=lambda: issued)
    return leaf(tmp_path, tenant)


@pytest.fixture
def credentials(tmp_path, authority):
    return TenantCredentials(tmp_path / "gateway", CELL, tmp_path / "ca" / "ca.pem", authority)


def backend(place="acme/eu-fr-par/acme-1"):
    tenant, region, name = place.split("/")
    uri = BackendIdentity(CELL, tenant, region, name).uri
    return Backend(id=name, tenant=tenant, region=region, url="https://127.0.0.1:1", uri=uri, models=("small",))


def leaf(tmp_path, tenant):
    return x509.load_pem_x509_certificate((tmp_path / "gateway" / tenant / "cert.pem").read_bytes())


def uris(certificate):
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.UniformResourceIdentifier)


async def handshake(context, authority, tmp_path, server, expects):
    """One connection with `context` to a server that has `server`'s certificate and wants one; the URI it saw."""
    files = authority.issue(server, tmp_path / "server" / server.backend)
    side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    side.verify_mode = ssl.CERT_REQUIRED
    side.load_cert_chain(files.certificate, files.key)
    side.load_verify_locations(files.root)
    seen = asyncio.get_running_loop().create_future()

    async def greet(reader, writer):
        certificate = writer.get_extra_info("peercert")
        seen.set_result([value for kind, value in certificate["subjectAltName"] if kind == "URI"])
        writer.close()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=side)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="")
        assert await asyncio.wait_for(seen, 1) == expects
        writer.close()


async def test_a_backend_sees_the_certificate_of_its_own_tenant(credentials, authority, tmp_path):
    for place in ("acme/eu-fr-par/acme-1", "globex/eu-fr-par/globex-1"):
        one = backend(place)
        expects = [GatewayIdentity(CELL, one.tenant).uri]
        await handshake(credentials.context_for(one), authority, tmp_path, one.identity, expects)
    assert leaf(tmp_path, "acme").serial_number != leaf(tmp_path, "globex").serial_number


async def test_a_server_that_is_another_backend_gets_no_byte(credentials, authority, tmp_path):
    other = BackendIdentity(CELL, "acme", "eu-fr-par", "acme-2")
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(credentials.context_for(backend()), authority, tmp_path, other, [])


def test_a_certificate_is_kept_until_its_last_third_and_then_renewed(credentials, authority, tmp_path):
    credentials.context_for(backend())
    young = aged(authority, tmp_path, "acme", 0.5)
    credentials.renew()
    assert leaf(tmp_path, "acme") == young
    old = aged(authority, tmp_path, "acme", 0.75)
    credentials.renew()
    renewed = leaf(tmp_path, "acme")
    assert renewed.not_valid_after_utc > old.not_valid_after_utc
    assert uris(renewed) == uris(old) == [GatewayIdentity(CELL, "acme").uri]


async def test_after_a_renewal_connections_show_the_new_certificate(credentials, authority, tmp_path):
    context = credentials.context_for(backend())
    aged(authority, tmp_path, "acme", 2)
    context.load_cert_chain(tmp_path / "gateway" / "acme" / "cert.pem", tmp_path / "gateway" / "acme" / "key.pem")
    expects = [GatewayIdentity(CELL, "acme").uri]
    with pytest.raises((ssl.SSLError, TimeoutError, ConnectionError)):  # it shows one that has ended
        await handshake(context, authority, tmp_path, backend().identity, expects)
    credentials.renew()
    await handshake(context, authority, tmp_path, backend().identity, expects)


def test_one_tenants_broken_files_do_not_keep_the_others_from_renewal(credentials, authority, tmp_path, caplog):
    for place in ("acme/eu-fr-par/acme-1", "globex/eu-fr-par/globex-1"):
        credentials.context_for(backend(place))
    before = aged(authority, tmp_path, "globex", 0.9)
    shutil.rmtree(tmp_path / "gateway" / "acme")
    (tmp_path / "gateway" / "acme").write_text("no folder")
    credentials.renew()
    assert leaf(tmp_path, "globex") != before
    assert "the certificate for backends of tenant acme could not be renewed" in caplog.text
    assert "PRIVATE KEY" not in caplog.text


def test_without_an_authority_here_files_from_outside_are_used_and_read_again(tmp_path, authority):
    authority.issue(GatewayIdentity(CELL, "acme"), tmp_path / "gateway" / "acme")
    outside = TenantCredentials(tmp_path / "gateway", CELL, tmp_path / "ca" / "ca.pem", None)
    assert isinstance(outside.context_for(backend()), ssl.SSLContext)
    outside.renew()


@pytest.mark.parametrize("broken", ["absent", "no certificate", "no root"])
def test_without_a_certificate_the_tenants_backends_cannot_be_called(tmp_path, authority, broken):
    files = authority.issue(GatewayIdentity(CELL, "acme"), tmp_path / "gateway" / "acme")
    if broken == "absent":
        shutil.rmtree(tmp_path / "gateway")
    else:
        (files.certificate if broken == "no certificate" else files.root).write_text("nonsense")
    outside = TenantCredentials(tmp_path / "gateway", CELL, tmp_path / "ca" / "ca.pem", None)
    with pytest.raises(BackendUnavailable) as refused:
        outside.context_for(backend())
    assert (refused.value.code, refused.value.http_status) == ("no_certificate", 503)


def test_a_backend_under_a_gateways_name_cannot_even_be_registered():
    with pytest.raises(ValueError, match="not the identity of a backend"):
        Backend(
            id="acme-1",
            tenant="acme",
            region="eu-fr-par",
            url="https://127.0.0.1:1",
            uri=GatewayIdentity(CELL, "acme").uri,
            models=("small",),
        )


def test_the_first_of_the_certificates_in_use_to_end_is_known(tmp_path, authority, credentials):
    assert credentials.first_end() is None, "none is in use before the first call"
    for tenant, share in (("acme", 0.1), ("globex", 0.5)):
        aged(authority, tmp_path, tenant, share)
        credentials.context_for(backend(f"{tenant}/eu-fr-par/{tenant}-1"))
    assert credentials.first_end() == leaf(tmp_path, "globex").not_valid_after_utc
    (tmp_path / "gateway" / "globex" / "cert.pem").unlink()
    assert credentials.first_end() == leaf(tmp_path, "acme").not_valid_after_utc
