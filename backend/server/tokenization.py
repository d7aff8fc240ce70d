"""``/tokenize`` and ``/detokenize``: what a text or a conversation is in tokens, in vLLM's shapes.

What is counted is what would be computed: the same template, BOS and treatment of control tokens as for an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol, TypeVar

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from backend.chat.conversation import ChatModel
from backend.errors import InvalidRequest
from backend.models.checkpoints.tokenizer import TextModel
from backend.tools.request import read_tools
from backend.wire import ChatCompletionRequest, ChatMessage, JsonObject, NonEmpty, WireModel

MAX_TOKENS = 1 << 20
R = TypeVar("R", bound=WireModel)


class TokenizeRequest(WireModel):
    """Tokens of a `prompt`, or of `messages` with what the chat template takes."""

    model: NonEmpty | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = None
    tools: list[JsonObject] | None = None
    chat_template_kwargs: JsonObject | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = True
    return_token_strs: bool | None = None


class DetokenizeRequest(WireModel):
    model: NonEmpty | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_TOKENS)]


class ReadBody(Protocol):
    def __call__(self, request: Request, kind: type[R], /) -> Awaitable[R]: ...


class Tokenization:
    """The two endpoints. read: a request's body, checked. max_model_len: of the engine, once it has started."""

    def __init__(
        self, read: ReadBody, chats: ChatModel, text_model: TextModel, max_model_len: Callable[[], int]
    ) -> None:
        self._read = read
        self._chats = chats
        self._text_model = text_model
        self._max_model_len = max_model_len

    async def tokenize(self, request: Request) -> Response:
        wire = await self._read(request, TokenizeRequest)
        ids = await asyncio.to_thread(self._ids, wire)  # it may be the whole of a book
        spelled = [self._text_model.tokenizer.id_to_token(i) for i in ids] if wire.return_token_strs else None
        return _json({"count": len(ids), "max_model_len": self._max_model_len(), "tokens": ids, "token_strs": spelled})

    async def detokenize(self, request: Request) -> Response:
        """Control tokens are shown by their spelling; what is no whole character, as U+FFFD."""
        wire = await self._read(request, DetokenizeRequest)
        table, spelling = self._text_model.token_bytes, self._text_model.tokenizer.id_to_token
        if wire.tokens and max(wire.tokens) >= len(table):
            raise InvalidRequest(
                f"a token id is outside the vocabulary; send ids from 0 to {len(table) - 1}", param="tokens"
            )
        text = b"".join(table[token] or (spelling(token) or "").encode() for token in wire.tokens)
        return _json({"prompt": text.decode("utf-8", "replace")})

    def _ids(self, wire: TokenizeRequest) -> list[int]:
        if unknown := wire.model_extra:
            raise InvalidRequest(
                f"unknown parameter {min(unknown)!r}; remove it", param=min(unknown), code="unknown_parameter"
            )
        if (wire.prompt is None) == (wire.messages is None):
            raise InvalidRequest(
                "prompt and messages are both set or both missing; send one of the two", param="prompt"
            )
        if wire.messages is None:
            text = wire.prompt or ""
            if wire.add_special_tokens:
                return self._text_model.encode_completion(text)
            return self._text_model.encode_words(text)
        options = {"tools": wire.tools, "chat_template_kwargs": wire.chat_template_kwargs}
        chat = ChatCompletionRequest.model_validate({"model": "-", "messages": wire.messages, **options})
        tools = read_tools(chat.model_extra or {})
        return self._chats.prompt(chat, tools, add_generation_prompt=wire.add_generation_prompt)


def _json(content: JsonObject) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
