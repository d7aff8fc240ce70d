"""What is known about one request while it is being answered; what it says only where its policy keeps that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from audit.log.receipt import Receipt
from backend.wire import Usage
from gateway.content.kept_content import Content
from gateway.identity.principal import Principal
from gateway.openai.answer import calls_begun
from gateway.openai.asgi_client import Header
from gateway.openai.endpoint import Call
from gateway.openai.usage import MAX_TOKENS
from policy.decision.decision import Decision
from policy.facts import BackendFacts
from regions.fleet.fleet import Backend


@dataclass(frozen=True, slots=True)
class Route:
    """One backend that may be called: who it is, what is known of its place and owner, and on what transfer basis.

    `prefix`: the beginning of the prompt, by blocks (`regions.routing.prefixes`).
    """

    backend: Backend
    facts: BackendFacts
    transfer_basis: str
    prefix: Sequence[int] = ()


CHARACTERS_PER_TOKEN = 3
"""On the safe side for the languages of the EU; an estimate, where no real count is known."""


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens of one call. `cached`: those of the prompt that the backend had computed before. `estimated`: the backend
    did not say, so it is derived from the text of the answer, as far as that came."""

    prompt: int
    answer: int
    cached: int = 0
    estimated: bool = False


@dataclass(slots=True)
class Exchange:
    """Filled step by step by the pipeline; the recorder and telemetry read it. Times are `perf_counter` seconds.

    `offered`: the tenant has such a model; another name may label nothing. `recorded`: the route that stands in the
    record. `redecided`: a later evaluation came out otherwise than the record says. `evaluations`: how often the call
    was evaluated after the first time. `broken`: attempts in which a backend failed while it answered.
    `characters_out`: of text that the backend said, before the output filter.
    """

    request_id: str
    principal: Principal
    call: Call
    subject: str | None = None
    trace_id: str | None = None
    started: float = field(default_factory=perf_counter)
    offered: bool = False
    decision: Decision | None = None
    content: Content | None = None
    redactions_in: Mapping[str, int] = field(default_factory=dict)
    redactions_out: Mapping[str, int] = field(default_factory=dict)
    route: Route | None = None
    attempt: int = 0
    prompt_estimate: int = 0
    rates: Sequence[Header] = ()
    called: float | None = None
    intent: Receipt | None = None
    closed: bool = False
    recorded: Route | None = None
    redecided: bool = False
    evaluations: int = 0
    tool_calls: int = 0
    first_token: float | None = None
    usage: Usage | None = None
    finish_reasons: list[str] = field(default_factory=list)
    fingerprint: str | None = None
    bytes_out: int = 0
    chunks_out: int = 0
    characters_out: int = 0
    broken: int = 0
    waited_since: float | None = None
    comments: int = 0

    @property
    def backend_id(self) -> str | None:
        """The backend of the attempt at hand."""
        return None if self.route is None else self.route.backend.id

    def forget_answer(self) -> None:
        """Before another attempt: what the one before said was not sent to the client."""
        self.first_token = self.usage = self.fingerprint = None
        self.finish_reasons, self.redactions_out = [], {}
        self.chunks_out = self.characters_out = self.tool_calls = 0

    def hear_chunk(self, choice: Mapping[str, Any]) -> None:
        """Note when the first chunk of a stream came that says anything: servers open a stream with a role alone,
        some of them before they have computed a token."""
        if self.first_token is not None:
            return
        delta = choice.get("delta")
        said = delta.items() if isinstance(delta, dict) else ()
        if choice.get("text") or any(value for name, value in said if name != "role"):
            self.first_token = perf_counter()

    def count_tool_calls(self, message: object) -> None:
        self.tool_calls += calls_begun(message)

    @property
    def used(self) -> Used | None:
        """What is paid for. A cut answer costs the prompt and what was sent of it; None, and so nothing, is a call that
        never left or that no backend did answer."""
        if self.usage is not None:
            details = self.usage.prompt_tokens_details
            prompt = _bounded(self.usage.prompt_tokens)
            cached = _bounded(details.cached_tokens) if details is not None else 0
            return Used(prompt, _bounded(self.usage.completion_tokens), min(prompt, cached))
        if self.intent is None or not (self.called or self.chunks_out):
            return None
        by_text = -(-self.characters_out // CHARACTERS_PER_TOKEN)
        return Used(self.prompt_estimate, max(self.chunks_out, by_text), estimated=True)

    @property
    def energy_mj(self) -> int | None:
        """Millijoules that the backend says it took; None where it has not measured, or not come to say."""
        joules = None if self.usage is None else self.usage.energy_joules
        return None if joules is None else round(joules * 1000)

    @property
    def backend_ms(self) -> int | None:
        """How long the backend worked for this call, as seen from here."""
        return None if self.called is None else round((perf_counter() - self.called) * 1000)

    @property
    def first_token_s(self) -> float | None:
        """From the request to the first token of its answer, in seconds: as the engine says, after the time that the
        call took to reach it; else when the first text of a stream came; None where that is not known."""
        said = self.usage.first_token_ms if self.usage is not None else None
        if said is not None and self.called is not None:
            return self.called - self.started + said / 1000
        return None if self.first_token is None else self.first_token - self.started

    @property
    def ttft_ms(self) -> int | None:
        return None if self.first_token_s is None else round(self.first_token_s * 1000)

    @property
    def latency_ms(self) -> int:
        return round((perf_counter() - self.started) * 1000)


def _bounded(said: int) -> int:
    """Between nothing and what a call may have: the meter does not rely on who read the usage."""
    return min(max(said, 0), MAX_TOKENS)
