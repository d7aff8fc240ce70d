"""What a chat model makes of a request, without an engine."""

from pathlib import Path
from typing import Any

import pytest

from backend.conversation import ChatModel, Turn
from backend.errors import ConfigError, InvalidRequest
from backend.wire import ChatCompletionRequest
from tests.backend.scripted import TEMPLATES, request, text_model

TOOLS = [{"type": "function", "function": {"name": "now"}}]


def turn(folder: Path, template: str, *, parsers: dict[str, str] | None = None, **body: Any) -> Turn:
    chats = ChatModel(text_model(folder, template), **(parsers or {}))
    return chats.turn(ChatCompletionRequest.model_validate(request(**body)))


@pytest.mark.parametrize("template", TEMPLATES)
def test_only_a_forced_call_has_a_grammar(template: str, tmp_path: Path) -> None:
    assert turn(tmp_path, template).grammar == ""
    assert turn(tmp_path, template, tools=TOOLS).grammar == ""
    assert "now" in turn(tmp_path, template, tools=TOOLS, tool_choice="required").grammar
    named = {"type": "function", "function": {"name": "now"}}
    assert "now" in turn(tmp_path, template, tools=TOOLS, tool_choice=named).grammar


@pytest.mark.parametrize(
    ("template", "options", "thinks"),
    [
        ("plain", {}, False),
        ("hermes", {}, False),
        ("qwen3", {}, True),
        ("qwen3", {"enable_thinking": False}, False),
        ("r1", {}, True),
    ],
)
def test_a_form_begins_behind_the_thoughts_where_there_are_any(
    template: str, options: dict[str, bool], thinks: bool, tmp_path: Path
) -> None:
    made = turn(tmp_path, template, chat_template_kwargs=options)
    assert made.thoughts_end == (made.text_model.tokenizer.token_to_id("</think>") if thinks else None)


def test_the_control_tokens_of_calls_are_text_only_where_calls_are_read(tmp_path: Path) -> None:
    assert turn(tmp_path, "mistral").text_model.control_token("[TOOL_CALLS]") is not None
    seeing = turn(tmp_path, "mistral", tools=TOOLS).text_model
    assert seeing.control_token("[TOOL_CALLS]") is None
    assert seeing.decode([seeing.tokenizer.token_to_id("[TOOL_CALLS]")]) == "[TOOL_CALLS]"


def test_a_plain_chat_is_not_interpreted_at_all(tmp_path: Path) -> None:
    assert turn(tmp_path, "plain").interpreter is None
    assert turn(tmp_path, "qwen3", parsers={"reasoning_parser": "none"}).interpreter is None
    assert turn(tmp_path, "plain", parsers={"reasoning_parser": "think"}).interpreter is not None


def test_the_format_can_be_said_where_the_template_says_another(tmp_path: Path) -> None:
    made = turn(tmp_path, "hermes", parsers={"tool_call_parser": "mistral"}, tools=TOOLS)
    assert len(made.call_id()) == 9


@pytest.mark.parametrize(
    ("parsers", "message"),
    [
        ({"tool_call_parser": "pythonic"}, "'pythonic' is not one of auto, none, hermes, llama3_json, mistral"),
        ({"reasoning_parser": "qwen3"}, "'qwen3' is not one of auto, none, think"),
    ],
)
def test_a_parser_that_does_not_exist_is_refused_at_the_start(
    parsers: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        ChatModel(text_model(tmp_path, "plain"), **parsers)


def test_a_model_without_a_template_has_no_chats(tmp_path: Path) -> None:
    model = text_model(tmp_path, "plain")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    from backend.models import tokenizer

    bare = ChatModel(tokenizer.from_folder(tmp_path))
    assert model.chat_template is not None
    with pytest.raises(InvalidRequest, match="no chat template"):
        bare.turn(ChatCompletionRequest.model_validate(request()))
