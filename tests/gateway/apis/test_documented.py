"""The tables of docs/api.md about other APIs, against the SDKs' own lists of parameters and events, and the code."""

import json
import re
import typing

import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.beta import message_create_params as beta_messages
from openai.types.responses import ResponseStreamEvent, response_create_params

from gateway.api_format import CallState, GoesOn
from gateway.apis.endpoints import MESSAGES, RESPONSES
from gateway.errors import InvalidRequest
from gateway.openai.checked_call import parse_call
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
