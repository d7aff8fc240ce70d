"""What a model saw: pieces of text, each with the kind of value that it stands for."""

import json

import pytest

from gateway.console.pages.playground import earlier, marked, messages_of, texts_of


@pytest.mark.parametrize(
    ("seen", "kinds"),
    [
        ("write to <EMAIL_1_k7f32a> now", ["", "email", ""]),
        ("<EMAIL_1_k7f32a><IBAN_2_k7f32a12>", ["email", "iban"]),
        ("card [CARD], name [PERSON_NAME:9f3c2b1a]", ["", "card", "", "person_name"]),
        ("<EMPLOYEE-ID_12_k7f32a>", ["employee-id"]),
        ("nothing here", [""]),
        ("a < b > c [1] [x] <b>", [""]),
        ("", []),
    ],
)
def test_masked_values_are_told_by_their_kind_and_nothing_is_lost(seen, kinds):
    pieces = list(marked(seen, ""))
    assert [kind for _, kind in pieces] == kinds
    assert "".join(text for text, _ in pieces) == seen


def test_what_was_typed_like_a_mark_is_none_beside_one_that_is():
    assert [kind for _, kind in marked("[EMAIL] and [IBAN]", "[EMAIL] and DE89")] == ["", "iban"]


@pytest.mark.parametrize(
    ("request_", "texts"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, [("user", "hi")]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, "b"]}]},
            [("user", "a\n\nb")],
        ),
        ({"messages": [{"role": "tool", "content": None}]}, [("tool", "")]),
        ({}, []),
    ],
)
def test_texts_of_a_request_come_with_their_roles(request_, texts):
    assert list(texts_of(request_)) == texts


TURN = {"prompt": "a", "answer": "b", "receipt": "acme/1/x", "record": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "{}",
        "[1]",
        '[{"prompt": "a"}]',
        '[{"prompt": 1, "answer": "b", "receipt": "", "record": ""}]',
        "[" * 100_000,
    ],
)
def test_what_is_no_conversation_is_none(text):
    assert earlier(text) == []


def test_a_conversation_is_sent_with_both_sides():
    assert earlier(json.dumps([TURN])) == [TURN]
    assert messages_of([TURN]) == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
