"""Intel's signed collateral on platforms and quoting enclaves, which states whether a TDX quote's versions are current.

The files are responses of Intel's provisioning service: ``tcbInfo`` and ``enclaveIdentity``, each with a signature over
the bytes of that member, and the signing certificates. `Reference.collateral` maps an FMSPC in lower-case hexadecimal
digits to ``{"tcb_info": text, "qe_identity": text, "certificates": PEM}``.

Sources: Intel, SGX and TDX Provisioning Certification Service API (v4): TCB info V3, enclave identity V2; SGX PCK
Certificate Specification (1.5), section 5.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from regions.evidence.attestation import Reference
from regions.evidence.certificate_chains import chain_of, public_key_of, read_pem, require_root
from regions.evidence.ecdsa import halves, require_signature
from regions.evidence.errors import EvidenceRefused

SGX = "1.2.840.113741.1.13.1"
TCB, PCEID, FMSPC = f"{SGX}.2", f"{SGX}.3", f"{SGX}.4"
COMPONENTS = 16
CURRENT = frozenset({"UpToDate", "SWHardeningNeeded"})
"""Accepted states. With SWHardeningNeeded the platform is current and the guest needs hardening. Other states need an
update or other settings."""


@dataclass(frozen=True, slots=True)
class Platform:
    """Security versions of a platform. `components`: 16 versions of the processor. `pce`: version of the provisioning
    certification enclave. `tdx`: TEE_TCB_SVN."""

    fmspc: str
    pceid: str
    components: tuple[int, ...]
    pce: int
    tdx: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TdxModule:
    """The TDX module that made the TD report. `signer`: MRSIGNERSEAM. `attributes`: SEAMATTRIBUTES."""

    signer: bytes
    attributes: bytes


@dataclass(frozen=True, slots=True)
class QuotingEnclave:
    """Identity of the enclave that signed the quote (SGX report body). `signer`: MRSIGNER. `attributes`: flags and
    XFRM."""

    misc_select: bytes
    attributes: bytes
    signer: bytes
    product: int
    svn: int

    @classmethod
    def of(cls, report: bytes) -> Self:
        product, svn = (int.from_bytes(report[at : at + 2], "little") for at in (256, 258))
        return cls(report[16:20], report[48:64], report[128:160], product, svn)


def platform_of(pck: x509.Certificate, tee_tcb_svn: bytes) -> Platform:
    """Return the platform from the extension of its PCK certificate. Raises EvidenceRefused if there is none."""
    try:
        found = pck.extensions.get_extension_for_oid(x509.ObjectIdentifier(SGX)).value
        fields = _by_oid(found.public_bytes())
        tcb = _by_oid(fields[TCB])
        components = tuple(int.from_bytes(_value(tcb[f"{TCB}.{at}"])) for at in range(1, COMPONENTS + 1))
        pce = int.from_bytes(_value(tcb[f"{TCB}.{COMPONENTS + 1}"]))
        fmspc, pceid = _value(fields[FMSPC]).hex(), _value(fields[PCEID]).hex()
    except (x509.ExtensionNotFound, KeyError, IndexError, ValueError) as error:
        raise EvidenceRefused("the PCK certificate does not describe its platform; send Intel's") from error
    return Platform(fmspc, pceid, components, pce, tuple(tee_tcb_svn))


def require_current(
    platforms: Sequence[Platform], module: TdxModule, enclave: QuotingEnclave, at: datetime, reference: Reference
) -> None:
    """Raise EvidenceRefused unless Intel's collateral states that the platform, its TDX module and the enclave are
    current. platforms: the same one with its security versions at the domain's start and now."""
    fmspc = platforms[0].fmspc
    known = reference.collateral.get(fmspc)
    if known is None:
        raise EvidenceRefused(
            f"there is no collateral of platforms {fmspc}; put Intel's TCB info and enclave identity there"
        )
    try:
        info = _signed(known["tcb_info"], "tcbInfo", known["certificates"], at, reference)
        identity = _signed(known["qe_identity"], "enclaveIdentity", known["certificates"], at, reference)
        for platform in platforms:
            _require_platform(platform, info)
        _require_module_identity(platforms[0].tdx, module, info)
        _require_enclave(enclave, identity)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise EvidenceRefused("Intel's collateral is not of a known form; fetch it by version 4 of the API") from error


def _signed(text: str, member: str, certificates: str, at: datetime, reference: Reference) -> Mapping[str, Any]:
    """Verify the signature of a file and return its member. The signature covers the exact bytes of the member."""
    said = json.loads(text)
    begin = text.index(f'"{member}":') + len(member) + 3
    value, end = json.JSONDecoder().raw_decode(text[begin:].lstrip())
    raw = text[begin:].lstrip()[:end]
    signers = read_pem(certificates)
    chain = chain_of(signers[0], signers[1:], at, reference.revoked)
    require_root(chain, reference.roots)
    key, what = public_key_of(chain[0]), f"collateral {member}"
    signature = bytes.fromhex(said["signature"])
    require_signature(key, *halves(signature), raw.encode(), hashes.SHA256(), what, ec.SECP256R1)
    if datetime.fromisoformat(value["nextUpdate"]) < at or datetime.fromisoformat(value["issueDate"]) > at:
        raise EvidenceRefused(f"Intel's {member} is of another time; fetch a new one")
    found: Mapping[str, Any] = value
    return found


