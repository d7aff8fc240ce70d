"""Quotes of real TDX platforms and of a real TPM, as they were published, and what becomes of them when spoiled."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from regions.evidence import tdx
from regions.evidence.attestation import Evidence, Reference
from regions.evidence.certificate_chains import fingerprint, read_pem
from regions.evidence.errors import EvidenceRefused
from regions.evidence.roots import ROOTS, verified
from tests.regions.evidence.hardware import evidence

VECTORS = Path(__file__).parent / "vectors"
TIMES = {
    "td10": datetime(2025, 7, 1, tzinfo=UTC),
    "td15ex": datetime(2026, 10, 20, tzinfo=UTC),
    "outdated": datetime(2026, 3, 1, tzinfo=UTC),
}
BEGINS = {"td10": 48, "td15ex": 54, "outdated": 54}
"""Where the TD report begins: version 5 has the kind and the size of it before."""
FIELDS = {
    "TEE_TCB_SVN": 0, "MRSEAM": 16, "MRSIGNERSEAM": 64, "SEAMATTRIBUTES": 112, "TDATTRIBUTES": 120, "XFAM": 128,
    "MRTD": 136, "MRCONFIGID": 184, "MROWNER": 232, "MROWNERCONFIG": 280, "RTMR0": 328, "RTMR3": 472,
    "REPORTDATA": 520, "last of REPORTDATA": 583,
}  # fmt: skip
LATER = {"TEE_TCB_SVN2": 584, "MRSERVICETD": 600, "VMID": 648, "TD_ID": 649, "last of the extension": 884}
Case = tuple[Evidence, bytes, datetime, Reference]


def hexed(path: str) -> bytes:
    return bytes.fromhex((VECTORS / path).read_text())


@cache
def intels(name: str) -> Case:
    """A quote, what it is bound to, a time at which its collateral held, and that collateral as Intel serves it."""
    report, at, begin = hexed(f"tdx/{name}.hex"), TIMES[name], BEGINS[name]
    served = json.loads((VECTORS / "tdx" / f"{name}.json").read_text())
    known = {
        "tcb_info": f'{{"tcbInfo":{served["tcb_info"]},"signature":"{served["tcb_info_signature"]}"}}',
        "qe_identity": f'{{"enclaveIdentity":{served["qe_identity"]},"signature":"{served["qe_identity_signature"]}"}}',
        "certificates": served["tcb_info_issuer_chain"],
    }
    fmspc = json.loads(served["tcb_info"])["fmspc"].lower()
    lists = tuple(x509.load_der_x509_crl(bytes.fromhex(served[kind])) for kind in ("pck_crl", "root_ca_crl"))
    body = report[begin:]
    reference = Reference(
        roots=ROOTS["tdx"], measurements=frozenset({body[136:184].hex()}), collateral={fmspc: known}, revoked=lists
    )
    return evidence("tdx", report, ""), body[520:584], at, reference


@cache
def fraunhofers() -> Case:
    """A quote of a TPM over the registers 17 and 18, bound to a nonce of 8 bytes."""
    one = evidence("tpm", hexed("tpm/quote.hex"), (VECTORS / "tpm/chain.pem").read_text(), hexed("tpm/signature.hex"))
    root = fingerprint(read_pem(one.certificates)[-1].public_key())
    reference = Reference(roots=frozenset({root}), measurements=frozenset({registers().hex()}), pcrs=(17, 18))
    return one, bytes.fromhex("5db48f3e33c9792a"), datetime(2022, 7, 1, tzinfo=UTC), reference


def registers() -> bytes:
    """Digest of what the two registers held, by the publisher's list of what each was extended with."""
    extended = (
        "1a814d03d22568e2d669595dd8be199fd7b3df2acb8caae38e24e92605e15c80",
        "1fe8f1a49cf178748a6f6167473bca3cf882ff70b4b4e458e2421c871c9c5bb9",
    )
    return sha256(b"".join(map(bytes.fromhex, extended))).digest()


