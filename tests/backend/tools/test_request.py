"""What a request says of tools, and how earlier calls go to a template."""

from typing import Any

import pytest

from backend.errors import InvalidRequest
from backend.tools.request import ANYTHING, for_template, read_tools
from backend.tools.teaching import as_text, with_tools

NOW = {"type": "function", "function": {"name": "now"}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "required": ["a"]}}}


def test_what_is_not_said_takes_its_usual_value() -> None:
    tools = read_tools({"tools": [NOW, ADD]})
    assert tools is not None
    assert (tools.forced, tools.parallel) == ((), True)
    assert tools.parameters == {"now": ANYTHING, "add": ADD["function"]["parameters"]}  # type: ignore[index]


@pytest.mark.parametrize("extra", [{}, {"tools": []}, {"tools": None}, {"tools": [NOW], "tool_choice": "none"}])
def test_nothing_is_offered(extra: dict[str, Any]) -> None:
    assert read_tools(extra) is None


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("auto", ()),
        ("required", ("now", "add")),
        ({"type": "function", "function": {"name": "add"}}, ("add",)),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [ADD, ADD]}}, ("add",)),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}}, ()),
    ],
)
def test_a_call_may_be_forced(choice: Any, forced: tuple[str, ...]) -> None:
    tools = read_tools({"tools": [NOW, ADD], "tool_choice": choice})
    assert tools is not None
    assert tools.forced == forced


@pytest.mark.parametrize(
    "choice",
    ["Auto", "", 1, [], {"type": "function"}, {"type": "function", "function": {}}, {"type": "custom"}],
)
def test_a_choice_that_is_not_known_is_refused(choice: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_tools({"tools": [NOW], "tool_choice": choice})
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("described", "place"),
    [
        (None, ""),
        ({"mode": "auto"}, ""),
        ({"mode": "auto", "tools": []}, ""),
        ({"mode": "none", "tools": [NOW]}, ""),
        ({"mode": "auto", "tools": [NOW, ADD]}, ".tools[1]"),
        ({"mode": "required", "tools": ["now"]}, ".tools[0]"),
        ({"mode": "required", "tools": [{"type": "custom", "custom": {"name": "now"}}]}, ".tools[0]"),
    ],
)
def test_allowed_tools_that_are_none_are_refused(described: Any, place: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_tools({"tools": [NOW], "tool_choice": {"type": "allowed_tools", "allowed_tools": described}})
    assert refused.value.param == f"tool_choice.allowed_tools{place}"


def call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("written", "given"),
    [('{"a": [1]}', {"a": [1]}), ("", {}), (None, {}), ("not json", "not json"), ("[1]", "[1]"), ('"x"', '"x"')],
)
def test_arguments_of_earlier_calls_are_what_their_json_says_or_stay_as_they_are(written: Any, given: Any) -> None:
    message = call(written)
    assert for_template(message)["tool_calls"][0]["function"]["arguments"] == given
    assert message == call(written)


def test_an_empty_list_of_calls_is_none() -> None:
    assert for_template({"role": "assistant", "content": "x", "tool_calls": []}) == {
        "role": "assistant",
        "content": "x",
    }


def test_a_template_without_tools_is_told_of_them_in_the_system_turn() -> None:
    said = with_tools([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}], [NOW])
    assert [m["role"] for m in said] == ["system", "user"]
    assert said[0]["content"].startswith("Be brief.\n\n")
    assert '{"name": "now"}' in said[0]["content"]
    assert [m["role"] for m in with_tools([{"role": "user", "content": "x"}], [NOW])] == ["system", "user"]


def test_for_such_a_template_calls_and_results_are_text() -> None:
    written = as_text(for_template(call('{"a": 1}')))
    assert written["content"] == '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert "tool_calls" not in written
    assert as_text({"role": "tool", "content": "12", "tool_call_id": "1"})["role"] == "user"
    assert as_text({"role": "user", "content": "x"}) == {"role": "user", "content": "x"}
