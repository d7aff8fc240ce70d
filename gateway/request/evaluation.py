"""Steps 4 to 6 of one call (decision, redaction, route), for its first attempt and before each later connect.

While a backend processes a call, an administrator may narrow the policy or revoke the key, a certificate or the
policy's hours may expire, or a person may stop the system. A connect is governed by what is in force at that moment.
The check compares identities (`Directory.is_current`, `PolicyEnforcement.holds`): configuration is replaced as a whole
when any of it changes, and a decision says until when it is valid. A step is repeated only if the comparison fails.
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
"""Maximum number of evaluations per call. Each needs a change of configuration, so calls rarely come near it."""


class Evaluation:
    """Runs steps 4 to 6. Each step returns the previous attempt's result (`exchange`) if that is still in force."""

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
        """Return the policy's decision about the call, a pure function of the policy and the current facts.

        Later attempts also authenticate again, because the key may have changed. Raises PolicyDenied, ModelNotFound,
        NotAuthenticated, and BackendUnavailable if the configuration keeps changing.
        """
        request, routed, attempts = reserved.request, exchange.routed, exchange.attempts
        if routed is not None:
            if self._is_in_force(routed.redacted.decided):
                return routed.redacted.decided
            attempts.evaluations += 1
            if attempts.evaluations > MAX_EVALUATIONS:
                raise BackendUnavailable("The policy kept changing during this call; try again", retry_after_s=1)
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
        """Return the prompt as the decision allows it to be sent.

        If redaction fails, the call is denied or limited to backends that may receive the prompt unredacted. Raises
        RedactionRefused.
        """
        last = exchange.redacted
        if last is not None and exchange.routed is not None:
            if last.decided is decided:
                return last
            if _is_same_outcome(last, decided):
                return replace(last, request=decided.request, decided=decided, allowed=decided.decision)
        exchange.redacted = None
        with self._step("redact"):
            redacted = await self._inspected(decided, again=exchange.routed is not None)
        exchange.decision = redacted.allowed
        return redacted

    async def route(self, redacted: Redacted, exchange: Exchange) -> Routed | None:
        """Return the route to the best remaining backend that the decision allows.

        If no other is left, this may be a backend in back-off. Returns None after waiting for a backend, because key
        and policy may have changed. Raises BackendUnavailable, or the error of the last attempt, if no backend is left.
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
        """Raise Superseded unless everything on which `routed` was decided is still in force."""
        if not self._is_in_force(routed.redacted.decided):
            raise Superseded

    def _is_in_force(self, decided: Decided) -> bool:
        is_current = self._authenticator.is_current(decided.request.principal)
        return is_current and self._enforcement.holds(decided.request, decided.decision)

    async def _authenticated_again(self, request: Parsed) -> Parsed:
        """Return `request` with its current principal.

        Raises NotAuthenticated, and PolicyDenied if the principal now acts for another project.
        """
        principal = await self._authenticator.principal_of(request.client)
        if _acts_for(principal) != _acts_for(request.principal):
            reason = Reason("principal.changed", None, "the caller's token is for another project now than at first")
            raise PolicyDenied([reason])
        return replace(request, principal=principal)

    async def _inspected(self, decided: Decided, *, again: bool) -> Redacted:
        request, decision, redactor = decided.request, decided.decision, decided.redactor
        call, principal = request.call, request.principal
        days = decision.retention.content_days
        answered = (None, False) if call.translation is None else storage_of(request, days)
        place: Place = decision.priority if request.client.batch is None else "batch"
        try:
            names = await self._names.names_in(call, redactor, principal.tenant)
            prompt = await self._inspection.prepare(call, redactor, principal.tenant, principal.project, names, place)
        except RedactionRefused as failure:
            narrowed = self._enforcement.narrowed(request, decision, failure, again=again)
            prompt = await self._inspection.unredacted(call, redactor, principal.tenant, principal.project, place)
            translation, keeps = storage_of(request, 0, UNINSPECTED)
            # Uninspected content is not retained either
            return Redacted(request, decided, narrowed, prompt, None, translation, keeps)
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
    """Return whether `decided` allows the same as the previous evaluation, so that redaction can be reused."""
    if decided.redactor is not last.decided.redactor or last.allowed is not last.decided.decision:
        return False
    return replace(decided.decision, holds_until=last.allowed.holds_until) == last.allowed
