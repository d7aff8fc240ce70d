"""Evidence of hardware: published reports of real machines, and what our own authorities make and spoil."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from regions.evidence import nvidia
from regions.evidence.attestation import Evidence, Reference, binding
from regions.evidence.certificate_chains import read_pem
from regions.evidence.errors import EvidenceRefused
from regions.evidence.roots import ROOTS, verified
from tests.regions.evidence import hardware as made
from tests.regions.evidence.hardware import BOUND, NOW, Chain, evidence, gpu, pem, snp, tdx, tpm

VECTORS = Path(__file__).parent / "vectors"
Maker = Callable[..., tuple[Evidence, Reference]]
MAKERS: dict[str, tuple[Maker, Callable[[], Chain]]] = {
    "sev-snp": (snp, lambda: Chain(ec.SECP384R1(), made.vcek())),
    "tdx": (tdx, lambda: Chain(ec.SECP256R1(), made.pck())),
    "tpm": (tpm, lambda: Chain(ec.SECP256R1())),
    "nvidia": (gpu, lambda: Chain(ec.SECP384R1())),
}
every = pytest.mark.parametrize("name", list(MAKERS))


def refused(found: tuple[Evidence, Reference], why: str, bound: bytes = BOUND, at: Any = NOW) -> None:
    with pytest.raises(EvidenceRefused, match=why):
        verified(found[0], bound, at, found[1])


# --- real hardware ---------------------------------------------------------------------------------------------------


def milan() -> tuple[Evidence, bytes, Reference]:
    report = bytes.fromhex((VECTORS / "sev_snp" / "report.hex").read_text())
    chain = (VECTORS / "sev_snp" / "vcek.pem").read_text() + (VECTORS / "sev_snp" / "milan.pem").read_text()
    reference = Reference(roots=ROOTS["sev-snp"], measurements=frozenset({report[0x90:0xC0].hex()}))
    return evidence("sev-snp", report, chain), report[0x50:0x90], reference


def test_a_report_of_a_real_milan_leads_to_amds_root() -> None:
    one, bound, reference = milan()
    claims = verified(one, bound, NOW, reference)
    assert claims.versions == {"bootloader": 4, "tee": 0, "snp": 27, "microcode": 222}
    refused((one, replace(reference, minimum={"snp": 28})), "snp has the security version 27, below 28", bound)
    refused((one, replace(reference, measurements=frozenset())), "launch measurement", bound)
    refused((one, reference), "not for this nonce")
    refused((one, replace(reference, roots=ROOTS["tdx"])), "not a trusted root", bound)


def test_one_flipped_bit_of_any_byte_of_a_real_report_breaks_it() -> None:
    one, bound, reference = milan()
    for at in range(len(one.report)):
        report = bytearray(one.report)
        report[at] ^= 1 << at % 8
        refused((evidence("sev-snp", bytes(report), one.certificates), reference), ";", bound)


def hopper() -> tuple[Evidence, bytes, Reference]:
    report = bytes.fromhex((VECTORS / "nvidia" / "report.hex").read_text())
    chain = (VECTORS / "nvidia" / "chain.pem").read_text()
    values = nvidia.read_report(report).values
    golden = {at: frozenset({value.hex()}) for at, value in values.items()}
    return evidence("nvidia", report, chain), report[4:36], Reference(roots=ROOTS["nvidia"], golden=golden)


def test_a_report_of_a_real_hopper_leads_to_nvidias_root() -> None:
    one, bound, reference = hopper()
    assert len(nvidia.read_report(one.report).values) == 64
    assert verified(one, bound + bytes(32), NOW, reference).technology == "nvidia"
    assert read_pem((VECTORS / "nvidia" / "root.pem").read_text())[0] in read_pem(one.certificates)
    refused((one, reference), "not for this nonce")
    others = {**reference.golden, 9: frozenset({"00"})}
    refused(
        (one, replace(reference, golden=others)), "measurement 9 of the GPU is not a golden value", bound + bytes(32)
    )


@pytest.mark.parametrize("at", [0, 4, 37, 50, 2000, -97, -1])
def test_one_flipped_byte_of_a_real_gpu_report_breaks_it(at: int) -> None:
    one, bound, reference = hopper()
    report = bytearray(one.report)
    report[at] ^= 1
    refused((evidence("nvidia", bytes(report), one.certificates), reference), ";", bound + bytes(32))


# --- every technology, under authorities of our own ------------------------------------------------------------------


@every
def test_evidence_for_this_nonce_key_and_weights_holds(name: str) -> None:
    one, reference = MAKERS[name][0]()
    claims = verified(one, BOUND, NOW, reference)
    assert (claims.technology, len(bytes.fromhex(claims.measurement)) >= 32) == (name, True)


@every
@pytest.mark.parametrize(
    "other",
    [
        binding(b"m" * 32, made.KEY, made.WEIGHTS),
        binding(made.NONCE, "ac" * 32, made.WEIGHTS),
        binding(made.NONCE, made.KEY, "ce" * 32),
    ],
    ids=["nonce", "TLS key", "weights"],
)
def test_evidence_for_another_nonce_key_or_model_is_refused(name: str, other: bytes) -> None:
    refused(MAKERS[name][0](), "not for this nonce, TLS key and weights", other)


@every
def test_a_chain_that_ends_elsewhere_ended_begins_later_or_is_cut_is_refused(name: str) -> None:
    make, chain_of = MAKERS[name]
    chain = chain_of()
    one, reference = make(chain)
    refused((one, replace(reference, roots=chain_of().roots)), "not a trusted root")
    refused((one, replace(reference, roots=frozenset())), "not a trusted root")
    refused((one, reference), "is not valid at", at=NOW + timedelta(days=400))
    refused((one, reference), "is not valid at", at=NOW - timedelta(days=2))
    if name != "tdx":  # whose chain is in its report
        for rest in ((chain.leaf,), (chain.leaf, chain.middle), (chain.leaf, chain.root), (chain.root,)):
            refused((evidence(name, one.report, pem(*rest), one.signature), reference), ";")
        for text in ("", "no certificate"):
            refused((evidence(name, one.report, text, one.signature), reference), "not in PEM")


@every
def test_a_revoked_certificate_and_a_list_that_ended_or_is_forged_are_refused(name: str) -> None:
    make, chain_of = MAKERS[name]
    chain, other = chain_of(), chain_of()
    one, reference = make(chain)
    assert verified(one, BOUND, NOW, replace(reference, revoked=(chain.revoked(),)))
    refused((one, replace(reference, revoked=(chain.revoked(chain.leaf),))), "is revoked by its issuer")
    ended = chain.revoked(ends=NOW - timedelta(hours=1))
    refused((one, replace(reference, revoked=(ended,))), "revocation list")
    refused((one, replace(reference, revoked=(other.revoked(),))), "revocation list")


@every
def test_a_report_that_another_key_signed_or_that_is_cut_is_refused(name: str) -> None:
    make, chain_of = MAKERS[name]
    one, reference = make()
    other, _ = make(chain_of())
    mixed = evidence(name, other.report, one.certificates, other.signature)
    refused((mixed, reference), ";")
    for size in (0, 1, 40, len(one.report) // 2, len(one.report) - 1):
        refused((evidence(name, one.report[:size], one.certificates, one.signature), reference), ";")


@every
def test_one_flipped_byte_anywhere_breaks_it(name: str) -> None:
    one, reference = MAKERS[name][0]()
    size = len(one.report)
    for at in range(0, size, max(1, size // 60)):
        report = bytearray(one.report)
        report[at] ^= 0x40
        spoiled = evidence(name, bytes(report), one.certificates, one.signature)
        with pytest.raises(EvidenceRefused):
            verified(spoiled, BOUND, NOW, reference)


@every
def test_evidence_of_one_technology_is_none_of_another(name: str) -> None:
    one, reference = MAKERS[name][0]()
    for other in MAKERS:
        if other != name:
            refused((evidence(other, one.report, one.certificates, one.signature), reference), ";")


def test_a_leaf_may_not_issue_and_an_authority_may_not_be_short_of_its_right() -> None:
    chain = Chain(ec.SECP384R1(), made.vcek())
    forged = chain.issue("forged", chain.middle_key, "leaf", chain.key, ca=False, more=made.vcek())
    report = made.snp_report(chain.middle_key)
    _, reference = snp(chain)
    found = evidence("sev-snp", report, pem(forged, chain.leaf, chain.middle, chain.root))
    refused((found, reference), "may not issue certificates")


# --- what each can be refused for ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"policy": 0x30000 | 1 << 19}, "debugged"),
        ({"policy": 0x10000}, "debugged"),
        ({"policy": 0x30000 | 1 << 18}, "migrated"),
        ({"vmpl": 1}, "VMPL 0"),
        ({"algorithm": 2}, "not signed by a key of its chip"),
        ({"flags": 1 << 2}, "not signed by a key of its chip"),
        ({"version": 1}, "no SEV-SNP report"),
        ({"version": 6}, "no SEV-SNP report"),
        ({"measurement": b"x" * 48}, "launch measurement"),
        ({"chip": b"other" * 12 + b"chip"}, "another chip"),
        ({"chip": bytes(64)}, "another chip"),
        ({"versions": {"snp": 26}}, "another version of snp"),
        ({"versions": {"microcode": 223}}, "another version of microcode"),
    ],
)
def test_a_snp_report_of_a_guest_that_is_open_or_of_another_chip_is_refused(fields: dict[str, Any], why: str) -> None:
    refused(snp(**fields), why)


def test_a_lower_tcb_than_asked_for_is_refused() -> None:
    one, reference = snp()
    assert verified(one, BOUND, NOW, replace(reference, minimum=made.VERSIONS))
    for name, version in made.VERSIONS.items():
        refused((one, replace(reference, minimum={name: version + 1})), f"{name} has the security version")
    refused((one, replace(reference, minimum={"fmc": 0})), "no security version of fmc; remove fmc from the minimum")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"attributes": b"\x01" + bytes(7)}, "debugged"),
        ({"attributes": b"\x20" + bytes(7)}, "debugged or profiled"),
        ({"attributes": b"\x00\x00\x00\x30" + bytes(4)}, "may be migrated"),
        ({"seam_signer": b"s" * 48}, "not signed by Intel"),
        ({"seam_signer": b"s" * 48, "svn": bytes((7, 0, 2)) + bytes(13)}, "below every level"),
        ({"version": 5, "svn_now": bytes((6, 1, 2)) + bytes(13)}, "does not list the TDX module"),
        ({"version": 5, "svn_now": bytes((7, 1, 1)) + bytes(13)}, "below every level"),
        ({"version": 5, "body": (5, 885)}, "of no known kind"),
        ({"version": 5, "body": (4, 648)}, "of no known kind"),
        ({"seam": b"\x01" + bytes(7)}, "not one of production"),
        ({"version": 3}, "no TDX quote"),
        ({"vouched": b"another key" * 6}, "not its quoting enclave's"),
        ({"signer": b"x" * 32}, "Intel's quoting enclave"),
        ({"qe_attributes": 0x17}, "Intel's quoting enclave"),
        ({"qe_svn": 3}, "below every version"),
        ({"svn": bytes((7, 1, 1)) + bytes(13)}, "below every level"),
        ({"svn": bytes((6, 1, 2)) + bytes(13)}, "does not list the TDX module"),
        ({"svn": bytes((7, 2, 2)) + bytes(13)}, "does not list the TDX module"),
    ],
)
def test_a_quote_of_an_open_domain_or_an_old_platform_is_refused(fields: dict[str, Any], why: str) -> None:
    refused(tdx(**fields), why)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"status": "OutOfDate"}, "the platform is OutOfDate"),
        ({"status": "ConfigurationNeeded"}, "the platform is ConfigurationNeeded"),
        ({"status": "Revoked"}, "the platform is Revoked"),
        ({"module_status": "OutOfDate"}, "the TDX module is OutOfDate"),
        ({"module_signer": "01" + "00" * 47}, "not signed by Intel"),
        ({"qe_status": "Revoked"}, "the quoting enclave is Revoked"),
        ({"components": (6, *made.COMPONENTS[1:])}, "below every level"),
        ({"ends": "2026-11-29T00:00:00Z"}, "of another time"),
        ({"fmspc": "000000000000"}, "another platform"),
    ],
)
def test_collateral_says_whether_a_platform_is_current(more: dict[str, Any], why: str) -> None:
    refused(tdx(more=more), why)


def test_without_collateral_or_with_a_forged_one_no_quote_is_accepted() -> None:
    one, reference = tdx()
    refused((one, replace(reference, collateral={})), "no collateral of platforms b0c06f000000")
    known = dict(reference.collateral[made.FMSPC])
    forged = known | {"tcb_info": known["tcb_info"].replace("UpToDate", "OutOfDate")}
    refused((one, replace(reference, collateral={made.FMSPC: forged})), "signature")
    others = made.collateral(Chain(ec.SECP256R1()))
    refused((one, replace(reference, collateral={made.FMSPC: others})), "not a trusted root")
    for broken in ({}, known | {"tcb_info": "{}"}, known | {"qe_identity": "[]"}, known | {"tcb_info": ""}):
        refused((one, replace(reference, collateral={made.FMSPC: broken})), "not of a known form")


def test_a_pck_without_a_description_of_its_platform_is_refused() -> None:
    refused(tdx(Chain(ec.SECP256R1())), "does not describe its platform")


@pytest.mark.parametrize("body", [(2, 584), (3, 648), (4, 885)])
def test_version_5_is_read_and_a_hardened_platform_is_current(body: tuple[int, int]) -> None:
    one, reference = tdx(version=5, body=body, more={"status": "SWHardeningNeeded"})
    assert verified(one, BOUND, NOW, reference).versions == {"tcb": 7}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"magic": 0}, "no quote"),
        ({"kind": 0x8017}, "no quote"),
        ({"bank": 0x000C}, "SHA-256 bank"),
        ({"pcrs": (0, 2, 4)}, "registers 0, 2, 4 and not 0, 2, 4, 7"),
        ({"pcrs": ()}, "registers none"),
        ({"digest": b"x" * 32}, "digest of the TPM's registers"),
        ({"data": BOUND}, "not for this nonce"),
    ],
)
def test_a_quote_of_other_registers_is_refused(fields: dict[str, Any], why: str) -> None:
    refused(tpm(**fields), why)


def test_a_tpm_needs_registers_and_firmware_as_the_configuration_says() -> None:
    one, reference = tpm()
    refused((one, replace(reference, pcrs=())), "registers")
    refused((one, replace(reference, minimum={"firmware": 8})), "firmware has the security version 7, below 8")


def test_a_gpu_whose_measurement_is_not_golden_is_refused() -> None:
    one, reference = gpu(values={2: b"x" * 48})
    refused((one, reference), "measurement 2 of the GPU")
    chain = Chain(ec.SECP384R1())
    varying, reference = gpu(chain, values={3: b"else" * 12})
    assert verified(varying, BOUND, NOW, reference)
    refused((varying, replace(reference, golden={})), "no golden values")
    refused((varying, replace(reference, golden={9: frozenset({"00"})})), "measurement 9")
