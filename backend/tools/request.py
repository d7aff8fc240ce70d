"""Tools in a request: those it offers, and whether the answer has to call one (OpenAI API reference)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.errors import InvalidRequest
from backend.wire import JsonObject

MAX_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
ANYTHING: JsonObject = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tools:
    """The functions on offer.

    Attributes:
        definitions: as they came, for the chat template. parameters: a JSON schema, of each function that may be
            called, by name.
        forced: names of which one has to be called; empty: as the model likes.
        parallel: several calls in one answer are welcome.
    """

    definitions: list[JsonObject]
    parameters: dict[str, JsonObject]
    forced: tuple[str, ...] = ()
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.parameters)


def read_tools(extra: Mapping[str, Any]) -> Tools | None:
    """From a request's fields; None where no tool may be called. Raises InvalidRequest naming the field."""
    tools, choice = extra.get("tools"), extra.get("tool_choice")
    parallel = extra.get("parallel_tool_calls")
    if parallel is not None and not isinstance(parallel, bool):
        raise InvalidRequest("parallel_tool_calls is not a boolean; send true or false", param="parallel_tool_calls")
    if not tools:
        _refuse_choice_of_none(tools, choice)
        return None
    parameters = _parameters(tools)
    several = parallel is not False
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        names, must = _allowed(choice.get("allowed_tools"), parameters)
        return Tools(tools, {name: parameters[name] for name in names}, names if must else (), several)
    forced = _forced(choice, parameters)
    if forced is None:
        return None
    return Tools(tools, parameters, forced, several and not isinstance(choice, dict))


def _refuse_choice_of_none(tools: Any, choice: Any) -> None:
    """Raises InvalidRequest if a request without tools asks for one, or if ``tools`` is not a list."""
    if tools not in (None, []):
        raise InvalidRequest("tools is not a list; send a list of functions", param="tools")
    if choice not in (None, "none", "auto"):
        raise InvalidRequest(
            "tool_choice asks for a tool, and there are none; send tools, or leave tool_choice out", param="tool_choice"
        )


def _parameters(tools: Any) -> dict[str, JsonObject]:
    """The JSON schema of each function's parameters, by name. Raises InvalidRequest for a malformed list."""
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools is not a list of at most {MAX_TOOLS} functions; send one", param="tools")
    parameters: dict[str, JsonObject] = {}
    for i, tool in enumerate(tools):
        name, schema = _function(tool, f"tools[{i}]")
        if name in parameters:
            raise InvalidRequest("two tools have this name; rename one of them", param=f"tools[{i}].function.name")
        parameters[name] = schema
    return parameters


def _allowed(described: Any, parameters: Mapping[str, JsonObject]) -> tuple[tuple[str, ...], bool]:
    """Return the tools that ``tool_choice`` allows: their names, and whether one has to be called."""
    at = "tool_choice.allowed_tools"
    match described:
        case {"mode": "auto" | "required" as mode, "tools": list(entries)} if entries:
            names = []
            for i, entry in enumerate(entries):
                match entry:
                    case {"type": "function", "function": {"name": str(name)}} if name in parameters:
                        names.append(name)
                    case _:
                        raise InvalidRequest(
                            "this function is not among the tools; name one of tools", param=f"{at}.tools[{i}]"
                        )
            return tuple(dict.fromkeys(names)), mode == "required"
    raise InvalidRequest(
        "the allowed tools are incomplete; send a mode (auto or required) and a list of tools", param=at
    )


def _function(tool: Any, at: str) -> tuple[str, JsonObject]:
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise InvalidRequest("a tool is not a function; send an object of type function", param=at)
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidRequest("the tool has no function; describe one in its member function", param=f"{at}.function")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequest(
            f"a name of a function has other characters; use a name that matches {NAME.pattern}",
            param=f"{at}.function.name",
        )
    if not isinstance(function.get("description") or "", str):
        raise InvalidRequest("a description is not text; send a string", param=f"{at}.function.description")
    schema = function.get("parameters")
    if schema is not None and not isinstance(schema, dict):
        raise InvalidRequest("the parameters are not an object; send a JSON schema", param=f"{at}.function.parameters")
    return name, schema or ANYTHING


def _forced(choice: Any, parameters: Mapping[str, JsonObject]) -> tuple[str, ...] | None:
    """None: no call is wanted."""
    match choice:
        case "none":
            return None
        case None | "auto":
            return ()
        case "required":
            return tuple(parameters)
        case {"type": "function", "function": {"name": str(name)}}:
            if name not in parameters:
                raise InvalidRequest(
                    "this function is not among the tools; name one of tools", param="tool_choice.function.name"
                )
            return (name,)
    raise InvalidRequest(
        "tool_choice is not known; send none, auto, required, a function's name or allowed_tools", param="tool_choice"
    )


def for_template(message: JsonObject) -> JsonObject:
    """A message of the conversation so far as chat templates want it: a call's arguments are what their JSON says."""
    calls = message.get("tool_calls")
    if not calls:
        return {name: value for name, value in message.items() if name != "tool_calls"}
    return {**message, "tool_calls": [_for_template(call) for call in calls]}


def _for_template(call: JsonObject) -> JsonObject:
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call
