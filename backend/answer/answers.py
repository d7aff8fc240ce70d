"""OpenAI's answer shapes: whole bodies and stream chunks of chat completions and completions.

Two classes of the same face, one an endpoint. Source: OpenAI API reference, "chat completion chunk object" and
"completion object".
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from backend.chat.logprobs import LogprobEntry, chat_logprobs, completion_logprobs
from backend.tools.parts import Content, Part
from backend.wire import ACTIVATIONS_FIELD, JsonObject, Usage, sse_data


@dataclass(frozen=True, slots=True)
class Finish:
    """How a choice ended. reason: OpenAI's word. stop: the stop string or the id of the stop token, if one ended it.
    watermark: see `mark_report`; None where no mark was asked for. activations: the commitment to them, base64url
    without padding; None where none was asked for."""

    reason: str
    stop: str | int | None = None
    watermark: str | None = None
    activations: str | None = None


@dataclass(frozen=True, slots=True)
class CompletedChoice:
    """One whole choice. entries: log probabilities of its tokens, if asked for. prompt: those of the prompt's, in
    vLLM's shape."""

    parts: list[Part]
    finish: Finish
    entries: list[LogprobEntry] | None = None
    prompt: list[JsonObject | None] | None = None


class AnswerFormat(Protocol):
    """One request's answer, in the shapes of its endpoint."""

    id: str

    def opening(self, index: int) -> bytes | None:
        """The frame that comes before a choice's first text, if the endpoint has one."""
        ...

    def chunk(
        self, index: int, parts: Sequence[Part], finish: Finish | None, entries: Sequence[LogprobEntry] | None = None
    ) -> bytes: ...

    def usage_chunk(self, usage: Usage) -> bytes: ...

    def body(self, choices: Sequence[CompletedChoice], usage: Usage) -> bytes: ...


PLACE = "\0"  # of a text in a frame; nothing that may have one comes behind it
ENCODED_PLACE = msgspec.json.encode(PLACE)


class _Envelope(ABC):
    """What all chunks and bodies of one answer share."""

    chunk_object: str
    body_object: str
    prefix: str

    def __init__(self, request_id: str, model: str, *, usage_in_chunks: bool, fingerprint: str | None = None) -> None:
        self._more: JsonObject = {} if fingerprint is None else {"system_fingerprint": fingerprint}
        self.id = f"{self.prefix}-{request_id}"
        self._created = int(time.time())
        self._model = model
        self._usage_in_chunks = usage_in_chunks
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def _text_frame(self, index: int, text: str) -> bytes:
        """The frame of a choice that has `text` and nothing else: what surrounds it is encoded once a choice."""
        around = self._around.get(index)
        if around is None:
            before, _, behind = self._frame([choice_of(index, self._content(PLACE), None)]).rpartition(ENCODED_PLACE)
            around = self._around[index] = before, behind
        return around[0] + msgspec.json.encode(text) + around[1]

    @abstractmethod
    def _content(self, text: str) -> JsonObject:
        """What a chunk of the endpoint has of a text."""

    def _frame(self, choices: list[JsonObject], usage: JsonObject | None = None) -> bytes:
        chunk: JsonObject = {
            "id": self.id,
            "object": self.chunk_object,
            "created": self._created,
            "model": self._model,
            **self._more,
            "choices": choices,
        }
        if self._usage_in_chunks:
            chunk["usage"] = usage
        return sse_data(msgspec.json.encode(chunk))

    def usage_chunk(self, usage: Usage) -> bytes:
        return self._frame([], usage.model_dump(exclude_none=True))

    def _body(self, choices: list[JsonObject], usage: Usage, **more: Any) -> bytes:
        return msgspec.json.encode(
            {
                "id": self.id,
                "object": self.body_object,
                "created": self._created,
                "model": self._model,
                **self._more,
                "choices": choices,
                "usage": usage.model_dump(exclude_none=True),
                **more,
            }
        )


class ChatAnswer(_Envelope):
    prefix = "chatcmpl"
    chunk_object = "chat.completion.chunk"
    body_object = "chat.completion"

    def opening(self, index: int) -> bytes | None:
        return self._frame([choice_of(index, {"delta": {"role": "assistant", "content": ""}}, None)])

    def chunk(
        self, index: int, parts: Sequence[Part], finish: Finish | None, entries: Sequence[LogprobEntry] | None = None
    ) -> bytes:
        text = content_of(parts)
        if finish is None and not entries:
            return self._text_frame(index, text)
        delta: dict[str, Any] = {"content": text} if text or finish is None else {}
        logprobs = chat_logprobs(entries) if entries else None
        return self._frame([choice_of(index, {"delta": delta}, finish, logprobs)])

    def _content(self, text: str) -> JsonObject:
        return {"delta": {"content": text}}

    def body(self, choices: Sequence[CompletedChoice], usage: Usage) -> bytes:
        messages = [
            choice_of(
                i,
                {"message": self._message(said.parts)},
                said.finish,
                None if said.entries is None else chat_logprobs(said.entries),
            )
            for i, said in enumerate(choices)
        ]
        of_prompt = choices[0].prompt
        return self._body(messages, usage, **({} if of_prompt is None else {"prompt_logprobs": of_prompt}))

    def _message(self, parts: Sequence[Part]) -> JsonObject:
        return {"role": "assistant", "content": content_of(parts), "refusal": None}


class CompletionAnswer(_Envelope):
    prefix = "cmpl"
    chunk_object = body_object = "text_completion"

    def opening(self, index: int) -> bytes | None:
        return None

    def chunk(
        self, index: int, parts: Sequence[Part], finish: Finish | None, entries: Sequence[LogprobEntry] | None = None
    ) -> bytes:
        if finish is None and not entries:
            return self._text_frame(index, content_of(parts))
        logprobs = completion_logprobs(entries) if entries else None
        return self._frame([choice_of(index, self._content(content_of(parts)), finish, logprobs)])

    def _content(self, text: str) -> JsonObject:
        return {"text": text}

    def body(self, choices: Sequence[CompletedChoice], usage: Usage) -> bytes:
        texts = []
        for i, said in enumerate(choices):
            logprobs = None if said.entries is None else completion_logprobs(said.entries)
            texts.append(choice_of(i, {"text": content_of(said.parts)}, said.finish, logprobs))
            if said.prompt is not None:
                texts[-1]["prompt_logprobs"] = said.prompt
        return self._body(texts, usage)


def content_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def choice_of(index: int, content: JsonObject, finish: Finish | None, logprobs: JsonObject | None = None) -> JsonObject:
    """One element of ``choices``; ``stop_reason`` is vLLM's, ``watermark`` and ``activations`` ours."""
    ended: JsonObject = {"finish_reason": None}
    if finish is not None:
        ended = {"finish_reason": finish.reason, "stop_reason": finish.stop}
        if finish.watermark is not None:
            ended["watermark"] = finish.watermark
        if finish.activations is not None:
            ended[ACTIVATIONS_FIELD] = finish.activations
    return {"index": index, **content, "logprobs": logprobs, **ended}
