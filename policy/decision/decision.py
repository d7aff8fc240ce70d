"""The decision for one request: which backends may answer it, and why each other one may not.

`decide` is pure and total: same policy and facts, same answer, and every input has one. What is unknown, missing,
contradictory or expired denies.

What a policy says to one kind of request on one day is worked out once (`_Case`), and so is what it says to each
backend for such requests; a request then costs one look-up a backend. Facts are frozen, so a backend that has been
judged is known by being the same object.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from operator import attrgetter
from types import MappingProxyType

from policy.conditions.models import asks_for_commitments
from policy.conditions.registry import CONDITIONS, FACTS, TIMED
from policy.decision.compile import CompiledPolicy, ConditionalRule, Notice
from policy.decision.residency import CountryRule
from policy.decision.tighten import NO_DEMAND, BackendDemand
from policy.document.retention import RetentionClass, with_high_risk_floor
from policy.facts import BackendFacts, Marking, Priority, RequestFacts, Sink
from policy.purpose import RISK_CLASSES
from policy.reason import Reason
from policy.redact.actions.plan import RedactionPlan, action_for

_REQUIRED_OF_REQUEST = ("tenant", "project", "model", "risk_class")
_REQUIRED_OF_BACKEND = ("tenant", "region", "compute_country", "storage_country", "operator", "operator_hq",
                        "ultimate_parent", "parent_country")  # fmt: skip
_COUNTRIES_OF_BACKEND = ("compute_country", "storage_country", "operator_hq", "parent_country")
MANAGED_LABELS = ("email", "iban", "card", "phone", "national_id", "secret")
"""As the preset ``gdpr-standard`` redacts them in prompts."""
MAX_CASES = 1024  # kinds of request that a policy remembers, and backends for each: what callers make up is forgotten
MAX_VERDICTS = 4096
_facts_of_kind = attrgetter(
    *dict.fromkeys(("tenant", "model", "purpose", "data_classes", "risk_class", "sinks", "generates", *FACTS))
)
"""What distinguishes kinds of requests: what rules, sinks and conditions read, but for the time of day."""


@dataclass(frozen=True, slots=True)
class Decision:
    """``backends``: allowed ids in the order they were given. ``transfer_basis``: for each of them, by which tool.

    ``sinks``: those of the sinks that are not required to which something of the call may go.
    ``sovereign``: those of them that may get a prompt which could not be inspected, see `policy.decision.sovereign`.
    ``pending``: ids that would be among ``backends`` but for what they have not shown yet; nothing may be sent to them.
    ``marking``: how the answer is to be marked. ``commits``: it is to commit to its model's activations.
    ``reasons`` names every refused candidate also when another one is allowed. ``holds_until``: before then the same
    facts get the same answer, whatever the time.
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
    catalogue_version: str | None
    priority: Priority
    holds_until: datetime
    sinks: tuple[str, ...] = ()
    sovereign: tuple[str, ...] = ()
    marking: tuple[Marking, ...] = ()
    pending: tuple[str, ...] = ()
    commits: bool = False


def decide(policy: CompiledPolicy, facts: RequestFacts) -> Decision:
    at = facts.at.astimezone(UTC)
    case = _case(policy, facts, at.date())
    timed, holds_until = _refusals_by_time(policy, at)
    reasons = [*case.refusals, *timed]
    refused = bool(reasons)
    basis_of: dict[str, str] = {}
    sovereign: list[str] = []
    pending: list[str] = []
    candidates, verdicts = facts.candidates, case.verdicts
    for backend in candidates:
        known = verdicts.get(id(backend))
        if known is None or known.backend is not backend:
            known = case.evaluate(backend)
        if known.basis is not None:
            basis_of[backend.backend_id] = known.basis
            if known.is_sovereign:
                sovereign.append(backend.backend_id)
        else:
            reasons += known.reasons
            pending += known.pending
    if not candidates:
        reasons.append(Reason("candidates.none", None, f"no backend serves {facts.model or 'this model'}"))
    elif len(candidates) > 1 and (twice := _described_twice(candidates)):
        reasons, basis_of, sovereign, pending = _without_contradicted(
            candidates, twice, reasons, basis_of, sovereign, pending
        )
    if refused:
        basis_of, sovereign, pending = {}, [], []
    allowed = bool(basis_of or pending)
    return Decision(
        allowed=allowed,
        backends=tuple(basis_of),
        reasons=tuple(reasons),
        redaction=policy.redaction,
        retention=case.retention,
        notices=policy.notices,
        transfer_basis=MappingProxyType(basis_of),
        policy_id=policy.policy_id,
        version=policy.version,
        hash=policy.hash,
        countries_version=policy.countries_version,
        catalogue_version=facts.catalogue_version,
        priority=policy.priority,
        holds_until=holds_until,
        sinks=case.sinks if allowed else (),
        sovereign=tuple(sovereign),
        marking=policy.marking if facts.generates else (),
        pending=tuple(pending),
        commits=facts.generates and asks_for_commitments(policy.asked),
    )


