"""All inference routes: OpenAI's own, and those of other APIs, each with its translation."""

from typing import Any

from backend.wire import ChatCompletionRequest
from gateway.api_format import OpenAiFormat, Translation
from gateway.apis.responses import request as responses
from gateway.openai.endpoints import CHAT, Endpoint
from gateway.openai.endpoints import ENDPOINTS as OPENAI_ENDPOINTS


class ResponsesFormat(OpenAiFormat):
    """OpenAI's Responses. Errors are as in all of OpenAI's API."""

    keeps_state = True

    def chat(self, body: Any, secret: bytes | None) -> tuple[Any, Translation | None]:
        return responses.translated(body, secret)


RESPONSES = Endpoint(
    "responses", "/v1/responses", "responses", ChatCompletionRequest, CHAT.prompts,
    format=ResponsesFormat(), upstream=CHAT.path,
)  # fmt: skip
ENDPOINTS = (*OPENAI_ENDPOINTS, RESPONSES)


def upstream_of(path: str) -> str:
    """Where a backend is asked what a call of the route at `path` asks."""
    return next((endpoint.upstream for endpoint in ENDPOINTS if endpoint.path == path), path)
