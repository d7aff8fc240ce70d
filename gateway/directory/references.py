"""What evidence of backends is compared with: the settings, with the files that they name read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

from gateway.configuration.settings import AcceptedEvidence, Attestation
from policy.facts import Technology
from regions.evidence.attestation import Reference
from regions.evidence.certificate_chains import fingerprint, read_pem
from regions.evidence.errors import EvidenceRefused
from regions.evidence.roots import ROOTS

COLLATERAL = {"tcb_info": "tcb_info.json", "qe_identity": "qe_identity.json", "certificates": "chain.pem"}
"""Files of a folder of collateral; the folder is called as the FMSPC."""


def references_of(settings: Attestation) -> Mapping[Technology, Reference]:
    """By technology. Raises EvidenceRefused for a file that cannot be used, and OSError for one that cannot be read."""
    return {technology: _reference(technology, accepted) for technology, accepted in settings.accepted.items()}


def _reference(technology: Technology, accepted: AcceptedEvidence) -> Reference:
    own = (certificate for file in accepted.roots for certificate in read_pem(file.read_bytes()))
    return Reference(
        roots=ROOTS[technology] | {fingerprint(each.public_key()) for each in own},
        measurements=frozenset(each.lower() for each in accepted.measurements),
        golden={} if accepted.golden is None else _golden(accepted.golden),
        minimum=accepted.minimum,
        pcrs=accepted.pcrs,
        collateral={} if accepted.collateral is None else collateral_in(accepted.collateral),
        revoked=tuple(_list(file) for file in accepted.revoked),
    )


def collateral_in(folder: Path) -> Mapping[str, Any]:
    """By FMSPC. Raises OSError."""
    return {
        each.name.lower(): {part: (each / name).read_text(encoding="utf-8") for part, name in COLLATERAL.items()}
        for each in sorted(folder.iterdir())
        if each.is_dir()
    }


def _golden(file: Path) -> Mapping[int, frozenset[str]]:
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return {int(index): frozenset(value.lower() for value in values) for index, values in said.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise EvidenceRefused(f'{file.name} has no golden values; write {{"1": ["HEX", ...], ...}}') from error


def _list(file: Path) -> x509.CertificateRevocationList:
    content = file.read_bytes()
    try:
        pem = content.startswith(b"-----BEGIN")
        return x509.load_pem_x509_crl(content) if pem else x509.load_der_x509_crl(content)
    except ValueError as error:
        raise EvidenceRefused(f"{file.name} is no revocation list; fetch it from the vendor") from error
