import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import CHAT, COMPLETIONS, EMBEDDINGS

GOOD = {"model": "m", "messages": [{"role": "user", "content": "my secret is 4711"}]}


def refusal(body, endpoint=CHAT):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(InvalidRequest) as caught:
        parse_call(endpoint, raw)
    return caught.value


def test_a_good_call_keeps_fields_nobody_here_knows():
    call = parse_call(CHAT, json.dumps({**GOOD, "guided_json": {"type": "object"}, "top_k": 5}).encode())
    assert call.body["guided_json"] == {"type": "object"}
    assert (call.model, call.stream, call.most_tokens(7)) == ("m", False, 7)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"model": ""}, "model"),
        ({"stop": ["a"] * 17}, "stop"),
    ],
)
def test_a_wrong_field_is_named(change, param):
    error = refusal({**GOOD, **change})
    assert error.param == param
    assert error.http_status == 400
    assert "4711" not in error.message


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"model": "m", "messages": [', b"\xff\xfe", b'{"model":"\xff"}', b"[]", b"null", b'"x"', b"nul"],
)
def test_what_is_not_a_json_object_is_refused(raw):
    assert refusal(raw).http_status == 400


def test_a_lone_surrogate_is_refused_and_never_replaced():
    refusal(b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}')


def test_a_missing_field_is_named():
    assert refusal({"model": "m"}).param == "messages"
    assert refusal({"model": "m"}, COMPLETIONS).param == "prompt"


def test_nesting_without_end_is_refused_not_a_crash():
    deep = b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    refusal(deep)


def test_the_leading_text_is_the_start_of_the_prompt():
    assert parse_call(CHAT, json.dumps(GOOD).encode()).leading_text == "usermy secret is 4711"
    assert parse_call(COMPLETIONS, b'{"model":"m","prompt":"Once"}').leading_text == "Once"


IDS = st.lists(st.integers(0, 9), min_size=1, max_size=4)
SIZES = st.none() | st.integers(1, 5000)
PROMPTS = st.one_of(
    st.text(max_size=3),
    st.lists(st.text(max_size=3), min_size=1, max_size=4),
    IDS,
    st.lists(IDS, min_size=1, max_size=4),
)


def generated(path, body, default):
    """What a server generates at most for `body`, by OpenAI's and vLLM's references; whichever bound it obeys."""
    bounds = [body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None]
    each = max(max(bounds) if bounds else default, body.get("min_tokens") or 0)
    prompt = body.get("prompt", "")
    prompts = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    return each * max(body.get("n") or 1, body.get("best_of") or 1) * prompts if path != EMBEDDINGS else 0


COUNTS = st.none() | st.integers(1, 8)


@given(prompt=PROMPTS, most=SIZES, newer=SIZES, least=SIZES, n=COUNTS, best_of=COUNTS)
def test_what_is_reserved_covers_what_the_body_makes_a_server_generate(prompt, most, newer, least, n, best_of):
    given_fields = {
        "max_tokens": most, "max_completion_tokens": newer, "min_tokens": least, "n": n, "best_of": best_of,
    }  # fmt: skip
    for endpoint in (CHAT, COMPLETIONS):
        known = {name: value for name, value in given_fields.items() if name in endpoint.request_type.model_fields}
        body = {"model": "m", **({**GOOD} if endpoint is CHAT else {"prompt": prompt}), **known}
        call = parse_call(endpoint, json.dumps(body).encode())
        assert call.most_tokens(512) == generated(endpoint, body, 512)
        one_each = {**body, "max_tokens": 1, "max_completion_tokens": None, "min_tokens": None, "best_of": None}
        assert call.choices == generated(endpoint, one_each, 1)


