"""Every parameter that OpenAI's SDK or vLLM knows is acted upon, says nothing of the answer, or is refused by name."""

from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params as of_completions
from openai.types.chat import completion_create_params as of_chats

from backend.chat.unsupported import IGNORED, NEUTRAL, OF_CHATS, refuse_unsupported
from backend.errors import InvalidRequest
from backend.wire import ChatCompletionRequest, CompletionRequest, GenerationRequest
from tests.backend.scripted import Scripted, refused, request

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "x"}
VLLM = [
    "add_generation_prompt", "add_special_tokens", "allowed_token_ids", "bad_words", "best_of", "cache_salt",
    "chat_template", "chat_template_kwargs", "continue_final_message", "documents", "echo", "guided_choice",
    "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex", "guided_whitespace_pattern",
    "ignore_eos", "include_reasoning", "include_stop_str_in_output", "kv_transfer_params", "length_penalty",
    "logits_processors", "min_p", "min_tokens", "mm_processor_kwargs", "priority", "prompt_logprobs",
    "repetition_penalty", "request_id", "return_token_ids", "return_tokens_as_token_ids", "skip_special_tokens",
    "spaces_between_special_tokens", "stop_token_ids", "structured_outputs", "top_k", "truncate_prompt_tokens",
    "use_beam_search", "vllm_xargs",
]  # fmt: skip


def known(kind: type[GenerationRequest]) -> set[str]:
    return set(kind.model_fields) | IGNORED | set(NEUTRAL) | (OF_CHATS if kind is ChatCompletionRequest else set())


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
def test_no_parameter_of_the_sdk_or_of_vllm_is_unheard_of(kind: type[GenerationRequest]) -> None:
    sdk = of_chats if kind is ChatCompletionRequest else of_completions
    names = {*sdk.CompletionCreateParamsBase.__annotations__, *VLLM}
    if kind is CompletionRequest:
        names -= {*OF_CHATS, "add_generation_prompt", "continue_final_message"}  # of conversations alone
    assert len(names) > 40
    assert names - known(kind) == set()


def asked(endpoint: str, name: str, value: Any) -> GenerationRequest:
    if endpoint == "chat":
        return ChatCompletionRequest.model_validate({**CHAT, name: value})
    return CompletionRequest.model_validate({**COMPLETION, name: value})


@pytest.mark.parametrize("endpoint", ["chat", "completion"])
@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_what_is_not_supported_is_refused_by_name_unless_it_asks_for_nothing(endpoint: str, name: str) -> None:
    chat = endpoint == "chat"
    if name in (ChatCompletionRequest if chat else CompletionRequest).model_fields or (chat and name in OF_CHATS):
        refuse_unsupported(asked(endpoint, name, None))
        return
    for value in (*NEUTRAL[name], None):
        refuse_unsupported(asked(endpoint, name, value))
    for value in ("something else", True, 3.5, [1]):
        with pytest.raises(InvalidRequest, match=name) as error:
            refuse_unsupported(asked(endpoint, name, value))
        assert (error.value.param, error.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("endpoint", ["chat", "completion"])
def test_what_nobody_knows_is_refused_by_name_too(endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="tempreature") as error:
        refuse_unsupported(asked(endpoint, "tempreature", 0))
    assert error.value.code == "unknown_parameter"


async def test_what_says_nothing_of_the_answer_changes_nothing(tmp_path: Path) -> None:
    backend = Scripted(tmp_path, "plain")
    backend.engine.says("the sea")
    plain = await backend.chat()
    asked_for = backend.engine.asked
    harmless = {name: "x" for name in IGNORED} | {
        "metadata": {"a": "b"}, "parallel_tool_calls": True, "store": True, "verbosity": "medium",
        "prediction": {"type": "content", "content": "the sea"}, "stream_options": {"include_obfuscation": False},
    }  # fmt: skip
    assert await backend.chat(seed=1, **harmless) == plain
    assert backend.engine.asked[0].prompt == asked_for[0].prompt


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a word without letters": ({"bad_words": ["x", ""]}, "bad_words[1]"),
    "words that are a word": ({"bad_words": "x"}, "bad_words"),
    "too many words": ({"bad_words": ["x"] * 513}, "bad_words"),
    "no allowed token": ({"allowed_token_ids": []}, "allowed_token_ids"),
    "an allowed token that is none": ({"allowed_token_ids": [5, 99_999]}, "allowed_token_ids"),
    "a negative token": ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
    "too many tokens": ({"allowed_token_ids": [5] * 8193}, "allowed_token_ids"),
    "a prompt cut to nothing": ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    "a prompt cut to less": ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    "both turns": ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    "a user's words continued": ({"continue_final_message": True}, "continue_final_message"),
    "token ids in the answer": ({"return_token_ids": True}, "return_token_ids"),
    "an effort that is none": ({"reasoning_effort": "utmost"}, "reasoning_effort"),
    "an effort of a model that does not think": ({"reasoning_effort": "high"}, "reasoning_effort"),
    "brevity": ({"verbosity": "low"}, "verbosity"),
    "a template of the caller's": ({"chat_template": "{{ messages }}"}, "chat_template"),
    "beams": ({"use_beam_search": True}, "use_beam_search"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_cannot_be_done_is_told_by_name(name: str, tmp_path: Path) -> None:
    body, param = BAD[name]
    backend = Scripted(tmp_path, "plain")
    with refused(await backend.http.post("/v1/chat/completions", json=request(**body)), param) as message:
        assert message
    assert backend.engine.asked == []
