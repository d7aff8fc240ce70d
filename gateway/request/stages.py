"""Stages: what is known about a request after each step of the pipeline.

A step takes the stage that it needs and returns the next one, so it cannot run without its inputs.

    Authenticated → Parsed → Reserved → Decided → Redacted → Routed → Accepted → Answered

Stages are immutable. An evaluation between two attempts creates new stages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from audit.log.receipt import Receipt
from gateway.api_format import Translation
from gateway.content.prompt import Prompt
from gateway.content.retained_content import RetainedContent
from gateway.directory.model_names import Naming
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import Client, Header
from gateway.openai.checked_call import Call
from gateway.openai.endpoints import Endpoint
from policy.decision.decision import Decision
from policy.facts import BackendFacts
from policy.redact.redactor import Redactor
from regions.fleet.fleet import Backend


@dataclass(frozen=True, slots=True)
class Route:
    """A backend that may be called: its facts (location and owner) and transfer basis.

    `prefix`: the beginning of the prompt as block hashes (`regions.routing.prefixes`). `prefill`: the route to the
    backend that computes the prompt for it, which the same decision allows.
    """

    backend: Backend
    facts: BackendFacts
    transfer_basis: str
    prefix: Sequence[int] = ()
    prefill: "Route | None" = None


@dataclass(frozen=True, slots=True)
class Authenticated:
    """After step 1. `principal` calls `endpoint`; the body has not been read."""

    endpoint: Endpoint
    client: Client
    principal: Principal


@dataclass(frozen=True, slots=True)
class Parsed:
    """After step 2.

    Attributes:
        call: the checked body.
        subject: the person that the call is about, if the application names one.
        trace_id: id of the trace that the request belongs to.
        offered: whether the tenant has such a model; other names must not become label values of metrics.
        counted: whether the request was counted when its body was read.
        started: `perf_counter` seconds.
        naming: how the model was resolved, if the client sent a name defined by the project.
    """

    request_id: str
    client: Client
    principal: Principal
    call: Call
    subject: str | None
    trace_id: str | None
    offered: bool
    counted: bool
    started: float
    naming: Naming | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """After step 3. `rates`: rate limit headers."""

    request: Parsed
    rates: Sequence[Header]


@dataclass(frozen=True, slots=True)
class Decided:
    """After step 4. `request`: with the principal of the decision. `redactor`: of the policy that decided."""

    request: Parsed
    reserved: Reserved
    decision: Decision
    redactor: Redactor


@dataclass(frozen=True, slots=True)
class Redacted:
    """After step 5.

    Attributes:
        allowed: the decision, narrowed if redaction failed.
        prompt: as it may be sent. An evaluation with the same outcome as the previous one has the same prompt.
        content: retained content; None if the policy retains nothing.
        translation: of the answer to the client's API.
        keeps: whether the answer can be retrieved later (`gateway.request.answer.kept_responses`).
    """

    request: Parsed
    decided: Decided
    allowed: Decision
    prompt: Prompt
    content: RetainedContent | None
    translation: Translation | None = None
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """What an answer of our engine is watermarked with: the tenant's key of a calendar month, such as ``2026-12``."""

    period: str
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Salt:
    """By which an answer is fingerprinted: the tenant's of a calendar month, such as ``2026-12``."""

    period: str
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Routed:
    """After step 6, for one attempt. `others`: the backends left for later attempts, best first.

    `attempt`: its number, from 0. `body`: the prompt as this backend takes it. `mark`: where policy demands one and the
    backend is ours (`gateway.request.answer.marking`). `salt`: where policy demands fingerprints of the answer.
    """

    request: Parsed
    redacted: Redacted
    route: Route
    others: Sequence[Route]
    attempt: int
    body: bytes
    mark: Mark | None = None
    salt: Salt | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """After step 7. `intent`: the receipt of `inference.accepted`, which is durable."""

    request: Parsed
    routed: Routed
    intent: Receipt


class LastBytes:
    """Bytes that are taken once. Nothing else in the call may reference them, because a client may read for minutes."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def taken(self) -> bytes:
        """Return the bytes and drop the reference to them."""
        data, self._data = self._data, b""
        return data


@dataclass(frozen=True, slots=True)
class Answered:
    """After step 9. `last`: the bytes that the client gets once the outcome is on record. `begun`: status and headers
    are out already, as a stream's are. `kept`: the whole answer, where it is to be kept.
    `marks`: headers that say what came of the marks that policy demands."""

    request: Parsed
    accepted: Accepted
    last: LastBytes
    begun: bool
    kept: LastBytes | None = None
    marks: Sequence[Header] = ()
