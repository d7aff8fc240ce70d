"""Answers in channels: thoughts, text and calls, whole and cut anywhere."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.tools.harmony import HarmonyParser
from backend.tools.parts import Content, Part, merged
from tests.backend.tools.reading import calls, content, cut, read, thoughts

NAMES = frozenset({"get_weather", "now"})
THOUGHT = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"


def whole(text: str, names: Any = NAMES) -> list[Part]:
    return read(lambda: HarmonyParser(names), [text])


def test_thoughts_and_answer_are_told_apart() -> None:
    parts = whole(f"{THOUGHT}{FINAL}It rains.")
    assert (thoughts(parts), content(parts), calls(parts)) == ("Let me see.", "It rains.", [])


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|message|>",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.get_weather<|channel|>analysis code<|message|>",
    ],
)
def test_a_call_is_read_whichever_way_its_header_is_written(header: str) -> None:
    parts = whole(THOUGHT + header + '{"city": "Paris", "note": "a } b"}')
    assert calls(parts) == [("get_weather", {"city": "Paris", "note": "a } b"})]
    assert (thoughts(parts), content(parts)) == ("Let me see.", "")


def test_a_preamble_before_a_call_is_text() -> None:
    preamble = "<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant"
    parts = whole(f'{THOUGHT}{preamble}{CALL}{{"city": "Rome"}}')
    assert (content(parts), calls(parts)) == ("I look it up.", [("get_weather", {"city": "Rome"})])


def test_several_calls_keep_their_order() -> None:
    second = CALL.replace("get_weather", "now")
    parts = whole(f'{CALL}{{"a": 1}}<|end|><|start|>assistant{second}{{}}')
    assert calls(parts) == [("get_weather", {"a": 1}), ("now", {})]


@pytest.mark.parametrize("body", ["", "  ", "<|end|>"])
def test_a_call_without_arguments_has_empty_ones(body: str) -> None:
    assert calls(whole(CALL + body)) == [("get_weather", {})]


@pytest.mark.parametrize(
    "recipient", ["functions.rm", "python", "browser.search", "functions.", "functions.get_weather2", "get_weather"]
)
def test_what_is_addressed_to_nothing_that_was_offered_stays_text(recipient: str) -> None:
    parts = whole(f'<|channel|>commentary to={recipient}<|message|>{{"x": 1}}')
    assert (content(parts), calls(parts)) == ('{"x": 1}', [])
    assert calls(whole(f"{CALL}{{}}", names=())) == []


@pytest.mark.parametrize(
    "text",
    ["No header at all.", "", "<", "<|channel|>", "a <|message|", "x" * 300 + "<|message|>y", "<|end|>", "<|start|>"],
)
def test_what_has_no_header_is_text_whole(text: str) -> None:
    assert content(whole(text)) == text


def test_what_follows_a_message_without_a_beginning_is_text() -> None:
    parts = whole(f"{THOUGHT}{FINAL}One.<|end|> Two <|channel|>final<|message|>.")
    assert content(parts) == "One. Two <|channel|>final<|message|>."


@pytest.mark.parametrize("cut_at", ["<|start|>assist", "<|start|>assistant<|chan", "<|start|>assistant<|channel|>fin"])
def test_a_header_that_was_cut_by_length_is_no_text(cut_at: str) -> None:
    reader = HarmonyParser(NAMES)
    parts = [*reader.feed(f"{FINAL}One.<|end|>{cut_at}"), *reader.finish(cut=True)]
    assert content(merged(parts)) == "One."


def test_a_header_that_the_model_ended_in_is_text_as_what_is_malformed_is() -> None:
    assert content(whole(f"{FINAL}One.<|end|><|start|>assistant")) == "One.<|start|>assistant"


def test_thoughts_that_were_cut_are_thoughts() -> None:
    reader = HarmonyParser(NAMES)
    parts = [*reader.feed("<|channel|>analysis<|message|>So far"), *reader.finish(cut=True)]
    assert thoughts(parts) == "So far"


PIECES = [
    THOUGHT, FINAL, CALL, "<|end|>", "<|start|>assistant", "<|start|>", "<|channel|>", "<|message|>", "analysis",
    '{"city": "Par', 'is"}', "It rains. ", "\n", "é🙂", "<|", "|>", " to=functions.now", "<|constrain|>json",
]  # fmt: skip


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_however_the_text_is_cut_what_is_said_is_the_same(data: st.DataObject) -> None:
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES), max_size=8)))
    assert read(lambda: HarmonyParser(NAMES), data.draw(cut(text))) == whole(text)


def test_an_answer_is_said_as_it_comes() -> None:
    reader = HarmonyParser(NAMES)
    reader.feed(FINAL)
    assert reader.feed("It rains") == [Content("It rains")]
