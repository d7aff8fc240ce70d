"""The messages of a Messages body as chat messages."""

from typing import Any, Final

from gateway.api_format import Place
from gateway.apis.body_fields import INVALID_TYPE, MISSING, Fields, refused
from gateway.apis.chat_messages import ChatMessages, TextOrParts, flattened
from gateway.openai.finite_json import NotFinite, write

TTLS: Final = ("5m", "1h")
MAX_SIGNATURE: Final = 64 << 10
FAILED: Final = {"type": "text", "text": "The tool reported an error:"}
"""What goes before the result of a tool that failed: a chat has no member for that."""
NOT_OFFERED: Final = {
    "document": "send its text in a text block",
    "search_result": "send its text in a text block",
    "redacted_thinking": "leave it out; it cannot be read here",
    "container_upload": "send its text in a text block",
    "server_tool_use": "declare a tool with an input_schema, and run it yourself",
}
"""What to send in place of a block of another type."""
_USE: Final = "send text, image, tool_use, tool_result and thinking blocks"


def read_messages(fields: Fields, chat: ChatMessages) -> None:
    """Add the messages of a body to `chat`. Raises InvalidRequest."""
    system = fields.any("system")
    if system is not None:
        _add(chat, "system", _Blocks(system, ("system",)))
    messages = fields.any("messages")
    if messages is None:
        raise refused(("messages",), "it is missing", "add it", MISSING)
    if not isinstance(messages, list) or not messages:
        raise refused(("messages",), "it is no list of messages", "send at least one", INVALID_TYPE)
    for position, message in enumerate(messages):
        with Fields(message, ("messages", position)) as one:
            role = one.one_of("role", ("user", "assistant", "system"))
            if role is None:
                one.wrong("role", "it is missing", "send user or assistant", MISSING)
            content = one.any("content")
            if content is None:
                one.wrong("content", "it is missing", "add it", MISSING)
        chat.end_turn()
        _add(chat, role, _Blocks(content, ("messages", position, "content")))


def read_cache_control(holder: Fields) -> None:
    """Take what says which part of a prompt to cache: a backend caches every prefix by itself."""
    if (cache := holder.fields("cache_control")) is not None:
        with cache:
            cache.one_of("type", ("ephemeral",))
            cache.one_of("ttl", TTLS)
            cache.identifier("scope")


class _Blocks:
    """Content at `place`: a text, or blocks."""

    def __init__(self, content: Any, place: Place) -> None:
        self.place = place
        self.text = content if isinstance(content, str) else None
        self.blocks = content if isinstance(content, list) else []
        if self.text is None and not isinstance(content, list):
            raise refused(place, "it is neither a text nor a list of blocks", "send one of these", INVALID_TYPE)


def _add(chat: ChatMessages, role: str, content: _Blocks) -> None:
    if content.text is not None:
        if role == "assistant":
            chat.say(content.text, content.place)
        else:
            chat.add({"role": role, "content": content.text}, content.place, content=content.place)
        return
    parts: list[dict[str, Any]] = []
    first: Place = content.place
    for position, block in enumerate(content.blocks):
        place = (*content.place, position)
        with Fields(block, place) as fields:
            kind = fields.text("type", required=True) or ""
            if kind in ("text", "image"):
                first = first if parts else place
                parts.append(_part(fields, kind))
                continue
            _put(chat, role, parts, first)
            parts = []
            _other(chat, role, kind, fields)
    _put(chat, role, parts, first)


def _put(chat: ChatMessages, role: str, parts: list[dict[str, Any]], first: Place) -> None:
    """Add the text and images that follow one another, the first of them at `first`."""
    if not parts:
        return
    content = flattened(parts)
    if role == "assistant":
        chat.say(content, first)
    else:
        chat.add({"role": role, "content": content}, first, content=first)
    _places(chat, content, first)


def _places(chat: ChatMessages, content: TextOrParts, first: Place, skipped: int = 0) -> None:
    """Note where the parts of the message that was added last came from. `skipped`: parts before the client's."""
    at: Place = ("messages", len(chat.messages) - 1, "content")
    if isinstance(content, str):
        chat.places[at] = (*first, "text")
        return
    for number in range(len(content) - skipped):
        chat.places[*at, number + skipped] = (*first[:-1], int(first[-1]) + number)


def _part(block: Fields, kind: str) -> dict[str, Any]:
    read_cache_control(block)
    if kind == "text":
        if block.items("citations"):
            block.wrong("citations", "they are not offered", "leave them out")
        return {"type": "text", "text": block.required_text("text")}
    return {"type": "image_url", "image_url": {"url": _image(block)}}


def _image(block: Fields) -> str:
    source = block.fields("source")
    if source is None:
        block.wrong("source", "it is missing", "add it", MISSING)
    with source:
        kind = source.one_of("type", ("base64", "url"))
        if kind == "url":
            return source.required_text("url")
        return f"data:{source.required_text('media_type')};base64,{source.required_text('data')}"


def _other(chat: ChatMessages, role: str, kind: str, block: Fields) -> None:
    """A block that is no part of a text."""
    if kind == "thinking" and role == "assistant":
        signature = block.text("signature")
        if signature and (len(signature) > MAX_SIGNATURE or not signature.isascii() or " " in signature):
            block.wrong("signature", "it is no signature", "send the block as it was answered")
        if thought := block.required_text("thinking"):
            chat.think(thought, block.at("thinking"))
        return
    read_cache_control(block)
    if kind == "tool_use" and role == "assistant":
        _tool_use(chat, block)
    elif kind == "tool_result" and role == "user":
        _tool_result(chat, block)
    else:
        raise refused(block.at("type"), f"a block of this type is not offered from {role}", NOT_OFFERED.get(kind, _USE))


def _tool_use(chat: ChatMessages, block: Fields) -> None:
    identifier, name = block.required_text("id"), block.required_text("name")
    if (asked := block.object("input")) is None:
        block.wrong("input", "it is missing", "add it", MISSING)
    read_caller(block)
    try:
        arguments = write(asked).decode()
    except NotFinite:
        block.wrong("input", "a number is too large", "JSON has no infinity; send a smaller one")
    chat.call(identifier, name, arguments, block.place, {"arguments": block.at("input")})


def read_caller(block: Fields) -> None:
    """Take who calls a tool: the model itself, since no tools are hosted here."""
    if (caller := block.fields("caller")) is not None:
        with caller:
            caller.one_of("type", ("direct",))


def _tool_result(chat: ChatMessages, block: Fields) -> None:
    identifier = block.required_text("tool_use_id")
    failed = block.flag("is_error")
    at = block.at("content")
    content = block.any("content")
    parts: list[dict[str, Any]] = []
    if isinstance(content, list):
        for position, part in enumerate(content):
            with Fields(part, (*at, position)) as fields:
                kind = fields.text("type", required=True) or ""
                if kind not in ("text", "image"):
                    raise refused(fields.at("type"), "this is not offered in a result", NOT_OFFERED.get(kind, _USE))
                parts.append(_part(fields, kind))
    elif content is not None:
        if not isinstance(content, str):
            block.wrong("content", "it is neither a text nor a list of blocks", "send one of these", INVALID_TYPE)
        parts.append({"type": "text", "text": content})
    shown = flattened([FAILED, *parts] if failed else parts) if parts or failed else ""
    message = {"role": "tool", "tool_call_id": identifier, "content": shown}
    chat.add(message, block.place, content=at, tool_call_id=block.at("tool_use_id"))
    if isinstance(content, list):
        _places(chat, shown, (*at, 0), skipped=1 if failed else 0)
