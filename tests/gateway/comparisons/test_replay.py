"""Where two answers part, without any server: tokens first, then texts, then how they ended."""

import pytest

from gateway.comparisons.replay import Difference, first_difference
from gateway.content.choice_texts import choice_texts_of
from gateway.content.retained_content import RetainedContent


def said(**choice):
    return {"index": 0, "content": "The fog does.", "finish_reason": "stop", **choice}


TOKENS = [["The", -0.5], [" fog", -1.25], [" does.", -0.125]]


def test_the_same_answer_has_no_difference_in_any_order_of_its_choices():
    one, other = said(logprobs=TOKENS), said(index=1, content="It does.")
    assert first_difference([one, other], [other, one]) is None


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ([said(content="The fox does.")], Difference(0, "content", 6, "The fog does.", "The fox does.")),
        ([said(content="The fog")], Difference(0, "content", 7, "The fog does.", "The fog")),
        ([said(finish_reason="length")], Difference(0, "finish_reason", 0, "stop", "length")),
        ([said(content="x", finish_reason="length")], Difference(0, "content", 0, "The fog does.", "x")),
        ([said(reasoning_content="Hm.")], Difference(0, "reasoning_content", 0, None, "Hm.")),
        ([], Difference(0, "choice", 0, "there", None)),
        ([said(), said(index=1)], Difference(1, "choice", 0, None, "there")),
    ],
)
def test_the_first_difference_is_told(now, difference):
    assert first_difference([said()], now) == difference


@pytest.mark.parametrize(
    ("tokens", "at", "was", "now"),
    [
        (
            [["The", -0.5], [" fog", -1.2500000000000002], [" does.", -0.125]],
            1,
            TOKENS[1],
            [" fog", -1.2500000000000002],
        ),
        (TOKENS[:2], 2, TOKENS[2], None),
        ([*TOKENS, ["!", -3.0]], 3, None, ["!", -3.0]),
    ],
)
def test_a_token_or_the_last_bit_of_its_log_probability_counts_though_the_text_is_the_same(tokens, at, was, now):
    assert first_difference([said(logprobs=TOKENS)], [said(logprobs=tokens)]) == (0, "logprobs", at, was, now)


def test_a_tolerance_is_for_log_probabilities_and_never_for_tokens():
    near = [["The", -0.5], [" fog", -1.2500001], [" does.", -0.125]]
    assert first_difference([said(logprobs=TOKENS)], [said(logprobs=near)], 1e-6) is None
    assert first_difference([said(logprobs=TOKENS)], [said(logprobs=near)], 1e-8).at == 1
    assert first_difference([said(logprobs=TOKENS)], [said(logprobs=TOKENS[:2])], 1.0).at == 2
    other = [*near[:2], [" does!", -0.125]]
    assert first_difference([said(logprobs=TOKENS)], [said(logprobs=other)], 1.0)[:4] == (0, "logprobs", 2, TOKENS[2])
    assert first_difference([said(logprobs=TOKENS)], [said(logprobs=near, content="x")], 1.0).field == "content"


def test_a_call_of_a_tool_is_compared_by_name_and_arguments():
    was, now = ({"0": {"name": "send", "arguments": f'{{"to": "{to}"}}'}} for to in ("anna", "anne"))
    found = first_difference([said(tool_calls=was)], [said(tool_calls=now)])
    assert found[:3] == (0, "tool_calls.0.arguments", 11)


def test_what_is_shown_of_a_long_answer_is_a_little_around_the_place():
    long = "a" * 10_000
    found = first_difference([said(content=long + "b" + long)], [said(content=long + "c" + long)])
    assert (found.at, len(found.was)) == (10_000, 48)


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ({"text": "a", "logprobs": {"content": [{"token": "a", "logprob": -0.5, "bytes": [97]}]}}, [["a", -0.5]]),
        ({"text": "a", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1]}}, [["a", None], ["b", -1.0]]),
        ({"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [float("-inf")]}}, [["a", None]]),
        ({"text": "a", "logprobs": None}, None),
        ({"text": "a", "logprobs": {"content": None}}, None),
        ({"text": "a", "logprobs": ["a"]}, None),
    ],
)  # fmt: skip
def test_tokens_are_kept_with_their_log_probabilities(choice, kept):
    content = RetainedContent(b"", b"", None, 1)
    content.add_answer(choice_texts_of({"choices": [{"index": 0, **choice}]}))
    assert content.answered().values["output"][0].get("logprobs") == kept
