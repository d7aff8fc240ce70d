"""The contract between gateway and backend: OpenAI's request and answer shapes, and a few names of our own.

Requests keep every field they came with (``extra="allow"``): an application may use parameters that a gateway older
than its backend has never heard of. Sources: OpenAI API reference (chat completions, completions), vLLM's extensions
(``top_k``, ``min_p``, ``ignore_eos``, ``stop_token_ids``).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

REQUEST_ID_HEADER = "x-request-id"
REQUEST_TOKEN_HEADER = "x-domicile-token"  # noqa: S105  # its name
PING_PATH = "/readyz"  # a round trip through the engine loop
MAX_STOP_STRINGS = 16

NonEmpty = Annotated[str, StringConstraints(min_length=1)]


class WireModel(BaseModel):
    """Unknown fields travel on; numbers are not read from strings."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class StreamOptions(WireModel):
    include_usage: bool | None = None


class ContentPart(WireModel):
    type: str
    text: str | None = None


class FunctionCall(WireModel):
    name: str | None = None
    arguments: str | None = None


class ToolCall(WireModel):
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None


class ChatMessage(WireModel):
    role: NonEmpty
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class GenerationRequest(WireModel):
    """What both endpoints share. Ranges are OpenAI's; ``None`` means the default of the model."""

    model: NonEmpty
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=2, strict=False)
    top_p: float | None = Field(None, gt=0, le=1, strict=False)
    top_k: int | None = Field(None, ge=-1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)] | None = None
    max_tokens: int | None = Field(None, ge=1)
    ignore_eos: bool | None = None
    user: str | None = None

    @property
    def wants_usage_chunk(self) -> bool:
        return bool(self.stream and self.stream_options and self.stream_options.include_usage)


class ChatCompletionRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions. ``prompt``: a string, strings, token ids, or lists of token ids."""

    prompt: str | list[str] | list[int] | list[list[int]]


class PromptTokensDetails(WireModel):
    cached_tokens: int = 0


class Usage(WireModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None


class ErrorDetail(BaseModel):
    """The body every error carries: ``{"error": {...}}``."""

    model_config = ConfigDict(frozen=True, extra="allow")

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    model_config = ConfigDict(frozen=True)

    error: ErrorDetail


class Model(BaseModel):
    model_config = ConfigDict(frozen=True)

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(BaseModel):
    model_config = ConfigDict(frozen=True)

    object: Literal["list"] = "list"
    data: list[Model]


def sse_data(payload: bytes) -> bytes:
    """One server-sent event (WHATWG HTML §9.2) carrying `payload`, which holds no newline."""
    return b"data: " + payload + b"\n\n"


SSE_DONE = sse_data(b"[DONE]")

JsonObject = dict[str, Any]