def _require_platform(platform: Platform, info: Mapping[str, Any]) -> None:
    if (info["id"], info["fmspc"].lower(), info["pceId"].lower()) != ("TDX", platform.fmspc, platform.pceid):
        raise EvidenceRefused("the TCB info is of another platform; fetch that of this one")
    tdx = list(platform.tdx)
    if tdx[1] > 0:  # a versioned module, whose own identity states whether it is current
        _require_module(tdx, info)
    for level in info["tcbLevels"]:
        tcb = level["tcb"]
        sgx = _svns(tcb["sgxtcbcomponents"])
        wanted = _svns(tcb["tdxtcbcomponents"])
        first = 2 if tdx[1] > 0 else 0
        if _covers(platform.components, sgx) and platform.pce >= tcb["pcesvn"] and _covers(tdx[first:], wanted[first:]):
            _require_status(level["tcbStatus"], "platform")
            return
    raise EvidenceRefused("the platform is below every level that Intel lists; update its firmware")


def _require_module(tdx: Sequence[int], info: Mapping[str, Any]) -> None:
    for level in _identity_of(tdx, info)["tcbLevels"]:
        if tdx[0] >= level["tcb"]["isvsvn"]:
            _require_status(level["tcbStatus"], "TDX module")
            return
    raise EvidenceRefused(f"Intel does not list the TDX module {_module_name(tdx)}; load a current one")


def _require_module_identity(tdx: Sequence[int], module: TdxModule, info: Mapping[str, Any]) -> None:
    known = _identity_of(tdx, info) if tdx[1] > 0 else info["tdxModule"]
    mask = bytes.fromhex(known["attributesMask"])
    if module.signer != bytes.fromhex(known["mrsigner"]) or not _fits(module.attributes, known["attributes"], mask):
        raise EvidenceRefused("the TDX module is not signed by Intel as its collateral says; load Intel's signed one")


def _identity_of(tdx: Sequence[int], info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the identity of a versioned module."""
    name = _module_name(tdx)
    for module in info.get("tdxModuleIdentities", ()):
        if module["id"].lower() == name.lower():
            found: Mapping[str, Any] = module
            return found
    raise EvidenceRefused(f"Intel does not list the TDX module {name}; load a current one")


def _module_name(tdx: Sequence[int]) -> str:
    return f"TDX_{tdx[1]:02x}"


def _require_enclave(enclave: QuotingEnclave, identity: Mapping[str, Any]) -> None:
    masked = (
        (enclave.misc_select, identity["miscselect"], identity["miscselectMask"]),
        (enclave.attributes, identity["attributes"], identity["attributesMask"]),
    )
    fits = all(_fits(found, wanted, bytes.fromhex(mask)) for found, wanted, mask in masked)
    is_intels = enclave.signer == bytes.fromhex(identity["mrsigner"]) and enclave.product == identity["isvprodid"]
    if identity["id"] != "TD_QE" or not fits or not is_intels:
        raise EvidenceRefused("the quote was not signed by Intel's quoting enclave for TDX; use that one")
    for level in identity["tcbLevels"]:
        if enclave.svn >= level["tcb"]["isvsvn"]:
            _require_status(level["tcbStatus"], "quoting enclave")
            return
    raise EvidenceRefused("the quoting enclave is below every version that Intel lists; update it")


def _fits(found: bytes, wanted: str, mask: bytes) -> bool:
    return bytes(a & m for a, m in zip(found, mask, strict=True)) == bytes.fromhex(wanted)


def _require_status(status: str, what: str) -> None:
    if status not in CURRENT:
        raise EvidenceRefused(f"the {what} is {status} by Intel's collateral; update it")


def _svns(components: Sequence[Mapping[str, int]]) -> list[int]:
    return [each["svn"] for each in components]


def _covers(found: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(found) == len(wanted) and all(have >= want for have, want in zip(found, wanted, strict=True))


def _by_oid(der: bytes) -> dict[str, bytes]:
    """Return the values in a sequence of (OID, value) pairs (X.690) by dotted OID, with tag and length."""
    found: dict[str, bytes] = {}
    for pair in _items(_value(der)):
        oid, value = _items(_value(pair))
        found[_dotted(_value(oid))] = value
    return found


def _items(content: bytes) -> list[bytes]:
    items = []
    while content:
        end = _end(content)
        items.append(content[:end])
        content = content[end:]
    return items


def _value(der: bytes) -> bytes:
    if _end(der) != len(der):
        raise ValueError("the value has another length than it says; send the certificate as it was issued")
    return der[_head(der) :]


def _head(der: bytes) -> int:
    return 2 if der[1] < 0x80 else 2 + (der[1] & 0x7F)


def _end(der: bytes) -> int:
    head = _head(der)
    size = der[1] if head == 2 else int.from_bytes(der[2:head])
    if head + size > len(der):
        raise ValueError("the value is cut short; send the certificate as it was issued")
    return head + size


def _dotted(content: bytes) -> str:
    arcs, arc = [], 0
    for byte in content:
        arc = arc << 7 | byte & 0x7F
        if not byte & 0x80:
            arcs.append(arc)
            arc = 0
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:])))
