"""The tables of docs/api.md about other APIs, against the SDKs' own lists of parameters and events, and the code."""

import json
import re
import typing

import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.beta import message_create_params as beta_messages
from openai.types import completion_create_params as completions
from openai.types import embedding_create_params as embeddings
from openai.types.chat import completion_create_params
from openai.types.responses import ResponseStreamEvent, response_create_params

from gateway.api_format import CallState, GoesOn
from gateway.apis.endpoints import MESSAGES, RESPONSES
from gateway.errors import InvalidRequest
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import CHAT, COMPLETIONS, EMBEDDINGS
from tests.test_docs import TREE

PAGE = (TREE / "docs/api.md").read_text(encoding="utf-8")
GOOD = {
    RESPONSES: {"model": "m", "input": "x"},
    MESSAGES: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
}
OURS = {"betas", "output_format", "temperature", "top_p", "top_k"}
"""``betas`` of the SDK goes into a header; the others are of earlier versions of the API."""
BY_NAME = ("unsupported_parameter", "thread_unsupported_request")


def table(heading, part):
    """First cell to second of the table that begins with `heading`, in the part of the page about one API."""
    text = PAGE[PAGE.index(f"\n### {part}\n") :]
    rows = text[text.index(f"| {heading} |") :].split("\n\n", 1)[0].split("\n")[2:]
    return {name: taken for row in rows for cells in [row.strip("| ").split(" | ")] for name, taken in [cells[:2]]}


def parameters(endpoint):
    part = "Responses" if endpoint is RESPONSES else "Messages"
    return {name.strip("`"): taken for name, taken in table(f"parameter of `{endpoint.path}`", part).items()}


def error(endpoint, **more):
    try:
        parse_call(endpoint, json.dumps(GOOD[endpoint] | more).encode(), CallState(bytes(32)))
    except InvalidRequest as refused:
        return refused
    except GoesOn:  # it names what is kept
        return None
    return None


def test_every_parameter_of_the_official_sdks_is_in_the_tables():
    responses = typing.get_type_hints(response_create_params.ResponseCreateParamsBase).keys() | {"stream"}
    assert parameters(RESPONSES).keys() == responses | {"client_metadata"}, "which Codex sends"
    messages = typing.get_type_hints(beta_messages.MessageCreateParamsBase).keys() | {"stream"}
    assert parameters(MESSAGES).keys() ^ messages == OURS


OWN = {
    CHAT: (completion_create_params.CompletionCreateParamsBase, {"messages": [{"role": "user", "content": "x"}]}),
    COMPLETIONS: (completions.CompletionCreateParamsBase, {"prompt": "x"}),
    EMBEDDINGS: (embeddings.EmbeddingCreateParams, {"input": "x"}),
}


@pytest.mark.parametrize("endpoint", OWN, ids=lambda endpoint: endpoint.name)
def test_every_parameter_of_openais_own_routes_is_in_the_tables_and_what_is_checked_is(endpoint):
    """What is checked is refused where it is of no type that it could have; what is passed on is not."""
    kind, good = OWN[endpoint]
    told = {}
    for names, taken, rest in rows(f"parameter of `{endpoint.path}`"):
        assert taken == "yes"
        told |= dict.fromkeys(re.findall(r"`([a-z_]+)`", names), rest)
    official = typing.get_type_hints(kind).keys() | ({"stream"} if endpoint is not EMBEDDINGS else set())
    assert told.keys() == official
    for name in official - {"user"}:  # a person's name, which is checked where it is filed
        refused = [
            each for wrong in ({"surely": ["wrong"]}, ["x"], -7.5) if (each := error_of(endpoint, good, name, wrong))
        ]
        assert bool(refused) == ("checked" in told[name]), name
        assert {each.param.split(".")[0] for each in refused} <= {name}


def error_of(endpoint, good, name, value):
    try:
        call = parse_call(endpoint, json.dumps({"model": "m", **good, name: value}).encode())
    except InvalidRequest as refused:
        return refused
    assert call.body[name] == value
    return None


def rows(heading):
    text = PAGE[PAGE.index(f"| {heading} |") :].split("\n\n", 1)[0].split("\n")[2:]
    return [row.strip("| ").split(" | ") for row in text]


@pytest.mark.parametrize("endpoint", [RESPONSES, MESSAGES], ids=lambda endpoint: endpoint.name)
def test_a_parameter_is_refused_whatever_its_value_where_the_table_says_so_and_only_there(endpoint):
    for name, taken in parameters(endpoint).items():
        refused = [error(endpoint, **{name: value}) for value in ("x", {"a": "b"}, ["x"], 5, True)]
        by_name = [
            each is not None and each.param == name and each.code.startswith(("unsu", "thread")) for each in refused
        ]
        assert all(by_name) == (taken == "refused"), name
        assert error(endpoint, **{name: None}) is None or name in GOOD[endpoint]


def test_every_event_of_the_official_sdks_that_applies_is_in_the_tables():
    told = set(re.findall(r"`([a-z_.]+)`", " ".join(table("event", "Responses"))))
    union = typing.get_args(typing.get_args(ResponseStreamEvent)[0])
    official = {typing.get_args(each.model_fields["type"].annotation)[0] for each in union}
    assert told < official
    hosted = ("code_interpreter", "file_search", "shell", "web_search", "image_gen", "mcp", "custom_tool")
    apart = (*hosted, "audio", "compaction", "queued", "reasoning_summary", "annotation")
    assert {each for each in official - told if not any(word in each for word in apart)} == set()
    messages = set(re.findall(r"`([a-z_.]+)`", " ".join(table("event", "Messages"))))
    union = typing.get_args(RawMessageStreamEvent)[0]
    official = {typing.get_args(each.model_fields["type"].annotation)[0] for each in typing.get_args(union)}
    assert messages == official | {"ping", "error"}
