"""The items of a Responses input as chat messages."""

from collections.abc import Callable
from typing import Any, Final

from gateway.api_format import GoesOn, Place
from gateway.apis.body_fields import INVALID_TYPE, MISSING, Fields, refused
from gateway.apis.chat_messages import ChatMessages, TextOrParts, flattened
from gateway.apis.responses.sealed_state import NotOurs, opened
from gateway.errors import InvalidRequest

REFERENCE: Final = "item_reference"
ROLES: Final = ("user", "assistant", "system", "developer")
STATUSES: Final = ("in_progress", "completed", "incomplete")
DETAILS: Final = ("auto", "low", "high", "original")
_IMAGE_FIX: Final = "send it in image_url, as a URL or data URL"
NOT_OFFERED: Final = {
    "custom_tool_call": "declare a function tool, and send its function_call",
    "custom_tool_call_output": "declare a function tool, and send its function_call_output",
    "compaction": "send the items that it stands for",
}
"""What to send in place of an item of another type."""


def read_input(value: Any, chat: ChatMessages, secret: bytes | None) -> None:
    """Add the messages of ``input`` to `chat`. Raises InvalidRequest; GoesOn where it names kept items."""
    if value is None:
        raise refused(("input",), "it is missing", "add it", MISSING)
    if isinstance(value, str):
        chat.add({"role": "user", "content": value}, ("input",), content=("input",))
        return
    if not isinstance(value, list) or not value:
        raise refused(("input",), "it is neither a text nor a list of items", "send one of these", INVALID_TYPE)
    for position, item in enumerate(value):
        place: Place = ("input", position)
        with Fields(item, place) as fields:
            kind = fields.text("type") or "message"
            read = _ITEMS.get(kind)
            if read is None:
                fix = NOT_OFFERED.get(kind, "send messages, reasoning, function_call and function_call_output items")
                raise refused((*place, "type"), "an item of this type is not offered", fix)
            if kind == REFERENCE and not fields.has("id"):
                fields.wrong("id", "it is missing", "send the id of an item that is kept", MISSING)
            fields.identifier("id")
            fields.one_of("status", STATUSES)
            read(fields, chat, secret)


def _message(item: Fields, chat: ChatMessages, secret: bytes | None) -> None:
    role = item.one_of("role", ROLES)
    if role is None:
        item.wrong("role", "it is missing", f"send one of {', '.join(ROLES)}", MISSING)
    item.one_of("phase", ("commentary", "final_answer"))
    content, source = read_content(item, "content")
    if role == "assistant":
        chat.say(content, source)
    else:
        chat.add({"role": role, "content": content}, item.place, content=source)


def read_content(holder: Fields, name: str) -> tuple[TextOrParts, Place]:
    """A text or parts at `name`, as a chat has them, and where they came from. Raises InvalidRequest."""
    value = holder.any(name)
    at = holder.at(name)
    if isinstance(value, str):
        return value, at
    if not isinstance(value, list):
        holder.wrong(name, "it is neither a text nor a list of parts", "send one of these", INVALID_TYPE)
    parts = []
    for position, part in enumerate(value):
        with Fields(part, (*at, position)) as fields:
            parts.append(_part(fields))
    content = flattened(parts)
    return content, (*at, 0, "text") if isinstance(content, str) else at


def _part(part: Fields) -> dict[str, Any]:
    kind = part.text("type", required=True)
    if kind in ("input_text", "output_text"):
        for about in ("annotations", "logprobs", "parsed"):  # of an earlier answer, or made of it by an SDK
            part.any(about)
        return {"type": "text", "text": part.required_text("text")}
    if kind == "refusal":
        return {"type": "text", "text": part.required_text("refusal")}
    if kind == "input_image":
        detail = part.one_of("detail", DETAILS)
        url = part.text("image_url")
        if url is None:
            part.wrong("image_url", "it is missing", _IMAGE_FIX, MISSING)
        return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
    part.wrong("type", "a part of this type is not offered", "send input_text parts")


def _function_call(item: Fields, chat: ChatMessages, secret: bytes | None) -> None:
    call_id = item.required_text("call_id")
    name, arguments = item.required_text("name"), item.required_text("arguments")
    item.any("parsed_arguments")  # an SDK's own
    _read_caller(item)
    chat.call(call_id, name, arguments, item.place, {"id": item.at("call_id")})


def _function_call_output(item: Fields, chat: ChatMessages, secret: bytes | None) -> None:
    call_id = item.required_text("call_id")
    _read_caller(item)
    output, source = read_content(item, "output")
    message = {"role": "tool", "tool_call_id": call_id, "content": output}
    chat.add(message, item.place, content=source, tool_call_id=item.at("call_id"))


def _read_caller(item: Fields) -> None:
    if (caller := item.fields("caller")) is not None:
        with caller:
            caller.one_of("type", ("direct",), "send direct: only the model calls tools here")


def _reasoning(item: Fields, chat: ChatMessages, secret: bytes | None) -> None:
    told = [part.required_text("text") for part in item.each("content") if _is(part, "reasoning_text")]
    summary = [part.required_text("text") for part in item.each("summary") if _is(part, "summary_text")]
    text = "".join(told)
    if (state := item.text("encrypted_content")) is not None:
        kept = _opened(item, state, secret)
        if told and kept != text:
            item.wrong("content", "it is not what its encrypted_content holds", "send the item as it was answered")
        text = kept
    texts = [piece for piece in (text, *summary) if piece]
    if texts:
        source = item.at("encrypted_content") if state is not None and not told else item.at("content")
        chat.think("\n\n".join(texts), source if text else item.at("summary"))


def _is(part: Fields, kind: str) -> bool:
    part.one_of("type", (kind,))
    return True


def _opened(item: Fields, state: str, secret: bytes | None) -> str:
    try:
        if secret is None:
            raise NotOurs
        return opened(state, secret)
    except NotOurs:
        param = ".".join(map(str, item.at("encrypted_content")))
        raise InvalidRequest(
            f"{param}: it was not sealed for this API key by this gateway, or its keys were replaced since"
            "; leave the reasoning item out",
            param=param,
            code="invalid_encrypted_content",
        ) from None


def _item_reference(item: Fields, chat: ChatMessages, secret: bytes | None) -> None:
    raise GoesOn


_ITEMS: Final[dict[str, Callable[[Fields, ChatMessages, bytes | None], None]]] = {
    REFERENCE: _item_reference,
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}
