"""The inference routes of OpenAI's chats, completions and embeddings: one declaration each.

Everything that depends on the route is read from its declaration: routing of HTTP requests, validation, redaction of
the prompt, reading of the answer, metrics, key scopes and the record. `docs/extending.md` shows how to add one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.wire import ChatCompletionRequest, CompletionRequest, EmbeddingsRequest, GenerationRequest
from gateway.api_format import OPENAI, ApiFormat
from gateway.openai.answer_formats import AnswerFormat, Generated, Vectors
from policy.redact.request import BodyLayout, TextShape


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One inference route.

    `path` also names it in records, and in scopes of keys without ``/v1/``. `operation`: OpenTelemetry's GenAI name, in
    metrics and spans. `request_type`: the wire model of the body. `prompts`: the fields of it that hold the prompt, and
    in which shape. `answer`: what a backend has to answer, and where the texts are in that. `format`: of the API that
    clients call it by; of another one than OpenAI's chats, bodies and answers are translated (`gateway.apis`), and the
    backend is asked at `upstream`; `sends`: the members that it takes there, all where None. Derived: `layout`, for the
    redaction of the prompt, and `generates`, whether the backend has to be able to generate tokens;
    `writes`: a model writes the answer.
    """

    name: str
    path: str
    operation: str
    request_type: type[GenerationRequest]
    prompts: Mapping[str, TextShape] = field(compare=False)
    answer: AnswerFormat = field(default_factory=Generated, compare=False)
    format: ApiFormat = field(default=OPENAI, compare=False)
    upstream: str = ""
    sends: frozenset[str] | None = field(default=None, compare=False)
    layout: BodyLayout = field(init=False, compare=False)
    generates: bool = field(init=False)
    writes: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", BodyLayout(frozenset(self.request_type.model_fields), self.prompts))
        object.__setattr__(self, "generates", self.answer.is_generated)
        object.__setattr__(self, "writes", isinstance(self.answer, Generated))
        object.__setattr__(self, "upstream", self.upstream or self.path)


CHAT = Endpoint("chat", "/v1/chat/completions", "chat", ChatCompletionRequest, {"messages": "messages"})
COMPLETIONS = Endpoint("completions", "/v1/completions", "text_completion", CompletionRequest, {"prompt": "text"})
EMBEDDINGS = Endpoint(
    "embeddings", "/v1/embeddings", "embeddings", EmbeddingsRequest, {"input": "text"}, answer=Vectors()
)
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS)
