"""The decision for one request: which backends may answer it, and why each other one may not.

`decide` is pure and total: same policy and facts, same answer, and every input has one. What is unknown, missing,
contradictory or expired denies.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date
from types import MappingProxyType

from policy.compile import CompiledPolicy, Notice
from policy.facts import BackendFacts, RequestFacts
from policy.purpose import LEGAL_BASES, RISK_CLASSES, SPECIAL_CATEGORIES, legal_basis_name
from policy.redact.plan import RedactionPlan
from policy.residency import CountryRule
from policy.retention import RetentionClass, with_high_risk_floor

_REQUIRED_OF_REQUEST = ("tenant", "project", "model", "risk_class")
_REQUIRED_OF_BACKEND = ("tenant", "region", "compute_country", "storage_country", "operator", "operator_hq",
                        "ultimate_parent", "parent_country")  # fmt: skip
_COUNTRIES_OF_BACKEND = ("compute_country", "storage_country", "operator_hq", "parent_country")


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the request (``candidate`` is None) or one candidate is refused. ``article``: the law behind the rule."""

    rule: str
    candidate: str | None
    because: str
    article: str = ""

    def __str__(self) -> str:
        subject = f"{self.candidate}: " if self.candidate else ""
        return f"{subject}{self.because} [{self.rule}{f'; {self.article}' if self.article else ''}]"


@dataclass(frozen=True, slots=True)
class Decision:
    """``backends``: allowed ids in the order they were given. ``transfer_basis``: for each of them, by which tool.

    ``reasons`` names every refused candidate also when another one is allowed.
    """

    allowed: bool
    backends: tuple[str, ...]
    reasons: tuple[Reason, ...]
    redaction: RedactionPlan
    retention: RetentionClass
    notices: tuple[Notice, ...]
    transfer_basis: Mapping[str, str]
    policy_id: str
    version: str
    hash: str
    countries_version: str


def decide(policy: CompiledPolicy, facts: RequestFacts) -> Decision:
    on = facts.at.astimezone(UTC).date()
    reasons = list(_refusals_of_request(policy, facts))
    refused = bool(reasons)
    basis_of: dict[str, str] = {}
    contradictory = _described_twice(facts.candidates)
    for backend in facts.candidates:
        if backend.backend_id in contradictory:
            reasons.append(_contradiction(backend.backend_id, "two candidates carry this id"))
            continue
        objections = list(_refusals_of_backend(policy, facts, backend, on))
        if not objections:
            basis, why_none = policy.transfer.basis(backend, on)
            if basis is None:
                objections.append(Reason("residency.transfer_basis", backend.backend_id, why_none, "GDPR 44-49"))
            else:
                basis_of[backend.backend_id] = basis
        reasons += objections
    if not facts.candidates:
        reasons.append(Reason("candidates.none", None, f"no backend serves {facts.model or 'this model'}"))
    allowed = bool(basis_of) and not refused
    if not allowed:
        basis_of = {}
    high_risk = facts.risk_class not in RISK_CLASSES - {"high"}
    return Decision(
        allowed=allowed,
        backends=tuple(basis_of),
        reasons=tuple(reasons),
        redaction=policy.redaction,
        retention=with_high_risk_floor(policy.retention) if high_risk else policy.retention,
        notices=policy.notices,
        transfer_basis=MappingProxyType(basis_of),
        policy_id=policy.policy_id,
        version=policy.version,
        hash=policy.hash,
        countries_version=policy.countries_version,
    )


def _refusals_of_request(policy: CompiledPolicy, facts: RequestFacts) -> Iterator[Reason]:
    for name in _REQUIRED_OF_REQUEST:
        if not getattr(facts, name):
            yield Reason("facts.missing", None, f"{name} of the request is not known", "GDPR 5(2)")
    if facts.risk_class and facts.risk_class not in RISK_CLASSES:
        yield Reason("risk_class.unknown", None, f"risk class {facts.risk_class} is not one we know", "AI Act 6")
    if facts.risk_class == "prohibited":
        yield Reason("risk_class.prohibited", None, "this practice is prohibited", "AI Act 5")
    if policy.models is not None and facts.model not in policy.models:
        yield Reason("models", None, f"policy does not list model {facts.model}")
    if policy.purposes is not None:
        if not facts.purpose:
            yield Reason("purposes", None, "the project has no purpose on record", "GDPR 5(1)(b)")
        elif policy.purposes != "required" and facts.purpose not in policy.purposes:
            yield Reason("purposes", None, f"policy does not list purpose {facts.purpose}", "GDPR 5(1)(b)")
    yield from _refusals_of_legal_basis(policy, facts)
    for data_class in facts.data_classes:
        listed = policy.data_classes is not None and data_class in policy.data_classes
        if data_class in SPECIAL_CATEGORIES and not listed:
            yield Reason(
                "data_classes.special", None, f"policy does not list special category {data_class}", "GDPR 9(1)"
            )
        elif policy.data_classes is not None and not listed:
            yield Reason("data_classes", None, f"policy does not list data class {data_class}", "GDPR 5(1)(c)")


