"""What is known about one request while it is being answered, and nothing of what it says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from audit.receipt import Receipt
from backend.wire import Usage
from gateway.identity.principal import Principal
from gateway.openai.endpoint import Call
from policy.decision import Decision
from policy.facts import BackendFacts
from regions.fleet import Backend


@dataclass(frozen=True, slots=True)
class Route:
    """One backend that may be called: who it is, what is known of its place and owner, and on what transfer basis.

    `prefix`: the beginning of the prompt, by blocks (`regions.prefixes`).
    """

    backend: Backend
    facts: BackendFacts
    transfer_basis: str
    prefix: Sequence[int] = ()


@dataclass(slots=True)
class Exchange:
    """Filled step by step by the pipeline; the recorder and telemetry read it. Times are `perf_counter` seconds."""

    request_id: str
    principal: Principal
    call: Call
    started: float = field(default_factory=perf_counter)
    decision: Decision | None = None
    redactions_in: Mapping[str, int] = field(default_factory=dict)
    redactions_out: Mapping[str, int] = field(default_factory=dict)
    route: Route | None = None
    attempt: int = 0
    intent: Receipt | None = None
    closed: bool = False
    first_byte: float | None = None
    usage: Usage | None = None
    finish_reasons: list[str] = field(default_factory=list)
    bytes_out: int = 0
    chunks_out: int = 0

    @property
    def ttft_ms(self) -> int | None:
        return None if self.first_byte is None else round((self.first_byte - self.started) * 1000)

    @property
    def latency_ms(self) -> int:
        return round((perf_counter() - self.started) * 1000)
