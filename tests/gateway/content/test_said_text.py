"""The text of an answer, collected in any form, is what the client reads."""

import json

import pytest

from audit.log.answer_prints import MAX_CHARACTERS
from gateway.content.said_text import SaidText


def delta(text, index=0, field="content"):
    return {"choices": [{"index": index, "delta": {field: text}}]}


def frames(*chunks):
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_a_stream_is_read_however_it_is_cut(size):
    said = SaidText()
    stream = frames(delta("Grüße "), delta("other", 1), delta("aus"), {"choices": [], "usage": {}})
    for at in range(0, len(stream), size):
        said.add_piece(stream[at : at + size])
    assert (said.texts(), said.answers()) == (["Grüße aus", "other"], {0: "Grüße aus", 1: "other"})


def test_thoughts_are_text_and_no_answer_and_tool_calls_are_neither():
    said = SaidText()
    said.add_chunk(delta("thinking", field="reasoning_content"))
    said.add_chunk({"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]})
    said.add_chunk(delta("done"))
    assert (said.texts(), said.answers()) == (["thinking", "done"], {0: "done"})


def test_whole_answers_and_single_texts_are_taken_too():
    said = SaidText()
    said.add_answer({0: {"index": 0, "content": "one"}, 1: {"index": 1, "text": "two"}})
    said.add_text("content", " more")
    assert said.answers() == {0: "one more", 1: "two"}


def test_it_is_bounded_and_says_so():
    said = SaidText()
    said.add_text("content", "a" * (MAX_CHARACTERS - 1))
    assert said.characters == MAX_CHARACTERS - 1
    said.add_text("content", "bcd")
    said.add_text("content", "e")
    assert (said.characters, said.texts()[0][-2:]) == (MAX_CHARACTERS, "ab")


@pytest.mark.parametrize(
    "chunk", [{}, {"choices": None}, {"choices": [{"delta": None}]}, delta(None), delta(7), delta("")]
)
def test_what_says_nothing_adds_nothing(chunk):
    said = SaidText()
    said.add_chunk(chunk)
    assert (said.texts(), said.characters) == ([], 0)