def _refusals_of_legal_basis(policy: CompiledPolicy, facts: RequestFacts) -> Iterator[Reason]:
    if facts.legal_basis:
        name = legal_basis_name(facts.legal_basis)
        if name not in LEGAL_BASES:
            yield Reason("legal_basis", None, f"{facts.legal_basis} is no legal basis", "GDPR 6(1)")
        elif isinstance(policy.legal_basis, frozenset) and name not in policy.legal_basis:
            yield Reason("legal_basis", None, f"policy does not list legal basis {name}", f"GDPR {LEGAL_BASES[name]}")
    elif policy.legal_basis is not None:
        yield Reason("legal_basis", None, "the project has no legal basis on record", "GDPR 6(1)")


def _refusals_of_backend(
    policy: CompiledPolicy, facts: RequestFacts, backend: BackendFacts, on: date
) -> Iterator[Reason]:
    name = backend.backend_id
    if backend.tenant != facts.tenant:
        yield Reason("isolation.tenant", name, "belongs to another tenant", "GDPR 32(1)(b)")
        return  # nothing more about it is this tenant's business
    if facts.model not in backend.models:
        yield Reason("model.served", name, f"does not serve {facts.model}")
    unknown = [fact for fact in _REQUIRED_OF_BACKEND if not getattr(backend, fact)]
    for fact in unknown:
        yield Reason("facts.missing", name, f"{fact} is not known", "GDPR 5(2)")
    for fact in _COUNTRIES_OF_BACKEND:
        country = getattr(backend, fact)
        if country and country not in policy.known_countries:
            yield Reason("facts.country", name, f"{fact} {country} is no country we know", "GDPR 5(2)")
            unknown.append(fact)
    if backend.operator == backend.ultimate_parent and backend.operator_hq != backend.parent_country:
        yield _contradiction(name, "the operator is its own parent, yet in two countries")
    places = (
        ("residency.process_in", "compute_country", "computes in", policy.process_in, "GDPR 44"),
        ("residency.store_in", "storage_country", "stores in", policy.store_in, "GDPR 44"),
        ("residency.operator.head_office", "operator_hq", "operator is in", policy.head_office, "GDPR 44, 48"),
        ("residency.operator.ultimate_parent", "parent_country", "parent is in", policy.ultimate_parent, "GDPR 44, 48"),
    )
    for rule, fact, verb, allowed, article in places:
        if allowed is not None and fact not in unknown:
            yield from _outside(
                rule, backend, f"{verb} {getattr(backend, fact)}", getattr(backend, fact), allowed, on, article
            )
    for other in backend.subprocessors:
        rule = "residency.subprocessors"
        if not other.country or other.country not in policy.known_countries:
            yield Reason(rule, name, f"country of sub-processor {other.name} is not known", "GDPR 28(2), 44")
        else:
            what = f"sub-processor {other.name} is in {other.country}"
            yield from _outside(rule, backend, what, other.country, policy.process_in, on, "GDPR 28(2), 44")


def _outside(
    rule: str, backend: BackendFacts, what: str, country: str, allowed: CountryRule, on: date, article: str
) -> Iterator[Reason]:
    if objection := allowed.objection(country, on, backend.attested_transfer):
        yield Reason(rule, backend.backend_id, f"{what}, {objection}", article)


def _contradiction(name: str, because: str) -> Reason:
    return Reason("facts.contradictory", name, because, "GDPR 5(2)")


def _described_twice(candidates: tuple[BackendFacts, ...]) -> frozenset[str]:
    if len(candidates) < 2:
        return frozenset()
    counts = Counter(backend.backend_id for backend in candidates)
    return frozenset(name for name, count in counts.items() if count > 1)
