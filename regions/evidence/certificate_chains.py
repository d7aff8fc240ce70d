"""Verification of X.509 certificate chains (RFC 5280, section 6), from a leaf to a key that the caller trusts.

Certificates of hardware vendors and of model signers are verified in the same way: each is signed by the next one,
which is an authority; each is valid at the given time and has no unknown critical extension.
"""

import warnings
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from hashlib import sha256

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.utils import CryptographyDeprecationWarning

from regions.evidence.errors import EvidenceRefused

MAX_CHAIN = 8
UNDERSTOOD = frozenset({x509.BasicConstraints.oid, x509.KeyUsage.oid, x509.ExtendedKeyUsage.oid})


def fingerprint(key: PublicKeyTypes) -> str:
    """Return ``sha256:`` and the SHA-256 of the key (SubjectPublicKeyInfo, DER) in hexadecimal digits."""
    return f"sha256:{sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()}"


def read_pem(text: str | bytes) -> list[x509.Certificate]:
    """Parse certificates in PEM. Raises EvidenceRefused if there are none or one is invalid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)  # AMD's VCEKs have the serial number 0
            return x509.load_pem_x509_certificates(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise EvidenceRefused("a certificate chain is not in PEM; send the certificates in PEM") from error


def read_der(content: bytes) -> x509.Certificate:
    """Parse a certificate in DER. Raises EvidenceRefused if it is invalid."""
    try:
        return x509.load_der_x509_certificate(content)
    except ValueError as error:
        raise EvidenceRefused("a certificate in DER cannot be read; send it as it was issued") from error


def chain_of(
    leaf: x509.Certificate,
    others: Iterable[x509.Certificate],
    at: datetime,
    revoked: Iterable[x509.CertificateRevocationList] = (),
    understood: Collection[x509.ObjectIdentifier] = (),
) -> list[x509.Certificate]:
    """Return `leaf` and the chain of authorities above it in `others`. Each certificate is valid at `at` and in none of
    the lists `revoked`. `understood`: critical extensions that the caller handles.

    Raises EvidenceRefused for an invalid certificate in the chain. The caller has to check that the last one is trusted
    (`require_root`).
    """
    candidates, lists = list(others), list(revoked)
    chain = [leaf]
    _check(leaf, at, understood)
    while (issuer := _issuer_of(chain[-1], candidates)) is not None and issuer != chain[-1]:
        if len(chain) >= MAX_CHAIN:
            raise EvidenceRefused(f"a certificate chain has more than {MAX_CHAIN} certificates; send a shorter one")
        _check(issuer, at, understood)
        _check_authority(issuer, below=len(chain) - 1)
        _check_revoked(chain[-1], issuer, lists, at)
        chain.append(issuer)
    return chain


def public_key_of(certificate: x509.Certificate) -> PublicKeyTypes:
    """Return the key of a certificate. Raises EvidenceRefused for one that is malformed or of an unknown type."""
    try:
        return certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise EvidenceRefused(
            f"the key of {_named(certificate)} cannot be read; send the certificate as it was issued"
        ) from error


def require_root(chain: Sequence[x509.Certificate], roots: Collection[str]) -> None:
    """Raise EvidenceRefused unless the last certificate is self-signed and its key is in `roots` (`fingerprint`)."""
    last = chain[-1]
    if fingerprint(public_key_of(last)) not in roots:
        raise EvidenceRefused(
            f"the certificate chain ends at {_named(last)}, which is not a trusted root"
            "; send the chain up to the vendor's root certificate"
        )
    if not is_issued_by(last, last):
        raise EvidenceRefused(f"{_named(last)} is not self-signed; send the chain up to the vendor's root certificate")


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return whether the names match and the issuer's key made the signature."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _issuer_of(certificate: x509.Certificate, candidates: list[x509.Certificate]) -> x509.Certificate | None:
    return next((each for each in candidates if is_issued_by(certificate, each)), None)


def _check(certificate: x509.Certificate, at: datetime, understood: Collection[x509.ObjectIdentifier]) -> None:
    if not certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc:
        raise EvidenceRefused(
            f"{_named(certificate)} is not valid at {at:%Y-%m-%d %H:%M} UTC, but from "
            f"{certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d}; renew it"
        )
    for extension in _extensions(certificate):
        if extension.critical and extension.oid not in UNDERSTOOD and extension.oid not in understood:
            raise EvidenceRefused(
                f"{_named(certificate)} has a critical extension {extension.oid.dotted_string} that is not understood"
                "; use a certificate without it"
            )


def _check_authority(issuer: x509.Certificate, below: int) -> None:
    """Check that a certificate may issue others. `below`: number of authorities between it and the leaf."""
    extensions = _extensions(issuer)
    try:
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        constraints = x509.BasicConstraints(ca=False, path_length=None)
    too_long = constraints.path_length is not None and below > constraints.path_length
    try:
        may_sign = extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        may_sign = True
    if not constraints.ca or too_long or not may_sign:
        raise EvidenceRefused(
            f"{_named(issuer)} may not issue certificates; send the chain of the vendor's authorities"
        )


def _check_revoked(
    certificate: x509.Certificate,
    issuer: x509.Certificate,
    lists: list[x509.CertificateRevocationList],
    at: datetime,
) -> None:
    """Check the issuer's revocation lists. The caller decides whether a list is required."""
    for each in lists:
        if each.issuer != issuer.subject:
            continue
        if not each.is_signature_valid(public_key_of(issuer)):  # type: ignore[arg-type]  # an authority's key signs
            raise EvidenceRefused(f"the revocation list of {_named(issuer)} has a wrong signature; fetch it again")
        if each.next_update_utc is not None and at > each.next_update_utc:
            raise EvidenceRefused(
                f"the revocation list of {_named(issuer)} expired on {each.next_update_utc:%Y-%m-%d}; fetch a new one"
            )
        if each.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
            raise EvidenceRefused(f"{_named(certificate)} is revoked by its issuer; replace the hardware")


def _extensions(certificate: x509.Certificate) -> x509.Extensions:
    try:
        return certificate.extensions
    except ValueError as error:
        raise EvidenceRefused(
            "a certificate has extensions that cannot be read; send the certificate as it was issued"
        ) from error


def _named(certificate: x509.Certificate) -> str:
    try:
        name = certificate.subject.rfc4514_string()
    except ValueError:
        name = "an unreadable name"
    return f"the certificate of {name[:120] or 'an empty name'}"
