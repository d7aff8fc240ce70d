"""A body of ``/v1/responses`` as a chat body. Source: OpenAI API reference, Responses, create."""

from typing import Any, Final

from audit.random_pieces import RandomPieces
from gateway.api_format import CallState, GoesOn, Place, Storage, rename
from gateway.apis.body_fields import UNSUPPORTED, Fields, refused
from gateway.apis.chat_messages import ChatMessages
from gateway.apis.responses.input_items import read_input
from gateway.apis.responses.response_object import RESPONSE, ResponseObject
from gateway.apis.responses.translation import ResponsesTranslation
from gateway.errors import InvalidRequest

_random = RandomPieces(16)

ENCRYPTED: Final = "reasoning.encrypted_content"
LOGPROBS: Final = "message.output_text.logprobs"
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
MAX_METADATA: Final = 16
NOT_OFFERED: Final = {
    "context_management": "send the input that the model is to see",
    "conversation": "send previous_response_id, or the whole conversation in input",
    "moderation": "leave it out; the policy of the project decides what may pass",
    "prompt": "send the text of the prompt in instructions and input",
    "n": "send one request for each answer",
    "seed": "use /v1/chat/completions",
    "stop": "use /v1/chat/completions",
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "messages": "use input, or /v1/chat/completions",
    "response_format": "use text.format",
    "reasoning_effort": "use reasoning.effort",
    "functions": "use tools",
}
"""Members that are not offered, with what to use instead."""
_PASSED: Final = ("temperature", "top_p", "user", "safety_identifier")
"""Members that a chat has under the same name; the wire model checks them."""
_RENAMED: Final[dict[Place, Place]] = {
    ("max_tokens",): ("max_output_tokens",),
    ("response_format",): ("text", "format"),
    ("response_format", "json_schema"): ("text", "format"),
    ("reasoning_effort",): ("reasoning", "effort"),
    ("verbosity",): ("text", "verbosity"),
    ("logprobs",): ("top_logprobs",),
    ("messages",): ("input",),
}


def translated(body: Any, state: CallState) -> tuple[dict[str, Any], ResponsesTranslation]:
    """The chat body, and how the call is answered. Raises InvalidRequest; GoesOn where it names what is kept."""
    try:
        return _translated(body, state)
    except InvalidRequest as error:
        if state.earlier is not None:
            rename(error, state.earlier.place)
        raise


def _translated(body: Any, state: CallState) -> tuple[dict[str, Any], ResponsesTranslation]:
    secret = state.secret
    with Fields(body, hints=NOT_OFFERED) as fields:
        model = fields.required_text("model")
        made: dict[str, Any] = {"model": model}
        echo: dict[str, Any] = {"model": model}
        chat = ChatMessages()
        if (instructions := fields.text("instructions")) is not None:
            chat.add({"role": "system", "content": instructions}, ("instructions",), content=("instructions",))
            echo["instructions"] = instructions
        read_input(fields.any("input"), chat, secret)
        made["messages"] = chat.messages
        _read_stream(fields, made)
        _read_sampling(fields, made, echo)
        _read_text(fields, made, echo)
        _read_reasoning(fields, made, echo)
        places = {**_RENAMED, **chat.places}
        _read_tools(fields, made, echo, places)
        asked = _read_include(fields, made, echo)
        identifier = _random().hex() if state.response is None else state.response.removeprefix(RESPONSE)
        storage = _read_storage(fields, made, echo, state, RESPONSE + identifier)
    response = ResponseObject.of(identifier, echo, secret if ENCRYPTED in asked else None)
    return made, ResponsesTranslation(response, places, storage)


def _read_stream(fields: Fields, made: dict[str, Any]) -> None:
    if (stream := fields.flag("stream")) is not None:
        made["stream"] = stream
    if (options := fields.fields("stream_options")) is not None:
        with options:
            options.only("include_obfuscation", allowed=False, fix="send false; deltas are sent as long as they are")


def _read_sampling(fields: Fields, made: dict[str, Any], echo: dict[str, Any]) -> None:
    for name in _PASSED:
        if (value := fields.any(name)) is not None:
            made[name] = echo[name] = value
    if (most := fields.any("max_output_tokens")) is not None:
        made["max_tokens"] = echo["max_output_tokens"] = most
    if (metadata := fields.object("metadata")) is not None:
        if len(metadata) > MAX_METADATA or not all(isinstance(value, str) for value in metadata.values()):
            fields.wrong("metadata", "it is more than names and texts", f"send at most {MAX_METADATA} pairs of texts")
        made["metadata"] = echo["metadata"] = metadata
    fields.one_of("truncation", ("disabled",), "send disabled, and an input that fits the context of the model")
    fields.one_of("service_tier", ("auto", "default"))
    echo |= _given(  # without effect: a project has one prefix cache for all its calls, and no tools are hosted
        prompt_cache_key=fields.text("prompt_cache_key"),
        prompt_cache_retention=fields.one_of("prompt_cache_retention", ("in_memory", "24h")),
        max_tool_calls=fields.whole_number("max_tool_calls", 1),
    )
    fields.object("client_metadata")  # of Codex, about itself: it stays here


