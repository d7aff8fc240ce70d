"""Key, policy, redaction and routes of one call: evaluated before its first attempt, and again before each connect.

While a backend holds a call, an administrator may narrow the policy or revoke the key, a certificate or the policy's
hours may end, a person may stop the system. What is in force at the moment of a connect governs it. The check compares
identities (`Directory.is_current`, `Judge.holds`): configuration is replaced whole when any of it changes, and a
decision says until when it holds. Only where the comparison fails is anything computed again.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from gateway.content.inspection import Inspection
from gateway.content.kept_content import Content
from gateway.content.person_names import NameFinder
from gateway.content.prompt import Prompt, unredacted
from gateway.errors import BackendUnavailable, PolicyDenied, RedactionRefused
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import Client
from gateway.request.authentication import Authenticator
from gateway.request.enforcement import Judge
from gateway.request.exchange import Exchange, Route
from gateway.request.routes import Routes
from gateway.request.telemetry import Telemetry
from policy.decision.decision import Decision
from policy.reason import Reason
from policy.redact.redactor import Redactor

MAX_EVALUATIONS = 32
"""Of one call. Each needs a change of configuration meanwhile, so no call comes near it."""


class Overtaken(Exception):
    """What an attempt was decided by is no longer in force. Nothing was sent to the backend from then on."""


@dataclass(frozen=True, slots=True)
class Way:
    """What attempts go by. `decision`: the policy's own; `allowed`: that, narrowed where redaction failed. `routes`:
    those not tried yet, best first. `tried`: ids of backends, over all evaluations of the call."""

    decision: Decision
    allowed: Decision
    redactor: Redactor
    prompt: Prompt
    routes: list[Route]
    tried: list[str] = field(default_factory=list)

    def take(self) -> Route:
        """The best route left, which counts as tried from now on."""
        route = self.routes.pop(0)
        self.tried.append(route.backend.id)
        return route


class Evaluation:
    """The fourth to sixth step of a request, for its first attempt and for later ones."""

    def __init__(
        self,
        authenticator: Authenticator,
        judge: Judge,
        routes: Routes,
        names: NameFinder,
        inspection: Inspection,
        telemetry: Telemetry,
    ) -> None:
        self._inspection = inspection
        self._authenticator = authenticator
        self._judge = judge
        self._routes = routes
        self._names = names
        self._step = telemetry.step

    async def first(self, exchange: Exchange) -> Way:
        """Its routes are empty where no backend can be called now. Raises PolicyDenied, ModelNotFound,
        RedactionRefused."""
        with self._step("decide"):  # 4. pure: the policy and the facts
            decision, redactor = self._judge.decide(exchange)
        with self._step("redact"):  # 5. an error here denies, or leaves sovereign backends alone
            allowed, prompt = await self._inspected(exchange, decision, redactor)
        with self._step("route"):  # 6. this tenant's backends that the decision allows, best first
            return Way(decision, allowed, redactor, prompt, self._routes.choose(exchange, allowed))

    async def authenticate_again(self, exchange: Exchange, client: Client) -> None:
        """Who the caller is now. Raises NotAuthenticated; PolicyDenied where it would act for another project."""
        principal = await self._authenticator.authenticate(client.headers, client.address)
        if _acts_for(principal) != _acts_for(exchange.principal):
            reason = Reason("principal.changed", None, "the caller's token is for another project now than at first")
            raise PolicyDenied([reason])
        exchange.principal, exchange.decision = principal, None

    def check(self, exchange: Exchange, way: Way) -> None:
        """Raises Overtaken unless all that `way` was decided by is in force at this moment."""
        if not (self._authenticator.is_current(exchange.principal) and self._judge.holds(exchange, way.decision)):
            raise Overtaken

    async def again(self, exchange: Exchange, client: Client, way: Way) -> Way:
        """`way` as of now: itself if nothing changed; else decided, and where the outcome differs redacted, anew.

        Raises as `first`, and NotAuthenticated.
        """
        try:
            self.check(exchange, way)
            return way
        except Overtaken:
            pass
        exchange.evaluations += 1
        if exchange.evaluations > MAX_EVALUATIONS:
            raise BackendUnavailable("Policy changed again and again during this call; try again", retry_after_s=1)
        await self.authenticate_again(exchange, client)
        with self._step("decide"):
            decision, redactor = self._judge.decide_again(exchange)
        if redactor is way.redactor and way.allowed is way.decision and _same(decision, way.decision):
            allowed, prompt = decision, way.prompt
        else:
            exchange.redecided = True
            exchange.redactions_in, exchange.content = {}, None
            with self._step("redact"):
                allowed, prompt = await self._inspected(exchange, decision, redactor)
        with self._step("route"):
            routes = self._routes.choose(exchange, allowed, tried=way.tried)
        return Way(decision, allowed, redactor, prompt, routes, way.tried)

    async def _inspected(self, exchange: Exchange, decision: Decision, redactor: Redactor) -> tuple[Decision, Prompt]:
        call, principal = exchange.call, exchange.principal
        try:
            names = await self._names.names_in(call, redactor, principal.tenant)
            prompt = await self._inspection.prepare(
                call, redactor, principal.tenant, principal.project, names, decision.priority
            )
        except RedactionRefused as failure:
            narrowed = self._judge.narrowed(exchange, decision, failure)
            return narrowed, unredacted(call, redactor, principal.project, decision.priority)
        exchange.redactions_in = prompt.counts
        if days := decision.retention.content_days:  # never of a prompt that could not be inspected
            exchange.content = Content(call.raw, prompt.body, exchange.subject, days)
        return decision, prompt


def _acts_for(principal: Principal) -> Collection[str | None]:
    return principal.tenant, principal.project, principal.key_id


def _same(one: Decision, other: Decision) -> bool:
    """Whether they say the same, whatever the time until which they hold."""
    return replace(one, holds_until=other.holds_until) == other
