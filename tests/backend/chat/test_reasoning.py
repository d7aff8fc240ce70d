import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.chat.reasoning import ThinkParser, opens_thoughts
from tests.backend.tools.reading import content, cut, read, thoughts

SNIPPETS = [
    "<think>",
    "</think>",
    "<response>",
    "</response>",
    "<th",
    "</thi",
    "ink>",
    "Hm.",
    " ",
    "\n\n",
    "é🙂",
    "<",
    "/",
    ">",
]


@pytest.mark.parametrize(
    ("opened", "text", "thought", "answer"),
    [
        (False, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (False, "\n <think>Hm.</think>Yes. ", "Hm.", "Yes. "),
        (True, "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (True, "Hm.", "Hm.", ""),
        (False, "<think>\n\n</think>\n\n", "", ""),
        (False, "<think>Hm. </thi", "Hm. </thi", ""),
        (False, "No <think> here.", "", "No <think> here."),
        (False, " <thin", "", " <thin"),
        (False, "  ", "", "  "),
        (False, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        (True, "</think>x", "", "x"),
        (False, "</think>", "", ""),
        (False, "<think>Hm.</think>\n<response>\nYes. </response>\n", "Hm.", "Yes."),
        (True, "Hm.</think><response>Yes", "Hm.", "Yes"),
        (True, "Hm.</think> <response", "Hm.", "<response"),
        (False, "<response>Yes.</response>", "", "<response>Yes.</response>"),
        (False, "\n</think>\n\nYes.", "", "Yes."),
        (False, "</thin", "", "</thin"),
        (False, " </b>x", "", " </b>x"),
        (False, "hm</think>Yes.", "", "hm</think>Yes."),
        (True, "a < b and </b></think>x", "a < b and </b>", "x"),
    ],
)
def test_thoughts_and_answer_are_told_apart(opened: bool, text: str, thought: str, answer: str) -> None:
    parts = read(lambda: ThinkParser(opened=opened), [text])
    assert (thoughts(parts), content(parts)) == (thought, answer)


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.sampled_from(SNIPPETS), max_size=8).map("".join), opened=st.booleans(), data=st.data())
def test_the_border_does_not_depend_on_where_the_text_is_cut(text: str, opened: bool, data: st.DataObject) -> None:
    expected = read(lambda: ThinkParser(opened=opened), [text])
    assert read(lambda: ThinkParser(opened=opened), data.draw(cut(text))) == expected
    assert read(lambda: ThinkParser(opened=opened), list(text)) == expected


def test_thoughts_are_shown_as_they_come() -> None:
    parser = ThinkParser(opened=False)
    assert thoughts(parser.feed("<think>\nHm, ")) == "Hm,"
    assert thoughts(parser.feed("so.</th")) == " so."
    assert content(parser.feed("ink>\n\nYe")) == "Ye"


@pytest.mark.parametrize(
    ("end", "opens"),
    [("<think>", True), ("<think>\n", True), ("<think>\n\n</think>\n\n", False), ("assistant\n", False), ("", False)],
)
def test_a_prompt_says_whether_it_ends_inside_thoughts(end: str, opens: bool) -> None:
    assert opens_thoughts(end) is opens
