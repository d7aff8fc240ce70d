"""What a running backend of our own proves: the weights that it loaded, and who signed them.

A backend's word for its weights counts as far as its identity does: the certificate of this cell, and evidence of its
hardware where a policy asks for that (docs/threat-model.md).
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from backend.wire import WeightsReport
from policy.facts import Technology
from regions.evidence.errors import EvidenceRefused
from regions.evidence.model_signature import check_files, verified

WHY = {
    "changed": "its files are others since it loaded them",
    "unreadable": "its files cannot be read",
    "dummy": "its weights were drawn",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """`sha256`: None where it does not know its own. `signed_by`: fingerprints of keys; `fault`: why there are none.
    `attested`: technologies whose evidence holds now; `attestation_fault`: why others do not."""

    sha256: str | None = None
    signed_by: tuple[str, ...] = ()
    fault: str | None = None
    attested: tuple[Technology, ...] = ()
    attestation_fault: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Fields of `BackendFacts`."""
        return {
            "pending": False,
            "weights": self.sha256,
            "weights_source": None if self.sha256 is None else "computed",
            "signed_by": self.signed_by,
            "signature_fault": self.fault,
            "attested": self.attested,
            "attestation_fault": self.attestation_fault,
        }


def shown_weights(said: bytes | None) -> Shown:
    """By the body of ``GET /weights``; None for an engine that has no such page. What does not hold shows nothing."""
    try:
        report = WeightsReport.model_validate_json(said or b"")
    except ValidationError:
        return Shown(fault="it does not say which weights it runs")
    if report.sha256 is None:
        return Shown(fault=WHY[report.why or "unreadable"])
    if report.signature is None:
        return Shown(report.sha256, fault="no signature")
    try:
        signed = verified(report.signature, report.signer_key)
        check_files(signed, report.files)
    except EvidenceRefused as refused:
        return Shown(report.sha256, fault=str(refused).partition("; ")[0])
    return Shown(report.sha256, signed.keys)
