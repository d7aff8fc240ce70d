"""Runs the tests in a policy, each on a case that the policy's own rules allow, changed as the test says."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from policy.conditions.registry import CONDITIONS, TIMED
from policy.decision.compile import CompiledPolicy
from policy.decision.decision import Decision, decide
from policy.decision.residency import CountryRule
from policy.document.document import Given, PolicyTest
from policy.errors import PolicyTestError
from policy.facts import Attestation, BackendFacts, CountrySets, RequestFacts, Subprocessor

_TENANT = "tenant-under-test"
_BACKEND = "backend-under-test"


@dataclass(frozen=True, slots=True)
class PolicyTestOutcome:
    test: PolicyTest
    decision: Decision
    passed: bool

    def __str__(self) -> str:
        if self.passed:
            return f"pass  {self.test.name}"
        verdict = "allowed" if self.decision.allowed else "denied"
        wanted = self.test.expect + (f" by {self.test.rule}" if self.test.rule else "")
        reasons = "; ".join(map(str, self.decision.reasons))
        return f"FAIL  {self.test.name}: expected {wanted}, was {verdict}{f': {reasons}' if reasons else ''}"


def run_tests(policy: CompiledPolicy, countries: CountrySets) -> tuple[PolicyTestOutcome, ...]:
    """One outcome for each test in the document, in its order."""
    return tuple(_run(policy, countries, test) for test in policy.tests)


def check_policy(policy: CompiledPolicy, countries: CountrySets) -> tuple[PolicyTestOutcome, ...]:
    """As `run_tests`; raises PolicyTestError if one fails. A policy that fails here must not be activated."""
    outcomes = run_tests(policy, countries)
    if failures := tuple(str(outcome) for outcome in outcomes if not outcome.passed):
        raise PolicyTestError(failures)
    return outcomes


def _run(policy: CompiledPolicy, countries: CountrySets, test: PolicyTest) -> PolicyTestOutcome:
    decision = decide(policy, case_for(policy, countries, test.given))
    passed = decision.allowed == (test.expect == "allow")
    if passed and test.rule:
        passed = any(reason.rule == test.rule for reason in decision.reasons)
    return PolicyTestOutcome(test, decision, passed)


def case_for(policy: CompiledPolicy, countries: CountrySets, given: Given) -> RequestFacts:
    """A request and one backend inside the policy, except for what `given` says.

    Countries are the first inside each rule on that day, EEA before others; the day is that of the country table
    unless the test names one.
    """
    at = _instant(given.at, countries.as_of, policy)
    on = at.date()
    facts = _facts_of_conditions(policy, given)
    return RequestFacts(
        tenant=_TENANT,
        project="project-under-test",
        at=at,
        risk_class=given.risk_class or "limited",
        candidates=(_backend(policy, given, facts["model"], on),),
        **facts,
    )


def _facts_of_conditions(policy: CompiledPolicy, given: Given) -> dict[str, Any]:
    """Facts that the policy's conditions accept, except for what `given` says."""
    facts: dict[str, Any] = {}
    for condition in CONDITIONS:
        facts |= condition.accepted_facts(policy.asked[condition.name])
        facts |= {name: value for name in condition.given if (value := getattr(given, name)) is not None}
    return facts


def _accepted_evidence(policy: CompiledPolicy) -> frozenset[str]:
    """Technologies that fulfil what the policy and each of its rules ask of a backend."""
    demands = (policy.backend, *(rule.bounds.backend for rule in policy.rules))
    return frozenset().union(*(demand.attested[0] for demand in demands if demand.attested))


def _shown_facts(policy: CompiledPolicy, given: Given) -> dict[str, Any]:
    """What the backend of a test has shown: what the policy's conditions accept, except for what `given` says."""
    facts: dict[str, Any] = {}
    for condition in CONDITIONS:
        facts |= condition.accepted_facts_of_backend(policy.asked[condition.name])
        facts |= {name: value for name in condition.given_of_backend if (value := getattr(given, name)) is not None}
    return facts


