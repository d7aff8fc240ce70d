"""Evidence of a backend's hardware: its binding, its transport format and its reference values.

The gateway requests evidence with a fresh nonce. Every technology signs 32 or 64 bytes chosen by the guest. Here they
are a hash of the nonce, the public key of the backend's TLS certificate and the digest of its weights. Evidence can
therefore not be replayed or taken from another machine, and a backend restarted with other weights needs new evidence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha512
from types import MappingProxyType
from typing import Any

from cryptography import x509
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field

from backend.wire import EVIDENCE_DOMAIN
from policy.facts import Technology
from regions.evidence.errors import EvidenceRefused

NONCE_BYTES = 32
MAX_REPORT = 64 << 10
MAX_CERTIFICATES = 64 << 10


def binding(nonce: bytes, key_sha256: str, weights_sha256: str) -> bytes:
    """Return the 64 bytes that evidence must contain: REPORT_DATA of SEV-SNP and TDX. The first 32 bytes are the
    qualifyingData of a TPM and the nonce of an NVIDIA GPU.

    nonce: 32 bytes. key_sha256: digest of the TLS public key (SubjectPublicKeyInfo, DER). weights_sha256: digest of the
    checkpoint. Both digests are 64 hexadecimal digits.
    """
    return sha512(EVIDENCE_DOMAIN + nonce + bytes.fromhex(key_sha256) + bytes.fromhex(weights_sha256)).digest()


class Evidence(BaseModel):
    """Evidence as sent by a backend. report: the hardware's report in base64. certificates: PEM, from the signing key
    upwards. signature: of a TPM only, whose signature is separate from its report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    technology: Technology
    report: Base64Bytes = Field(max_length=MAX_REPORT)
    signature: Base64Bytes = Field(b"", max_length=8192)
    certificates: str = Field("", max_length=MAX_CERTIFICATES)


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference values for the evidence of one technology.

    Attributes:
        roots: fingerprints of the vendor's root keys (`certificates.fingerprint`).
        measurements: accepted measurements in hexadecimal digits: launch measurement (SEV-SNP), MRTD (TDX), or digest
            of the PCRs (TPM). If empty, none is accepted.
        golden: accepted values of an NVIDIA GPU's measurements by index; an index that is not listed may vary.
        minimum: lowest accepted security versions by name; see each verifier.
        pcrs: registers that a TPM quote must cover.
        collateral: Intel's signed TDX collateral by FMSPC.
        revoked: revocation lists of the authorities.
    """

    roots: frozenset[str] = frozenset()
    measurements: frozenset[str] = frozenset()
    golden: Mapping[int, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    minimum: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    pcrs: tuple[int, ...] = ()
    collateral: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    revoked: tuple[x509.CertificateRevocationList, ...] = ()


@dataclass(frozen=True, slots=True)
class Claims:
    """Content of valid evidence, for the record. `measurement`: hexadecimal digits. `versions`: security versions by
    name."""

    technology: Technology
    measurement: str
    versions: Mapping[str, int]


def require_measurement(measurement: str, reference: Reference, what: str) -> None:
    """Raise EvidenceRefused for a measurement that is not accepted."""
    if measurement not in reference.measurements:
        raise EvidenceRefused(
            f"the {what} {measurement[:16]} is not accepted; if it is of the image that you built, add it to the "
            "configuration"
        )


def require_versions(found: Mapping[str, int], reference: Reference) -> None:
    """Raise EvidenceRefused for a security version that is below the minimum or missing."""
    for name, least in sorted(reference.minimum.items()):
        version = found.get(name)
        if version is None:
            raise EvidenceRefused(
                f"the evidence has no security version of {name}; remove {name} from the minimum, or use hardware that "
                "reports it"
            )
        if version < least:
            raise EvidenceRefused(f"{name} has the security version {version}, below {least}; update the firmware")


def require_binding(found: bytes, expected: bytes, what: str) -> None:
    """Raise EvidenceRefused if evidence is not bound to the expected nonce, TLS key and weights."""
    if found != expected:
        raise EvidenceRefused(
            f"the {what} is not for this nonce, TLS key and weights: it is old, or of another machine or model"
            "; request it from the backend again"
        )
