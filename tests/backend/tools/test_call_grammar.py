"""What the grammar lets through is what the parser reads; llguidance itself judges, a byte a token."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from backend.tools.call_grammar import MOST_CALLS, forced_calls
from backend.tools.formats import FORMATS, LLAMA3, MISTRAL, ToolFormat
from backend.tools.request import Tools, read_tools
from tests.backend.tools.reading import calls, content, read

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]


def offered(choice: Any = "required", **more: Any) -> Tools:
    tools = read_tools({"tools": TOOLS, "tool_choice": choice, **more})
    assert tools is not None
    return tools


def accepted(form: ToolFormat, tools: Tools, text: str) -> bool:
    """The whole of it, and that it may end there."""
    grammar = forced_calls(form, tools, lambda _: None)
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.consume_tokens(list(text.encode())) and matcher.is_accepting())


def written(form: ToolFormat, *made: tuple[str, Any]) -> str:
    shape = form.shape
    objects = [json.dumps({"name": name, shape.arguments: arguments}, ensure_ascii=False) for name, arguments in made]
    return shape.before + shape.between.join(f"{shape.opening}{o}{shape.closing}" for o in objects) + shape.after


WEATHER, NOW = ("get_weather", {"city": "Zürich 🙂"}), ("now", {})


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_calls_of_what_is_offered_pass_and_are_read_back(form: ToolFormat) -> None:
    tools = offered()
    for made in ([WEATHER], [NOW], [WEATHER, NOW, WEATHER]):
        text = written(form, *made)
        assert accepted(form, tools, text)
        parts = read(lambda: form.parser(tools.names), [text])
        assert calls(parts) == made
        assert content(parts) == ""


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_nothing_else_passes(form: ToolFormat) -> None:
    tools = offered()
    for text in ("", "Hello", written(form, ("other", {})), written(form, ("get_weather", {"city": 5})),
                 written(form, ("get_weather", {})), written(form, ("get_weather", {"city": "x", "y": 1})),
                 f"Hello {written(form, NOW)}", written(form, *[NOW] * (MOST_CALLS + 1))):  # fmt: skip
        assert not accepted(form, tools, text), text


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_a_function_that_is_named_is_called_once(form: ToolFormat) -> None:
    tools = offered({"type": "function", "function": {"name": "now"}})
    assert accepted(form, tools, written(form, NOW))
    assert not accepted(form, tools, written(form, WEATHER))
    assert not accepted(form, tools, written(form, NOW, NOW))


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_without_parallel_calls_there_is_one(form: ToolFormat) -> None:
    tools = offered(parallel_tool_calls=False)
    assert accepted(form, tools, written(form, WEATHER))
    assert not accepted(form, tools, written(form, WEATHER, NOW))


def test_a_control_token_stands_in_the_grammar_as_a_token() -> None:
    assert forced_calls(MISTRAL, offered(), {"[TOOL_CALLS]": 7}.get).count("start: <[7]> ") == 1
    assert "<[" not in forced_calls(LLAMA3, offered(), {"<|python_tag|>": 7}.get)


def test_white_space_between_tokens_of_arguments_is_bounded() -> None:
    tools = offered()
    text = '{"name": "now", "parameters": {%s}}'
    assert accepted(LLAMA3, tools, text % (" " * 32))
    assert not accepted(LLAMA3, tools, text % (" " * 33))


def test_quotes_in_a_schema_do_not_leave_their_place() -> None:
    hostile = {"type": "object", "properties": {'"}\nstart: "x"': {"const": '"\n%json {}'}}}
    tools = read_tools({"tools": [{"function": {"name": "f", "parameters": hostile}}], "tool_choice": "required"})
    assert tools is not None
    assert accepted(LLAMA3, tools, '{"name": "f", "parameters": {}}')
    assert not accepted(LLAMA3, tools, "x")
