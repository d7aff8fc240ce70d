"""A body of ``/v1/messages`` as a chat body. Source: Anthropic's API reference, Messages, create."""

from typing import Any, Final

from audit.random_pieces import RandomPieces
from gateway.api_format import Place
from gateway.apis.body_fields import MISSING, UNSUPPORTED, Fields, refused
from gateway.apis.chat_messages import ChatMessages
from gateway.apis.messages.content_blocks import read_cache_control, read_messages
from gateway.apis.messages.message_object import MessageObject
from gateway.apis.messages.translation import MessagesTranslation, TokenCountTranslation
from gateway.errors import InvalidRequest

_random = RandomPieces(12)

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_LOCAL: Final = "declare a tool with an input_schema, and run it yourself"
NOT_OFFERED: Final = {
    "container": "leave it out; no tools are hosted here",
    "fallbacks": "leave it out; the policy of the project decides where a call runs",
    "inference_geo": "leave it out; the policy of the project decides where a call runs",
    "mcp_servers": _LOCAL,
    "compaction": "send the messages that the model is to see",
    "max_completion_tokens": "use max_tokens",
    "max_tokens_to_sample": "use max_tokens",
    "prompt": "use messages",
    "stop": "use stop_sequences",
    "n": "send one request for each answer",
}
"""Members that are not offered, with what to use instead."""
_RENAMED: Final[dict[Place, Place]] = {
    ("stop",): ("stop_sequences",),
    ("user",): ("metadata", "user_id"),
    ("response_format",): ("output_config", "format"),
    ("response_format", "json_schema"): ("output_config", "format"),
    ("reasoning_effort",): ("output_config", "effort"),
    ("parallel_tool_calls",): ("tool_choice", "disable_parallel_tool_use"),
}


def translated(body: Any) -> tuple[dict[str, Any], MessagesTranslation]:
    """The chat body, and how the call is answered. Raises InvalidRequest."""
    with Fields(body, hints=NOT_OFFERED) as fields:
        made = _read_prompt(fields)
        places = made.pop("places")
        if (most := fields.any("max_tokens")) is None:
            raise refused(("max_tokens",), "it is missing", "send the most tokens of the answer", MISSING)
        made["max_tokens"] = most
        for name in ("temperature", "top_p", "top_k", "stream"):
            if (value := fields.any(name)) is not None:
                made[name] = value
        stops = fields.items("stop_sequences")
        if stops:
            made["stop"] = stops
        if (metadata := fields.fields("metadata")) is not None:
            with metadata:
                if (user := metadata.text("user_id")) is not None:
                    made["user"] = user
        fields.one_of("service_tier", ("auto", "standard_only"))
        fields.one_of("speed", ("standard",), "send standard")
        _refuse_thread(fields)
        _read_context_management(fields)
        shows = _read_thinking(fields, made)
        _read_output(fields, made)
    known = frozenset(stop for stop in stops if isinstance(stop, str))
    return made, MessagesTranslation(MessageObject(f"msg_{_random().hex()}", made["model"], known, shows), places)


def counted(body: Any) -> tuple[dict[str, Any], MessagesTranslation]:
    """As `translated`, of a body of ``/v1/messages/count_tokens``: no more than the prompt counts."""
    with Fields(body, hints=NOT_OFFERED) as fields:
        made = _read_prompt(fields)
        places = made.pop("places")
        _read_context_management(fields)
        _read_thinking(fields, made)
        _read_output(fields, made)
        fields.one_of("speed", ("standard",), "send standard")
    made["max_tokens"] = 1  # what is reserved for the call
    return made, TokenCountTranslation(MessageObject("", made["model"]), places)


def _read_prompt(fields: Fields) -> dict[str, Any]:
    chat = ChatMessages()
    made: dict[str, Any] = {"model": fields.required_text("model")}
    read_messages(fields, chat)
    read_cache_control(fields)
    made["messages"] = chat.messages
    made["places"] = places = {**_RENAMED, **chat.places}
    _read_tools(fields, made, places)
    return made


