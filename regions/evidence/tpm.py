"""Quotes of a TPM 2.0: registers (PCRs) signed by an attestation key, whose certificate chain ends at a trusted root.

Sources: TCG, TPM 2.0 Library, part 2: 10.12.8 (TPMS_ATTEST), 10.12.1 (TPMS_QUOTE_INFO), 11.3.4 (TPMT_SIGNATURE). The
measurement is the digest over the configured PCRs of the SHA-256 bank. The security version is ``firmware``. A TPM
hides it (part 1, 36.7) unless the attestation key is of the endorsement or platform hierarchy; of another key it has no
order, so that no minimum should be configured.
"""

from dataclasses import dataclass
from datetime import datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtensionOID

from regions.evidence.attestation import (
    Claims,
    Evidence,
    Reference,
    require_binding,
    require_measurement,
    require_versions,
)
from regions.evidence.binary_fields import FieldReader
from regions.evidence.certificate_chains import chain_of, public_key_of, read_pem, require_root
from regions.evidence.ecdsa import require_signature
from regions.evidence.errors import EvidenceRefused

MAGIC, QUOTE = 0xFF544347, 0x8018
SHA256 = 0x000B
RSASSA, RSAPSS, ECDSA = 0x0014, 0x0016, 0x0018
HASHES: dict[int, type[hashes.HashAlgorithm]] = {SHA256: hashes.SHA256, 0x000C: hashes.SHA384, 0x000D: hashes.SHA512}
CURVES = (ec.SECP256R1, ec.SECP384R1)
QUALIFYING = 32


@dataclass(frozen=True, slots=True)
class Quote:
    """A quote. `extra`: qualifyingData. `registers`: indices in the SHA-256 bank. `digest`: digest of their values."""

    extra: bytes
    firmware: int
    registers: tuple[int, ...]
    digest: bytes


def _fields(content: bytes) -> FieldReader:
    return FieldReader(content, "big", "the TPM's quote", "send it as the TPM gave it")


def verify(evidence: Evidence, binding: bytes, at: datetime, reference: Reference) -> Claims:
    """Verify a quote and return its claims. `evidence.report`: TPMS_ATTEST. `evidence.signature`: TPMT_SIGNATURE.

    Raises EvidenceRefused, which names the failed check.
    """
    certificates = read_pem(evidence.certificates)
    # TCG's EK credential profile marks the subject alternative name critical, because the subject is empty
    understood = (ExtensionOID.SUBJECT_ALTERNATIVE_NAME,)
    chain = chain_of(certificates[0], certificates[1:], at, reference.revoked, understood)
    require_root(chain, reference.roots)
    _require_signature(public_key_of(chain[0]), evidence.signature, evidence.report)
    quote = read_quote(evidence.report)
    require_binding(quote.extra, binding[:QUALIFYING], "TPM's quote")
    if not reference.pcrs or quote.registers != tuple(sorted(reference.pcrs)):
        raise EvidenceRefused(
            f"the TPM's quote is over the registers {_listed(quote.registers)} and not {_listed(reference.pcrs)}"
            "; quote those of the configuration, in the SHA-256 bank"
        )
    measurement, versions = quote.digest.hex(), {"firmware": quote.firmware}
    require_measurement(measurement, reference, "digest of the TPM's registers")
    require_versions(versions, reference)
    return Claims("tpm", measurement, versions)


def read_quote(content: bytes) -> Quote:
    """Parse a quote. Raises EvidenceRefused unless it covers registers of the SHA-256 bank only."""
    reader = _fields(content)
    if (reader.number(4), reader.number(2)) != (MAGIC, QUOTE):
        raise EvidenceRefused("this is no quote that a TPM made; send what TPM2_Quote gave")
    reader.sized(2)  # the signer's name; the certificate identifies it
    extra = reader.sized(2)
    reader.take(8 + 4 + 4 + 1)  # clock, resets, restarts, safe
    firmware = reader.number(8)
    if reader.number(4) != 1 or reader.number(2) != SHA256:
        raise EvidenceRefused("the TPM's quote is not over its SHA-256 bank alone; quote that")
    selected = reader.take(reader.number(1))
    digest = reader.sized(2)
    reader.end()
    registers = tuple(8 * at + bit for at, byte in enumerate(selected) for bit in range(8) if byte >> bit & 1)
    return Quote(extra, firmware, registers, digest)


def _require_signature(key: PublicKeyTypes, signature: bytes, signed: bytes) -> None:
    reader = _fields(signature)
    scheme, kind = reader.number(2), HASHES.get(reader.number(2))
    if kind is None:
        raise EvidenceRefused("the TPM's quote is signed over another hash than SHA-256, 384 or 512; use one of them")
    if scheme == ECDSA:
        r, s = int.from_bytes(reader.sized(2)), int.from_bytes(reader.sized(2))
        reader.end()
        curve = next((each for each in CURVES if isinstance(getattr(key, "curve", None), each)), ec.SECP256R1)
        require_signature(key, r, s, signed, kind(), "TPM's quote", curve)
        return
    if scheme not in (RSASSA, RSAPSS) or not isinstance(key, rsa.RSAPublicKey) or key.key_size < 2048:
        raise EvidenceRefused("the TPM's quote is not signed by ECDSA or RSA of 2048 bits; use such an attestation key")
    made = reader.sized(2)
    reader.end()
    pss = padding.PSS(padding.MGF1(kind()), padding.PSS.AUTO)
    try:
        key.verify(made, signed, padding.PKCS1v15() if scheme == RSASSA else pss, kind())
    except InvalidSignature as error:
        raise EvidenceRefused("the signature of the TPM's quote does not hold; ask the backend again") from error


def _listed(registers: tuple[int, ...]) -> str:
    return ", ".join(map(str, registers)) or "none"
