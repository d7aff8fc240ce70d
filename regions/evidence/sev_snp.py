"""Attestation reports of AMD SEV-SNP, signed by the chip's key (VCEK) under AMD's root of the product line.

Sources: AMD, SEV Secure Nested Paging Firmware ABI (56860, revision 1.58), table 23, and VCEK Certificate and KDS
Interface Specification (57230, revision 1.00). Security versions by name: bootloader, tee, snp, microcode, and fmc from
Turin on.
"""

from collections.abc import Mapping
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from regions.evidence.attestation import (
    Claims,
    Evidence,
    Reference,
    require_binding,
    require_measurement,
    require_versions,
)
from regions.evidence.certificate_chains import chain_of, public_key_of, read_pem, require_root
from regions.evidence.ecdsa import require_signature
from regions.evidence.errors import EvidenceRefused

SIZE, SIGNED = 0x4A0, 0x2A0
VERSIONS = range(2, 6)
ECDSA_P384_SHA384 = 1
DEBUG, MIGRATION, RESERVED_ONE = 1 << 19, 1 << 18, 1 << 17
WIDTH = 72  # bytes of each half of a signature, little-endian
TURIN = 0x1A  # CPU family; its TCB version has another layout
PLACES = {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}
PLACES_OF_TURIN = {"fmc": 0, "bootloader": 1, "tee": 2, "snp": 3, "microcode": 7}
_AMD = "1.3.6.1.4.1.3704.1"
EXTENSIONS = {"bootloader": f"{_AMD}.3.1", "tee": f"{_AMD}.3.2", "snp": f"{_AMD}.3.3", "microcode": f"{_AMD}.3.8",
              "fmc": f"{_AMD}.3.9"}  # fmt: skip
CHIP = f"{_AMD}.4"


def verify(evidence: Evidence, binding: bytes, at: datetime, reference: Reference) -> Claims:
    """Verify a report and return its claims. Raises EvidenceRefused, which names the failed check."""
    report = evidence.report
    if len(report) != SIZE or _number(report, 0, 4) not in VERSIONS:
        raise EvidenceRefused("this is no SEV-SNP report of version 2 to 5; send it as the firmware gave it")
    certificates = read_pem(evidence.certificates)
    chain = chain_of(certificates[0], certificates[1:], at, reference.revoked)
    require_root(chain, reference.roots)
    if _number(report, 0x34, 4) != ECDSA_P384_SHA384 or _number(report, 0x48, 4) >> 2 & 7:
        raise EvidenceRefused("the SEV-SNP report is not signed by a key of its chip (VCEK); ask for one that is")
    if any(report[SIGNED + 2 * WIDTH :]):  # not signed: what is there says nothing, and may not differ
        raise EvidenceRefused("the SEV-SNP report has bytes behind its signature; send it as the hardware made it")
    r, s = (int.from_bytes(report[at : at + WIDTH], "little") for at in (SIGNED, SIGNED + WIDTH))
    key = public_key_of(chain[0])
    require_signature(key, r, s, report[:SIGNED], hashes.SHA384(), "SEV-SNP report", ec.SECP384R1)
    versions = _versions(report)
    _require_same_chip(chain[0], report, versions)
    policy = _number(report, 8, 8)
    if policy & DEBUG or not policy & RESERVED_ONE:
        raise EvidenceRefused("the guest may be debugged, so its memory can be read; start it without that policy bit")
    if policy & MIGRATION:
        raise EvidenceRefused("the guest may be migrated by an agent; start it without that policy bit")
    if _number(report, 0x30, 4):
        raise EvidenceRefused("the SEV-SNP report is not of the most privileged level (VMPL 0); ask for one of that")
    require_binding(report[0x50:0x90], binding, "SEV-SNP report")
    measurement = report[0x90:0xC0].hex()
    require_measurement(measurement, reference, "launch measurement")
    require_versions(versions, reference)
    return Claims("sev-snp", measurement, versions)


def _versions(report: bytes) -> dict[str, int]:
    """Return the security versions of the reported TCB, from which the signing key was derived."""
    is_turin = _number(report, 0, 4) >= 3 and report[0x188] >= TURIN
    places = PLACES_OF_TURIN if is_turin else PLACES
    return {name: report[0x180 + place] for name, place in places.items()}


def _require_same_chip(vcek: x509.Certificate, report: bytes, versions: Mapping[str, int]) -> None:
    """Check that the certificate is for the report's chip and security versions."""
    if _extension(vcek, CHIP)[-64:] != report[0x1A0:0x1E0] or not any(report[0x1A0:0x1E0]):
        raise EvidenceRefused("the SEV-SNP report is of another chip than its certificate; send that chip's VCEK")
    for name, version in versions.items():
        if _integer(_extension(vcek, EXTENSIONS[name])) != version:
            raise EvidenceRefused(f"the VCEK is for another version of {name} than the report; fetch the right one")


def _extension(certificate: x509.Certificate, oid: str) -> bytes:
    try:
        found = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(oid)).value
    except (x509.ExtensionNotFound, ValueError) as error:
        raise EvidenceRefused("the certificate is no VCEK: it names no chip or versions; send the chip's") from error
    return found.value if isinstance(found, x509.UnrecognizedExtension) else b""


def _integer(der: bytes) -> int:
    """Parse a DER INTEGER of one or two bytes."""
    return int.from_bytes(der[2:]) if der[:1] == b"\x02" and len(der) == 2 + der[1] else -1


def _number(report: bytes, at: int, size: int) -> int:
    return int.from_bytes(report[at : at + size], "little")
