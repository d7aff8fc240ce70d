import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store

from regions.authority import LEAF_LIFETIME, CertificateAuthority
from regions.errors import AuthorityError
from regions.identity import BackendIdentity, GatewayIdentity

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