CASES: dict[str, Callable[[], Case]] = {
    "td10": lambda: intels("td10"),
    "td15ex": lambda: intels("td15ex"),
    "tpm": fraunhofers,
}
every = pytest.mark.parametrize("name", list(CASES))
current = pytest.mark.parametrize("name", ["td10", "td15ex"])


def refused(why: str, one: Evidence, bound: bytes, at: datetime, reference: Reference) -> None:
    with pytest.raises(EvidenceRefused, match=why):
        verified(one, bound, at, reference)


def with_report(one: Evidence, report: bytes) -> Evidence:
    return evidence(one.technology, report, one.certificates, one.signature)


def flipped(content: bytes, at: int, bit: int = 0) -> bytes:
    return content[:at] + bytes((content[at] ^ 1 << bit,)) + content[at + 1 :]


@pytest.mark.parametrize(("name", "tcb", "mrtd"), [("td10", 6, "91eb2b44d141d4ec"), ("td15ex", 15, "2a674327c50218db")])
def test_a_real_tdx_quote_leads_to_intels_root_and_is_current_by_intels_collateral(
    name: str, tcb: int, mrtd: str
) -> None:
    claims = verified(*intels(name))
    assert (claims.technology, dict(claims.versions), claims.measurement[:16]) == ("tdx", {"tcb": tcb}, mrtd)


def test_a_real_quote_of_a_platform_that_lacks_updates_is_refused() -> None:
    refused("below every level that Intel lists", *intels("outdated"))


def test_a_module_that_was_updated_while_the_domain_ran_is_read_at_both_times() -> None:
    one, _, at, reference = intels("outdated")
    before, now = tdx.signed_quote(one.report, at, reference).svns
    assert (before[:3], now[:3]) == (bytes((7, 1, 3)), bytes((13, 1, 3)))


def test_a_real_quote_of_a_tpm_leads_to_the_root_of_its_operator() -> None:
    claims = verified(*fraunhofers())
    assert (claims.technology, claims.measurement) == ("tpm", registers().hex())


@every
def test_a_real_quote_is_refused_for_another_nonce_root_measurement_or_time(name: str) -> None:
    one, bound, at, reference = CASES[name]()
    refused("not for this nonce", one, flipped(bound, 0), at, reference)
    refused("not for this nonce", one, bound + b"\0", at, reference)
    refused("not a trusted root", one, bound, at, replace(reference, roots=ROOTS["nvidia"]))
    refused("is not accepted", one, bound, at, replace(reference, measurements=frozenset({"ab" * 48})))
    for other in (datetime(2017, 1, 1, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)):
        refused("is not valid at|expired", one, bound, other, reference)


@pytest.mark.parametrize(
    ("name", "field"), [*(("td10", each) for each in FIELDS), *(("td15ex", each) for each in FIELDS | LATER)]
)
def test_a_real_tdx_quote_with_a_field_changed_is_refused(name: str, field: str) -> None:
    one, bound, at, reference = intels(name)
    where = BEGINS[name] + (FIELDS | LATER)[field]
    refused("signature of the TDX quote is invalid", with_report(one, flipped(one.report, where)), bound, at, reference)


@current
def test_a_real_tdx_quote_with_any_part_behind_its_report_changed_is_refused(name: str) -> None:
    one, bound, at, reference = intels(name)
    signature = BEGINS[name] + {"td10": 584, "td15ex": 885}[name] + 4
    parts = {
        "signature": (0, "signature of the TDX quote"),
        "key": (64, "no point of P-256|not its quoting enclave's"),
        "kind": (128, "no report of its quoting enclave"),
        "enclave": (134 + 64, "signature of the quoting enclave's report"),
        "enclave's signature": (134 + 384, "signature of the quoting enclave's report"),
        "authentication": (134 + 384 + 64 + 2, "not its quoting enclave's"),
        "kind of chain": (134 + 384 + 64 + 2 + 32, "no certificates of its platform"),
    }
    for at_part, why in parts.values():
        spoiled = with_report(one, flipped(one.report, signature + at_part))
        refused(why, spoiled, bound, at, reference)


