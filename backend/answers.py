"""OpenAI's answer shapes: whole bodies and stream chunks of chat completions and completions.

Two classes of the same face, one an endpoint. Source: OpenAI API reference, "chat completion chunk object" and
"completion object".
"""

import time
from typing import Any, Protocol

import msgspec

from backend.wire import JsonObject, Usage, sse_data


class Answer(Protocol):
    """One request's answer, in the shapes of its endpoint."""

    id: str

    def opening(self, index: int) -> bytes | None:
        """The frame that comes before a choice's first text, if the endpoint has one."""
        ...

    def chunk(self, index: int, text: str, finish_reason: str | None) -> bytes: ...

    def usage_chunk(self, usage: Usage) -> bytes: ...

    def body(self, choices: list[tuple[str, str | None]], usage: Usage) -> bytes: ...


class _Envelope:
    """What all chunks and bodies of one answer share."""

    chunk_object: str
    body_object: str
    prefix: str

    def __init__(self, request_id: str, model: str, *, usage_in_chunks: bool) -> None:
        self.id = f"{self.prefix}-{request_id}"
        self._created = int(time.time())
        self._model = model
        self._usage_in_chunks = usage_in_chunks

    def _frame(self, choices: list[JsonObject], usage: JsonObject | None = None) -> bytes:
        chunk: JsonObject = {
            "id": self.id,
            "object": self.chunk_object,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }
        if self._usage_in_chunks:
            chunk["usage"] = usage
        return sse_data(msgspec.json.encode(chunk))

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._frame([], usage.model_dump())

    def _body(self, choices: list[JsonObject], usage: Usage) -> bytes:
        return msgspec.json.encode(
            {
                "id": self.id,
                "object": self.body_object,
                "created": self._created,
                "model": self._model,
                "choices": choices,
                "usage": usage.model_dump(),
            }
        )


class ChatAnswer(_Envelope):
    prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"

    def opening(self, index: int) -> bytes | None:
        return self._frame([_choice(index, {"delta": {"role": "assistant", "content": ""}}, None)])

    def chunk(self, index: int, text: str, finish_reason: str | None) -> bytes:
        delta: dict[str, Any] = {"content": text} if text or finish_reason is None else {}
        return self._frame([_choice(index, {"delta": delta}, finish_reason)])

    def body(self, choices: list[tuple[str, str | None]], usage: Usage) -> bytes:
        messages = [
            _choice(i, {"message": {"role": "assistant", "content": text, "refusal": None}}, reason)
            for i, (text, reason) in enumerate(choices)
        ]
        return self._body(messages, usage)


class CompletionAnswer(_Envelope):
    prefix = "cmpl"
    chunk_object = body_object = "text_completion"

    def opening(self, index: int) -> bytes | None:
        return None

    def chunk(self, index: int, text: str, finish_reason: str | None) -> bytes:
        return self._frame([_choice(index, {"text": text}, finish_reason)])

    def body(self, choices: list[tuple[str, str | None]], usage: Usage) -> bytes:
        return self._body([_choice(i, {"text": text}, reason) for i, (text, reason) in enumerate(choices)], usage)


def _choice(index: int, content: JsonObject, finish_reason: str | None) -> JsonObject:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}
