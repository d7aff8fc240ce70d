"""A chat request as its model knows chats: what the prompt is, and how the answer is to be read.

Which form calls and thoughts take follows from the checkpoint's own template, unless it is said.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from backend.chat.chat_rendering import Messages, reads_parts, whole
from backend.chat.interpreter import Interpreter
from backend.chat.parameters import template_messages
from backend.chat.reasoning import CLOSE, OPEN, ThinkParser, opens_thoughts
from backend.chat.structured import grammar_of
from backend.errors import ConfigError, InvalidRequest
from backend.models.checkpoints.chat_template import ChatTemplate, text_of
from backend.models.checkpoints.tokenizer import TextModel
from backend.tools import formats, teaching
from backend.tools.call_grammar import forced_calls
from backend.tools.formats import ToolFormat
from backend.tools.request import Tools, for_template, read_tools
from backend.wire import ChatCompletionRequest, JsonObject

AUTO, NONE, THINK = "auto", "none", "think"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
PROMPT_END = 16  # tokens that show whether the prompt ends inside the model's reasoning


@dataclass(frozen=True, slots=True)
class Turn:
    """The model's turn in a conversation.

    Attributes:
        prompt: token ids.
        text_model: of the answer's text, in which the control tokens that have to be read are seen.
        interpreter: makes what reads one choice of the answer; None: all of it is words.
        call_id: names a call.
        grammar: what the answer has to match (llguidance), "" for anything.
        thoughts_end: the token that ends the thoughts which the answer may begin with; None where there are none.
        thought_token: the token that begins them; None where the prompt has begun them.
    """

    prompt: list[int]
    text_model: TextModel
    interpreter: Callable[[], Interpreter] | None
    call_id: Callable[[], str]
    grammar: str = ""
    thoughts_end: int | None = None
    thought_token: int | None = None


@dataclass(frozen=True, slots=True)
class _Thinking:
    """Where thoughts may occur in an answer.

    Attributes:
        opened: the prompt ends inside of thoughts.
        allowed: the answer may have thoughts.
        expected: thoughts may come first in the answer: the prompt has opened them, or has not closed them.
    """

    opened: bool
    allowed: bool
    expected: bool


class ChatModel:
    """tool_call_parser: auto, none, or a name of `tools.formats`. reasoning_parser: auto, none or think. Raises
    ConfigError for others."""

    def __init__(self, text_model: TextModel, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO) -> None:
        template = text_model.tool_template or text_model.chat_template
        source = template.source if template else ""
        self._source = source
        if reasoning_parser not in (AUTO, NONE, THINK):
            raise ConfigError(
                f"reasoning parser {reasoning_parser!r} is not one of auto, none, think"
                "; set --reasoning-parser to one of them"
            )
        self._thinks = reasoning_parser == THINK or (reasoning_parser == AUTO and (OPEN in source or CLOSE in source))
        self._format: ToolFormat | None = None
        if tool_call_parser == AUTO:
            self._format = formats.of_template(source)
        elif tool_call_parser != NONE:
            self._format = formats.named(tool_call_parser)
        self._taught = formats.takes_tools(source)
        self._plain = text_model
        self._thinking = text_model.showing([OPEN, CLOSE])
        self._reads_parts = template is not None and reads_parts(template)
        self._takes_system = template is not None and _takes_system(template)
        self._calling = self._thinking.showing(self._format.markers if self._format else ())

    @property
    def calls_tools(self) -> bool:
        """Whether the model's calls of tools are read."""
        return self._format is not None

    @property
    def thinks(self) -> bool:
        """Whether the reasoning text of the model is separated from its answers."""
        return self._thinks or self._channels

    @property
    def _channels(self) -> bool:
        """Whether reasoning, answer and calls are in channels, which one parser reads."""
        return self._format is not None and self._format.shape is None

    def turn(self, request: ChatCompletionRequest) -> Turn:
        """Raises InvalidRequest."""
        extra = request.model_extra or {}
        tools = read_tools(extra)
        if tools is not None and self._format is None:
            raise InvalidRequest(
                "this backend does not read the calls of this model"
                "; leave tools out, or ask the operator to set --tool-call-parser",
                param="tools",
            )
        prompt = self.prompt(request, tools)
        thinking = self._thinking_of(request, prompt)
        form = self._format if tools is not None or self._channels else None
        if self._channels and grammar_of(request)[0]:
            raise InvalidRequest(
                "an answer in channels cannot have a form; leave response_format and the like out",
                param="response_format",
                code="unsupported_parameter",
            )
        include_reasoning = _flag(extra, "include_reasoning", default=True)

        def interpreter() -> Interpreter:
            return Interpreter(
                ThinkParser(opened=thinking.opened) if thinking.allowed else None,
                form.parser(tools.names if tools else ()) if form else None,
                show_reasoning=include_reasoning,
                parallel=tools is None or tools.parallel,
            )

        begin, end = self._grammar_waits_for(thinking)
        return Turn(
            prompt=prompt,
            text_model=self._text_model_for(form),
            interpreter=interpreter if self._thinks or form else None,
            call_id=(self._format or formats.HERMES).call_id,
            grammar=self._grammar_of(form, tools),
            thoughts_end=end,
            thought_token=begin,
        )

    def _thinking_of(self, request: ChatCompletionRequest, prompt: list[int]) -> _Thinking:
        """Where thoughts may occur in the answer to this prompt. Raises InvalidRequest."""
        if not self._thinks:
            return _Thinking(opened=False, allowed=False, expected=False)
        end = self._thinking.decode(prompt[-PROMPT_END:])
        continued = bool(request.continue_final_message)
        if continued:
            written = text_of(self._messages(request)[-1]["content"])
            opened = written.rfind(OPEN) > written.rfind(CLOSE)
        else:
            opened = opens_thoughts(end)
        allowed = opened or not continued
        return _Thinking(opened, allowed, expected=opened or (allowed and not end.rstrip().endswith(CLOSE)))

    def _grammar_waits_for(self, thinking: _Thinking) -> tuple[int | None, int | None]:
        """The tokens (begin, end) of the thoughts that a grammar leaves alone; end is None where it holds from the
        start, begin is None where the prompt has begun the thoughts."""
        begin, end = (self._plain.tokenizer.token_to_id(marker) for marker in (OPEN, CLOSE))
        if not thinking.expected or end is None:
            return None, None
        if thinking.opened:
            return None, end
        return (None, None) if begin is None else (begin, end)  # without it, nothing tells in time that thoughts begin

    def _text_model_for(self, form: ToolFormat | None) -> TextModel:
        """The text model that shows the control tokens which the reader of the answer needs; form: of its calls."""
        if form is not None:
            return self._calling
        return self._thinking if self._thinks else self._plain

    def _grammar_of(self, form: ToolFormat | None, tools: Tools | None) -> str:
        """Grammar of an answer that has to be a call (llguidance); "" if it may be anything."""
        if form is None or tools is None or not tools.forced:
            return ""
        return forced_calls(form, tools, self._plain.control_token)

    def prompt(
        self, request: ChatCompletionRequest, tools: Tools | None, *, add_generation_prompt: bool | None = None
    ) -> list[int]:
        """Token ids of the conversation. Raises InvalidRequest."""
        continued = bool(request.continue_final_message)
        if add_generation_prompt is None:
            add_generation_prompt = not continued if (said := request.add_generation_prompt) is None else said
        if continued:
            _refuse_continuing(request, opens_another=add_generation_prompt)
        messages = self._messages(request)
        definitions = tools.definitions if tools else None
        if not self._taught:
            messages = [teaching.as_text(message) for message in messages]
            if definitions:
                messages = teaching.with_tools(messages, definitions, takes_system=self._takes_system)
            definitions = None
        options = {**self._thinking_options(request), **_options(request)}
        template = self._plain.template_for(definitions)

        def render(conversation: Messages) -> str:
            return template.render(
                conversation, definitions, add_generation_prompt=add_generation_prompt, options=options
            )

        return self._plain.encode_chat(
            whole(messages, render, template.source),
            definitions,
            add_generation_prompt=add_generation_prompt,
            continued=continued,
            options=options,
        )

    def _messages(self, request: ChatCompletionRequest) -> Messages:
        """As the template is to be given them. Raises InvalidRequest."""
        return [for_template(message) for message in template_messages(request, in_parts=self._reads_parts)]

    def _thinking_options(self, request: ChatCompletionRequest) -> JsonObject:
        """``reasoning_effort`` as this model's template takes it: by that name, or as a switch."""
        effort = (request.model_extra or {}).get("reasoning_effort")
        if effort is None:
            return {}
        if effort not in EFFORTS:
            raise InvalidRequest(
                f"this effort is not known; send one of {', '.join(EFFORTS)}", param="reasoning_effort"
            )
        if "reasoning_effort" in self._source:
            return {"reasoning_effort": effort}
        if "enable_thinking" in self._source:
            return {"enable_thinking": effort != "none"}
        if effort == ("medium" if self._thinks else "none"):
            return {}
        raise InvalidRequest(
            "the thinking of this model cannot be set to this effort; leave reasoning_effort out",
            param="reasoning_effort",
            code="unsupported_parameter",
        )


def _takes_system(template: ChatTemplate) -> bool:
    conversation = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    try:
        whole(conversation, template.render, template.source)
    except InvalidRequest:
        return False
    return True


def _refuse_continuing(request: ChatCompletionRequest, *, opens_another: bool) -> None:
    """Raises InvalidRequest if the last message is not one that can be continued."""
    if opens_another:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other; send one of the two",
            param="continue_final_message",
        )
    last = request.messages[-1]
    if last.role != "assistant" or not last.content or last.tool_calls:
        raise InvalidRequest(
            "the last message is not text of the assistant; send one with role assistant and content, "
            "without tool_calls",
            param="continue_final_message",
        )


def _options(request: ChatCompletionRequest) -> JsonObject:
    options = (request.model_extra or {}).get("chat_template_kwargs")
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest(
            "chat_template_kwargs is not an object; send an object of options", param="chat_template_kwargs"
        )
    return options or {}


def _flag(extra: dict[str, Any], name: str, *, default: bool) -> bool:
    value = extra.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is not a boolean; send true or false", param=name)
    return value
