"""Evaluation of a region of the catalogue by a policy, before any backend runs there."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from policy.analysis.policy_tests import case_for
from policy.decision.compile import CompiledPolicy, compile_policy
from policy.decision.decision import Decision, decide
from policy.document.document import Given, load_document
from policy.presets import PRESETS, preset_document
from regions.catalogue.catalogue import Catalogue
from regions.catalogue.rows import Region


@dataclass(frozen=True, slots=True)
class RegionVerdict:
    """The verdict of `policy` on an ordinary request to one of our own backends in `region`."""

    region: str
    policy: str
    decision: Decision

    @property
    def allowed(self) -> bool:
        return self.decision.allowed

    def __str__(self) -> str:
        head = f"{self.region}: {'allowed' if self.allowed else 'refused'} by {self.policy}"
        if self.allowed:
            return f"{head}, transfer basis {self.decision.transfer_basis[self.region]}"
        return "\n".join([head, *(f"  {reason}" for reason in self.decision.reasons)])

    def as_json(self) -> dict[str, Any]:
        reasons = [{"rule": r.rule, "because": r.because, "article": r.article} for r in self.decision.reasons]
        basis = self.decision.transfer_basis.get(self.region)
        return {
            "region": self.region,
            "policy": self.policy,
            "allowed": self.allowed,
            "transfer_basis": basis,
            "reasons": reasons,
        }


def policies_from(file: Path | None, catalogue: Catalogue) -> list[CompiledPolicy]:
    """The policy in `file`, or every preset. Raises PolicyError, OSError, UnicodeDecodeError."""
    documents = map(preset_document, PRESETS) if file is None else [load_document(file.read_text(encoding="utf-8"))]
    return [compile_policy(document, None, catalogue.country_sets()) for document in documents]


def evaluate_region(policy: CompiledPolicy, catalogue: Catalogue, region: Region, day: date) -> RegionVerdict:
    """By a request that the policy's own words allow, at noon of `day` or the first hour that the policy is open."""
    case = case_for(policy, catalogue.country_sets(), Given(at=day))
    backend = catalogue.backend_facts(
        backend_id=region.id,
        tenant=case.tenant or "",
        region=region.id,
        models=(case.model or "",),
        day=day,
        kind="domicile",
        single_tenant="attested",
        watermarks=True,
    )
    at = case.at if case.at.date() == day else datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    asked = case.model_copy(update={"candidates": (backend,), "catalogue_version": catalogue.version, "at": at})
    return RegionVerdict(region.id, policy.policy_id, decide(policy, asked))
