"""What leaves for a backend: inspected, without what names a person, and otherwise as the client wrote it."""

import json
from dataclasses import replace

import pytest

from gateway.content.prompt import output_refused, prepare
from gateway.errors import ContentUnreadable, InvalidRequest, RedactionRefused
from gateway.openai.endpoints import COMPLETIONS
from policy.errors import RedactionBlocked, RedactionError
from policy.redact.redactor import Redactor
from regions.fleet.fleet import Backend
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.fakes.lab import OPEN_POLICY, POLICY, chat
from tests.gateway.parts import call, principal
from tests.policy.redact.layouts import LAYOUTS

MAIL, SECRET = "anna.schmidt@example.org", "AKIAIOSFODNN7EXAMPLE"


def prepared(body=None, policy=POLICY, endpoint=None, project="main", **more):
    asked = call(body, endpoint, **more) if endpoint else call(body, **more)
    return prepare(asked, principal(policy).redactor, project)


def test_personal_data_leaves_as_placeholders_and_is_counted():
    prompt = prepared(chat(f"write to {MAIL}, again {MAIL}"))
    assert MAIL.encode() not in prompt.body
    assert prompt.counts == {"email": 2}
    assert json.loads(prompt.body) == prompt.fields


def test_placeholders_of_two_calls_do_not_look_alike():
    first, second = (prepared(chat(f"write to {MAIL}")).fields["messages"][0]["content"] for _ in range(2))
    assert first != second


def test_the_filter_of_the_answer_turns_placeholders_back_and_counts_what_it_finds():
    prompt = prepared(chat(f"write to {MAIL}"))
    placeholder = prompt.fields["messages"][0]["content"].split()[-1]
    text = prompt.output.make(False)
    assert text.feed(f"I wrote to {placeholder} and bert@example.org. ") + text.flush() == (
        f"I wrote to {MAIL} and {'[EMAIL]'}. "
    )
    assert prompt.output.counts == {"email": 1}


def test_without_anything_to_hide_the_answer_needs_no_filter():
    prompt = prepared(chat(f"write to {MAIL}"), OPEN_POLICY)
    assert prompt.output is None
    assert MAIL.encode() in prompt.body


def test_who_the_person_is_does_not_leave_and_unknown_parameters_do():
    prompt = prepared(user="u-4711", metadata={"ward": "7"}, safety_identifier="s", top_k=5, new_thing={"a": [1]})
    assert not {"user", "metadata", "safety_identifier"} & prompt.fields.keys()
    assert (prompt.fields["top_k"], prompt.fields["new_thing"]) == (5, {"a": [1]})


@pytest.mark.parametrize("policy", [POLICY, OPEN_POLICY])
def test_usage_is_asked_for_in_every_stream_and_other_stream_options_stay(policy):
    assert prepared(policy=policy, stream=True).fields["stream_options"] == {"include_usage": True}
    options = {"include_usage": False, "include_obfuscation": False}
    sent = prepared(policy=policy, stream=True, stream_options=options).fields["stream_options"]
    assert sent == {"include_usage": True, "include_obfuscation": False}
    assert "stream_options" not in prepared(policy=policy).fields


