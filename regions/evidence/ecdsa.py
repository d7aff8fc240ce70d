"""ECDSA signatures in the format of hardware: two integers of fixed width instead of DER."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from regions.evidence.errors import EvidenceRefused


def require_signature(
    key: PublicKeyTypes,
    r: int,
    s: int,
    signed: bytes,
    kind: hashes.HashAlgorithm,
    what: str,
    curve: type[ec.EllipticCurve],
) -> None:
    """Raise EvidenceRefused unless `key` is on `curve` and made the signature (`r`, `s`) of `signed`."""
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, curve):
        raise EvidenceRefused(f"the key of the {what} is not on {curve.name}; send the vendor's certificate")
    try:
        key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(kind))
    except (InvalidSignature, ValueError) as error:
        raise EvidenceRefused(f"the signature of the {what} is invalid; request it from the backend again") from error


def halves(signature: bytes) -> tuple[int, int]:
    """Split a signature into two big-endian integers of the same width."""
    width = len(signature) // 2
    return int.from_bytes(signature[:width]), int.from_bytes(signature[width:])
