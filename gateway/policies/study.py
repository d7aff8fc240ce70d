"""Dry runs of policies that are not in force: checks, differences, explanations and simulation over recorded calls.

The CLI and the admin API both use this module, so that they report the same.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from audit.errors import CanonicalError, EventRejected, NoLog
from audit.events.event import InferenceAccepted, InferenceDenied
from audit.events.leaf import decode_leaf
from audit.storage.store import Reader
from gateway.database.errors import Invalid, NotFound
from gateway.records.control import BackendRecord, ProjectRecord
from gateway.store.reports.inventory import Inventory
from policy.analysis.diff import Difference, differences
from policy.analysis.policy_tests import PolicyTestOutcome, run_tests
from policy.analysis.simulate import Impact, RecordedCalls, simulate
from policy.decision.compile import CompiledPolicy, compile_policy
from policy.decision.decision import Decision, decide
from policy.decision.explain import Source
from policy.document.document import PolicyDocument, load_document
from policy.errors import PolicyError
from policy.facts import BackendFacts, RequestFacts, Sink
from policy.redact.actions.plan import RedactionPlan
from regions.catalogue.catalogue import Catalogue
from regions.catalogue.region_verdict import RegionVerdict, evaluate_region
from regions.identity.trust import watermarks

_COMPILING = threading.Lock()
"""One draft is compiled at a time: several threads would each take the interpreter lock from the event loop."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A document that is not in force, for a project, for a tenant, or (both None) for the operator."""

    document: str
    tenant: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True)
class Explained:
    """A decision and the documents that it was made from; `redaction`: their plan for the texts."""

    decision: Decision
    sources: tuple[Source, ...]
    redaction: RedactionPlan


@dataclass(frozen=True, slots=True)
class TenantImpact:
    """What a draft would change for the recorded calls of one tenant."""

    tenant: str
    impact: Impact


