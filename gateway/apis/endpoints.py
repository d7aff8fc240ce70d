"""All inference routes: OpenAI's own, and those of other APIs, each with its translation."""

from typing import Any, Final

from backend.wire import (
    ChatCompletionRequest,
    DetokenizeRequest,
    EmbeddingsRequest,
    GenerationRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)
from gateway.api_format import CallState, OpenAiFormat, Translation
from gateway.apis.messages import request as messages
from gateway.apis.messages.errors import error_body, error_event
from gateway.apis.ollama import request as ollama
from gateway.apis.ollama.lines import error_line
from gateway.apis.ranking import RankingFormat
from gateway.apis.responses import request as responses
from gateway.apis.tokens import DetokenizeFormat, TokenizeFormat
from gateway.errors import GatewayError
from gateway.openai.answer_formats import Ranking, Scores, TextOfTokens, TokenCount, Tokens, Vectors
from gateway.openai.endpoints import CHAT, EMBEDDINGS, Endpoint
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
    streams_events = True

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


class OllamaFormat:
    """Ollama's chats."""

    key_header = None
    request_id_header = None
    keeps_state = False
    streams_events = False

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return ollama.chatted(body)

    def error(self, error: GatewayError) -> bytes:
        return error_line(error)

    def stream_error(self, error: GatewayError) -> bytes:
        return error_line(error) + b"\n"


class GenerateFormat(OllamaFormat):
    """Ollama's answers to one prompt."""

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return ollama.generated(body)


class EmbedFormat(OllamaFormat):
    """Ollama's embeddings."""

    def chat(self, body: Any, state: CallState) -> tuple[Any, Translation | None]:
        return ollama.embedded(body)


RESPONSES: Final = Endpoint(
    "responses",
    "/v1/responses",
    "responses",
    ChatCompletionRequest,
    CHAT.prompts,
    format=ResponsesFormat(),
    upstream=CHAT.path,
)
MESSAGES: Final = Endpoint(
    "messages",
    "/v1/messages",
    "messages",
    ChatCompletionRequest,
    CHAT.prompts,
    format=MessagesFormat(),
    upstream=CHAT.path,
)
COUNT_TOKENS: Final = Endpoint(
    "count_tokens",
    "/v1/messages/count_tokens",
    "count_tokens",
    ChatCompletionRequest,
    CHAT.prompts,
    answer=TokenCount(),
    format=TokenCountFormat(),
    upstream="/tokenize",
    sends=frozenset({"model", "messages", "tools"}),
)
OLLAMA_CHAT: Final = Endpoint(
    "ollama_chat",
    "/api/chat",
    "ollama_chat",
    ChatCompletionRequest,
    CHAT.prompts,
    format=OllamaFormat(),
    upstream=CHAT.path,
)
OLLAMA_GENERATE: Final = Endpoint(
    "ollama_generate",
    "/api/generate",
    "ollama_generate",
    ChatCompletionRequest,
    CHAT.prompts,
    format=GenerateFormat(),
    upstream=CHAT.path,
)
OLLAMA_EMBED: Final = Endpoint(
    "ollama_embed",
    "/api/embed",
    "ollama_embed",
    EmbeddingsRequest,
    EMBEDDINGS.prompts,
    answer=Vectors(),
    format=EmbedFormat(),
    upstream=EMBEDDINGS.path,
)
TOKENIZE: Final = Endpoint(
    "tokenize",
    "/v1/tokenize",
    "tokenize",
    TokenizeRequest,
    {"prompt": "text", "messages": "messages"},
    answer=Tokens(),
    format=TokenizeFormat(),
    upstream="/tokenize",
    sends=frozenset({"model"} | TokenizeRequest.model_fields.keys() - GenerationRequest.model_fields.keys()),
)
DETOKENIZE: Final = Endpoint(
    "detokenize",
    "/v1/detokenize",
    "detokenize",
    DetokenizeRequest,
    {"tokens": "text"},
    answer=TextOfTokens(),
    format=DetokenizeFormat(),
    upstream="/detokenize",
    sends=frozenset({"model", "tokens"}),
)
RERANK: Final = Endpoint(
    "rerank",
    "/v1/rerank",
    "rerank",
    RerankRequest,
    {"query": "text", "documents": "text"},
    answer=Ranking(),
    format=RankingFormat(),
)
SCORE: Final = Endpoint(
    "score", "/v1/score", "score", ScoreRequest, {"text_1": "text", "text_2": "text"}, answer=Scores()
)
ENDPOINTS: Final = (
    *OPENAI_ENDPOINTS, RESPONSES, MESSAGES, COUNT_TOKENS, TOKENIZE, DETOKENIZE, RERANK, SCORE,
    OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED,
)  # fmt: skip
OTHER_PATHS: Final = {
    "/tokenize": TOKENIZE, "/detokenize": DETOKENIZE, "/rerank": RERANK, "/v2/rerank": RERANK, "/score": SCORE,
}  # fmt: skip
"""Paths by which clients of vLLM, Cohere and Jina call the same routes. Record, metrics and scopes name the route."""
BATCHED: Final = (*OPENAI_ENDPOINTS, RESPONSES)
"""Those that lines of OpenAI's batches may ask for."""


def upstream_of(path: str) -> str:
    """Where a backend is asked what a call of the route at `path` asks."""
    return next((endpoint.upstream for endpoint in ENDPOINTS if endpoint.path == path), path)