def _refusals_by_time(policy: CompiledPolicy, at: datetime) -> tuple[list[Reason], datetime]:
    """Also until when they stay the same."""
    reasons: list[Reason] = []
    holds_until = datetime.combine(at.date() + timedelta(1), time(), UTC)
    for condition in TIMED:
        if (bound := policy.asked[condition.name]) is not None:
            reasons += condition.refusals_at(bound, at)
            holds_until = min(holds_until, condition.holds_until(bound, at))
    return reasons, holds_until


@dataclass(frozen=True, slots=True)
class _Verdict:
    """`basis`: the transfer basis of a backend that is allowed; None where `reasons` say why it is not.
    `pending`: its id, where it is allowed but for what it has not shown yet."""

    backend: BackendFacts
    reasons: tuple[Reason, ...]
    basis: str | None
    is_sovereign: bool
    pending: tuple[str, ...]


class _Case:
    """What a policy says to one kind of request on one day."""

    __slots__ = ("_bounds", "_facts", "_on", "_policy", "refusals", "retention", "sinks", "verdicts")

    def __init__(self, policy: CompiledPolicy, facts: RequestFacts, on: date) -> None:
        self._policy, self._facts, self._on = policy, facts.model_copy(update={"candidates": ()}), on
        rules = _rules_for(policy, facts)
        self.refusals = (*_refusals_of_request(policy, facts), *_refusals_by_rules(rules))
        unfit = {sink: tuple(_refusals_of_sink(policy, rules, sink, on)) for sink in facts.sinks}
        self.refusals += tuple(reason for sink, found in unfit.items() if sink.required for reason in found)
        self.sinks = tuple(sink.name for sink, found in unfit.items() if not sink.required and not found)
        self._bounds = tuple(bound for rule in rules for bound in _bounds_of(rule))
        high_risk = facts.risk_class not in RISK_CLASSES - {"high"}
        self.retention = with_high_risk_floor(policy.retention) if high_risk else policy.retention
        self.verdicts: dict[int, _Verdict] = {}

    def evaluate(self, backend: BackendFacts) -> _Verdict:
        policy, on = self._policy, self._on
        reasons = list(_refusals_of_backend(policy, self._facts, backend, on))
        unshown: tuple[Reason, ...] = ()
        if backend.tenant == self._facts.tenant:
            reasons += _refusals_by_bounds(self._bounds, policy.redaction, backend, on)
            unshown = tuple(_refusals_of_shown(policy, self._bounds, backend, self._facts.generates))
            reasons += () if backend.pending else unshown
        basis: str | None = None
        if not reasons:
            basis, why_none = policy.transfer.basis(backend, on)
            if basis is None:
                reasons.append(Reason("residency.transfer_basis", backend.backend_id, why_none, "GDPR 44-49"))
        pending: tuple[str, ...] = ()
        if basis is not None and backend.pending and unshown:
            basis, pending = None, (backend.backend_id,)
        if len(self.verdicts) >= MAX_VERDICTS:
            self.verdicts.clear()
        verdict = self.verdicts[id(backend)] = _Verdict(
            backend,
            tuple(reasons),
            basis,
            policy.on_failure.admits(backend, on),
            pending,
        )
        return verdict


def _case(policy: CompiledPolicy, facts: RequestFacts, on: date) -> _Case:
    kind = (on, facts.project is None, facts.project == "", _facts_of_kind(facts))
    known: _Case | None = policy.case_cache.get(kind)
    if known is None:
        known = _Case(policy, facts, on)
        if len(policy.case_cache) >= MAX_CASES:
            policy.case_cache.clear()
        policy.case_cache[kind] = known
    return known


def _rules_for(policy: CompiledPolicy, facts: RequestFacts) -> tuple[ConditionalRule, ...]:
    """The conditional rules that apply to a request; a fact that is not known is ``""`` to them."""
    return tuple(
        rule
        for rule in policy.rules
        if rule.applies(
            model=facts.model or "",
            purpose=facts.purpose or "",
            data_classes=facts.data_classes,
            risk_class=facts.risk_class or "",
        )
    )