@pytest.mark.parametrize(
    ("endpoint", "field", "value"),
    [
        (COMPLETIONS, "max_completion_tokens", 1),
        (COMPLETIONS, "max_completion_tokens", -1_000_000),
        (EMBEDDINGS, "max_completion_tokens", 5),
        (CHAT, "n_predict", 100_000),
        (CHAT, "max_new_tokens", 100_000),
        (CHAT, "n_cmpl", 50),
        (CHAT, "best_of", 20),
        (CHAT, "use_beam_search", True),
        (COMPLETIONS, "max_output_tokens", 10),
        (CHAT, "min_new_tokens", 10_000),
        (COMPLETIONS, "min_length", 10_000),
        (EMBEDDINGS, "num_generations", 3),
        (CHAT, "MAX_TOKENS", 100_000),
        (CHAT, "maxTokens", 100_000),
        (CHAT, "Max-Completion-Tokens", 100_000),
        (COMPLETIONS, "N", 50),
        (CHAT, "candidate_count", 50),
        (CHAT, "beam_width", 50),
        (COMPLETIONS, "ignoreEos", True),
    ],
)
def test_a_length_under_another_name_is_refused_by_name_and_not_forwarded(endpoint, field, value):
    body = {"model": "m", **BODY[endpoint], "max_tokens": 5, field: value}
    error = refusal(body, endpoint)
    assert (error.http_status, error.param, error.code) == (400, field, "unsupported_parameter")
    parse_call(endpoint, json.dumps({**body, field: None}).encode())


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, EMBEDDINGS])
@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("generation_config", '{"max_new_tokens": 100000}', "generation_config.max_new_tokens"),
        ("generation_config", '{"min_\\u006eew_tokens": 100000}', "generation_config.min_new_tokens"),
        ("generation_config", {"num_return_sequences": 50}, "generation_config.num_return_sequences"),
        ("extra_body", {"google": {"x": [{"maxOutputTokens": 9}]}}, "extra_body.google.x.0.maxOutputTokens"),
        ("extra_body", {"max_tokens": 100_000}, "extra_body.max_tokens"),
        ("options", {"num_predict": -1}, "options.num_predict"),
        ("parameters", {"max_new_tokens": 10, "best_of": 4}, "parameters.max_new_tokens"),
        ("sampling_params", [{"n": 10}], "sampling_params.0.n"),
        ("nvext", {"ignore_eos": True}, "nvext.ignore_eos"),
        ("samplingParams", {"MaxTokens": 10}, "samplingParams.MaxTokens"),
        ("ExtraBody", {"max_tokens": 10}, "ExtraBody.max_tokens"),
    ],
)
def test_a_length_inside_of_another_servers_parameters_is_refused_by_its_path(endpoint, field, value, named):
    error = refusal({"model": "m", **BODY[endpoint], field: value}, endpoint)
    assert (error.http_status, error.param, error.code) == (400, named, "unsupported_parameter")
    assert named in str(error)


@pytest.mark.parametrize(
    "more",
    [
        {"extra_body": {"google": {"thinking_config": {"include_thoughts": True}}}},
        {"generation_config": '{"temperature": 0.2, "max_new_tokens": null}'},
        {"options": {"num_ctx": 4096, "ignore_eos": False}},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {}}}}}]},
        {"chat_template_kwargs": {"n": 3}, "metadata": {"max_tokens": "9"}},
    ],
)
def test_what_does_not_raise_how_much_is_generated_is_left_alone(more):
    assert parse_call(CHAT, json.dumps({**GOOD, **more}).encode()).most_tokens(512) == 512


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 9000}}, 9000),
        ({"thinking": {"type": "enabled", "token_budget": 9000}}, 9000),
        ({"thinking_token_budget": 9000}, 9000),
        ({"thinkingTokenBudget": 9000.0}, 9000),
        ({"thinking_budget_tokens": "9000"}, 9000),
        ({"enable_thinking": True, "thinking_budget": 9000}, 9000),
        ({"reasoning_budget": 9000, "thinking_budget": 8000}, 9000),
        ({"reasoning": {"max_tokens": 9000, "effort": "high"}}, 9000),
        ({"reasoning_effort": 9000}, 9000),
        ({"reasoning_effort": "high", "reasoning": {"effort": "low"}}, 0),
        ({"nvext": {"max_thinking_tokens": 9000}}, 9000),
        ({"extra_body": {"google": {"thinking_config": {"thinking_budget": 9000, "include_thoughts": True}}}}, 9000),
        ({"google": {"thinkingConfig": {"thinkingBudget": 9000}}}, 9000),
        ({"extra_body": {"reasoning": {"max_tokens": 9000}}}, 9000),
        ({"extra_body": '{"thinking": {"budget_tokens": 9000}}'}, 9000),
        ({"generation_config": '{"thinkingConfig": {"thinkingBudget": 9000}}'}, 9000),
        ({"chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 9000}}, 9000),
        ({"custom_params": [{"thinking_budget": 9000}]}, 9000),
        ({"google": {"thinking_config": {"thinking_budget": -1}}}, 512),  # as much as the model likes
        ({"google": {"thinking_config": {"thinking_budget": -1}}, "thinking_budget": 9000}, 9000),
        ({"thinking_budget": 10**400}, 2**31 - 1 - 100),
        ({"thinking_budget": "1e400"}, 2**31 - 1 - 100),
        ({"thinking_budget": "-1e400", "reasoning_budget": "nan"}, 512),
        ({"thinking_budget": None, "thinking": "auto", "reasoning": True}, 0),
        ({"metadata": {"thinking_budget": "9000"}, "user": "thinking"}, 0),
        ({"tools": [{"type": "function", "function": {"name": "thinking", "parameters": {"maxLength": 9}}}]}, 0),
    ],
)
def test_a_budget_of_thinking_in_any_servers_spelling_is_reserved_beside_the_answer(more, tokens):
    call = parse_call(CHAT, json.dumps({**GOOD, "max_tokens": 100, "n": 1, **more}).encode())
    assert call.most_tokens(512) == 100 + tokens
    call = parse_call(CHAT, json.dumps({**GOOD, "n": 3, **more}).encode())
    assert call.most_tokens(512) == 3 * min(512 + tokens, 2**31 - 1)