@current
def test_a_real_tdx_quote_that_is_cut_is_refused(name: str) -> None:
    one, bound, at, reference = intels(name)
    begin = one.report.index(b"-----BEGIN")
    for size in (0, 47, 48, 53, 600, begin - 1, begin + 100, begin + 3000):
        refused(";", with_report(one, one.report[:size]), bound, at, reference)


@current
def test_intels_revocation_list_counts_only_as_intel_signed_it_and_while_it_is_valid(name: str) -> None:
    one, bound, at, reference = intels(name)
    pck, issued = tdx.signed_quote(one.report, at, reference).chain[0], reference.revoked[0]
    assert (issued.issuer, len(issued) > 40) == (pck.issuer, True)
    some = issued[-1].serial_number.to_bytes(20)
    content = issued.public_bytes(Encoding.DER)
    taken_out = x509.load_der_x509_crl(content.replace(some, flipped(some, 19)))
    refused("revocation list .* wrong signature", one, bound, at, replace(reference, revoked=(taken_out,)))
    late = datetime(2027, 6, 1, tzinfo=UTC)
    refused("revocation list .* expired", one, bound, late, replace(reference, revoked=(issued,)))


@current
@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("tcb_info", '"tcbStatus":"UpToDate"', '"tcbStatus":"uptodate"', "collateral tcbInfo is invalid"),
        ("tcb_info", '"isvsvn":6', '"isvsvn":1', "collateral tcbInfo is invalid"),
        ("tcb_info", '"version":3', '"version":4', "collateral tcbInfo is invalid"),
        ("qe_identity", '"isvprodid":2', '"isvprodid":3', "collateral enclaveIdentity is invalid"),
        ("qe_identity", '"signature":"', '"signature":"00', "signature|cannot be read|known form"),
        ("certificates", "-----BEGIN CERTIFICATE-----", "-----BEGIN CERTIFICATE----", "not in PEM|trusted root"),
    ],
)
def test_intels_collateral_with_a_word_changed_is_refused(name: str, file: str, old: str, new: str, why: str) -> None:
    one, bound, at, reference = intels(name)
    (fmspc, known), *_ = reference.collateral.items()
    if old not in known[file]:
        old, new = '"isvsvn":', '"isvsvn": '
    changed = known | {file: known[file].replace(old, new)}
    assert changed != known
    refused(why, one, bound, at, replace(reference, collateral={fmspc: changed}))


def test_collateral_of_another_time_or_platform_does_not_serve() -> None:
    one, bound, at, reference = intels("td10")
    _, _, later, others = intels("outdated")
    refused("no collateral of platforms b0c06f000000", one, bound, at, replace(reference, collateral=others.collateral))
    (known,) = others.collateral.values()
    swapped = replace(reference, collateral={"b0c06f000000": known}, revoked=())
    refused("of another platform", one, bound, later, swapped)
    refused("of another time", one, bound, later, replace(reference, revoked=()))
    refused("of another time", one, bound, datetime(2025, 6, 1, tzinfo=UTC), replace(reference, revoked=()))


def test_any_byte_of_a_real_tpm_quote_or_its_signature_changed_breaks_it() -> None:
    one, bound, at, reference = fraunhofers()
    for where in range(len(one.report)):
        refused(";", with_report(one, flipped(one.report, where, where % 8)), bound, at, reference)
    for where in range(len(one.signature)):
        spoiled = evidence("tpm", one.report, one.certificates, flipped(one.signature, where, where % 8))
        refused(";", spoiled, bound, at, reference)


def test_a_real_tpm_quote_of_other_registers_or_under_an_incomplete_chain_is_refused() -> None:
    one, bound, at, reference = fraunhofers()
    for pcrs in ((17,), (18,), (0, 17, 18), ()):
        refused("registers 17, 18 and not", one, bound, at, replace(reference, pcrs=pcrs))
    leaf, middle, root = one.certificates.split("-----END CERTIFICATE-----\n")[:3]
    end = "-----END CERTIFICATE-----\n"
    for parts in ((leaf,), (leaf, middle), (leaf, root), (middle, root), (root,)):
        refused(";", evidence("tpm", one.report, "".join(p + end for p in parts), one.signature), bound, at, reference)
