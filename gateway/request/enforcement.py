"""Policy enforcement point: gathers the facts of a request, evaluates the policy, refuses with the policy's reasons."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from gateway.directory.backend_registry import BackendRegistry, no_such_model
from gateway.directory.oversight import Stops
from gateway.errors import ContentUnreadable, PolicyDenied, RedactionRefused
from gateway.identity.principal import Principal
from gateway.request.stages import Parsed
from gateway.request.telemetry import Telemetry
from policy.decision.compile import CompiledPolicy
from policy.decision.decision import Decision, decide
from policy.facts import BackendFacts, RequestFacts, Sink
from policy.reason import Reason
from policy.redact.redactor import Redactor

MAX_DECIDED = 100_000
_NOW = partial(datetime.now, UTC)
ON_FAILURE = "redaction.on_failure"


@dataclass(frozen=True, slots=True)
class _Decided:
    """A cached decision with its inputs."""

    principal: Principal
    candidates: tuple[BackendFacts, ...]
    at: datetime
    decision: Decision

    def holds_for(self, principal: Principal, candidates: tuple[BackendFacts, ...], at: datetime) -> bool:
        in_time = self.at <= at < self.decision.holds_until
        return in_time and self.principal is principal and self.candidates is candidates


class PolicyEnforcement:
    """Evaluates the policy in force for each call, with cached decisions."""

    def __init__(
        self,
        registry: BackendRegistry,
        telemetry: Telemetry,
        now: Callable[[], datetime] = _NOW,
        stops: Stops | None = None,
        sinks: tuple[Sink, ...] = (),
    ) -> None:
        """`sinks`: places besides the backend that store data of every call (`gateway.configuration.sinks`)."""
        self._registry = registry
        self._stops = stops or Stops()
        self._telemetry = telemetry
        self._now = now
        self._sinks = sinks
        self._decided: dict[tuple[str, str, bool], _Decided] = {}

    def decide(self, request: Parsed) -> tuple[Decision, Redactor]:
        """Return the decision that allows this call, and the redactor of its policy.

        A project whose policy is missing or does not compile is refused. Raises PolicyDenied with the reasons, and with
        the decision if the policy refused the call; ModelNotFound.
        """
        found = self.decide_again(request)
        self._count(request, "allow", "")
        return found

    def offers(self, tenant: str, model: str) -> bool:
        """Return whether `tenant` has a model of that name."""
        return bool(self._registry.facts(tenant, model))

    def may_call(self, principal: Principal, model: str) -> bool:
        """Return whether a call of `principal` for `model` would be allowed now, without considering a prompt."""
        scopes = principal.scopes
        if principal.in_force is None or not (scopes.models is None or model in scopes.models):
            return False
        if self._is_of_others(principal, model):
            return False
        candidates = self._registry.facts(principal.tenant, model)
        if not any(scopes.allows_region(candidate.region) for candidate in candidates):
            return False
        return self._decision(principal, principal.in_force.policy, model, candidates).allowed

    def holds(self, request: Parsed, decision: Decision) -> bool:
        """Return whether `decide` would return this decision now.

        Compares the inputs by identity, without evaluating again. False also if the decision is no longer cached.
        """
        principal, model = request.principal, request.call.model
        known = self._decided.get((principal.key_id, model, request.call.endpoint.writes))
        if known is None or known.decision is not decision or self._stops.stands(principal):
            return False
        return known.holds_for(principal, self._registry.facts(principal.tenant, model), self._now())

    def decide_again(self, request: Parsed) -> tuple[Decision, Redactor]:
        """Return the result of `decide` without counting an allowed call again."""
        principal, call = request.principal, request.call
        candidates = self._registry.facts(principal.tenant, call.model)
        if not candidates or self._is_of_others(
            principal, call.model
        ):  # first, so that a made-up name never gets on record below
            raise no_such_model(self._registry.models(principal.tenant))
        try:
            self._stops.check(principal)
        except PolicyDenied as stopped:
            self._count(request, "deny", stopped.reasons[0].rule)
            raise
        if principal.in_force is None:
            raise self._denied(
                request, [Reason("policy.unknown", None, principal.policy_error or "no policy is active")]
            )
        if not principal.scopes.allows(model=call.model, endpoint=call.endpoint.path.removeprefix("/v1/")):
            raise self._denied(request, [Reason("key.scope", None, "this key is not for that model or endpoint")])
        naming = request.naming
        if naming is not None and not principal.scopes.allows(
            model=naming.asked, endpoint=call.endpoint.path.removeprefix("/v1/")
        ):
            raise self._denied(request, [Reason("key.scope", None, "this key is not for that name of a model")])
        regions = principal.scopes.regions
        if regions is not None and not any(candidate.region in regions for candidate in candidates):
            raise self._denied(
                request, [Reason("key.scope", None, "this key is not for any region where that model runs")]
            )
        generates = call.endpoint.writes
        decision = self._decision(principal, principal.in_force.policy, call.model, candidates, generates)
        if not decision.allowed:
            raise self._denied(request, decision.reasons, decision)
        return decision, principal.in_force.redactor

    def _is_of_others(self, principal: Principal, model: str) -> bool:
        """Whether `model` names an adapter that is not one of the principal's project."""
        return self._registry.base_of(principal.tenant, model) != model and model not in principal.adapters

    def check_running(self, request: Parsed) -> None:
        """Raise PolicyDenied if a person has stopped the call's project or AI system since it was decided."""
        self._stops.check(request.principal)

    def running_check(self, request: Parsed) -> Callable[[], None]:
        """Return `check_running` of this call."""
        return partial(self._stops.check, request.principal)

    def _decision(
        self,
        principal: Principal,
        policy: CompiledPolicy,
        model: str,
        candidates: tuple[BackendFacts, ...],
        generates: bool = True,
    ) -> Decision:
        """Return the decision, from the cache if possible: `decide` is pure and limits its result's validity.

        Principals and facts are replaced as a whole when anything changes, so comparing their identities is enough.
        """
        now = self._now()
        key = (principal.key_id, model, generates)
        known = self._decided.get(key)
        if known is not None and known.holds_for(principal, candidates, now):
            return known.decision
        facts = RequestFacts(
            tenant=principal.tenant,
            project=principal.project,
            model=model,
            at=now,
            purpose=principal.purpose,
            legal_basis=principal.legal_basis,
            data_classes=principal.data_classes,
            risk_class=principal.risk_class,
            candidates=tuple(c for c in candidates if principal.scopes.allows_region(c.region)),
            catalogue_version=self._registry.catalogue_version,
            sinks=self._sinks,
            generates=generates,
        )
        decision = decide(policy, facts)
        if len(self._decided) >= MAX_DECIDED:
            self._decided.clear()
        self._decided[key] = _Decided(principal, candidates, now, decision)
        return decision

    def content_days(self, principal: Principal) -> int:
        """Return for how many days the policy retains content of the principal's calls.

        This is for a file that later calls will use: the result is the minimum over the models that the policy allows.
        Raises PolicyDenied if it allows no model or retains nothing.
        """
        self._stops.check(principal)
        if principal.in_force is None:
            raise PolicyDenied([Reason("policy.unknown", None, principal.policy_error or "no policy is active")])
        policy, days, refused = principal.in_force.policy, set[int](), list[Decision]()
        for model in self._registry.models(principal.tenant):
            decision = self._decision(principal, policy, model, self._registry.facts(principal.tenant, model))
            if decision.allowed:
                days.add(decision.retention.content_days)
            else:
                refused.append(decision)
        if not days:
            raise PolicyDenied(
                refused[0].reasons if refused else [Reason("candidates.none", None, "the tenant has no models")]
            )
        if not min(days):
            because = "the policy keeps no content, and a file is content; set retention.content, as in `encrypted, 7d`"
            raise PolicyDenied([Reason("retention.content", None, because, "GDPR 5(1)(e)")])
        return min(days)

    def check_access(self, principal: Principal, endpoint: str) -> None:
        """Raise PolicyDenied if `principal` may not access stored data of calls of `endpoint`.

        It may not if a person stopped what it acts for, no policy is in force, or its key is not for that endpoint.
        """
        self._stops.check(principal)
        if principal.in_force is None:
            raise PolicyDenied([Reason("policy.unknown", None, principal.policy_error or "no policy is active")])
        endpoints = principal.scopes.endpoints
        if endpoints is not None and endpoint not in endpoints:
            raise PolicyDenied([Reason("key.scope", None, "this key is not for that endpoint")])

    def narrowed(self, request: Parsed, decision: Decision, failure: RedactionRefused, *, again: bool) -> Decision:
        """Return the decision narrowed to sovereign backends, for a call whose prompt could not be inspected.

        See `policy.decision.sovereign`. `again`: the call is counted as allowed already. Raises `failure` if the policy
        names no such backends, or if the prompt contains blocked data.
        """
        if failure.code == "redaction_blocked" or isinstance(failure, ContentUnreadable):
            raise failure
        if not decision.sovereign:
            self._count(request, "deny", ON_FAILURE)
            raise failure
        if not again:
            self._count(request, "allow", ON_FAILURE)
        return replace(
            decision,
            backends=decision.sovereign,
            pending=(),
            transfer_basis={name: decision.transfer_basis[name] for name in decision.sovereign},
            reasons=(
                *decision.reasons,
                Reason(ON_FAILURE, None, f"redaction failed ({failure.code}); unredacted, sovereign only", "GDPR 32"),
            ),
        )

    def _denied(
        self, request: Parsed, reasons: list[Reason] | tuple[Reason, ...], decision: Decision | None = None
    ) -> PolicyDenied:
        self._count(request, "deny", reasons[0].rule)
        return PolicyDenied(reasons, decision)

    def _count(self, request: Parsed, outcome: str, rule: str) -> None:
        self._telemetry.decided(request.principal.tenant, outcome, rule)
