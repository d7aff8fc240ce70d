from pathlib import Path
from typing import Any

import pytest

from tests.backend.scripted import MODEL, Scripted, refused, request

TALK = [{"role": "user", "content": "the rain in the sea 🙂"}]
TOOLS = [{"type": "function", "function": {"name": "now"}}]


@pytest.fixture
def backend(tmp_path: Path) -> Scripted:
    return Scripted(tmp_path, "qwen3")


async def post(backend: Scripted, path: str, **body: Any) -> dict[str, Any]:
    answer = await backend.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_text_is_told_in_tokens_and_back(backend: Scripted) -> None:
    text = "the rain — é🙂\n"
    found = await post(backend, "/tokenize", model=MODEL, prompt=text)
    assert found["count"] == len(found["tokens"]) > 3
    assert found["max_model_len"] == 4096
    assert found["token_strs"] is None
    assert (await post(backend, "/detokenize", tokens=found["tokens"])) == {"prompt": text}


async def test_a_conversation_is_told_in_the_tokens_that_an_answer_is_computed_from(backend: Scripted) -> None:
    backend.engine.says("x")
    for options in (
        {},
        {"tools": TOOLS},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"tools": TOOLS, "chat_template_kwargs": {"enable_thinking": False}},
    ):
        found = await post(backend, "/tokenize", messages=TALK, **options)
        await backend.http.post("/v1/chat/completions", json=request(messages=TALK, **options))
        assert found["tokens"] == backend.engine.asked[0].prompt


async def test_the_assistants_turn_is_opened_unless_that_is_not_wanted(backend: Scripted) -> None:
    opened = await post(backend, "/tokenize", messages=TALK)
    closed = await post(backend, "/tokenize", messages=TALK, add_generation_prompt=False)
    assert opened["tokens"][: closed["count"]] == closed["tokens"]
    assert opened["count"] > closed["count"]


async def test_tokens_are_spelled_on_request(backend: Scripted) -> None:
    found = await post(backend, "/tokenize", messages=TALK, return_token_strs=True)
    assert found["token_strs"][0] == "<|im_start|>"
    assert len(found["token_strs"]) == found["count"]


async def test_control_tokens_are_shown_by_their_spelling(backend: Scripted) -> None:
    tokens = (await post(backend, "/tokenize", messages=TALK))["tokens"]
    shown = (await post(backend, "/detokenize", tokens=tokens))["prompt"]
    assert shown == "<|im_start|>user\nthe rain in the sea 🙂<|im_end|>\n<|im_start|>assistant\n"


async def test_half_a_character_is_shown_as_missing_and_nothing_is_nothing(backend: Scripted) -> None:
    tokens = (await post(backend, "/tokenize", prompt="🙂"))["tokens"]
    assert (await post(backend, "/detokenize", tokens=tokens[:-1]))["prompt"] == "\ufffd"
    assert (await post(backend, "/detokenize", tokens=[]))["prompt"] == ""
    assert (await post(backend, "/tokenize", prompt=""))["tokens"] == []


async def test_nothing_is_handed_to_the_engine(backend: Scripted) -> None:
    await post(backend, "/tokenize", messages=TALK)
    assert backend.engine.asked == []


@pytest.mark.parametrize(
    ("path", "body", "param", "status"),
    [
        ("/tokenize", {}, "prompt", 400),
        ("/tokenize", {"prompt": "x", "messages": TALK}, "prompt", 400),
        ("/tokenize", {"prompt": 5}, "prompt", 400),
        ("/tokenize", {"messages": []}, "messages", 400),
        ("/tokenize", {"prompt": "x", "add_specials": True}, "add_specials", 400),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model", 404),
        ("/tokenize", {"messages": TALK, "tools": [{"type": "x"}]}, "tools[0]", 400),
        ("/tokenize", {"messages": TALK, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", 400),
        ("/detokenize", {}, "tokens", 400),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]", 400),
        ("/detokenize", {"tokens": [1 << 40]}, "tokens", 400),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]", 400),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model", 404),
    ],
)
async def test_a_bad_request_is_told_what_is_wrong_with_it(
    backend: Scripted, path: str, body: dict[str, Any], param: str, status: int
) -> None:
    with refused(await backend.http.post(path, json=body), param, status):
        pass
