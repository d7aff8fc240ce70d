"""A whole answer of a backend, read: parsed, of the right shape, with its usage and ends noted in ReceivedAnswer."""

from typing import Any

from gateway.openai.answer import characters_said
from gateway.openai.checked_call import Call
from gateway.openai.finish import recorded
from gateway.request.answer.received import ReceivedAnswer


def read_answer(call: Call, raw: bytes, received: ReceivedAnswer) -> dict[str, Any]:
    """The answer to `call` in `raw`, noted in `received`. Raises BackendFailed where it is none."""
    answer = call.endpoint.answer.read(raw)
    received.usage, received.fingerprint = answer.usage, answer.fingerprint
    for choice in answer.choices:
        said = choice.get("message")
        received.characters_out += characters_said(choice if said is None else said)
        received.count_tool_calls(said)
        if word := recorded(choice.get("finish_reason")):
            received.finish_reasons.append(word)
    return answer.body


def usage_is_sound(body: dict[str, Any], received: ReceivedAnswer) -> bool:
    """Whether the client may have the `usage` as the backend sent it. If not, what cannot be true is removed from
    `body`: the client must not bill by it either."""
    if received.usage is not None or not body.get("usage"):
        return True
    del body["usage"]
    return False
