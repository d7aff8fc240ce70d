"""Every message of a conversation reaches the model, in templates shaped like those of current releases."""

from typing import Any

import pytest

from backend.chat.chat_rendering import reads_parts, whole
from backend.errors import InvalidRequest
from backend.models.checkpoints.chat_template import ChatTemplate

ASKING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
KNOWN_ROLES = (  # as Qwen's: a role that it does not know is left out
    "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% elif m.role == 'tool' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    + ASKING
)
ONE_CALL = (  # as Llama's
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "<|call|>{{ m.tool_calls[0].function.name }}{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
)
ALTERNATING = (  # as Gemma's
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}<turn>{{ m.role }}\n"
    "{{ m.content }}{% endfor %}"
)
PARTS = (  # as Gemma 3's
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)


def call(name: str, id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": {}}}


def rendered(source: str, messages: list[dict[str, Any]]) -> str:
    template = ChatTemplate(source, {})
    return template.render(whole(messages, template.render, source))


def test_a_developer_message_is_a_system_message_where_the_template_does_not_name_the_role() -> None:
    text = rendered(KNOWN_ROLES, [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")


def test_a_developer_message_behind_a_system_message_joins_it_where_two_are_refused() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('one') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    messages = [{"role": role, "content": role[0].upper()} for role in ("system", "developer", "user")]
    assert rendered(source, messages) == "<system>S\n\nD<user>U"


@pytest.mark.parametrize("role", ["function", "foo", "critic"])
def test_a_message_of_a_role_that_the_template_leaves_out_is_refused_by_its_place(role: str) -> None:
    with pytest.raises(InvalidRequest, match=f"does not show a message of role '{role}'") as error:
        rendered(KNOWN_ROLES, [{"role": "user", "content": "Hi"}, {"role": role, "content": "x"}])
    assert error.value.param == "messages[1].role"


def test_a_call_that_the_template_leaves_out_is_refused_too() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call("now", "a")]},
    ]
    with pytest.raises(InvalidRequest, match="does not show a message of role 'assistant'"):
        rendered(source, messages)


def test_two_calls_and_their_results_are_written_one_by_one_where_the_template_takes_one() -> None:
    calls = [call("now", "a"), call("where", "b")]
    results = [{"role": "tool", "tool_call_id": id, "content": id.upper()} for id in ("b", "a")]
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    assert rendered(ONE_CALL, messages) == "<|user|>Hi<|call|>now<|tool|>A<|call|>where<|tool|>B"


def test_neighbouring_user_messages_are_one_where_roles_must_alternate() -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    assert rendered(ALTERNATING, messages) == "<turn>user\na\nb<turn>assistant\nc"


def test_a_conversation_that_no_way_of_writing_saves_is_refused_in_the_templates_words() -> None:
    with pytest.raises(InvalidRequest, match="System role not supported"):
        rendered(ALTERNATING, [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])


def test_a_conversation_that_the_template_takes_stays_as_it_is() -> None:
    messages = [
        {"role": "user", "content": " a "},
        {"role": "assistant", "content": "b\n"},
        {"role": "user", "content": "c"},
    ]
    template = ChatTemplate(KNOWN_ROLES, {})
    assert whole(messages, template.render, KNOWN_ROLES) == messages


@pytest.mark.parametrize(("source", "parts"), [(PARTS, True), (KNOWN_ROLES, False), (ALTERNATING, False)])
def test_a_template_that_writes_the_parts_of_a_content_is_known(source: str, parts: bool) -> None:
    assert reads_parts(ChatTemplate(source, {})) is parts


def results_of(count: int) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": str(i), "content": f"r{i}"} for i in reversed(range(count))]


def long(kind: str, count: int) -> list[dict[str, Any]]:
    if kind != "calls":
        return [{"role": kind, "content": "x"}] * count
    calls = [call("f", str(i)) for i in range(count)]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results_of(count)]


class Counted(str):
    """A template's text that counts the characters that are searched or copied one message at a time."""

    searched = 0

    def __contains__(self, piece: object) -> bool:
        Counted.searched += len(self)
        return isinstance(piece, str) and super().__contains__(piece)


@pytest.mark.parametrize("kind", ["user", "system", "calls"])
@pytest.mark.parametrize("source", [KNOWN_ROLES, ONE_CALL, ALTERNATING])
def test_a_conversation_of_many_messages_is_never_searched_once_for_each(source: str, kind: str) -> None:
    template = ChatTemplate(source, {})
    Counted.searched = 0
    try:
        whole(long(kind, 2000), lambda messages: Counted(template.render(messages)), source)
    except InvalidRequest:
        assert source is ALTERNATING
    assert Counted.searched == 0


def test_results_in_any_order_follow_their_calls_and_none_is_lost_or_shown_twice() -> None:
    messages = long("calls", 300)
    messages += [{"role": "tool", "tool_call_id": "0", "content": "again"}, {"role": "tool", "content": "loose"}]
    text = rendered(ONE_CALL, messages)
    assert text.startswith("".join(f"<|call|>f<|tool|>r{i}" for i in range(300)))
    assert text.endswith("<|tool|>again<|tool|>loose")


def test_a_sentinel_is_found_behind_text_that_looks_like_the_beginning_of_one() -> None:
    content = "x0123456789abcdef"
    assert content in rendered(KNOWN_ROLES, [{"role": "user", "content": content}])
