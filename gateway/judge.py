"""From a request to a decision: gather the facts, ask the policy, and say no in its own words."""

from collections.abc import Callable
from datetime import UTC, datetime

from gateway.errors import ModelNotFound, PolicyDenied
from gateway.exchange import Exchange
from gateway.inventory import Inventory
from gateway.telemetry import Telemetry
from policy.decision import Decision, Reason, decide
from policy.facts import RequestFacts
from policy.redact.redactor import Redactor


class Judge:
    def __init__(
        self, inventory: Inventory, telemetry: Telemetry, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._inventory = inventory
        self._telemetry = telemetry
        self._now = now

    def decide(self, exchange: Exchange) -> tuple[Decision, Redactor]:
        """The decision that allows this call, and the redactor of its policy.

        Raises PolicyDenied with the reasons, ModelNotFound.

        No policy is no permission: a project whose policy is absent or does not compile is refused everything.
        """
        principal, call = exchange.principal, exchange.call
        candidates = self._inventory.facts(principal.tenant, call.model)
        if not candidates:  # first, so that what is recorded below never holds a name that the caller made up
            raise ModelNotFound(
                f"The model {call.model[:80]!r} does not exist, or is not offered to you", param="model"
            )
        if principal.in_force is None:
            raise self._denied(
                exchange, [Reason("policy.unknown", None, principal.policy_error or "no policy is active")]
            )
        if not principal.scopes.allows(model=call.model, endpoint=call.endpoint.path.removeprefix("/v1/")):
            raise self._denied(exchange, [Reason("key.scope", None, "this key is not for that model or endpoint")])
        decision = decide(
            principal.in_force.policy,
            RequestFacts(
                tenant=principal.tenant,
                project=principal.project,
                model=call.model,
                at=self._now(),
                purpose=principal.purpose,
                legal_basis=principal.legal_basis,
                data_classes=principal.data_classes,
                risk_class=principal.risk_class,
                candidates=candidates,
            ),
        )
        exchange.decision = decision  # also when it says no: the record names the policy that did
        if not decision.allowed:
            raise self._denied(exchange, decision.reasons)
        self._count(exchange, "allow", "")
        return decision, principal.in_force.redactor

    def _denied(self, exchange: Exchange, reasons: list[Reason] | tuple[Reason, ...]) -> PolicyDenied:
        self._count(exchange, "deny", reasons[0].rule)
        return PolicyDenied(reasons)

    def _count(self, exchange: Exchange, outcome: str, rule: str) -> None:
        tenant = self._telemetry.tenant_label(exchange.principal.tenant)
        self._telemetry.decisions.labels(tenant, outcome, rule).inc()
