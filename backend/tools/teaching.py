"""Tools for a model whose chat template has none: described in a system message."""

import json
from collections.abc import Sequence

from backend.models.checkpoints.chat_template import text_of, with_suffix
from backend.tools import hermes
from backend.wire import JsonObject


def with_tools(
    messages: Sequence[JsonObject], definitions: Sequence[JsonObject], *, takes_system: bool = True
) -> list[JsonObject]:
    """The conversation with the tools in its system turn, which may be new, or in its first user turn where the
    template takes no system turn."""
    described = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in definitions)
    text = (
        "You may call functions. Each line describes one, its parameters as a JSON schema:\n"
        f"{described}\n"
        "To call one, write nothing but this, once for each call:\n"
        f'{hermes.OPEN}\n{{"name": "the function", "arguments": {{"of": "the call"}}}}\n{hermes.CLOSE}'
    )
    if messages[0]["role"] == "system":
        return [{**messages[0], "content": with_suffix(messages[0]["content"], f"\n\n{text}")}, *messages[1:]]
    if takes_system:
        return [{"role": "system", "content": text}, *messages]
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": text}, *messages]
    said = {**messages[first], "content": f"{text}\n\n{text_of(messages[first]['content'])}"}
    return [*messages[:first], said, *messages[first + 1 :]]


def as_text(message: JsonObject) -> JsonObject:
    """A call or its result, which such a template does not know either, as the text that it was."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text_of(message['content'])}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = [
        f"{hermes.OPEN}\n{json.dumps(call.get('function') or {}, ensure_ascii=False)}\n{hermes.CLOSE}" for call in calls
    ]
    content = "\n".join(filter(None, [text_of(message.get("content")), *written]))
    return {name: value for name, value in message.items() if name != "tool_calls"} | {"content": content}
