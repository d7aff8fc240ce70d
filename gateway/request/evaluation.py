"""Steps 4 to 6 of one call: decision, redaction and route, for its first attempt and again before each later connect.

While a backend holds a call, an administrator may narrow the policy or revoke the key, a certificate or the policy's
hours may end, a person may stop the system. What is in force at the moment of a connect governs it. The check compares
identities (`Directory.is_current`, `PolicyEnforcement.holds`): configuration is replaced whole when any of it changes,
and a decision says until when it holds. Only where the comparison fails is anything computed again.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from gateway.content.inspection import Inspection
from gateway.content.person_names import NameFinder
from gateway.content.prompt import Place
from gateway.content.retained_content import RetainedContent
from gateway.errors import BackendRefused, BackendUnavailable, PolicyDenied, RedactionRefused
from gateway.identity.principal import Principal
from gateway.request.answer.attempt import Superseded
from gateway.request.answer.kept_responses import UNINSPECTED, storage_of
from gateway.request.authentication import Authenticator
from gateway.request.enforcement import PolicyEnforcement
from gateway.request.exchange import Exchange
from gateway.request.parking import Parking
from gateway.request.routes import Routes
from gateway.request.stages import Decided, Parsed, Redacted, Reserved, Route, Routed
from gateway.request.telemetry import Telemetry
from policy.reason import Reason

MAX_EVALUATIONS = 32
"""Of one call. Each needs a change of configuration meanwhile, so no call comes near it."""


class Evaluation:
    """Each step returns what the attempt before it had (`exchange`), if that is still in force."""

    def __init__(
        self,
        authenticator: Authenticator,
        enforcement: PolicyEnforcement,
        routes: Routes,
        parking: Parking,
        names: NameFinder,
        inspection: Inspection,
        telemetry: Telemetry,
    ) -> None:
        self._inspection = inspection
        self._authenticator = authenticator
        self._enforcement = enforcement
        self._routes = routes
        self._parking = parking
        self._names = names
        self._step = telemetry.step

    async def decide(self, reserved: Reserved, exchange: Exchange) -> Decided:
        """The policy's decision about the call. Pure: the policy, and the facts of now.

        After the first time also authenticates again, since the key may be another by then. Raises PolicyDenied,
        ModelNotFound, NotAuthenticated; BackendUnavailable where the configuration does not stop changing.
        """
        request, routed, attempts = reserved.request, exchange.routed, exchange.attempts
        if routed is not None:
            if self._is_in_force(routed.redacted.decided):
                return routed.redacted.decided
            attempts.evaluations += 1
            if attempts.evaluations > MAX_EVALUATIONS:
                raise BackendUnavailable("Policy changed again and again during this call; try again", retry_after_s=1)
        if routed is not None or attempts.waiting_since is not None:
            request = exchange.parsed = await self._authenticated_again(request)
            exchange.decision = None
        with self._step("decide"):
            try:
                enforcement = self._enforcement
                decision, redactor = (enforcement.decide if routed is None else enforcement.decide_again)(request)
            except PolicyDenied as denied:
                exchange.decision = denied.decision
                raise
        exchange.decision = decision
        return Decided(request, reserved, decision, redactor)

    async def redact(self, decided: Decided, exchange: Exchange) -> Redacted:
        """The prompt as the decision lets it leave.

        An error here denies, or leaves the backends that may get the prompt unredacted. Raises RedactionRefused.
        """
        last = exchange.redacted
        if last is not None and exchange.routed is not None:
            if last.decided is decided:
                return last
            if _is_same_outcome(last, decided):
                return replace(last, request=decided.request, decided=decided, allowed=decided.decision)
        exchange.redacted = None
        with self._step("redact"):
            redacted = await self._inspected(decided)
        exchange.decision = redacted.allowed
        return redacted

    async def route(self, redacted: Redacted, exchange: Exchange) -> Routed | None:
        """The best backend left of those that the decision allows; one that is left alone after failures, where there
        is no other.

        None after waiting for a backend: key and policy may be others by then. Raises BackendUnavailable, or the error
        of the last attempt, where no backend is left.
        """
        attempts = exchange.attempts
        if exchange.routed is not None:
            routes = self._later_routes(redacted, exchange.routed, exchange)
        else:
            with self._step("route"):
                routes = self._routes.choose(redacted.request, redacted.allowed)
            if not routes:
                if await self._parking.wait(redacted, attempts):
                    return None
                routes = self._routes.trials(redacted.request, redacted.allowed)
            if not routes:
                raise BackendUnavailable("None of the backends that may answer this is up; try again", retry_after_s=2)
        route, *others = routes
        attempts.tried.append(route.backend.id)
        body = redacted.prompt.body_for(route.backend, watermark="watermark" in redacted.allowed.marking)
        if redacted.content is not None:
            redacted.content.leaves(body)
        number = attempts.of_others + len(attempts.tried) - 1
        return Routed(redacted.request, redacted, route, others, number, body)

    def check(self, routed: Routed) -> None:
        """Raises Superseded unless everything that `routed` was decided by is in force at this moment."""
        if not self._is_in_force(routed.redacted.decided):
            raise Superseded

    def _is_in_force(self, decided: Decided) -> bool:
        is_current = self._authenticator.is_current(decided.request.principal)
        return is_current and self._enforcement.holds(decided.request, decided.decision)

    async def _authenticated_again(self, request: Parsed) -> Parsed:
        """`request` with who the caller is now. Raises NotAuthenticated; PolicyDenied where it would act for another
        project."""
        principal = await self._authenticator.principal_of(request.client)
        if _acts_for(principal) != _acts_for(request.principal):
            reason = Reason("principal.changed", None, "the caller's token is for another project now than at first")
            raise PolicyDenied([reason])
        return replace(request, principal=principal)

    async def _inspected(self, decided: Decided) -> Redacted:
        request, decision, redactor = decided.request, decided.decision, decided.redactor
        call, principal = request.call, request.principal
        days = decision.retention.content_days
        answered = (None, False) if call.translation is None else storage_of(request, days)
        place: Place = decision.priority if request.client.batch is None else "batch"
        try:
            names = await self._names.names_in(call, redactor, principal.tenant)
            prompt = await self._inspection.prepare(call, redactor, principal.tenant, principal.project, names, place)
        except RedactionRefused as failure:
            narrowed = self._enforcement.narrowed(request, decision, failure)
            prompt = await self._inspection.unredacted(call, redactor, principal.tenant, principal.project, place)
            translation, keeps = storage_of(request, 0, UNINSPECTED)
            return Redacted(request, decided, narrowed, prompt, None, translation, keeps)  # nor is its content
        content = RetainedContent(call.raw, prompt.body, request.subject, days, request.client.batch) if days else None
        return Redacted(request, decided, decision, prompt, content, *answered)

    def _later_routes(self, redacted: Redacted, last: Routed, exchange: Exchange) -> Sequence[Route]:
        request, attempts = redacted.request, exchange.attempts
        failure, tried = attempts.failure, attempts.tried
        if last.redacted is redacted:
            routes = last.others
        else:
            with self._step("route"):
                routes = self._routes.choose(request, redacted.allowed, tried)
        routes = [route for route in routes if self._routes.may_help(failure, route)]
        if not (routes or isinstance(failure, BackendRefused)):
            routes = self._routes.trials(request, redacted.allowed, tried)
        if not routes:
            raise failure or BackendUnavailable("No backend that may answer this is up; try again", retry_after_s=2)
        return routes


def _acts_for(principal: Principal) -> Collection[str | None]:
    return principal.tenant, principal.project, principal.key_id


def _is_same_outcome(last: Redacted, decided: Decided) -> bool:
    """Whether `decided` allows the same as the evaluation before it, which need not be redacted again."""
    if decided.redactor is not last.decided.redactor or last.allowed is not last.decided.decision:
        return False
    return replace(decided.decision, holds_until=last.allowed.holds_until) == last.allowed