class PolicyStudy:
    """Methods raise PolicyError for invalid documents, NotFound, and Invalid if there is no policy to compare with."""

    def __init__(
        self,
        inventory: Inventory,
        catalogue: Catalogue,
        open_record: Callable[[], Reader],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sinks: tuple[Sink, ...] = (),
    ) -> None:
        self._inventory = inventory
        self._catalogue = catalogue
        self._open_record = open_record
        self._now = now
        self._sinks = sinks

    def check(self, draft: Draft) -> tuple[list[str], tuple[PolicyTestOutcome, ...]]:
        """The faults of a draft under the documents above it, none if it may be proposed; and the outcomes of the tests
        in it, none if it does not compile."""
        try:
            with _COMPILING:
                compiled = self._compiled(draft, draft.tenant, draft.project)
        except PolicyError as error:
            return str(error).splitlines(), ()
        outcomes = run_tests(compiled, self._catalogue.country_sets())
        return [str(outcome) for outcome in outcomes if not outcome.passed], outcomes

    @property
    def catalogue(self) -> Catalogue:
        return self._catalogue

    def in_force(self, tenant: str | None) -> bool:
        """Whether a document of `tenant`, or of the operator (None), is in force."""
        return self._active(tenant, None) is not None

    def evaluate_regions(
        self, tenant: str, regions: Sequence[str] | None = None, draft: Draft | None = None
    ) -> list[RegionVerdict]:
        """The verdict of the tenant's policy about an ordinary request in each of `regions`, by default in all of them.

        Raises CatalogueError for an unknown region.
        """
        day = self._now().date()
        policy = self._compiled(draft, tenant, None)
        names = sorted({one.id for one in self._catalogue.regions if one.valid_on(day)}) if regions is None else regions
        places = [self._catalogue.region(name, day) for name in names]
        return [evaluate_region(policy, self._catalogue, place, day) for place in places]

    def differences(self, draft: Draft) -> list[Difference]:
        """Differences between the policy in force and the draft."""
        old = self._compiled(None, draft.tenant, draft.project)
        return differences(old, self._compiled(draft, draft.tenant, draft.project))

    def explain(
        self,
        tenant: str,
        project: str,
        model: str,
        draft: Draft | None = None,
        candidates: tuple[BackendFacts, ...] | None = None,
    ) -> Explained:
        """The decision about a request of `project` for `model` now, with its sources. `candidates`: backends, and what
        they have shown of themselves; by default those of the database, which have shown nothing."""
        record = self._inventory.project(tenant, project)
        if candidates is None:
            candidates = self.candidates(tenant, model)
        facts, policy = self._request(record, model, candidates), self._compiled(draft, tenant, project)
        return Explained(decide(policy, facts), tuple(self._sources(draft, tenant, project)), policy.redaction)

    def candidates(self, tenant: str, model: str) -> tuple[BackendFacts, ...]:
        """Facts of the backends of a model, none of which has shown anything."""
        return tuple(self._facts(one) for one in self._backends(tenant) if model in one.models)

    def simulate(self, draft: Draft, since: datetime | None = None) -> list[TenantImpact]:
        """The effect of the draft on the calls of each tenant concerned that were recorded since `since`."""
        tenants = (
            [draft.tenant]
            if draft.tenant is not None
            else [one.id for one in self._inventory.tenants() if one.revoked_at is None]
        )
        return [TenantImpact(tenant, self._simulated(draft, tenant, since)) for tenant in tenants]

    def without_dpf(self, tenant: str | None) -> Draft:
        """The document in force as a draft without the EU-US Data Privacy Framework as a transfer basis.

        `tenant` None: the operator's, for all tenants at once; also where the operator has none yet.
        """
        text = self._active(tenant, None)
        if text is None and tenant is not None:
            raise Invalid(f"tenant {tenant!r} has no active policy; submit one with `domicile policy submit`")
        said: dict[str, Any] = {"policy": "operator", "version": 1}
        if text is not None:
            said = load_document(text).model_dump(mode="json", by_alias=True, exclude_unset=True)
        said["residency"] = {**said.get("residency", {}), "dpf_accepted": False}
        return Draft(json.dumps(said, indent=1), tenant)

    def _simulated(self, draft: Draft, tenant: str, since: datetime | None) -> Impact:
        traffic = list(self._traffic(tenant, since))
        projects = {kind.facts.project or "" for kind in traffic}
        concerned = projects if draft.project is None else projects & {draft.project}
        try:
            old = {project: self._compiled(None, tenant, project) for project in concerned}
            new = {project: self._compiled(draft, tenant, project) for project in concerned}
        except Invalid:
            return Impact(0, 0, (), {})  # no policy, no calls to change
        kinds = (kind for kind in traffic if kind.facts.project in concerned)
        return simulate(kinds, old.__getitem__, new.__getitem__)

    def _traffic(self, tenant: str, since: datetime | None) -> Iterator[RecordedCalls]:
        """Kinds of recorded calls, over the facts of today. Calls of projects that are gone are left out."""
        projects = {one.id: one for one in self._inventory.projects(tenant) if one.revoked_at is None}
        today = {one.id: one for one in self._backends(tenant)}
        gone: dict[str, BackendFacts] = {}
        counts: Counter[tuple[str, str, str | None]] = Counter()
        for event in self._recorded(tenant, since):
            backend, model = None, event.model_requested
            if isinstance(event, InferenceAccepted):
                backend, model = event.backend_id, event.model_served or model
                if backend not in today:
                    gone[backend] = _recorded_facts(event)
            counts[event.project, model, backend] += 1
        for (project, model, backend), count in counts.items():
            if (record := projects.get(project)) is None:
                continue
            candidates = [self._facts(one) for one in today.values() if model in one.models]
            if backend in gone:
                candidates.append(gone[backend].model_copy(update={"models": (model,)}))
            yield RecordedCalls(self._request(record, model, tuple(candidates)), backend, count)

    def _recorded(self, tenant: str, since: datetime | None) -> Iterator[InferenceAccepted | InferenceDenied]:
        from_ts = "" if since is None else since.astimezone(UTC).isoformat(timespec="milliseconds")[:23]
        try:
            log = self._open_record()
        except NoLog:
            return  # nothing has been recorded yet
        try:
            for stored in log.leaves(tenant):
                if b'"type":"inference.accepted"' in stored.payload or b'"type":"inference.denied"' in stored.payload:
                    try:
                        leaf = decode_leaf(stored.payload)
                    except (CanonicalError, EventRejected):
                        continue  # `audit verify` reports damaged records
                    if leaf.stamp.ts >= from_ts and isinstance(leaf.event, InferenceAccepted | InferenceDenied):
                        yield leaf.event
        finally:
            log.close()

    def _request(self, project: ProjectRecord, model: str, candidates: tuple[BackendFacts, ...]) -> RequestFacts:
        return RequestFacts(
            tenant=project.tenant,
            project=project.id,
            model=model,
            at=self._now(),
            purpose=project.purpose,
            legal_basis=project.legal_basis,
            data_classes=project.data_classes,
            risk_class=project.risk_class,
            candidates=candidates,
            catalogue_version=self._catalogue.version,
            sinks=self._sinks,
        )

    def _backends(self, tenant: str) -> list[BackendRecord]:
        return [one for one in self._inventory.backends(tenant) if one.revoked_at is None]

    def _facts(self, one: BackendRecord) -> BackendFacts:
        return self._catalogue.backend_facts(
            backend_id=one.id,
            tenant=one.tenant,
            region=one.region,
            models=one.models,
            day=self._now().date(),
            kind=one.kind,
            single_tenant=one.single_tenant,
            watermarks=watermarks(one.kind, one.trust),
        ).model_copy(update=_unshown(one))

    def _compiled(self, draft: Draft | None, tenant: str | None, project: str | None) -> CompiledPolicy:
        levels = {source: load_document(text) for source, text in self._levels(draft, tenant, project).items()}
        own = levels.get("tenant")
        if own is None:
            if (operator := levels.get("operator")) is None or tenant is not None:
                whose = f"tenant {tenant!r}" if tenant else "the operator"
                raise Invalid(f"{whose} has no active policy; submit one with `domicile policy submit`")
            return compile_policy(_placed(operator), None, self._catalogue.country_sets())
        return compile_policy(
            own, levels.get("project"), self._catalogue.country_sets(), operator=levels.get("operator")
        )

    def _sources(self, draft: Draft | None, tenant: str, project: str) -> Iterator[Source]:
        names = {"operator": "operator", "tenant": tenant, "project": f"{tenant}/{project}"}
        for level, text in self._levels(draft, tenant, project).items():
            yield Source(names[level], load_document(text), text)

    def _levels(self, draft: Draft | None, tenant: str | None, project: str | None) -> dict[str, str]:
        """The documents that are in force, the draft in the place that it would take."""
        levels: dict[str, str] = {}
        if (operator := self._active(None, None)) is not None:
            levels["operator"] = operator
        if tenant is not None:
            if (own := self._active(tenant, None)) is not None:
                levels["tenant"] = own
            if project is not None and (tighter := self._active(tenant, project)) is not None:
                levels["project"] = tighter
        if draft is not None:
            level = "operator" if draft.tenant is None else "tenant" if draft.project is None else "project"
            levels[level] = draft.document
        return {level: levels[level] for level in ("operator", "tenant", "project") if level in levels}

    def _active(self, tenant: str | None, project: str | None) -> str | None:
        try:
            versions = self._inventory.policies(tenant)
        except NotFound:
            if tenant is None:
                return None
            raise
        return next((one.document for one in versions if one.active and one.project == project), None)