def _backend(policy: CompiledPolicy, given: Given, model: str, on: date) -> BackendFacts:
    """The one backend of the case: inside the policy on that day, except for what `given` says."""
    countries = _countries(policy, given, on)
    subprocessors: tuple[Subprocessor, ...] = ()
    if given.subprocessor_country:
        subprocessors = (Subprocessor(name="subprocessor-under-test", country=given.subprocessor_country),)
    places = sorted({country for country in (*countries.values(), given.subprocessor_country) if country})
    return BackendFacts(
        backend_id=_BACKEND,
        tenant=given.backend_tenant or _TENANT,
        region="region-under-test",
        operator="operator-under-test",
        ultimate_parent="parent-under-test",
        subprocessors=subprocessors,
        models=(model,),
        attested_transfer=tuple(
            _attestation(basis, country, on)
            for basis in _attested_bases(policy, given)
            if basis != "intra_eea"
            for country in places
        ),
        kind=given.kind or policy.backend.kind or "domicile",
        single_tenant=None if given.single_tenant == "none" else given.single_tenant or "attested",
        certifications=tuple(
            sorted(policy.backend.certifications) if given.certifications is None else given.certifications
        ),
        watermarks=True if given.watermarks is None else given.watermarks,
        weights_source="computed",
        attested=tuple(sorted(_accepted_evidence(policy)) if given.attestation is None else given.attestation),
        **_shown_facts(policy, given),
        **countries,
    )


def _countries(policy: CompiledPolicy, given: Given, on: date) -> dict[str, str | None]:
    """The country of each place of the backend, by the field of BackendFacts; None where the test says unknown."""
    countries: dict[str, str | None] = {
        "compute_country": given.compute_country or _inside(policy.process_in, policy, on),
        "storage_country": given.storage_country or _inside(policy.store_in, policy, on),
        "operator_hq": given.operator_hq or _inside(policy.head_office, policy, on),
        "parent_country": given.operator_parent or _inside(policy.ultimate_parent, policy, on),
    }
    for fact in given.unknown:
        countries["parent_country" if fact == "operator_parent" else fact] = None
    return countries


def _attested_bases(policy: CompiledPolicy, given: Given) -> Sequence[str]:
    """The transfer bases that are attested for the backend: those of the test; else all that the policy accepts,
    but none where the test names a place of processing, storage or a sub-processor."""
    if given.attested is not None:
        return given.attested
    if given.compute_country or given.storage_country or given.subprocessor_country:
        return ()
    return sorted(policy.transfer.accepted)


def _instant(at: datetime | date | None, default: date, policy: CompiledPolicy) -> datetime:
    """A day alone is meant at noon, or at its first hour that the policy accepts; no day, within a week."""
    if isinstance(at, datetime):
        return at.astimezone(UTC)
    noon = datetime.combine(at or default, time(12), UTC)
    hours = range(24) if at else range(7 * 24)
    open_hours = (noon + timedelta(hours=later if not at else (later + 12) % 24 - 12) for later in hours)
    return next((hour for hour in open_hours if not _refused_at(policy, hour)), noon)


def _refused_at(policy: CompiledPolicy, at: datetime) -> bool:
    bounds = ((condition, policy.asked[condition.name]) for condition in TIMED)
    return any(any(condition.refusals_at(bound, at)) for condition, bound in bounds if bound is not None)


def _inside(rule: CountryRule | None, policy: CompiledPolicy, on: date) -> str | None:
    eea = sorted(policy.transfer.eea.full)
    if rule is None:
        return eea[0] if eea else None
    candidates = sorted(
        {*rule.full, *rule.partial}, key=lambda country: (country not in policy.transfer.eea.full, country)
    )
    for country in candidates:
        if rule.objection(country, on, (_attestation("adequacy", country, on),)) is None:
            return country
    return None


def _attestation(basis: str, country: str, on: date) -> Attestation:
    row = {"basis": basis, "country": country, "reference": "attestation-under-test", "valid_from": on}
    return Attestation.model_validate(row)
