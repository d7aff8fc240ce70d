"""A whole answer of a backend, read: parsed, of the right shape, with its usage and ends noted in ReceivedAnswer."""

from typing import Any

from pydantic_core import from_json

from backend.wire import fingerprint_of
from gateway.errors import BackendFailed
from gateway.openai.answer import characters_said
from gateway.openai.embeddings import read_embeddings
from gateway.openai.endpoint import Call
from gateway.openai.finish import recorded
from gateway.openai.shape import MESSAGE, choices_of
from gateway.openai.usage import usage_of
from gateway.request.answer.received import ReceivedAnswer


def read_answer(call: Call, raw: bytes, received: ReceivedAnswer) -> dict[str, Any]:
    """The answer to `call` in `raw`, noted in `received`. Raises BackendFailed where it is none."""
    if not call.endpoint.generates:
        vectors, received.usage = read_embeddings(raw)
        return vectors
    try:
        body: dict[str, Any] = from_json(raw, allow_inf_nan=False)
    except ValueError:
        raise BackendFailed("The backend's answer is not JSON") from None
    choices = choices_of(body, MESSAGE)
    if not choices:
        raise BackendFailed("The backend's answer is not an OpenAI answer")
    received.usage = usage_of(body.get("usage"))
    received.fingerprint = fingerprint_of(body)
    for choice in choices:
        said = choice.get("message")
        received.characters_out += characters_said(choice if said is None else said)
        received.count_tool_calls(said)
        if word := recorded(choice.get("finish_reason")):
            received.finish_reasons.append(word)
    return body


def usage_is_sound(body: dict[str, Any], received: ReceivedAnswer) -> bool:
    """Whether the client may have the `usage` as the backend sent it. If not, what cannot be true is removed from
    `body`: the client must not bill by it either."""
    if received.usage is not None or not body.get("usage"):
        return True
    del body["usage"]
    return False
