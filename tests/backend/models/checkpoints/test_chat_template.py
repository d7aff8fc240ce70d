import json

import pytest

from backend.errors import CorruptCheckpoint, InvalidRequest
from backend.models.checkpoints.chat_template import ChatTemplate
from backend.models.checkpoints.checkpoint import Checkpoint

TALK = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "Grüß dich 🙂 <b>"},
    {"role": "assistant", "content": "Hallo!"},
    {"role": "user", "content": "{{ 7 * 7 }} {% raw %}"},
]
TEMPLATES = {
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "blocks and breaks": (
        "{{ bos_token }}\n{%- for m in messages %}\n    {% if m.role == 'system' %}\n    {% continue %}\n"
        "    {% endif %}\n[{{ loop.index0 }}] {{ m.content }}\n{% endfor %}\n{{ eos_token }}"
    ),
    "json": "{% for m in messages %}{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_transformers_renders_them(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    rendered, _ = render_jinja_template(
        conversations=[TALK], chat_template=TEMPLATES[name], add_generation_prompt=True, **variables
    )
    assert ChatTemplate(TEMPLATES[name], variables).render(TALK) == rendered[0]


TOOL_TALK = [
    {"role": "user", "content": "Oslo?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"é": [1, None]}}}],
    },
    {"role": "tool", "content": "12 °C", "name": "f"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<b>", "parameters": {"type": "object"}}}]


def test_tools_calls_and_options_render_as_transformers_renders_them() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}{% for m in messages %}"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}{{ thinking }}{{ tools is none }}"
    )
    for tools, prompt in ((TOOLS, True), (None, False)):
        rendered, _ = render_jinja_template(
            conversations=[TOOL_TALK], tools=tools, chat_template=source, add_generation_prompt=prompt, thinking="on"
        )
        ours = ChatTemplate(source, {}).render(
            TOOL_TALK, tools, add_generation_prompt=prompt, options={"thinking": "on"}
        )
        assert ours == rendered[0]


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_an_option_does_not_take_the_place_of_what_is_not_the_callers_to_say(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as refused:
        ChatTemplate("x", {"bos_token": "<s>"}).render(TALK, options={name: "y"})
    assert refused.value.param == "chat_template_kwargs"


def test_a_templates_refusal_is_told() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template.render(TALK)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.at.all }}",
        "{{ messages[0].content + 5 }}",
        "{{ messages[9].x.y }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_is_a_bad_request_that_quotes_nobody(source: str) -> None:
    with pytest.raises(InvalidRequest) as failed:
        ChatTemplate(source, {}).render(TALK)
    assert "brief" not in failed.value.message
    assert failed.value.__cause__ is None


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append('x') }}",
        "{{ messages.__init__.__globals__ }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source, {}).render([*TALK])


def test_a_template_that_is_not_jinja_is_corrupt() -> None:
    with pytest.raises(CorruptCheckpoint, match="line 2"):
        ChatTemplate("fine\n{% for %}", {})


def test_text_of_a_message_is_never_run_as_a_template() -> None:
    assert "{{ 7 * 7 }}" in ChatTemplate(TEMPLATES["chatml"], {}).render(TALK)


def test_strftime_now_gives_a_date() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render(TALK).startswith("20")


@pytest.mark.model
def test_the_demo_models_own_template_renders(smollm: Checkpoint) -> None:
    template = smollm.text.chat_template
    assert template is not None
    assert template.render([{"role": "user", "content": "Hi"}]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert json.dumps(template.render(TALK)).count("im_start") == len(TALK) + 1


# As Gemma 2's does: it has no system turn, and calls the assistant by another name.
WITHOUT_SYSTEM = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no turn for a system') }}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def test_a_system_turn_that_the_model_has_no_place_for_is_refused_with_the_templates_word() -> None:
    template = ChatTemplate(WITHOUT_SYSTEM, {"bos_token": "<bos>"})
    system = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    with pytest.raises(InvalidRequest, match="refuses these messages: no turn for a system") as refused:
        template.render(system)
    assert (refused.value.status, refused.value.param) == (400, "messages")
    assert template.render(system[1:]) == "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n"
