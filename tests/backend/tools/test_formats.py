"""Calls in every format: whole, cut anywhere, malformed. What is no call is text, and nothing is lost."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.errors import ConfigError
from backend.tools import formats
from backend.tools.formats import FORMATS, HERMES, LLAMA3, MISTRAL, ToolFormat
from backend.tools.parts import Arguments, Part
from backend.tools.script import LEAST_MARKUP
from tests.backend.tools.reading import calls, content, cut, read
from tests.fakes import work

NAMES = frozenset({"get_weather", "now", "x.y-z"})
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"city": "Paris"},
    {"text": 'a "quoted" \\ back\nline </tool_call> [TOOL_CALLS] {"name": "now"} ; <think>'},
    {"deep": [{"a": [1, 2.5e3, None, True]}, "}"], "é": "🙂 €"},
]


def whole(form: ToolFormat, text: str) -> list[Part]:
    return read(lambda: form.parser(NAMES), [text])


def written(form: ToolFormat, made: list[tuple[str, dict[str, Any]]]) -> str:
    shape = form.shape
    objects = [json.dumps({"name": name, shape.arguments: arguments}, ensure_ascii=False) for name, arguments in made]
    between = shape.between.join(f"{shape.opening}{text}{shape.closing}" for text in objects)
    return f"{shape.before}{between}{shape.after}"


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_a_call_is_read_with_its_arguments_as_they_were_written(form: ToolFormat, arguments: dict[str, Any]) -> None:
    parts = whole(form, written(form, [("get_weather", arguments)]))
    assert calls(parts) == [("get_weather", arguments)]
    assert content(parts) == ""


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_several_calls_keep_their_order(form: ToolFormat) -> None:
    made = [("now", {}), ("get_weather", ARGUMENTS[2]), ("now", {"zone": "CET"})]
    parts = whole(form, written(form, made))
    assert calls(parts) == made
    assert content(parts) == ""


SNIPPETS = [
    "Let me see. ", " ", "\n\n", "{", "}", '"', "\\", ", ", ";", "é🙂", "<", "<tool", "<tool_call>", "</tool_call>",
    "[TOOL_CALLS]", "[TOOL", "[", "]", "[ARGS]", "now", "get_weather", "<|python_tag|>", "<|py", "null", "1",
    '{"name": "now", "arguments": {}}', '{"name": "get_weather", "parameters": {"city": "Par',
    '"arguments": {"a": "}"}',
    '{"arguments": {"a": [1, 2]}, "name": "now"}',
    '{"name": "other", "arguments": {}}', '{"name": 5}', '{"name": "now"}',
    '"name": "now"', '"arguments": "{\\"a\\": 1}"',
    '{"name": "now", "arguments": "{\\"a\\": 1}"}',
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(SNIPPETS), max_size=8).map("".join)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_what_is_read_does_not_depend_on_where_the_text_is_cut(form: ToolFormat, data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    pieces = data.draw(cut(text))
    assert "".join(pieces) == text
    expected = whole(form, text)
    assert read(lambda: form.parser(NAMES), pieces) == expected
    assert read(lambda: form.parser(NAMES), list(text)) == expected


CONTROL = {HERMES.name: (), LLAMA3.name: LLAMA3.markers, MISTRAL.name: MISTRAL.markers[:1]}  # never text


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_where_nothing_is_called_all_that_was_written_is_text(form: ToolFormat, text: str) -> None:
    parts = whole(form, text)
    if calls(parts):
        return
    expected = text
    for marker in CONTROL[form.name]:
        expected = expected.replace(marker, "")
    assert "".join(content(parts).split()) == "".join(expected.split())


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("text", ["", "Hello.\n", "  two  spaces  ", "a < b && c > d", "1 + 1 = {2}", "[1, 2]", "\n"])
def test_an_answer_that_calls_nothing_stays_as_it_is(form: ToolFormat, text: str) -> None:
    parts = whole(form, text)
    assert calls(parts) == []
    assert content(parts) == text


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_words_are_shown_at_once_and_only_a_beginning_of_a_marker_is_held_back(form: ToolFormat) -> None:
    parser = form.parser(NAMES)
    assert content(parser.feed("Sure, I")) == "Sure, I"
    assert content(parser.feed(" will. <b")) == " will. <b"
    marker = (form.shape.before or form.shape.opening or LLAMA3.markers[0]).strip().removesuffix("[")
    assert content(parser.feed(f"\n{marker[:3]}")) == ""
    assert content(parser.feed("!")) == f"\n{marker[:3]}!"


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_arguments_are_handed_on_as_they_come(form: ToolFormat) -> None:
    text = written(form, [("get_weather", {"city": "Paris"})])
    parser = form.parser(NAMES)
    head, tail = text.split("Par")
    assert calls(parser.feed(head)) == [("get_weather", '{"city": "')]
    assert parser.feed("Par") == [Arguments("Par")]
    assert parser.feed(tail)[0] == Arguments('is"}')


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize("name", ["unknown", "", "NOW", 'now"'])
def test_a_function_that_was_not_offered_is_not_called(form: ToolFormat, name: str) -> None:
    parts = whole(form, written(form, [(name, {"a": 1})]))
    assert calls(parts) == []
    assert '"a": 1' in content(parts)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_an_answer_cut_off_inside_a_call_keeps_what_was_said_of_it(form: ToolFormat) -> None:
    text = written(form, [("get_weather", {"city": "Paris"})])
    for end in range(len(text)):
        parts = whole(form, text[:end])
        if end >= text.index('get_weather"') + len('get_weather"'):
            ((name, _),) = calls(parts)
            assert (name, content(parts)) == ("get_weather", "")
        else:
            assert calls(parts) == []


@pytest.mark.parametrize("form", [HERMES, LLAMA3], ids=lambda f: f.name)
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"name": "now"}', {}),
        ('{"name": "now", "arguments": null}', {}),
        ('{"arguments": {"a": 1}, "name": "now"}', {"a": 1}),
        ('{"id": 7, "name": "now", "x": [1, {"y": "}"}], "arguments": {"a": 1}}', {"a": 1}),
        ('{"name": "now", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ('{"name": "now", "arguments": "plain"}', "plain"),
        ('{"name": "now" "arguments": {"a": 1}}', {"a": 1}),
        ('{"name": "n\\u006fw", "parameters": {"a": 1}}', {"a": 1}),
        ('{\n  "name": "now",\n  "arguments": {\n "a": 1\n }\n}', {"a": 1}),
        ('{"name": "now", "arguments": {"a": 1}, "arguments": {"b": 2}}', {"a": 1}),
    ],
)
def test_calls_are_read_however_the_object_is_written(form: ToolFormat, text: str, arguments: Any) -> None:
    parts = whole(form, f"{form.shape.opening}{text}{form.shape.closing}")
    assert calls(parts) == [("now", arguments)]
    assert content(parts) == ""


def test_hermes_words_around_calls_are_text_without_the_space_beside_them() -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    parts = whole(HERMES, f"One moment.\n{call}\n{call}\nDone.\n")
    assert calls(parts) == [("now", {}), ("now", {})]
    assert content(parts) == "One moment.Done.\n"


def test_hermes_without_the_closing_marker_or_with_a_bracket_too_many_is_a_call_all_the_same() -> None:
    for end in ("", "\n", "}", "}\n</tool_call>", "</tool", "<tool_call>"):
        parts = whole(HERMES, '<tool_call>{"name": "now", "arguments": {}}' + end)
        assert calls(parts) == [("now", {})], end
    assert content(whole(HERMES, '<tool_call>{"name": "now", "arguments": {}}}\n</tool_call>')) == ""


def test_hermes_a_marker_that_opens_nothing_is_text_and_the_next_one_may_be_a_call() -> None:
    parts = whole(HERMES, '<tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call>')
    assert calls(parts) == [("now", {})]
    assert content(parts) == "<tool_call>"


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_an_answer_that_opens_calls_inside_calls_is_read_in_time(form: ToolFormat) -> None:
    opening = (form.shape.before or form.shape.opening or LLAMA3.markers[0]).strip()
    text = f'{opening}{{"a": "' * 1_000
    parts = whole(form, text)
    assert calls(parts) == []
    assert content(parts).count('{"a": "') == 1_000
    once, twice = (work.calls(lambda many=many: whole(form, text[: many * len(text) // 8])) for many in (1, 2))
    assert twice < 3 * once  # read again for each opening it would be 4


def test_llama_an_object_behind_words_is_text_unless_the_tag_says_otherwise() -> None:
    text = '{"name": "now", "parameters": {}}'
    assert calls(whole(LLAMA3, f"It is: {text}")) == []
    assert calls(whole(LLAMA3, f"It is: <|python_tag|>{text}")) == [("now", {})]
    assert content(whole(LLAMA3, '<|python_tag|>print("hi")')) == 'print("hi")'
    assert content(whole(LLAMA3, '{"name": "Ada", "born": 1815}')) == '{"name": "Ada", "born": 1815}'


def test_mistral_both_of_its_ways_are_read() -> None:
    assert calls(whole(MISTRAL, '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}')) == [
        ("now", {}),
        ("get_weather", {"city": "Oslo"}),
    ]
    assert calls(whole(MISTRAL, '[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{"a": 1}')) == [("now", {"a": 1})]
    assert calls(whole(MISTRAL, '[TOOL_CALLS] [{"arguments": {}, "name": "now", "id": "a1b2c3d4e"}]')) == [("now", {})]
    assert content(whole(MISTRAL, 'Yes. [TOOL_CALLS]other{"a": 1}')) == 'Yes. other{"a": 1}'


def test_names_of_calls_are_as_the_templates_want_them_back() -> None:
    assert len({MISTRAL.call_id() for _ in range(100)}) == 100
    assert all(len(MISTRAL.call_id()) == 9 and MISTRAL.call_id().isalnum() for _ in range(100))
    assert HERMES.call_id().startswith("call_")


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ('{% if tools %}{"name": x, "parameters": y} ipython{% endif %}', LLAMA3),
        ("{{ tools }}<|python_tag|>", LLAMA3),
        ("[AVAILABLE_TOOLS]{{ tools | tojson }}", MISTRAL),
        ("{{ messages }}", HERMES),
        ("{% if tools %}<tool_call>\n<function=name>{% endif %}", None),
        ("{% if tools %}something new{% endif %}", None),
    ],
)
def test_the_format_is_the_one_that_the_template_teaches(source: str, form: ToolFormat | None) -> None:
    assert formats.of_template(source) is form


def test_a_parser_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match="hermes, llama3_json, mistral"):
        formats.named("pythonic")


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_an_answer_cut_by_its_length_shows_no_markup_of_the_call_that_is_missing(form: ToolFormat) -> None:
    first = written(form, [("get_weather", {"city": "Paris"})])
    both = written(form, [("get_weather", {"city": "Paris"}), ("now", {"zone": "CET"})])
    for at in range(len(first) - len(form.shape.after) - len(form.shape.closing) + 1, len(both) + 1):
        reader = form.parser(NAMES)
        parts = [*reader.feed(both[:at]), *reader.finish(cut=True)]
        shown = content(parts)
        assert len(shown) < LEAST_MARKUP, (both[:at], shown)
        assert calls(parts)[0] == ("get_weather", {"city": "Paris"})


@pytest.mark.parametrize(
    ("form", "marker"), [(HERMES, "<tool_call>"), (MISTRAL, "[TOOL_CALLS]"), (LLAMA3, "<|python_tag|>")]
)
def test_words_before_a_marker_that_was_cut_stay_and_a_single_character_is_a_word(
    form: ToolFormat, marker: str
) -> None:
    for size in range(len(marker) + 1):
        text = f"The sum is a {marker[:size]}"
        reader = form.parser(NAMES)
        said = content([*reader.feed(text), *reader.finish(cut=True)])
        assert said.rstrip() == ("The sum is a" if size != 1 else text)
        reader = form.parser(NAMES)
        kept = content([*reader.feed(text), *reader.finish()])
        assert kept == text or size == len(marker)


def test_an_object_that_was_cut_and_stands_behind_no_marker_is_text() -> None:
    reader = LLAMA3.parser(NAMES)
    text = '{"answer": "forty-tw'
    assert content([*reader.feed(text), *reader.finish(cut=True)]) == text
