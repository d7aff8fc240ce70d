"""The inference endpoints: what tells one from another, and how a request body becomes a checked call."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from backend.wire import ChatCompletionRequest, CompletionRequest, EmbeddingsRequest, GenerationRequest
from gateway.errors import InvalidRequest, invalid_body
from gateway.openai.bounds import BOUNDS, check_shape, may_exceed_shape
from gateway.openai.finite_json import read

# Fields that say who the person is and that no model needs (GDPR 5(1)(c)): they stay on this side.
IDENTIFYING_FIELDS = ("user", "metadata", "safety_identifier")

LEADING_CHARACTERS = 16 << 10
MAX_ANSWER_TOKENS = 2**31 - 1


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
    def choices(self) -> int:
        """How many answers it asks for: `n` for each prompt."""
        return self.request.answers

    def most_tokens(self, default: int) -> int:
        """Tokens of all answers that may be generated, where one without a bound has `default`. What the client asks
        for beyond what any server can do counts as that."""
        longest = self.request.longest_answer
        return min(default if longest is None else longest, MAX_ANSWER_TOKENS) * self.request.sequences

    @property
    def leading_text(self) -> str:
        """The start of the prompt, for prefix-cache affinity: requests that begin alike go to the same backend."""
        pieces, size = [], 0
        for piece in self.request.leading_texts():
            pieces.append(piece[:LEADING_CHARACTERS])
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
    if isinstance(body, dict) and may_exceed_shape(raw):
        check_shape(body)
    try:
        request = endpoint.request_type.model_validate(body)
    except ValidationError as error:
        raise invalid_body(error.errors(include_url=False, include_input=False)) from None
    _refuse_uncounted(endpoint, request)
    return Call(endpoint, request, body, raw)


def _refuse_uncounted(endpoint: Endpoint, request: GenerationRequest) -> None:
    """Raises InvalidRequest for a field by which some server would generate more than `Call.most_tokens`."""
    for name, value in (request.model_extra or {}).items():
        use = _UNCOUNTED.get(name)
        if use is not None and value is not None and value is not False and not (name == "best_of" and value == 1):
            fix = f"use {use}" if endpoint.generates else "leave it out"
            raise InvalidRequest(
                f"{name} is not a field of {endpoint.path}; {fix}", param=name, code="unsupported_parameter"
            )


_UNCOUNTED = {
    "best_of": "n",
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "n_cmpl": "n",
    "n_predict": "max_tokens",
    "num_beams": "n",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "use_beam_search": "n",
}
"""Names that servers other than ours, or other endpoints, have for how much is generated (llama.cpp, TGI, Ollama,
transformers, TensorRT-LLM, OpenAI's other APIs), and what to use instead. A limit that did not know them would be
bypassed by them. Those that an endpoint does have are in its model, and never get here."""
