"""Validation of an answer or chunk: the structure that later steps rely on.

A server's answer is checked once, here. What does not have the shape is the server's fault (BackendFailed, 502, counted
against the backend), never an error of the gateway. Beyond the shape nothing is required: any member may be absent or
null, in any order.
"""

from typing import Any, Final

from gateway.errors import BackendFailed

MESSAGE: Final = "message"
DELTA: Final = "delta"
CALL_HOLDERS: Final = ("function", "custom")


def choices_of(body: Any, holder: str) -> list[dict[str, Any]]:
    """The choices of an answer (`holder` is MESSAGE) or a chunk (DELTA). Raises BackendFailed if it has another shape.

    Afterwards each choice is an object, the value at `holder` an object or null, each tool call an object, and what
    it calls an object or null.
    """
    if not isinstance(body, dict):
        raise _malformed()
    choices = body.get("choices")
    if not choices:
        if choices is None or isinstance(choices, list):
            return []
        raise _malformed()
    if not isinstance(choices, list):
        raise _malformed()
    for choice in choices:
        if not isinstance(choice, dict):
            raise _malformed()
        said = choice.get(holder)
        if isinstance(said, dict):
            if "tool_calls" in said or "function_call" in said:
                _check_calls(said)
        elif said is not None:
            raise _malformed()
    return choices


def _check_calls(said: dict[str, Any]) -> None:
    if not isinstance(said.get("function_call"), dict | None):
        raise _malformed()
    calls = said.get("tool_calls")
    if not calls:
        if calls is None or isinstance(calls, list):
            return
        raise _malformed()
    if not isinstance(calls, list):
        raise _malformed()
    for call in calls:
        if not isinstance(call, dict) or not all(isinstance(call.get(name), dict | None) for name in CALL_HOLDERS):
            raise _malformed()


def position_of(holder: dict[str, Any], place: int) -> int:
    """The `index` of a choice or tool call; where it is absent or no index, `place`, its place in its list."""
    index = holder.get("index")
    return index if type(index) is int and index >= 0 else place


def _malformed() -> BackendFailed:
    return BackendFailed("The backend's answer is not an OpenAI answer")