def _placed(operator: PolicyDocument) -> PolicyDocument:
    """An operator's document need not name places; to compile it alone, places that it does not restrict are
    allowed."""
    residency = operator.residency
    places = {
        "process_in": residency.process_in or "EEA+adequate",
        "store_in": residency.store_in or "EEA+adequate",
    }
    return operator.model_copy(update={"residency": residency.model_copy(update=places)})


def _recorded_facts(event: InferenceAccepted) -> BackendFacts:
    """Facts of a backend that is no longer registered, from the record; what was not recorded is unknown."""
    return BackendFacts(
        backend_id=event.backend_id,
        tenant=event.tenant,
        region=event.region,
        compute_country=event.inference_country,
        storage_country=event.storage_country,
        operator=event.operator_entity,
        operator_hq=event.operator_hq,
        ultimate_parent=event.ultimate_parent,
        parent_country=event.ultimate_parent_country,
    )


def _unshown(one: BackendRecord) -> dict[str, Any]:
    """Facts of a backend that is not asked what it runs: only a gateway that serves it knows that."""
    if one.kind != "domicile":
        source = None if one.weights_sha256 is None else "declared"
        return {"weights": one.weights_sha256, "weights_source": source}
    return {"weights_pinned": one.weights_sha256, "pending": True}