def _read_tools(fields: Fields, made: dict[str, Any], places: dict[Place, Place]) -> None:
    tools: list[dict[str, Any]] = []
    for tool in fields.each("tools"):
        at = ("tools", len(tools), "function")
        places[at], places[*at, "parameters"] = tool.place, tool.at("input_schema")
        tools.append({"type": "function", "function": _function(tool)})
    if tools:
        made["tools"] = tools
    _read_tool_choice(fields, made, places)


def _function(tool: Fields) -> dict[str, Any]:
    if tool.text("type") not in (None, "custom"):
        raise refused(tool.at("type"), "no tools are hosted or predefined here", _LOCAL, UNSUPPORTED)
    read_cache_control(tool)
    function: dict[str, Any] = {"name": tool.required_text("name")}
    if (description := tool.text("description")) is not None:
        function["description"] = description
    function["parameters"] = tool.object("input_schema")
    if function["parameters"] is None:
        tool.wrong("input_schema", "it is missing", "add it", MISSING)
    if (strict := tool.flag("strict")) is not None:
        function["strict"] = strict
    tool.flag("eager_input_streaming")  # inputs are always streamed as they come
    tool.only("defer_loading", allowed=False, fix="leave it out; every tool is shown to the model")
    if tool.any("allowed_callers") not in (None, ["direct"]):
        tool.wrong("allowed_callers", "only the model calls tools here", 'send ["direct"]')
    return function


def _read_tool_choice(fields: Fields, made: dict[str, Any], places: dict[Place, Place]) -> None:
    tools = made.get("tools")
    if (choice := fields.fields("tool_choice")) is not None:
        with choice:
            kind = choice.one_of("type", ("auto", "any", "tool", "none"))
            if kind == "tool":
                made["tool_choice"] = {"type": "function", "function": {"name": choice.required_text("name")}}
                places["tool_choice", "function"] = ("tool_choice",)
            elif tools:
                made["tool_choice"] = {"any": "required", "none": "none"}.get(kind or "", "auto")
            elif kind == "any":
                choice.wrong("type", "there are no tools", "add tools, or send auto")
            if (single := choice.flag("disable_parallel_tool_use")) is not None and tools:
                made["parallel_tool_calls"] = not single


def _read_thinking(fields: Fields, made: dict[str, Any]) -> bool:
    """Whether the answer shows thoughts. A budget of thinking is not sent to a backend: `max_tokens` bounds all."""
    if (thinking := fields.fields("thinking")) is None:
        return True
    with thinking:
        kind = thinking.one_of("type", ("enabled", "adaptive", "between_tools", "disabled"))
        if kind == "enabled":
            thinking.whole_number("budget_tokens", 1)
        if kind == "disabled":
            made["reasoning_effort"] = "none"
            return False
        return thinking.one_of("display", ("summarized", "omitted")) != "omitted"


def _read_output(fields: Fields, made: dict[str, Any]) -> None:
    """``output_config``, and ``output_format`` as earlier versions have it."""
    form = fields.fields("output_format")
    if (output := fields.fields("output_config")) is not None:
        with output:
            if (effort := output.one_of("effort", EFFORTS)) is not None:
                made.setdefault("reasoning_effort", effort)
            form = output.fields("format") or form
    if form is not None:
        with form:
            form.one_of("type", ("json_schema",))
            if (schema := form.object("schema")) is None:
                form.wrong("schema", "it is missing", "add it", MISSING)
            made["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def _refuse_thread(fields: Fields) -> None:
    """By the code after which SDKs continue without it: no conversation is kept here."""
    if fields.any("thread") is not None:
        raise InvalidRequest(
            "thread: no conversation is kept here; send the whole of it in messages",
            param="thread",
            code="thread_unsupported_request",
        )


def _read_context_management(fields: Fields) -> None:
    """Edits that remove thoughts of earlier turns: chat templates show a model those that it is to see."""
    if (management := fields.fields("context_management")) is None:
        return
    with management:
        for edit in management.each("edits"):
            edit.one_of("type", ("clear_thinking_20251015",), "send the messages that the model is to see")
            if isinstance(keep := edit.any("keep"), dict):
                with Fields(keep, edit.at("keep")) as kept:
                    kept.one_of("type", ("all", "thinking_turns"))
                    kept.whole_number("value", 1)
            elif keep not in (None, "all"):
                edit.wrong("keep", "this value is not offered", "send all")
