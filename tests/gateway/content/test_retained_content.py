"""What is held of one call: exactly what left and what came back, filed under the person that the caller named."""

import json
from hashlib import sha256

import pytest

from backend.wire import sse_data
from gateway.content.choice_texts import choice_texts_of
from gateway.content.retained_content import MAX_SUBJECT, RetainedContent, subject_of
from gateway.errors import InvalidRequest

RAW, SENT = b'{"messages":"from anna@example.org"}', b'{"messages":"from <EMAIL_1>"}'


def content(subject="anna", days=30):
    return RetainedContent(RAW, SENT, subject, days)


def chunk(index=0, finish=None, **delta):
    return sse_data(json.dumps({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}).encode())


@pytest.mark.parametrize(
    ("headers", "body", "named"),
    [
        ({}, {}, None),
        ({}, {"user": "u-1"}, "u-1"),
        ({}, {"user": "u-1", "safety_identifier": "s-1"}, "s-1"),
        ({"x-domicile-subject": "anna"}, {"user": "u-1"}, "anna"),
        ({"x-domicile-subject": " Grüß ".encode().decode("latin-1")}, {}, "Grüß"),
        ({"x-domicile-subject": "  "}, {"user": "u-1"}, None),
        ({}, {"user": ""}, None),
        ({}, {"user": "x" * MAX_SUBJECT}, "x" * MAX_SUBJECT),
    ],
)
def test_the_header_names_the_person_and_else_the_body(headers, body, named):
    assert subject_of(headers, body) == named


@pytest.mark.parametrize(
    ("headers", "body", "place"),
    [
        ({"x-domicile-subject": "x" * (MAX_SUBJECT + 1)}, {}, "x-domicile-subject"),
        ({"x-domicile-subject": "\xff\xfe"}, {}, "x-domicile-subject"),
        ({"x-domicile-subject": "a\x00b"}, {"user": "good"}, "x-domicile-subject"),
        ({}, {"user": "a\nb"}, "user"),
        ({}, {"safety_identifier": 7}, "safety_identifier"),
        ({}, {"safety_identifier": ["anna"]}, "safety_identifier"),
        ({}, {"user": "\ud800"}, "user"),
    ],
)
def test_a_name_that_nobody_could_be_found_under_again_is_refused_without_quoting_it(headers, body, place):
    with pytest.raises(InvalidRequest) as refused:
        subject_of(headers, body)
    assert (refused.value.param, refused.value.code) == (place, "invalid_subject")
    assert "anna" not in refused.value.message


def test_the_intent_keeps_what_left_and_only_a_digest_of_what_the_client_sent():
    private = content().asked()
    assert private.values["input"] == SENT.decode()
    assert private.values["input_original"] == {"bytes": len(RAW), "sha256": sha256(RAW).hexdigest()}
    assert "anna@example.org" not in str(private.values)
    assert (private.subject, private.retention_class) == ("anna", "content_30d")


def test_the_outcome_expires_when_the_intent_does(monkeypatch):
    monkeypatch.setattr("gateway.content.retained_content.time.time", lambda: 1000.0)
    kept = content(days=2)
    monkeypatch.setattr("gateway.content.retained_content.time.time", lambda: 9000.0)
    assert kept.asked().expires == kept.answered().expires == 1000_000 + 2 * 86_400_000


def test_a_whole_answer_is_kept_by_choice_and_nothing_of_it_that_is_no_text():
    kept = content()
    call = {"id": "c1", "type": "function", "function": {"name": "send", "arguments": '{"a": 1}'}}
    body = {
        "choices": [
            {"index": 1, "text": "second", "finish_reason": "length", "logprobs": {"x": -0.5}},
            {
                "index": 0,
                "message": {"role": "assistant", "content": "first", "tool_calls": [call], "score": 0.1},
                "finish_reason": "stop",
            },
        ]
    }
    kept.add_answer(choice_texts_of(body))
    assert kept.answered().values["output"] == [
        {
            "index": 0,
            "content": "first",
            "tool_calls": {"0": {"name": "send", "arguments": '{"a": 1}'}},
            "finish_reason": "stop",
        },
        {"index": 1, "text": "second", "finish_reason": "length"},
    ]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_put_together_the_same_however_it_is_cut(size):
    kept = content()
    stream = b"".join(
        [
            chunk(role="assistant"),
            chunk(content="Grü"),
            chunk(1, content="other"),
            chunk(content="ße"),
            chunk(tool_calls=[{"index": 2, "id": "c", "function": {"name": "send", "arguments": '{"a"'}}]),
            chunk(tool_calls=[{"index": 2, "function": {"arguments": ": 1}"}}]),
            chunk(finish="stop"),
            sse_data(b"[DONE]"),
        ]
    )
    for start in range(0, len(stream), size):
        kept.add_piece(stream[start : start + size])
    assert kept.answered().values["output"] == [
        {
            "index": 0,
            "content": "Grüße",
            "tool_calls": {"2": {"name": "send", "arguments": '{"a": 1}'}},
            "finish_reason": "stop",
        },
        {"index": 1, "content": "other"},
    ]


def test_of_an_answer_that_never_came_only_the_person_is_kept():
    assert content().answered().values == {}
    assert content().answered().subject == "anna"


@pytest.mark.parametrize(
    "choice", [{"message": "odd"}, {"message": {"content": 7}}, {"index": "0", "text": None}, {"delta": None}]
)
def test_an_answer_of_an_odd_shape_is_kept_as_far_as_it_is_text(choice):
    kept = content()
    kept.add_answer(choice_texts_of({"choices": [choice]}))
    kept.add_answer(choice_texts_of({"choices": [{"text": "rain"}]}))
    assert kept.answered().values["output"] == [{"index": 0, "text": "rain"}]


def test_bytes_that_are_no_text_do_not_stop_a_call():
    assert "input" in RetainedContent(b"\xed\xa0\x80", b"\xed\xa0\x80", None, 1).asked().values
