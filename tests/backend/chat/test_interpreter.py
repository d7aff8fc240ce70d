import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.chat.interpreter import Interpreter
from backend.chat.reasoning import ThinkParser
from backend.tools.formats import FORMATS, HERMES, ToolFormat
from backend.tools.parts import Part
from tests.backend.tools.reading import calls, content, cut, read, thoughts

NAMES = {"now"}
CALL = '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>'
SNIPPETS = [
    "<think>", "</think>", CALL, CALL[:20], "<tool_call>", "</tool_call>", '{"name": "now", "parameters": {}}', "; ",
    '[TOOL_CALLS][{"name": "now"}]', "now[ARGS]{}", "Hm.", " ", "\n", "é🙂", "<",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.sampled_from(SNIPPETS), max_size=8).map("".join), opened=st.booleans(), data=st.data())
def test_streamed_in_any_pieces_the_answer_is_the_whole_one(
    form: ToolFormat, text: str, opened: bool, data: st.DataObject
) -> None:
    def make() -> Interpreter:
        return Interpreter(ThinkParser(opened=opened), form.parser(NAMES))

    expected = read(make, [text])
    assert read(make, data.draw(cut(text))) == expected
    assert read(make, list(text)) == expected


def interpreted(text: str, **options: bool) -> list[Part]:
    return read(lambda: Interpreter(ThinkParser(opened=False), HERMES.parser(NAMES), **options), [text])


def test_calls_are_looked_for_in_the_answer_and_not_in_the_thoughts() -> None:
    parts = interpreted(f"<think>{CALL}</think>{CALL}")
    assert thoughts(parts) == CALL
    assert calls(parts) == [("now", {"a": 1})]


def test_thoughts_that_are_not_to_be_told_are_not() -> None:
    parts = interpreted(f"<think>Hm.</think>Yes. {CALL}", show_reasoning=False)
    assert (thoughts(parts), content(parts), len(calls(parts))) == ("", "Yes.", 1)


def test_of_calls_that_are_not_to_be_parallel_only_the_first_is_told() -> None:
    parts = interpreted(f"{CALL} {CALL.replace('1', '2')} and so on", parallel=False)
    assert calls(parts) == [("now", {"a": 1})]


def test_without_parsers_all_of_it_is_words() -> None:
    text = f"<think>{CALL}</think>"
    assert content(read(lambda: Interpreter(None, None), [text])) == text