def _refusals_of_request(policy: CompiledPolicy, facts: RequestFacts) -> Iterator[Reason]:
    for name in _REQUIRED_OF_REQUEST:
        if not getattr(facts, name):
            yield Reason("facts.missing", None, f"{name} of the request is not known", "GDPR 5(2)")
    if facts.risk_class and facts.risk_class not in RISK_CLASSES:
        yield Reason("risk_class.unknown", None, f"risk class {facts.risk_class} is not one we know", "AI Act 6")
    if facts.risk_class == "prohibited":
        yield Reason("risk_class.prohibited", None, "this practice is prohibited", "AI Act 5")
    for condition in CONDITIONS:
        yield from condition.refusals(policy.asked, facts)


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
    yield from _refusals_of_subprocessors(policy, backend, on)
    yield from _refusals_of_server("", policy.backend, policy.redaction, backend)
    yield from _refusals_of_marking(policy, facts, backend)


def _refusals_of_marking(policy: CompiledPolicy, facts: RequestFacts, backend: BackendFacts) -> Iterator[Reason]:
    if "watermark" in policy.marking and facts.generates and not backend.watermarks:
        because = "does not watermark its answers, policy asks for it"
        yield Reason("transparency.marking", backend.backend_id, because, "AI Act 50(2)")


def _refusals_of_subprocessors(policy: CompiledPolicy, backend: BackendFacts, on: date) -> Iterator[Reason]:
    """One for each sub-processor whose country is not known or not allowed."""
    name, rule = backend.backend_id, "residency.subprocessors"
    for other in backend.subprocessors:
        if not other.country or other.country not in policy.known_countries:
            yield Reason(rule, name, f"country of sub-processor {other.name} is not known", "GDPR 28(2), 44")
        else:
            what = f"sub-processor {other.name} is in {other.country}"
            yield from _outside(rule, backend, what, other.country, policy.subprocessors, on, "GDPR 28(2), 44")


def _refusals_of_sink(
    policy: CompiledPolicy, rules: tuple[ConditionalRule, ...], sink: Sink, on: date
) -> Iterator[Reason]:
    country, article = sink.country, "GDPR 44"
    if country is None:
        fix = f": set {sink.setting}" if sink.setting else ""
        yield Reason("facts.missing", None, f"where {sink.name} is kept is not known{fix}", "GDPR 5(2)")
        return
    if country not in policy.known_countries:
        yield Reason("facts.country", None, f"{sink.name} is kept in {country}, no country we know", "GDPR 5(2)")
        return
    bounds = [("residency.store_in", policy.store_in)]
    bounds += [(f"rules.{rule.name}.store_in", rule.bounds.store_in) for rule in rules if rule.bounds.store_in]
    for rule_id, allowed in bounds:
        if objection := allowed.objection(country, on, ()):
            yield Reason(rule_id, None, f"{sink.name} is kept in {country}, {objection}", article)


def _refusals_by_rules(rules: tuple[ConditionalRule, ...]) -> Iterator[Reason]:
    for rule in rules:
        if rule.deny:
            yield Reason(f"rules.{rule.name}", None, rule.because)


@dataclass(frozen=True, slots=True)
class _Bound:
    """One thing that a conditional rule asks of a backend: a country in `allowed` for one of its facts."""

    rule: str
    fact: str
    verb: str
    allowed: CountryRule


def _bounds_of(rule: ConditionalRule) -> Iterator[_Bound | tuple[str, BackendDemand]]:
    """What it asks, said once, so that the first look at many backends pays only for that."""
    bounds = rule.bounds
    for key, fact, verb, allowed in (
        ("process_in", "compute_country", "computes in", bounds.process_in),
        ("store_in", "storage_country", "stores in", bounds.store_in),
        ("operator.head_office", "operator_hq", "operator is in", bounds.head_office),
        ("operator.ultimate_parent", "parent_country", "parent is in", bounds.ultimate_parent),
    ):
        if allowed is not None:
            yield _Bound(f"rules.{rule.name}.{key}", fact, verb, allowed)
    if bounds.backend != NO_DEMAND:
        yield f"rules.{rule.name}.", bounds.backend


def _refusals_by_bounds(
    bounds: tuple[_Bound | tuple[str, BackendDemand], ...], redaction: RedactionPlan, backend: BackendFacts, on: date
) -> Iterator[Reason]:
    for bound in bounds:
        if isinstance(bound, tuple):
            yield from _refusals_of_server(*bound, redaction, backend)
            continue
        country = getattr(backend, bound.fact)  # one that is not known is refused as such
        if country and (objection := bound.allowed.objection(country, on, backend.attested_transfer)):
            yield Reason(bound.rule, backend.backend_id, f"{bound.verb} {country}, {objection}", "GDPR 44")


