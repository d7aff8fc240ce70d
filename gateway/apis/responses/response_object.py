"""The response object of ``/v1/responses`` and its items. Source: OpenAI API reference, Responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, Final

from pydantic_core import to_json

from backend.wire import Usage
from gateway.apis.chat_answer import cached_tokens, detail, measured
from gateway.apis.responses.sealed_state import sealed

RESPONSE: Final = "resp_"
"""What the id of a response begins with."""
_DEFAULTS: Final[dict[str, Any]] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": None,
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
_OPEN: Final[dict[str, Any]] = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
INCOMPLETE: Final = {
    "length": "max_output_tokens",
    "model_length": "max_output_tokens",
    "content_filter": "content_filter",
}
"""By a chat's finish_reason, why a response is incomplete."""


@dataclass(frozen=True, slots=True)
class ResponseObject:
    """`identifier`: 32 hex digits, of which ids are made. `echo`: what the response repeats of the request, as members
    of a JSON object; it may be megabytes, so it is written once. `secret`: seals reasoning; None where the client did
    not ask for that. `is_kept`: it can be asked for again.
    """

    identifier: str
    echo: bytes
    secret: bytes | None = None
    is_kept: bool = False

    @classmethod
    def of(cls, identifier: str, asked: Mapping[str, Any], secret: bytes | None) -> "ResponseObject":
        """`asked`: the members that the response repeats, with the values that hold."""
        head = {"id": f"{RESPONSE}{identifier}", "object": "response", "created_at": int(time())}
        return cls(identifier, to_json({**head, **_DEFAULTS, **asked})[1:-1], secret)

    def written(self, members: Mapping[str, Any], output: Sequence[Any] = (), usage: Usage | None = None) -> bytes:
        """The response with these members. `output`: its items. A number that JSON does not have is null."""
        told = {**_OPEN, "store": self.is_kept, **members, "output": output}
        if usage is not None:
            told["usage"] = _usage(usage)
        return b"{%b,%b" % (self.echo, to_json(told, inf_nan_mode="null")[1:])

    def item_id(self, kind: str, position: int) -> str:
        return f"{kind}_{self.identifier}{position:04x}"

    def reasoning(self, position: int, text: str, status: str) -> dict[str, Any]:
        item = {
            "id": self.item_id("rs", position), "type": "reasoning", "summary": [], "status": status,
            "content": [{"type": "reasoning_text", "text": text}],
        }  # fmt: skip
        if self.secret is not None:
            item["encrypted_content"] = sealed(text, self.secret)
        return item

    def message(self, position: int, parts: Sequence[Mapping[str, Any]], status: str) -> dict[str, Any]:
        identifier = self.item_id("msg", position)
        return {"id": identifier, "type": "message", "role": "assistant", "status": status, "content": parts}

    def function_call(
        self, position: int, call_id: str | None, name: str, arguments: str, status: str
    ) -> dict[str, Any]:
        return {
            "id": self.item_id("fc", position), "type": "function_call", "status": status,
            "call_id": call_id or self.item_id("call", position), "name": name, "arguments": arguments,
        }  # fmt: skip


def output_text(text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def reasoning_text(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def refusal(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def ended(reason: str | None, mark: Mapping[str, str]) -> dict[str, Any]:
    """The members of a response that ended; `reason`: why before its time. `mark`: see `mark_in`."""
    if reason is None:
        return {"status": "completed", "completed_at": int(time()), **mark}
    return {"status": "incomplete", "incomplete_details": {"reason": reason}, **mark}


def logprobs_in(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Log probabilities of each token, in the shape of an ``output_text``."""
    logprobs = choice.get("logprobs")
    found = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(found, list):
        return []
    tokens = [one for one in found if isinstance(one, dict)]
    return [
        {**_logprob(one), "top_logprobs": [_logprob(each) for each in one.get("top_logprobs") or ()]} for one in tokens
    ]


def _logprob(token: Mapping[str, Any]) -> dict[str, Any]:
    text = str(token.get("token") or "")
    spelled = token.get("bytes")
    return {
        "token": text,
        "bytes": spelled if isinstance(spelled, list) else list(text.encode("utf-8", "replace")),
        "logprob": token.get("logprob"),
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens(usage), "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": detail(usage, "completion_tokens_details", "reasoning_tokens")},
        "total_tokens": usage.total_tokens or usage.prompt_tokens + usage.completion_tokens,
        **measured(usage),
    }
