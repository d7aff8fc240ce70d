"""Where a prompt may go unredacted, when redaction itself fails (`redaction.on_failure: sovereign`).

Without that line, nowhere: the call is refused. With it, to a backend that the decision allows anyway and that is
inside four bounds more, written down beside it. Personal data that redaction *found* is never a failure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Literal

from policy.decision import tighten
from policy.decision.residency import CountryRule
from policy.document.document import Redaction
from policy.errors import LooseningError
from policy.facts import BackendFacts, CountrySets

# The policy's word for each bound, and the fact of a backend that it is about.
BOUNDS: Mapping[str, str] = MappingProxyType({
    "process_in": "compute_country", "store_in": "storage_country", "operator.head_office": "operator_hq",
    "operator.ultimate_parent": "parent_country",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class OnFailure:
    """``mode`` None: no level has said anything yet. ``bounds``: by the names in `BOUNDS`, all of them or none."""

    mode: Literal["deny", "sovereign"] | None = None
    bounds: Mapping[str, CountryRule] = field(default_factory=lambda: MappingProxyType({}))

    def tightened(self, wanted: Redaction, table: CountrySets, whose: str) -> "OnFailure":
        """With what a lower level asks. Raises LooseningError where that is more than this level allows."""
        if wanted.on_failure is None:
            return self
        if wanted.on_failure == "deny" or wanted.sovereign is None:
            return OnFailure("deny")
        if self.mode == "deny":
            raise LooseningError("redaction.on_failure", f"{whose} policy refuses what could not be inspected")
        own = wanted.sovereign
        selectors = (own.process_in, own.store_in, own.operator.head_office, own.operator.ultimate_parent)
        bounds = {
            name: tighten.countries(f"redaction.sovereign.{name}", self.bounds.get(name), selector, table, whose)
            for name, selector in zip(BOUNDS, selectors, strict=True)
        }
        return OnFailure(
            "sovereign", MappingProxyType({name: rule for name, rule in bounds.items() if rule is not None})
        )

    def settled(self) -> "OnFailure":
        """The default where no level sets it: redaction that fails denies, and a lower level cannot change that."""
        return self if self.mode is not None else OnFailure("deny")

    def admits(self, backend: BackendFacts, on: date) -> bool:
        """Whether a backend, its sub-processors with it, is inside every bound. Unknown is outside, and so is a
        managed service, wherever it is."""
        if backend.kind == "managed" or self.mode != "sovereign" or len(self.bounds) != len(BOUNDS):
            return False
        places = [(rule, getattr(backend, BOUNDS[name])) for name, rule in self.bounds.items()]
        places += [(self.bounds["process_in"], other.country) for other in backend.subprocessors]
        return all(
            bool(country) and rule.objection(country, on, backend.attested_transfer) is None for rule, country in places
        )
