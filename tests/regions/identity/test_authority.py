import asyncio
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from backend.server.tls import TlsFiles, server_context
from regions.errors import AuthorityError
from regions.identity.authority import LEAF_LIFETIME, CertificateAuthority
from regions.identity.identity import BackendIdentity, GatewayIdentity
from regions.identity.tls import client_context

ACME = GatewayIdentity("demo", "acme")
BACKEND = BackendIdentity("demo", "acme", "eu-fr-par", "acme-1")


def leaf_in(files):
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def test_a_leaf_carries_exactly_one_identity_and_no_power(authority, tmp_path):
    leaf = leaf_in(authority.issue(BACKEND, tmp_path / "leaf"))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier(BACKEND.uri)]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.digital_signature
    assert not usage.key_cert_sign
    assert not usage.crl_sign


def test_a_leaf_lives_a_day_and_serials_differ(authority, tmp_path):
    now = datetime.now(UTC)
    first = leaf_in(authority.issue(ACME, tmp_path / "a", now=lambda: now))
    second = leaf_in(authority.issue(ACME, tmp_path / "a", now=lambda: now))
    assert first.not_valid_after_utc == (now + LEAF_LIFETIME).replace(microsecond=0)
    assert first.serial_number != second.serial_number
    assert first.public_key() != second.public_key()


def test_an_independent_verifier_accepts_the_chain(authority, tmp_path):
    leaf = leaf_in(authority.issue(ACME, tmp_path / "leaf"))
    root = x509.load_pem_x509_certificate(authority.root_file.read_bytes())
    verifier = PolicyBuilder().store(Store([root])).build_client_verifier()
    names = verifier.verify(leaf, []).subjects
    assert names == [x509.UniformResourceIdentifier(ACME.uri)]


def test_keys_and_leaves_are_for_the_owner_alone(authority, tmp_path):
    files = authority.issue(BACKEND, tmp_path / "leaf")
    for path in (files.key, files.certificate, tmp_path / "ca" / "ca.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_is_the_same_authority_when_opened_again(authority, tmp_path):
    again = CertificateAuthority.open(tmp_path / "ca", "demo")
    leaf = leaf_in(again.issue(ACME, tmp_path / "leaf"))
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.root_file.read_bytes()))


def test_a_lost_root_file_is_written_again(authority, tmp_path):
    pem = authority.root_file.read_bytes()
    authority.root_file.unlink()
    assert CertificateAuthority.open(tmp_path / "ca", "demo").root_file.read_bytes() == pem


def test_the_authority_of_one_cell_does_not_open_as_that_of_another(authority, tmp_path):
    with pytest.raises(AuthorityError, match="not of cell"):
        CertificateAuthority.open(tmp_path / "ca", "other")


def test_it_speaks_for_no_other_cell(authority, tmp_path):
    with pytest.raises(AuthorityError, match="does not speak for"):
        authority.issue(GatewayIdentity("other", "acme"), tmp_path / "leaf")


def test_a_key_others_may_read_is_refused(authority, tmp_path):
    (tmp_path / "ca" / "ca.key").chmod(0o640)
    with pytest.raises(AuthorityError, match="chmod 600"):
        CertificateAuthority.open(tmp_path / "ca", "demo")


def test_a_damaged_authority_is_refused(authority, tmp_path):
    key = tmp_path / "ca" / "ca.key"
    key.write_bytes(key.read_bytes()[:100])
    with pytest.raises(AuthorityError, match="PEM"):
        CertificateAuthority.open(tmp_path / "ca", "demo")


def test_a_key_that_is_not_the_certificates_is_refused(authority, tmp_path):
    CertificateAuthority.open(tmp_path / "two", "demo")
    mine, theirs = tmp_path / "ca" / "ca.key", tmp_path / "two" / "ca.key"
    begin = b"-----BEGIN CERTIFICATE-----"
    mine.write_bytes(mine.read_bytes().split(begin)[0] + begin + theirs.read_bytes().split(begin)[1])
    with pytest.raises(AuthorityError, match="not that of its certificate"):
        CertificateAuthority.open(tmp_path / "ca", "demo")


def test_an_expired_authority_is_refused(authority, tmp_path):
    with pytest.raises(AuthorityError, match="expired"):
        CertificateAuthority.open(tmp_path / "ca", "demo", now=lambda: datetime.now(UTC) + timedelta(days=4000))


def test_no_leaf_outlives_the_root(authority, tmp_path):
    with pytest.raises(AuthorityError, match="outlive"):
        authority.issue(ACME, tmp_path / "leaf", lifetime=timedelta(days=4000))


