"""Chat templates: a model's own Jinja text, rendered as Hugging Face does.

The template comes with the checkpoint and runs in Jinja's immutable sandbox. Same environment as transformers'
``apply_chat_template``: trim_blocks, lstrip_blocks, loop controls, ``raise_exception``, ``strftime_now`` and a
``tojson`` that keeps non-ASCII text.
"""

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backend.errors import CorruptCheckpoint, InvalidRequest

READ_TIME: ContextVar[datetime | None] = ContextVar("read_time", default=None)
"""The time that a template may read; None: now. Of a context, so that the rendering of a past call changes no other."""


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's tokens for training; when serving, its body is just text."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> Node | list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. Raises CorruptCheckpoint if it is not valid Jinja."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as broken:
            raise CorruptCheckpoint(f"chat template, line {broken.lineno}: {broken.message}") from None
        self.source = source
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text, ready for the assistant's turn unless `add_generation_prompt` is off.

        ``options`` are variables that the template may know besides (``chat_template_kwargs``), such as Qwen3's
        ``enable_thinking``. Raises InvalidRequest when the template refuses the conversation (roles out of order, say),
        or when an option would take the place of what is not the caller's to say.
        """
        own = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt, **self._variables}
        if taken := own.keys() & (options or {}).keys():
            raise InvalidRequest(
                f"{min(taken)} is not an option of the template; remove it from chat_template_kwargs",
                param="chat_template_kwargs",
            )
        try:
            return self._template.render({**(options or {}), **own})
        except _Refused as refusal:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {refusal}"
                "; change the order or the roles of the messages",
                param="messages",
            ) from None
        except Exception:  # a template is a program: it can fail in any way, and the error may quote a message
            raise InvalidRequest(
                "the model's chat template cannot render these messages"
                "; send other messages, or ask the operator to set another chat template",
                param="messages",
            ) from None


class _Refused(jinja2.TemplateError):
    pass


def _strftime_now(layout: str) -> str:
    return (READ_TIME.get() or datetime.now()).astimezone().strftime(layout)


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def with_suffix(content: Any, suffix: str) -> Any:
    """A content, one string or text parts, with `suffix` at its end."""
    if isinstance(content, str):
        return content + suffix
    return [*content[:-1], {**content[-1], "text": content[-1]["text"] + suffix}]


def text_of(content: Any) -> str:
    """A content, one string or text parts, as one string."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content or ())
