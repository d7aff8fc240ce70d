"""Progress of one request, for its outcome and for what follows a failed attempt.

The pipeline stores the results of its steps here; the record, metrics and error answers read them. Steps take only the
stage that they need (`gateway.request.stages`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.content.retained_content import RetainedContent
from gateway.errors import GatewayError
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import Client
from gateway.openai.endpoints import Endpoint
from gateway.request.answer.received import ReceivedAnswer, Used
from gateway.request.stages import Accepted, Authenticated, Parsed, Redacted, Reserved, Routed
from policy.decision.decision import Decision


@dataclass(slots=True)
class Attempts:
    """Attempts of a call so far.

    Attributes:
        tried: ids of the backends tried.
        failure: error of the last failed attempt.
        broken: attempts in which a backend failed while it answered.
        evaluations: number of evaluations after the first.
        waiting_since: start of waiting for a backend, in `perf_counter` seconds.
        comments: comments sent to keep a waiting stream open.
        of_others: attempts with the models asked before the current one.
    """

    tried: list[str] = field(default_factory=list)
    failure: GatewayError | None = None
    broken: int = 0
    evaluations: int = 0
    waiting_since: float | None = None
    comments: int = 0
    of_others: int = 0


@dataclass(slots=True)
class Exchange:
    """One request and its answer in the pipeline. A stage that was not reached is None.

    Attributes:
        parsed: with the principal of the last authentication.
        decision: of the last evaluation, including one that denies.
        routed: the last attempt.
        accepted: the last attempt on record.
        refused_model: for a body that was refused: its model, if the tenant may call it.
    """

    endpoint: Endpoint
    client: Client
    authenticated: Authenticated | None = None
    parsed: Parsed | None = None
    reserved: Reserved | None = None
    decision: Decision | None = None
    redacted: Redacted | None = None
    routed: Routed | None = None
    accepted: Accepted | None = None
    received: ReceivedAnswer = field(default_factory=ReceivedAnswer)
    attempts: Attempts = field(default_factory=Attempts)
    refused_model: str = ""

    def falls_back(self, request: Parsed, reserved: Reserved) -> Reserved:
        """Restart with `request` for another model. Nothing of the earlier attempts was sent to the client."""
        tried, waited = len(self.attempts.tried), self.attempts.comments
        self.attempts = Attempts(comments=waited, of_others=self.attempts.of_others + tried)
        self.parsed, self.reserved = request, replace(reserved, request=request)
        self.decision = self.redacted = self.routed = None
        self.received = ReceivedAnswer()
        return self.reserved

    @property
    def principal(self) -> Principal | None:
        """The principal of the last authentication; None before it."""
        if self.parsed is not None:
            return self.parsed.principal
        return None if self.authenticated is None else self.authenticated.principal

    @property
    def used(self) -> Used | None:
        """The tokens to charge; None if the call was never sent."""
        if self.accepted is None or self.reserved is None:
            return None
        return self.received.used(self.reserved.request.call)

    @property
    def content(self) -> RetainedContent | None:
        """The retained content of the call."""
        return None if self.redacted is None else self.redacted.content

    @property
    def redactions_in(self) -> Mapping[str, int]:
        """Findings in the prompt, by label."""
        return {} if self.redacted is None else self.redacted.prompt.counts
