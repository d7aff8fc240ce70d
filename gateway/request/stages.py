"""What is known about a request after each step of the pipeline. A step takes the stage that it needs and returns the
next, so it cannot run without its inputs.

    Authenticated → Parsed → Reserved → Decided → Redacted → Routed → Accepted → Answered

Stages are not changed. When something is evaluated again between two attempts, new stages are made.
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
    """One backend that may be called: who it is, what is known of its place and owner, and on what transfer basis.

    `prefix`: the beginning of the prompt, by blocks (`regions.routing.prefixes`).
    """

    backend: Backend
    facts: BackendFacts
    transfer_basis: str
    prefix: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Authenticated:
    """After step 1. `principal` asks for `endpoint`; no byte of the body was read."""

    endpoint: Endpoint
    client: Client
    principal: Principal


@dataclass(frozen=True, slots=True)
class Parsed:
    """After step 2. `call`: the checked body. `subject`: the person it is about, if the application says so.

    `trace_id`: of the trace that the request belongs to. `offered`: the tenant has such a model; another name may not
    become a label of a metric. `counted`: as a request already, when its body was read. `started`: `perf_counter`
    seconds. `naming`: how the call came to its model, where the client sent a name of the project.
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
    """After step 3. `prompt_estimate`: tokens of the prompt. `rates`: headers about the limits that apply."""

    request: Parsed
    prompt_estimate: int
    rates: Sequence[Header]


@dataclass(frozen=True, slots=True)
class Decided:
    """After step 4. `request`: with the principal that was decided about. `redactor`: of the policy that decided."""

    request: Parsed
    reserved: Reserved
    decision: Decision
    redactor: Redactor


@dataclass(frozen=True, slots=True)
class Redacted:
    """After step 5. `allowed`: the decision, narrowed if redaction failed. `prompt`: as it may leave.

    `content`: what is kept of the call; None where the policy keeps nothing. An evaluation with the same outcome as the
    one before has the same `prompt`. `translation`: how the call is answered; `keeps`: the answer can be asked for
    again (`gateway.request.answer.kept_responses`).
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
class Routed:
    """After step 6, for one attempt. `others`: the backends left for later attempts, best first.

    `attempt`: its number, from 0. `body`: the prompt as this backend takes it. `mark`: where policy demands one and the
    backend is ours (`gateway.request.answer.marking`).
    """

    request: Parsed
    redacted: Redacted
    route: Route
    others: Sequence[Route]
    attempt: int
    body: bytes
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """After step 7. `intent`: the receipt of `inference.accepted`, which is durable."""

    request: Parsed
    routed: Routed
    intent: Receipt


class LastBytes:
    """Bytes that are given once. Nothing else of the call may hold them: a client can take minutes to read them."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def taken(self) -> bytes:
        data, self._data = self._data, b""
        return data


@dataclass(frozen=True, slots=True)
class Answered:
    """After step 9. `last`: the bytes that the client gets once the outcome is on record. `begun`: status and headers
    are out already, as a stream's are. `kept`: the whole answer, where it is to be kept.
    `watermark`: what came of the mark that policy demands."""

    request: Parsed
    accepted: Accepted
    last: LastBytes
    begun: bool
    kept: LastBytes | None = None
    watermark: str | None = None