def test_a_budget_of_thinking_is_nothing_where_nothing_is_generated():
    body = {"model": "m", "input": "x", "thinking_budget": 9000}
    assert parse_call(EMBEDDINGS, json.dumps(body).encode()).thinking_budgets == ()


@pytest.mark.parametrize("value", ["{", "x", "[" * 100_000, "", '{"a": NaN}'])
def test_parameters_of_another_server_that_cannot_be_read_are_refused_by_name(value):
    assert refusal({**GOOD, "generation_config": value}).param in ("generation_config", None)


def test_parameters_in_a_text_are_bounded_as_a_body_is():
    refusal({**GOOD, "generation_config": "[" + "{}," * 20_000 + "{}]"})


BODY = {CHAT: {"messages": GOOD["messages"]}, COMPLETIONS: {"prompt": "x"}, EMBEDDINGS: {"input": "x"}}


@pytest.mark.parametrize("endpoint", [COMPLETIONS, EMBEDDINGS])
@pytest.mark.parametrize("messages", [5, ["a"], [{}], None, [{"role": "user", "content": "x" * 99}]])
def test_a_field_of_another_endpoint_is_never_read(endpoint, messages):
    call = parse_call(endpoint, json.dumps({"model": "m", **BODY[endpoint], "messages": messages}).encode())
    assert (call.leading_text, call.choices) == ("x", 1)


def test_prompts_of_token_ids_are_counted_as_tokens():
    assert parse_call(COMPLETIONS, b'{"model":"m","prompt":[1,1,1,1]}').request.prompt_ids == 4
    assert parse_call(EMBEDDINGS, b'{"model":"m","input":[[1,1],[1]]}').request.prompt_ids == 3
    assert parse_call(COMPLETIONS, b'{"model":"m","prompt":["1","1"]}').request.prompt_ids == 0


def test_a_length_beyond_any_server_is_reserved_as_the_most_there_can_be():
    call = parse_call(CHAT, json.dumps({**GOOD, "max_tokens": 10**400, "n": 128}).encode())
    assert call.most_tokens(512) == (2**31 - 1) * 128


PHOTO = "data:image/png;base64," + "A" * 3000
PROMPTS = [
    (CHAT, {"messages": [{"role": "user", "content": "hello"}]}, 5),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}], "temperature": 0.5}, 5),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "hello"}, {"type": "image_url", "image_url": {"url": PHOTO}},
        {"type": "input_audio", "input_audio": {"data": "A" * 3000, "format": "wav"}}]}]}, 8),
    (CHAT, {"messages": [{"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]}, 3),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [
        {"type": "function", "function": {"name": "f", "description": "doc"}}], "stop": ["long text"]}, 5),
    (COMPLETIONS, {"prompt": ["one", "three"]}, 8),
    (COMPLETIONS, {"prompt": [1, 2, 3]}, 0),
    (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "body", "characters"), PROMPTS)
def test_the_size_of_a_prompt_is_that_of_its_text_and_not_of_its_json(endpoint, body, characters):
    call = parse_call(endpoint, json.dumps({"model": "small", **body}).encode())
    assert call.prompt_characters == characters