def _refusals_of_shown(
    policy: CompiledPolicy,
    bounds: tuple[_Bound | tuple[str, BackendDemand], ...],
    backend: BackendFacts,
    generates: bool,
) -> Iterator[Reason]:
    """By what a backend shows of itself while it runs."""
    pinned, weights = backend.weights_pinned, backend.weights
    if pinned is not None and weights != pinned:
        runs = f"runs the weights {weights[:16]}" if weights else "does not say which weights it runs"
        yield Reason("model.weights", backend.backend_id, f"{runs}, pinned are {pinned[:16]}", "AI Act 12(2), 15(5)")
    for condition in CONDITIONS:
        if (bound := policy.asked[condition.name]) is not None:
            yield from condition.refusals_of_backend(bound, backend, generates)
    for prefix, demand in (("", policy.backend), *(each for each in bounds if isinstance(each, tuple))):
        if demand.attested and not any(each.issubset(backend.attested) for each in demand.attested):
            wanted = " or ".join("+".join(sorted(each)) for each in demand.attested)
            why = f": {backend.attestation_fault}" if backend.attestation_fault else ""
            because = f"has no evidence in force of {wanted}{why}"
            yield Reason(f"{prefix}backend.attested", backend.backend_id, because, "GDPR 32; AI Act 15(5)")


def _refusals_of_server(
    prefix: str, demand: BackendDemand, redaction: RedactionPlan, backend: BackendFacts
) -> Iterator[Reason]:
    name = backend.backend_id
    if demand.kind is not None and backend.kind != demand.kind:
        is_one = f"is of kind {backend.kind}" if backend.kind else "is of a kind that is not known"
        yield Reason(f"{prefix}backend.kind", name, f"{is_one}, policy asks for {demand.kind}", "GDPR 32")
    tenancy, wanted = backend.single_tenant, demand.single_tenant
    if wanted is not None and tenancy != "attested" and tenancy != wanted:
        serves = "only declares to serve one tenant" if tenancy else "may serve other tenants"
        because = f"{serves}, policy asks for {wanted}"
        yield Reason(f"{prefix}backend.single_tenant", name, because, "GDPR 32(1)(b)")
    if backend.kind == "managed" and demand.managed == "redacted" and (left := _left_alone(redaction)):
        because = f"is a managed service, and the policy leaves {', '.join(left)} of prompts as they are"
        yield Reason(f"{prefix}backend.managed", name, because, "GDPR 5(1)(c), 25, 28")
    if lacking := sorted(demand.certifications.difference(backend.certifications)):
        because = f"has no {', '.join(lacking)} certificate in force"
        yield Reason(f"{prefix}backend.certifications", name, because, "GDPR 28(1), 32(3)")


def _left_alone(redaction: RedactionPlan) -> list[str]:
    """The labels of `MANAGED_LABELS` that are not redacted in prompts: ``tag`` only counts."""
    return [label for label in MANAGED_LABELS if action_for(redaction.input, label) in (None, "tag")]


def _outside(
    rule: str, backend: BackendFacts, what: str, country: str, allowed: CountryRule, on: date, article: str
) -> Iterator[Reason]:
    if objection := allowed.objection(country, on, backend.attested_transfer):
        yield Reason(rule, backend.backend_id, f"{what}, {objection}", article)


def _contradiction(name: str, because: str) -> Reason:
    return Reason("facts.contradictory", name, because, "GDPR 5(2)")


def _described_twice(candidates: tuple[BackendFacts, ...]) -> frozenset[str]:
    ids = [backend.backend_id for backend in candidates]
    if len(set(ids)) == len(ids):
        return frozenset()
    return frozenset(name for name, count in Counter(ids).items() if count > 1)


def _without_contradicted(
    candidates: tuple[BackendFacts, ...],
    twice: frozenset[str],
    reasons: list[Reason],
    basis_of: dict[str, str],
    sovereign: list[str],
    pending: list[str],
) -> tuple[list[Reason], dict[str, str], list[str], list[str]]:
    """The last four where the ids in `twice` are described more than once: what they say of these is replaced by one
    reason for each candidate that carries such an id."""
    ids = (backend.backend_id for backend in candidates)
    return (
        [reason for reason in reasons if reason.candidate not in twice]
        + [_contradiction(name, "two candidates carry this id") for name in ids if name in twice],
        {name: basis for name, basis in basis_of.items() if name not in twice},
        [name for name in sovereign if name not in twice],
        [name for name in pending if name not in twice],
    )