def test_a_blocked_class_of_data_is_refused_naming_the_class_and_the_place_but_not_the_value():
    with pytest.raises(RedactionRefused) as refused:
        prepared(chat(f"the key is {SECRET}"))
    assert (refused.value.code, refused.value.http_status) == ("redaction_blocked", 422)
    body = refused.value.body()
    assert SECRET.encode() not in body
    assert json.loads(body)["error"]["findings"]


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2], [3]]])
def test_token_ids_hide_what_they_say_so_they_do_not_leave(prompt):
    with pytest.raises(RedactionRefused, match="Token ids cannot be inspected while redaction is on") as refused:
        prepared({"model": "small", "prompt": prompt}, endpoint=COMPLETIONS)
    assert (refused.value.code, refused.value.param) == ("redaction_refused", "prompt")


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "Images"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "Audio"),
        ({"type": "file", "file": {"file_id": "f"}}, "Files"),
        ({"type": "video_url", "video_url": {"url": "https://x"}}, "Videos"),
        ({"type": "input_image", "image_url": "https://x"}, "Images"),
        ({"type": "image", "source": {"type": "base64", "data": "AAAA"}}, "Images"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "Images"),
        ({"type": "audio_url", "audio_url": {"url": "https://x"}}, "Audio"),
        ({"type": "input_file", "file_data": "AAAA"}, "Files"),
        ({"type": "document", "document": {"data": "AAAA"}}, "Files"),
        ({"type": "hologram"}, "Content parts of an unknown type"),
    ],
)
def test_what_no_detector_reads_is_refused_in_words_and_with_its_place(part, what):
    body = {"model": "small", "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]}
    with pytest.raises(ContentUnreadable) as refused:
        prepared(body)
    assert (refused.value.http_status, refused.value.code) == (422, "redaction_refused")
    assert refused.value.message.startswith(f"{what} cannot be inspected while redaction is on; send text")
    assert refused.value.param == "messages.0.content.1"
    assert "AAAA" not in refused.value.body().decode()
    assert prepared(body, policy=OPEN_POLICY).body


@pytest.mark.parametrize("asked", [{"logprobs": True}, {"prompt_logprobs": 3}])
def test_probabilities_of_tokens_are_refused_where_they_would_tell_what_is_hidden(asked):
    with pytest.raises(InvalidRequest) as refused:
        prepared(**asked)
    assert refused.value.param == "logprobs"
    prepared(policy=OPEN_POLICY, **asked)


def test_an_error_while_inspecting_refuses_and_an_unknown_one_is_not_taken_for_a_yes(monkeypatch):
    def fails(kind):
        def redact_body(*_):
            raise kind("broken")

        monkeypatch.setattr(Redactor, "redact_body", redact_body)

    fails(RedactionError)
    with pytest.raises(RedactionRefused, match="was not sent"):
        prepared()
    fails(RuntimeError)
    with pytest.raises(RuntimeError):
        prepared()


def test_no_two_projects_share_a_prefix_cache_whatever_they_ask_for():
    salts = [
        prepared(project=project, **more).fields["cache_salt"]
        for project in ("main", "other")
        for more in ({}, {"cache_salt": "a"}, {"cache_salt": "other:"})
    ]
    assert len(set(salts)) == 6
    assert {salt.split(":")[0] for salt in salts} == {"main", "other"}


@pytest.mark.parametrize(
    ("priority", "own", "place"),
    [
        ("high", None, -1), ("normal", None, 0), ("low", None, 1),
        ("high", 0, 0), ("high", 7, 1), ("normal", -100, 0), ("low", -100, 1), ("normal", 3, 1),
    ],
)  # fmt: skip
def test_policy_gives_the_place_in_the_queue_and_a_client_can_only_step_back(priority, own, place):
    asked = call(chat("hi", **({} if own is None else {"priority": own})))
    fields = prepare(asked, principal().redactor, "main", priority=priority).fields
    assert fields.get("priority", 0) == place
    assert "priority" not in fields or place


@pytest.mark.parametrize("own", ["first", True, -0.5, [-1]])
def test_a_place_that_is_no_number_is_refused(own):
    with pytest.raises(InvalidRequest, match="priority"):
        call(chat("hi", priority=own))


def test_an_answer_that_may_not_pass_is_another_refusal_than_one_that_cannot_be_read():
    assert output_refused(RedactionError("too deep")).code == "answer_unreadable"
    with pytest.raises(RedactionBlocked) as blocked:
        body = {"model": "m", "messages": [{"role": "user", "content": SECRET}]}
        principal(POLICY).redactor.redact_body(body, LAYOUTS["chat"], "k7f3")
    refused = output_refused(blocked.value)
    assert (refused.code, refused.http_status) == ("answer_blocked", 422)
    assert SECRET not in refused.message


def test_in_a_named_conversation_of_a_project_a_value_keeps_its_placeholder():
    def content(conversation, project="main"):
        body = chat(f"write to {MAIL}", metadata={"conversation_id": conversation})
        return prepared(body, project=project).fields["messages"][0]["content"]

    assert content("c1") == content("c1")
    assert content("c1") != content("c2") and content("c1") != content("c1", project="other")


DECLINING = {
    "watermarking": False, "watermark": {"enabled": False}, "Water-Mark": 0, "enable_watermark": False,
    "watermark_config": None, "skipWatermark": True, "synthid_config": {}, "\uff37atermark": None,
    "vllm_xargs": {"gamma": 0}, "vllmXargs": {"laidline": "{}"}, "extra_args": {"laidline": {}},
    "custom_params": {"delta": 0}, "custom_logit_processor": "none", "logits_processors": [],
    "logits_processor_args": {}, "logits-processor": None,
}  # fmt: skip
"""By what vLLM, SGLang, TensorRT-LLM, TGI and their plug-ins let a caller turn a mark off, and other spellings."""


def server_that_marks(kind):
    uri = BackendIdentity("eu-1", "acme", "eu-fr-par", "vllm").uri
    named = {"id": "vllm", "tenant": "acme", "region": "eu-fr-par", "url": "http://x", "uri": uri, "models": ("small",)}
    return Backend(**named, kind="openai", trust=Trust(watermark=kind))


@pytest.mark.parametrize(
    "where", [(), ("extra_body",), ("nvext",), ("sampling_params",), ("metadata",), ("a", "b", "c")]
)
@pytest.mark.parametrize(
    ("kind", "asked"),
    [("vllm", {"watermarking": True}), ("sglang", {"watermark": {"enabled": True}}), ("tensorrt-llm", {})],
)
def test_no_field_by_which_a_caller_could_decline_a_mark_leaves_wherever_it_is(kind, asked, where):
    inside = {**DECLINING, "seen": 1, "list": [[dict(DECLINING)], "watermark"]}
    for name in reversed(where):
        inside = {name: inside}
    left = {"seen": 1, "list": [[{}], "watermark"]}
    for name in reversed(where):
        left = {name: left}
    prompt = prepared(chat("hello"), OPEN_POLICY)
    prompt = replace(prompt, fields={**prompt.fields, **inside})
    sent = json.loads(prompt.body_for(server_that_marks(kind), watermark=True))
    assert {name: value for name, value in sent.items() if name not in prepared(chat("hello"), OPEN_POLICY).fields} == {
        **left,
        **asked,
    }
    assert prompt.body_for(server_that_marks(kind)) == prompt.body, "where policy demands none, they are the caller's"


def test_a_caller_s_own_words_about_watermarks_in_texts_and_schemas_stay():
    schema = {"type": "object", "properties": {"watermark": {"type": "boolean"}}}
    body = chat(
        "what is a watermark?",
        tools=[{"type": "function", "function": {"name": "watermark", "parameters": schema}}],
        response_format={"type": "json_schema", "json_schema": {"name": "watermark", "schema": schema}},
    )
    prompt = prepared(body, OPEN_POLICY)
    sent = json.loads(prompt.body_for(server_that_marks("vllm"), watermark=True))
    assert {name: sent[name] for name in body} == body
