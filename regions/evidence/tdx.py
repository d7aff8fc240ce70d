"""Quotes of Intel TDX, versions 4 and 5, signed by Intel's quoting enclave. The chain of its platform key (PCK) ends at
Intel's root.

A quote contains measurements and the platform's security versions. Intel's signed collateral, given as files, states
whether these versions are current: the TCB info of the platform's family (FMSPC) and the identity of the quoting
enclave (`regions.evidence.tdx_collateral`). Without collateral no quote is accepted.

Sources: Intel, TDX DCAP Quoting Library API (0.9), appendix A; sgx_quote_5.h of SGXDataCenterAttestationPrimitives
(body of type 4); TDX Module ABI (348551-008US), table 3.23 (TD attributes); SGX PCK Certificate Specification (1.5).
"""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

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
from regions.evidence.binary_fields import FieldReader
from regions.evidence.certificate_chains import chain_of, public_key_of, read_pem, require_root
from regions.evidence.ecdsa import halves, require_signature
from regions.evidence.errors import EvidenceRefused
from regions.evidence.tdx_collateral import QuotingEnclave, TdxModule, platform_of, require_current

HEADER, BODY = 48, 584
BODIES = {2: 584, 3: 648, 4: 885}  # body sizes in version 5: TD reports of TDX 1.0, 1.5 and 1.5 with its extension
ECDSA_P256, TDX = 2, 0x81
INTEL = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
QE_REPORT = 384
QE_CERTIFICATION, PCK_CHAIN = 6, 5
UNTRUSTED = 0xFF  # TD attributes 7:0 (TUD): debug and profiling, which show memory or behaviour to the host
MIGRATABLE = 1 << 29


@dataclass(frozen=True, slots=True)
class Quote:
    """A quote. `signed`: header and body. `svns`: security versions of TDX module and platform (TEE_TCB_SVN), when the
    domain was started and, since TDX 1.5, now. `module`: signer and attributes of the TDX module. `chain`: PCK
    certificate and its issuers."""

    signed: bytes
    svns: tuple[bytes, ...]
    module: TdxModule
    td_attributes: int
    mrtd: bytes
    report_data: bytes
    enclave: QuotingEnclave
    chain: tuple[x509.Certificate, ...]


def verify(evidence: Evidence, binding: bytes, at: datetime, reference: Reference) -> Claims:
    """Verify a quote and return its claims. Its security version is ``tcb``, the first byte of TEE_TCB_SVN (since
    TDX 1.5 the one of now).

    Raises EvidenceRefused, which names the failed check.
    """
    quote = signed_quote(evidence.report, at, reference)
    if quote.td_attributes & UNTRUSTED:
        raise EvidenceRefused(
            "the trust domain may be debugged or profiled, so its memory can be read; start it without debug"
        )
    if quote.td_attributes & MIGRATABLE:
        raise EvidenceRefused("the trust domain may be migrated to another machine; start it without migration")
    if any(quote.module.attributes):
        raise EvidenceRefused("the TDX module is not one of production; load Intel's signed one")
    require_binding(quote.report_data, binding, "TDX quote")
    require_measurement(quote.mrtd.hex(), reference, "measurement of the trust domain (MRTD)")
    platforms = [platform_of(quote.chain[0], svn) for svn in quote.svns]
    require_current(platforms, quote.module, quote.enclave, at, reference)
    versions = {"tcb": quote.svns[-1][0]}
    require_versions(versions, reference)
    return Claims("tdx", quote.mrtd.hex(), versions)


def signed_quote(content: bytes, at: datetime, reference: Reference) -> Quote:
    """Parse a quote and verify its signatures up to a root of the reference. Raises EvidenceRefused."""
    reader = _fields(content)
    header = reader.take(HEADER)
    version, kind, tee = (int.from_bytes(header[a:b], "little") for a, b in ((0, 2), (2, 4), (4, 8)))
    if version not in (4, 5) or (kind, tee) != (ECDSA_P256, TDX) or header[12:28] != INTEL:
        raise EvidenceRefused("this is no TDX quote of version 4 or 5; send it as the quoting enclave gave it")
    described = reader.take(6) if version == 5 else b""
    size = BODY if version == 4 else BODIES.get(int.from_bytes(described[:2], "little"))
    if size is None or (described and int.from_bytes(described[2:], "little") != size):
        raise EvidenceRefused("the body of the TDX quote is of no known kind; update the TDX module or Domicile")
    body = reader.take(size)
    signed = header + described + body
    reader = _fields(reader.sized(4))  # padding may follow
    signature, attestation_key = reader.take(64), reader.take(64)
    if reader.number(2) != QE_CERTIFICATION:
        raise EvidenceRefused("the TDX quote has no report of its quoting enclave; send it as the enclave gave it")
    reader = _fields(reader.sized(4))
    enclave_report, enclave_signature = reader.take(QE_REPORT), reader.take(64)
    said = reader.sized(2)
    if reader.number(2) != PCK_CHAIN:
        raise EvidenceRefused("the TDX quote has no certificates of its platform; have the quoting enclave add them")
    certificates = read_pem(reader.sized(4).rstrip(b"\0"))
    chain = chain_of(certificates[0], certificates[1:], at, reference.revoked)
    require_root(chain, reference.roots)
    pck = public_key_of(chain[0])
    what = "quoting enclave's report"
    require_signature(pck, *halves(enclave_signature), enclave_report, hashes.SHA256(), what, ec.SECP256R1)
    if enclave_report[320:384] != sha256(attestation_key + said).digest() + bytes(32):
        raise EvidenceRefused("the key that signed the TDX quote is not its quoting enclave's; ask the backend again")
    key = _key(attestation_key)
    require_signature(key, *halves(signature), signed, hashes.SHA256(), "TDX quote", ec.SECP256R1)
    return Quote(
        signed=signed,
        svns=(body[:16],) if size == BODY else (body[:16], body[BODY : BODY + 16]),
        module=TdxModule(signer=body[64:112], attributes=body[112:120]),
        td_attributes=int.from_bytes(body[120:128], "little"),
        mrtd=body[136:184],
        report_data=body[520:584],
        enclave=QuotingEnclave.of(enclave_report),
        chain=tuple(chain),
    )


def _key(point: bytes) -> ec.EllipticCurvePublicKey:
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + point)
    except ValueError as error:
        raise EvidenceRefused("the key in the TDX quote is no point of P-256; ask the backend again") from error


def _fields(content: bytes) -> FieldReader:
    return FieldReader(content, "little", "the TDX quote", "send it as the quoting enclave gave it")