def _read_text(fields: Fields, made: dict[str, Any], echo: dict[str, Any]) -> None:
    echo["text"] = {"format": {"type": "text"}}
    if (text := fields.fields("text")) is None:
        return
    with text:
        if (verbosity := text.one_of("verbosity", ("low", "medium", "high"))) is not None:
            made["verbosity"] = echo["text"]["verbosity"] = verbosity
        if (form := text.fields("format")) is None:
            return
        with form:
            kind = form.one_of("type", ("text", "json_object", "json_schema"))
            if kind == "json_object":
                made["response_format"] = {"type": kind}
                echo["text"]["format"] = {"type": kind}
            elif kind == "json_schema":
                schema: dict[str, Any] = {"name": form.required_text("name"), "schema": form.object("schema")}
                if schema["schema"] is None:
                    form.wrong("schema", "it is missing", "add it", "missing_required_parameter")
                schema |= _given(description=form.text("description"), strict=form.flag("strict"))
                made["response_format"] = {"type": kind, "json_schema": schema}
                echo["text"]["format"] = {"type": kind, **schema}


def _read_reasoning(fields: Fields, made: dict[str, Any], echo: dict[str, Any]) -> None:
    echo["reasoning"] = {"effort": None, "summary": None}
    if (reasoning := fields.fields("reasoning")) is None:
        return
    with reasoning:
        if (effort := reasoning.one_of("effort", EFFORTS)) is not None:
            made["reasoning_effort"] = echo["reasoning"]["effort"] = effort
        whole = "send auto: the reasoning itself is in the answer"
        for name in ("summary", "generate_summary"):
            reasoning.one_of(name, ("auto",), whole)


def _read_tools(fields: Fields, made: dict[str, Any], echo: dict[str, Any], places: dict[Place, Place]) -> None:
    echo["tools"] = []
    tools: list[dict[str, Any]] = []
    for tool in fields.each("tools"):
        kind = tool.text("type", required=True)
        if kind != "function":
            raise refused(
                tool.at("type"), "no tools are hosted here", "send function tools, and run them yourself", UNSUPPORTED
            )
        function: dict[str, Any] = {"name": tool.required_text("name")}
        function |= _given(
            description=tool.text("description"), parameters=tool.object("parameters"), strict=tool.flag("strict")
        )
        tool.only("defer_loading", allowed=False, fix="leave it out; every tool is shown to the model")
        places["tools", len(tools), "function"] = tool.place
        tools.append({"type": "function", "function": function})
        echo["tools"].append({"type": "function", "parameters": None, "strict": None, **function})
    if tools:
        made["tools"] = tools
    parallel = fields.flag("parallel_tool_calls")
    echo["parallel_tool_calls"] = parallel is not False
    if parallel is not None:
        made["parallel_tool_calls"] = parallel
    echo["tool_choice"] = choice = fields.any("tool_choice") or "auto"
    if choice != "auto" or tools:
        made["tool_choice"] = _choice(choice, ("tool_choice",))
        places["tool_choice", "function"] = places["tool_choice", "allowed_tools"] = ("tool_choice",)
    if not tools and made.get("tool_choice") == "auto":
        del made["tool_choice"]


def _choice(choice: Any, place: Place) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    fix = "send auto, none, required, or an object of type function or allowed_tools"
    if not isinstance(choice, dict):
        raise refused(place, "this value is not offered", fix)
    with Fields(choice, place) as fields:
        kind = fields.text("type", required=True)
        if kind == "function":
            return {"type": "function", "function": {"name": fields.required_text("name")}}
        if kind == "allowed_tools":
            mode = fields.one_of("mode", ("auto", "required")) or "auto"
            named = []
            for tool in fields.each("tools"):
                tool.one_of("type", ("function",), "send function tools, and run them yourself")
                named.append({"type": "function", "function": {"name": tool.required_text("name")}})
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
        fields.wrong("type", "this value is not offered", fix)


def _read_include(fields: Fields, made: dict[str, Any], echo: dict[str, Any]) -> frozenset[str]:
    asked = set()
    for position, name in enumerate(fields.items("include")):
        if name not in (ENCRYPTED, LOGPROBS):
            raise refused(("include", position), "this is not offered", f"send {ENCRYPTED} or {LOGPROBS}")
        asked.add(name)
    top = fields.any("top_logprobs")
    echo["top_logprobs"] = top or 0
    if LOGPROBS in asked or top:
        made["logprobs"] = True
        if top is not None:
            made["top_logprobs"] = top
    return frozenset(asked)


def _read_storage(
    fields: Fields, made: dict[str, Any], echo: dict[str, Any], state: CallState, response: str
) -> Storage:
    """What is to be kept of the call. Raises GoesOn where it continues a response whose items are not there yet."""
    wanted, background = fields.flag("store"), bool(fields.flag("background"))
    if fields.has("previous_response_id"):
        fields.identifier("previous_response_id")
        raise GoesOn
    if background:
        if wanted is False:
            fields.wrong("store", "a response in the background is kept until it is asked for", "leave it out")
        if made.get("stream"):
            fix = "leave stream out, and ask for it with GET /v1/responses/{id}"
            fields.wrong("stream", "a response in the background is not streamed", fix, UNSUPPORTED)
        echo["background"] = wanted = True
    if state.earlier is not None:
        echo["previous_response_id"] = state.earlier.response
    return Storage(response, wanted, state.earlier, background)


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
