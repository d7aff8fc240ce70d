"""Evidence of a backend's hardware: what it is bound to, how it travels, and what it is compared with.

The gateway asks with a fresh nonce. Every technology signs 32 or 64 bytes that the guest chooses; ours are a hash over
the nonce, the public key of the backend's TLS certificate and the digest of its weights. So evidence is neither old nor
another machine's, and a backend that is started with other weights has to show anew.
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
from regions.evidence.refusal import EvidenceRefused

NONCE_BYTES = 32
MAX_REPORT = 64 << 10
MAX_CERTIFICATES = 64 << 10


def binding(nonce: bytes, key_sha256: str, weights_sha256: str) -> bytes:
    """The 64 bytes that evidence has to hold: REPORT_DATA of SEV-SNP and TDX; their first 32 are qualifyingData of a
    TPM and the nonce of an NVIDIA GPU.

    `nonce`: 32 bytes. `key_sha256`: of the TLS public key (SubjectPublicKeyInfo, DER); `weights_sha256`: of the
    checkpoint; both 64 hexadecimal digits.
    """
    return sha512(EVIDENCE_DOMAIN + nonce + bytes.fromhex(key_sha256) + bytes.fromhex(weights_sha256)).digest()


class Evidence(BaseModel):
    """One piece, as a backend sends it. report: base64, as the hardware made it. certificates: PEM, from the key that
    signed it upwards. signature: of a TPM, which signs apart from its report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    technology: Technology
    report: Base64Bytes = Field(max_length=MAX_REPORT)
    signature: Base64Bytes = Field(b"", max_length=8192)
    certificates: str = Field("", max_length=MAX_CERTIFICATES)


@dataclass(frozen=True, slots=True)
class Reference:
    """What evidence of one technology is compared with.

    Attributes:
        roots: fingerprints of the vendor's root keys (`certificates.fingerprint`).
        measurements: accepted ones, in hexadecimal digits: of SEV-SNP the launch measurement, of TDX MRTD, of a TPM the
            digest over its PCRs. None is accepted where it is empty.
        golden: of an NVIDIA GPU, accepted values of each measurement by its index; those that are not listed vary.
        minimum: the lowest security versions, by name; see each verifier.
        pcrs: of a TPM, the registers that a quote has to be over.
        collateral: of TDX, what Intel signed about platforms, by FMSPC.
        revoked: lists of the authorities.
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
    """What evidence that holds says, for the record. `measurement`: in hexadecimal digits. `versions`: security
    versions by name."""

    technology: Technology
    measurement: str
    versions: Mapping[str, int]


def require_measurement(measurement: str, reference: Reference, what: str) -> None:
    """Raises EvidenceRefused for one that is not on the list."""
    if measurement not in reference.measurements:
        raise EvidenceRefused(
            f"the {what} {measurement[:16]} is not one that is accepted; add it to the configuration if it is of the "
            "image that you built"
        )


def require_versions(found: Mapping[str, int], reference: Reference) -> None:
    """Raises EvidenceRefused for a security version below the minimum, or one that evidence does not have."""
    for name, least in sorted(reference.minimum.items()):
        if found.get(name, -1) < least:
            raise EvidenceRefused(
                f"{name} has the security version {found.get(name)}, below {least}; update the firmware"
            )


def require_binding(found: bytes, expected: bytes, what: str) -> None:
    """Raises EvidenceRefused where evidence is not for this nonce, TLS key and weights."""
    if found != expected:
        raise EvidenceRefused(
            f"the {what} is not for this nonce, TLS key and weights: it is old, another machine's, or of another model"
            "; ask the backend again"
        )
