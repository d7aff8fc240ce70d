"""Verifies recorded evidence again at a later time, as an auditor does with a pack.

The time is that of the record. If the auditor gives no measurements, the recorded one is accepted: signature, chain and
binding are verified, and the auditor has to compare the measurement with that of the expected image.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from policy.facts import Technology
from regions.evidence.attestation import Claims, Evidence, Reference, binding
from regions.evidence.errors import EvidenceRefused
from regions.evidence.nvidia import read_report
from regions.evidence.roots import verified
from regions.evidence.tpm import read_quote


def rechecked(event: Mapping[str, Any], references: Mapping[Technology, Reference]) -> Claims:
    """Verify the evidence of an event. event: type ``backend.attested``, as JSON. Raises EvidenceRefused, which names
    the failed check."""
    try:
        evidence = Evidence.model_validate(
            {name: event[name] for name in ("technology", "report", "signature", "certificates") if name in event}
        )
        bound = binding(bytes.fromhex(event["nonce"]), event["key_sha256"], event["weights_sha256"])
        at, measurement = datetime.fromisoformat(event["ts"]), str(event["measurement"])
    except (KeyError, ValueError, ValidationError) as error:
        raise EvidenceRefused("the record has no evidence that can be checked; export the pack again") from error
    reference = references.get(evidence.technology, Reference())
    if not (reference.measurements or reference.golden):
        reference = _as_recorded(evidence, measurement, reference)
    claims = verified(evidence, bound, at, reference)
    if claims.measurement != measurement:
        raise EvidenceRefused("the record names another measurement than the evidence; keep both, and ask why")
    return claims


def _as_recorded(evidence: Evidence, measurement: str, reference: Reference) -> Reference:
    if evidence.technology == "nvidia":
        values = read_report(evidence.report).values
        return replace(reference, golden={at: frozenset({value.hex()}) for at, value in values.items()})
    if evidence.technology == "tpm":
        pcrs = reference.pcrs or read_quote(evidence.report).registers
        return replace(reference, measurements=frozenset({measurement}), pcrs=pcrs)
    return replace(reference, measurements=frozenset({measurement}))
