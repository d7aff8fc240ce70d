"""The inference endpoints: what tells one from another, and how a request body becomes a checked call."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from backend.wire import ChatCompletionRequest, CompletionRequest, EmbeddingsRequest, GenerationRequest
from gateway.errors import InvalidRequest, invalid_body
from gateway.openai.bounds import BOUNDS, check_shape
from gateway.openai.finite_json import read

# Fields that say who the person is and that no model needs (GDPR 5(1)(c)): they stay on this side.
IDENTIFYING_FIELDS = ("user", "metadata", "safety_identifier")

LEADING_CHARACTERS = 16 << 10


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One inference route. `operation` is the OpenTelemetry GenAI word for it. `generates`: the answer is of tokens."""

    name: Literal["chat", "completions", "embeddings"]
    path: str
    operation: str
    request_type: type[GenerationRequest]
    generates: bool = True


CHAT = Endpoint("chat", "/v1/chat/completions", "chat", ChatCompletionRequest)
COMPLETIONS = Endpoint("completions", "/v1/completions", "text_completion", CompletionRequest)
EMBEDDINGS = Endpoint("embeddings", "/v1/embeddings", "embeddings", EmbeddingsRequest, generates=False)
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS)


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is well-formed: the checked model, and the body as the client wrote it."""

    endpoint: Endpoint
    request: GenerationRequest
    body: dict[str, Any]
    raw: bytes

    @property
    def model(self) -> str:
        return self.request.model

    @property
    def stream(self) -> bool:
        return bool(self.request.stream)

    @property
    def max_tokens(self) -> int | None:
        asked = getattr(self.request, "max_completion_tokens", None)
        return asked if asked is not None else self.request.max_tokens

    @property
    def choices(self) -> int:
        """How many answers it asks for: `n` for each prompt."""
        prompt = self.body.get("prompt")
        prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
        return (self.request.n or 1) * prompts

    @property
    def leading_text(self) -> str:
        """The start of the prompt, for prefix-cache affinity: requests that begin alike go to the same backend."""
        pieces, size = [], 0
        for piece in _prompt_strings(self.body):
            pieces.append(piece)
            size += len(piece)
            if size >= LEADING_CHARACTERS:
                break
        return "".join(pieces)[:LEADING_CHARACTERS]


def parse_call(endpoint: Endpoint, raw: bytes) -> Call:
    """Check `raw` against the wire model. Raises InvalidRequest naming the field; never quotes its value."""
    if not raw:
        raise InvalidRequest("The body is empty; send a JSON object", code="invalid_json")
    BOUNDS.check(raw)
    try:
        body = read(raw)
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if isinstance(body, dict):
        check_shape(body)
    try:
        request = endpoint.request_type.model_validate(body)
    except ValidationError as error:
        raise invalid_body(error.errors(include_url=False, include_input=False)) from None
    return Call(endpoint, request, body, raw)


def _prompt_strings(body: dict[str, Any]) -> Iterator[str]:
    messages = body.get("messages")
    if messages is None:
        prompt = body.get("prompt", body.get("input"))
        yield prompt if isinstance(prompt, str) else repr(prompt)[:LEADING_CHARACTERS]
        return
    for message in messages:
        content = message.get("content")
        yield message["role"]
        yield content if isinstance(content, str) else repr(content)[:LEADING_CHARACTERS]
