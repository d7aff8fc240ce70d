"""Attestation reports of NVIDIA GPUs in confidential mode: SPDM measurements, signed by a key of the GPU.

A report is the request (GET_MEASUREMENTS with the nonce) and the response (MEASUREMENTS), as provided by the driver.
Measurements are compared with golden values, which NVIDIA publishes for each driver and VBIOS (RIM). An index without a
golden value may vary. Sources: DMTF DSP0274 1.1, 10.11; NVIDIA nvtrust, guest_tools/gpu_verifiers.
"""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha384

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import ObjectIdentifier

from regions.evidence.attestation import Claims, Evidence, Reference, require_binding
from regions.evidence.certificate_chains import chain_of, public_key_of, read_pem, require_root
from regions.evidence.ecdsa import halves, require_signature
from regions.evidence.errors import EvidenceRefused

REQUEST = 37
SIGNATURE = 96
SPDM_1_1, GET_MEASUREMENTS, MEASUREMENTS = 0x11, 0xE0, 0x60
DMTF = 1
NONCE = slice(4, 36)
DICE_TCB_INFO = ObjectIdentifier("2.23.133.5.4.1")
"""Critical in some device certificates. The firmware that it describes is measured as well."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements. `values`: by index. `record`: the signed bytes of all measurements."""

    values: dict[int, bytes]
    record: bytes


def verify(evidence: Evidence, binding: bytes, at: datetime, reference: Reference) -> Claims:
    """Verify a report. The measurement in the claims is the SHA-384 of the measurement record. Raises EvidenceRefused,
    which names the failed check."""
    certificates, report = read_pem(evidence.certificates), evidence.report
    chain = chain_of(certificates[0], certificates[1:], at, reference.revoked, (DICE_TCB_INFO,))
    require_root(chain, reference.roots)
    found = read_report(report)
    r, s = halves(report[-SIGNATURE:])
    what, key = "GPU's report", public_key_of(chain[0])
    require_signature(key, r, s, report[:-SIGNATURE], hashes.SHA384(), what, ec.SECP384R1)
    require_binding(report[NONCE], binding[:32], what)
    if not reference.golden:
        raise EvidenceRefused("there are no golden values for the GPU; add those of its driver and VBIOS")
    for index, accepted in sorted(reference.golden.items()):
        if (value := found.values.get(index)) is None or value.hex() not in accepted:
            raise EvidenceRefused(
                f"measurement {index} of the GPU is not a golden value; install the driver and VBIOS that they are of"
            )
    return Claims("nvidia", sha384(found.record).hexdigest(), {})


def read_report(report: bytes) -> Measured:
    """Parse a report. Raises EvidenceRefused unless it is a request with its response."""
    answer = report[REQUEST:]
    is_one = report[:2] == bytes((SPDM_1_1, GET_MEASUREMENTS)) and answer[:2] == bytes((SPDM_1_1, MEASUREMENTS))
    if not is_one or len(answer) < 8:
        raise _malformed()
    blocks, size = answer[4], int.from_bytes(answer[5:8], "little")
    record, rest = answer[8 : 8 + size], answer[8 + size :]
    opaque = int.from_bytes(rest[32:34], "little")
    if len(record) != size or len(rest) != 32 + 2 + opaque + SIGNATURE:
        raise _malformed()
    values, left = dict[int, bytes](), record
    for _ in range(blocks):
        length = int.from_bytes(left[2:4], "little")
        block, left = left[:4], left[4:]
        measurement, left = left[:length], left[length:]
        if len(block) != 4 or block[1] != DMTF or len(measurement) != length or block[0] in values:
            raise _malformed()
        value = measurement[3:]
        if length < 3 or len(value) != int.from_bytes(measurement[1:3], "little"):
            raise _malformed()
        values[block[0]] = value
    if left or not values:
        raise _malformed()
    return Measured(values, record)


def _malformed() -> EvidenceRefused:
    return EvidenceRefused("this is no attestation report of an NVIDIA GPU; send it as the driver gave it")
