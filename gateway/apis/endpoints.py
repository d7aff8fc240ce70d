"""All inference routes: OpenAI's own, and those of other APIs, each with its translation."""

from typing import Any, Final

from backend.wire import ChatCompletionRequest
from gateway.api_format import CallState, OpenAiFormat, Translation
from gateway.apis.messages import request as messages
from gateway.apis.messages.errors import error_body, error_event
from gateway.apis.responses import request as responses
from gateway.errors import GatewayError
from gateway.openai.answer_formats import TokenCount
from gateway.openai.endpoints import CHAT, Endpoint
from gateway.openai.endpoints import ENDPOINTS as OPENAI_ENDPOINTS


class ResponsesFormat(OpenAiFormat):
    """OpenAI's Responses. Errors are as in all of OpenAI's API."""

    keeps_state = True

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return responses.translated(body, state)


class MessagesFormat:
    """Anthropic's Messages."""

    key_header = "x-api-key"
    request_id_header = b"request-id"
    keeps_state = False

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return messages.translated(body)

    def error(self, error: GatewayError) -> bytes:
        return error_body(error)

    def stream_error(self, error: GatewayError) -> bytes:
        return error_event(error)


class TokenCountFormat(MessagesFormat):
    """The count of the tokens of a Messages prompt."""

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return messages.counted(body)


RESPONSES: Final = Endpoint(
    "responses", "/v1/responses", "responses", ChatCompletionRequest, CHAT.prompts,
    format=ResponsesFormat(), upstream=CHAT.path,
)  # fmt: skip
MESSAGES: Final = Endpoint(
    "messages", "/v1/messages", "messages", ChatCompletionRequest, CHAT.prompts,
    format=MessagesFormat(), upstream=CHAT.path,
)  # fmt: skip
COUNT_TOKENS: Final = Endpoint(
    "count_tokens", "/v1/messages/count_tokens", "count_tokens", ChatCompletionRequest, CHAT.prompts,
    answer=TokenCount(), format=TokenCountFormat(), upstream="/tokenize",
    sends=frozenset({"model", "messages", "tools"}),
)  # fmt: skip
ENDPOINTS: Final = (*OPENAI_ENDPOINTS, RESPONSES, MESSAGES, COUNT_TOKENS)
BATCHED: Final = (*OPENAI_ENDPOINTS, RESPONSES)
"""Those that lines of OpenAI's batches may ask for."""


def upstream_of(path: str) -> str:
    """Where a backend is asked what a call of the route at `path` asks."""
    return next((endpoint.upstream for endpoint in ENDPOINTS if endpoint.path == path), path)