def test_a_leaf_is_renewed_in_its_last_third_and_not_before(authority, tmp_path):
    folder, now = tmp_path / "leaf", datetime.now(UTC)
    assert authority.renew_if_due(ACME, folder, now=lambda: now)
    assert not authority.renew_if_due(ACME, folder, now=lambda: now + timedelta(hours=15))
    assert authority.renew_if_due(ACME, folder, now=lambda: now + timedelta(hours=17))
    assert not authority.renew_if_due(ACME, folder, now=lambda: now + timedelta(hours=17))


@pytest.mark.parametrize("harm", ["other identity", "other root", "no key", "garbage"])
def test_a_leaf_that_would_not_serve_is_renewed_at_once(authority, tmp_path, harm):
    folder = tmp_path / "leaf"
    authority.issue(ACME, folder)
    if harm == "other identity":
        authority.issue(GatewayIdentity("demo", "globex"), folder)
    elif harm == "other root":
        CertificateAuthority.open(tmp_path / "two", "demo").issue(ACME, folder)
    elif harm == "no key":
        (folder / "key.pem").unlink()
    else:
        (folder / "cert.pem").write_text("not a certificate")
    assert authority.renew_if_due(ACME, folder)
    assert not authority.renew_if_due(ACME, folder)


# --- of an authority that the organisation has -----------------------------------------------------------------------


def certificate(name, key, by=None, by_key=None, *, ca=True, organization="domicile.demo", days=30):
    now = datetime.now(UTC)
    subject = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )
    number = x509.SubjectKeyIdentifier(name.encode().ljust(20, b"-")[:20])  # numbered as nobody else does
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(number, critical=False)
    )
    above = by.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value if by else number
    made = made.add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(above), critical=False)
    return made.sign(by_key or key, hashes.SHA256())


@pytest.fixture
def organisation(tmp_path):
    """Puts what an organisation's authority gave us where ours would be."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]

    def put(*, upto=3, key=None, **issuer):
        root = certificate("Root", keys[0], organization="Acme Holding")
        middle = certificate("Middle", keys[1], root, keys[0], organization="Acme Holding")
        ours = certificate("Cell", keys[2], middle, keys[1], **issuer)
        pem = (key or keys[2]).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = [ours, middle, root][:upto]
        (tmp_path / "ca").mkdir(mode=0o700, exist_ok=True)
        (tmp_path / "ca" / "ca.key").write_bytes(pem + b"".join(each.public_bytes(Encoding.PEM) for each in chain))
        (tmp_path / "ca" / "ca.key").chmod(0o600)
        return root

    return put


def test_given_by_another_authority_its_leaves_come_with_the_chain_to_that_root(organisation, tmp_path):
    root = organisation()
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    assert authority.root_file.read_bytes() == root.public_bytes(Encoding.PEM)
    files = authority.issue(BACKEND, tmp_path / "leaf")
    leaf, *above = x509.load_pem_x509_certificates(files.certificate.read_bytes())
    assert len(above) == 2
    verified = PolicyBuilder().store(Store([root])).build_client_verifier().verify(leaf, above)
    assert verified.subjects == [x509.UniformResourceIdentifier(BACKEND.uri)]
    assert not authority.renew_if_due(BACKEND, tmp_path / "leaf")


async def test_both_ends_shake_hands_over_such_a_chain(organisation, tmp_path):
    organisation()
    authority = CertificateAuthority.open(tmp_path / "ca", "demo")
    server = authority.issue(BACKEND, tmp_path / "backend")
    client = client_context(authority.issue(ACME, tmp_path / "gateway"), BACKEND)
    context = server_context(TlsFiles(cert=server.certificate, key=server.key, ca=server.root, peer_uri=ACME.uri))
    listener = await asyncio.start_server(lambda _, writer: writer.write(b"hello\n"), "127.0.0.1", 0, ssl=context)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname="")
        assert await reader.readline() == b"hello\n"
        writer.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"upto": 2}, "may not issue, or not by the next"),
        ({"upto": 1}, "may not issue, or not by the next"),
        ({"ca": False}, "may not issue"),
        ({"organization": "domicile.other"}, "not of cell 'demo'"),
        ({"days": -0.01}, "expired on"),
        ({"key": ec.generate_private_key(ec.SECP256R1())}, "not that of its certificate"),
    ],
)
def test_a_chain_that_does_not_hold_is_refused(organisation, tmp_path, wrong, said):
    organisation(**wrong)
    with pytest.raises(AuthorityError, match=said):
        CertificateAuthority.open(tmp_path / "ca", "demo")


def test_no_leaf_outlives_any_of_the_chain(organisation, tmp_path):
    organisation(days=0.5)
    with pytest.raises(AuthorityError, match="outlive"):
        CertificateAuthority.open(tmp_path / "ca", "demo").issue(ACME, tmp_path / "leaf")
