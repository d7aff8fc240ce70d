"""A grammar of answers that are calls and nothing else, as the model's parser reads them (llguidance's Lark)."""

import json
from collections.abc import Callable

from llguidance import LLMatcher

from backend.errors import InvalidRequest
from backend.tools.formats import ToolFormat
from backend.tools.request import Tools

# Between two tokens of JSON; unbounded, a model may write blanks until its tokens are used up.
JSON_OPTIONS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,32}"}
MOST_CALLS = 16  # in one answer that is forced; a small model may not find an end


def forced_calls(form: ToolFormat, tools: Tools, control_token: Callable[[str], int | None]) -> str:
    """For llguidance: a call of the functions in ``tools.forced``, or several where calls may be parallel.

    control_token: the id of a control token by its spelling, None for what is ordinary text.
    """
    shape = form.shape
    if shape is None:
        raise InvalidRequest(
            "calls of this model cannot be forced; send tool_choice auto",
            param="tool_choice",
            code="unsupported_parameter",
        )
    before = _literal(shape.before, form.markers, control_token)
    calls = f"call ({_text(shape.between)} call){{0,{MOST_CALLS - 1}}}" if tools.parallel else "call"
    lines = [
        f"start: {' '.join(filter(None, (before, calls, _text(shape.after))))}",
        f"call: {' '.join(filter(None, (_text(shape.opening), 'object', _text(shape.closing))))}",
        f"object: {' | '.join(f'f{i}' for i in range(len(tools.forced)))}",
    ]
    for i, name in enumerate(tools.forced):
        head = f'{{"name": {json.dumps(name)}, {json.dumps(shape.arguments)}: '
        lines.append(f"f{i}: {_text(head)} a{i} {_text('}')}")
        lines.append(f"a{i}: %json {json.dumps({**tools.parameters[name], 'x-guidance': JSON_OPTIONS})}")
    return LLMatcher.grammar_from_lark("\n".join(lines))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _literal(text: str, markers: tuple[str, ...], control_token: Callable[[str], int | None]) -> str:
    """`text`, in which a control token at the beginning stands for itself."""
    for marker in markers:
        token = control_token(marker)
        if text.startswith(marker) and token is not None:
            return f"<[{token}]> {_text(text.removeprefix(marker))}".rstrip()
    return _text(text)
