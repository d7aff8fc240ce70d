"""Key and certificates with which this installation signs manifests of answers.

HKDF (RFC 5869) derives two Ed25519 keys from one secret of 32 bytes: the key of the installation's root certificate and
the signing key. Their certificates follow C2PA's certificate profile. The chain is in ``ca/manifests.pem``, signing
certificate first. A party that is to trust the manifests receives the last certificate.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_bytes

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from audit.files.new_file import PUBLIC, make_private_folder, replace_file
from regions.identity.encrypted_file import SecretFiles

SECRET_SIZE = 32
VALID = timedelta(days=3650)
ROOT_VALID = timedelta(days=7300)
EARLIER = timedelta(minutes=10)
"""Certificates are backdated by this, because other clocks may be behind."""


class ManifestKey:
    """Signing key with its certificates. `chain`: PEM, signing certificate first, root last."""

    def __init__(self, key: Ed25519PrivateKey, chain: str) -> None:
        self._key = key
        self.chain = chain

    @classmethod
    def open(cls, secret: Path, chain: Path, files: SecretFiles, cell: str) -> "ManifestKey":
        """Open the key from the secret at `secret`, which is created on first use, with the certificates in `chain`,
        which are created if they do not belong to the key. Raises LoosePermissions, KeyProviderError, OSError."""
        if secret.exists():
            content = files.read(secret)
        else:
            make_private_folder(secret.parent)
            content = files.create(secret, token_bytes(SECRET_SIZE))
        root, key = _derived(content, b"root"), _derived(content, b"signing")
        if not chain.exists() or not _is_of(key, chain.read_bytes()):
            make_private_folder(chain.parent)
            replace_file(chain, _certificates(root, key, cell), PUBLIC)
        return cls(key, chain.read_text(encoding="ascii"))

    @property
    def root(self) -> str:
        """The root certificate in PEM."""
        return root_of(self.chain)

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def root_of(chain: str) -> str:
    """Return the last certificate of a PEM chain. Raises ValueError if it is not one."""
    certificates = x509.load_pem_x509_certificates(chain.encode())
    return certificates[-1].public_bytes(Encoding.PEM).decode()


def _derived(secret: bytes, purpose: bytes) -> Ed25519PrivateKey:
    derived = HKDF(hashes.SHA256(), SECRET_SIZE, salt=None, info=b"domicile/manifests/" + purpose).derive(secret)
    return Ed25519PrivateKey.from_private_bytes(derived)


def _is_of(key: Ed25519PrivateKey, chain: bytes) -> bool:
    try:
        return x509.load_pem_x509_certificates(chain)[0].public_key() == key.public_key()
    except (ValueError, IndexError):
        return False


def _certificates(root: Ed25519PrivateKey, key: Ed25519PrivateKey, cell: str) -> bytes:
    now = datetime.now(UTC)
    above = _named(f"{cell} manifests root")
    root_certificate = (
        _begun(above, above, root, now, ROOT_VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(root, None)
    )
    certificate = (
        _begun(_named(f"{cell} manifests"), above, key, now, VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
        .sign(root, None)
    )
    return certificate.public_bytes(Encoding.PEM) + root_certificate.public_bytes(Encoding.PEM)


def _named(common: str) -> x509.Name:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Domicile installation")
    return x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PrivateKey, now: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
