"""What drafts of policies would change and how a request would be decided.

Here by the installation's own files and databases; `gateway.cli.remote.study` has the same methods over an admin API.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from gateway.policies.study import Draft
from policy.decision.explain import explain_json, explain_source

if TYPE_CHECKING:
    from gateway.policies.study import PolicyStudy
    from policy.analysis.diff import Difference
    from policy.analysis.simulate import Impact


class Study:
    """`tenant` None: the operator's policy. All raise PolicyError, NotFound, DatabaseUnavailable."""

    def __init__(self, study: "PolicyStudy") -> None:
        self._study = study

    def differences(self, tenant: str | None, project: str | None, document: str) -> "list[Difference]":
        return list(self._study.differences(Draft(document, tenant, project)))

    def explanation(
        self, tenant: str, project: str, model: str, document: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        """The decision, as JSON, and the lines of the documents that say so."""
        found = self._study.explain(tenant, project, model, None if document is None else Draft(document, tenant))
        return explain_json(found.decision), list(explain_source(found.decision, found.sources))

    def simulated(
        self, tenant: str | None, project: str | None, document: str | None, since: datetime | None
    ) -> "list[tuple[str, Impact]]":
        """By tenant, of recorded calls since then. `document` None: what is in force, without the DPF."""
        draft = self._study.without_dpf(tenant) if document is None else Draft(document, tenant, project)
        return [(one.tenant, one.impact) for one in self._study.simulate(draft, since)]
