"""The cell's certificate authority: short-lived leaves, each carrying exactly one identity.

ECDSA P-256. Leaves follow X509-SVID §3-5: one URI SAN, digital signature only, both extended key usages. The key stays
in a file of mode 0600. An installation may be given a certificate of its organisation's own authority instead of one
that it makes: then that one's root is what everybody trusts, and leaves come with the chain up to it. The root carries
no URI name constraint: few verifiers know that kind and the others then refuse the whole chain; the cell is part of
the URI, which is compared whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from audit.files.secret_file import LoosePermissions, write_secret
from regions.errors import AuthorityError
from regions.identity.encrypted_file import PLAIN, SecretFiles
from regions.identity.identity import Identity, trust_domain

ROOT_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(hours=24)
CLOCK_SKEW = timedelta(minutes=5)  # a leaf is valid this long before it is issued, for hosts whose clocks lag
RENEW_BELOW = 1 / 3  # of its lifetime left

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Paths of one identity's leaf certificate and key (PEM), and of the root that verifies its peers."""

    certificate: Path
    key: Path
    root: Path


class CertificateAuthority:
    """Issues leaves for the identities of one cell."""

    def __init__(
        self, cell: str, chain: Sequence[x509.Certificate], key: ec.EllipticCurvePrivateKey, root_file: Path
    ) -> None:
        """`chain`: from the certificate of `key`, by which leaves are issued, to the root; often one and the same."""
        self.cell = cell
        self.root_file = root_file
        self._issuer, *self._above = chain
        self._until = min(certificate.not_valid_after_utc for certificate in chain)
        self._key = key

    @classmethod
    def open(
        cls, folder: Path, cell: str, *, now: Clock = utc_now, files: SecretFiles = PLAIN
    ) -> "CertificateAuthority":
        """The authority kept in `folder` (``ca.pem``, ``ca.key``), created on first use.

        ``ca.key`` holds the key, its certificate, and, where another authority gave that, the chain up to its root.
        Raises AuthorityError if it is of another cell, expired, key or chain do not match, or others may read the key.
        """
        key_file, root_file = folder / "ca.key", folder / "ca.pem"
        domain = trust_domain(cell)
        try:
            # One file holds key and root, so that processes which start together agree on both.
            bundle = files.read(key_file) if key_file.exists() else files.create(key_file, _new_root(domain, now()))
            key = serialization.load_pem_private_key(bundle, password=None)
            chain = x509.load_pem_x509_certificates(bundle)
        except LoosePermissions as error:
            raise AuthorityError(str(error)) from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise AuthorityError(
                f"{key_file} does not hold a key and a certificate in PEM; restore the file from a backup"
            ) from error
        issuer, root = chain[0], chain[-1]
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != issuer.public_key():
            raise AuthorityError(
                f"the key in {key_file} is not that of its certificate; restore the file from a backup"
            )
        if [each.value for each in issuer.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] != [domain]:
            raise AuthorityError(
                f"{key_file} is the authority of {issuer.subject.rfc4514_string()}, not of cell {cell!r}"
                "; name the folder of that cell, or set cell"
            )
        _check_chain(chain, key_file)
        if (ends := min(each.not_valid_after_utc for each in chain)) <= now():
            raise AuthorityError(
                f"the authority in {key_file} expired on {ends:%Y-%m-%d}"
                "; put a new authority into this file (docs/fleet.md)"
            )
        pem = root.public_bytes(serialization.Encoding.PEM)
        if not root_file.exists() or root_file.read_bytes() != pem:
            write_secret(root_file, pem)
        return cls(cell, chain, key, root_file)

    def issue(
        self, identity: Identity, folder: Path, *, lifetime: timedelta = LEAF_LIFETIME, now: Clock = utc_now
    ) -> CredentialFiles:
        """Write a fresh key and leaf for `identity` into `folder`, both of mode 0600, replacing what was there.

        Raises AuthorityError for an identity of another cell or a lifetime beyond the root's.
        """
        if identity.cell != self.cell:
            raise AuthorityError(
                f"the authority of cell {self.cell!r} does not speak for {identity.uri}; use the authority of that cell"
            )
        starts, ends = now() - CLOCK_SKEW, now() + lifetime
        if ends > self._until:
            raise AuthorityError(
                f"a leaf until {ends:%Y-%m-%d %H:%M} would outlive the root; renew the authority first"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, trust_domain(self.cell))]))
            .issuer_name(self._issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(starts)
            .not_valid_after(ends)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_key_identifier(self._issuer), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = CredentialFiles(folder / "cert.pem", folder / "key.pem", self.root_file)
        write_secret(files.key, _private_pem(key))
        shown = [leaf] if not self._above else [leaf, self._issuer, *self._above[:-1]]
        write_secret(files.certificate, b"".join(each.public_bytes(serialization.Encoding.PEM) for each in shown))
        return files

    def renew_if_due(
        self, identity: Identity, folder: Path, *, lifetime: timedelta = LEAF_LIFETIME, now: Clock = utc_now
    ) -> bool:
        """Issue again if the leaf in `folder` is absent, unreadable, of another identity or root, or in its last third.

        True if it did: reload the files (an SSLContext takes them in place).
        """
        try:
            leaf = x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())
            leaf.verify_directly_issued_by(self._issuer)
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            uris = []
        if uris == [identity.uri] and (folder / "key.pem").exists():
            left = leaf.not_valid_after_utc - now()
            if left > (leaf.not_valid_after_utc - leaf.not_valid_before_utc) * RENEW_BELOW:
                return False
        self.issue(identity, folder, lifetime=lifetime, now=now)
        return True


def _new_root(domain: str, now: datetime) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _root_name(domain)
    root = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + ROOT_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(certificate_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _private_pem(key) + root.public_bytes(serialization.Encoding.PEM)


def _check_chain(chain: Sequence[x509.Certificate], file: Path) -> None:
    """Each may issue, and was issued by the next; the last by itself. Raises AuthorityError."""
    for below, above in zip(chain, [*chain[1:], chain[-1]], strict=True):
        try:
            may_issue = below.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
            below.verify_directly_issued_by(above)
        except (x509.ExtensionNotFound, ValueError, TypeError, InvalidSignature):
            may_issue = False
        if not may_issue:
            raise AuthorityError(
                f"{below.subject.rfc4514_string()} in {file} may not issue, or not by the next in it"
                "; order the chain from issuer to root"
            )


def _key_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """As the issuer's own certificate has it: authorities number their keys as they like (RFC 5280 §4.2.1.1)."""
    own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _root_name(domain: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, domain),
            x509.NameAttribute(NameOID.COMMON_NAME, "Domicile cell authority"),
        ]
    )


def _key_usage(*, digital_signature: bool = False, certificate_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=certificate_sign,
        crl_sign=certificate_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
