"""What an answer has to look like, from the request's words for it to a grammar.

OpenAI's `response_format`, and vLLM's `guided_*` and `structured_outputs`. A schema is enforced whether or not it says
``strict``. Nothing is fetched: a ``$ref`` that leaves the schema is refused.
"""

import json
from math import isfinite
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from backend.engine.core.grammar import MAX_GRAMMAR_BYTES, GrammarTooComplex
from backend.errors import InvalidRequest
from backend.wire import GenerationRequest

MAX_CHOICES = 1000
MAX_DEPTH = 64
# Between two tokens of JSON; unbounded, a model may write blanks until its tokens are used up.
JSON_OPTIONS: dict[str, Any] = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{0,32}"}
OF_A_FORMAT = frozenset({"type", "json_schema"})
OF_A_SCHEMA = frozenset({"name", "description", "schema", "strict"})
KINDS = ("json", "json_object", "regex", "choice", "grammar")


def grammar_of(request: GenerationRequest) -> tuple[str, str | None]:
    """The grammar that the answer has to match and the field that asked for it; ("", None) for any answer.

    Raises InvalidRequest, naming the field, for what is not understood, too large, or asked for twice. Whether the
    grammar compiles is for `engine.grammar` to say.
    """
    found = [*_response_format(request.response_format), *_guided(request), *_structured(request.structured_outputs)]
    if not found:
        return "", None
    if len(found) > 1:
        raise InvalidRequest(
            "the form of the answer is given more than once"
            "; use one of response_format, guided_* and structured_outputs",
            param=found[1][2],
        )
    kind, value, param = found[0]
    try:
        return _grammar(kind, value, param), param
    except RecursionError:
        raise GrammarTooComplex("the schema is nested too deeply; use fewer levels, or $ref", param=param) from None


Asked = tuple[str, Any, str]  # kind, value, the field it stood in


def _response_format(value: dict[str, Any] | None) -> list[Asked]:
    if value is None:
        return []
    _refuse_unknown(value, OF_A_FORMAT, "response_format")
    match value.get("type"):
        case "text":
            return []
        case "json_object":
            return [("json_object", True, "response_format")]
        case "json_schema":
            described = value.get("json_schema")
            _refuse_unknown(described, OF_A_SCHEMA, "response_format.json_schema")
            schema = described.get("schema") if isinstance(described, dict) else None
            if schema is None:
                raise InvalidRequest(
                    "a schema is missing; send response_format.json_schema.schema",
                    param="response_format.json_schema.schema",
                )
            return [("json", schema, "response_format.json_schema.schema")]
    raise InvalidRequest(
        "the type of response_format is not known; send text, json_object or json_schema", param="response_format.type"
    )


def _refuse_unknown(given: Any, known: frozenset[str], at: str) -> None:
    """Raises InvalidRequest naming the first member of an object that nothing reads."""
    for name in sorted(given.keys() - known) if isinstance(given, dict) else ():
        raise InvalidRequest(f"unknown parameter {name!r}; remove it", param=f"{at}.{name}", code="unknown_parameter")


def _guided(request: GenerationRequest) -> list[Asked]:
    fields = {"json": request.guided_json, "regex": request.guided_regex, "choice": request.guided_choice,
              "grammar": request.guided_grammar}  # fmt: skip
    return [(kind, value, f"guided_{kind}") for kind, value in fields.items() if value is not None]


def _structured(value: dict[str, Any] | None) -> list[Asked]:
    asked = []
    for kind, inner in (value or {}).items():
        if inner is None or inner is False:
            continue
        if kind not in KINDS:
            raise InvalidRequest(
                f"this kind of structured output is not known; send one of {', '.join(sorted(KINDS))}",
                param=f"structured_outputs.{kind}",
            )
        asked.append((kind, inner, f"structured_outputs.{kind}"))
    return asked


def _grammar(kind: str, value: Any, param: str) -> str:
    match kind, value:
        case "json_object", True:
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=JSON_OPTIONS)  # type: ignore[arg-type]
        case "json", dict() | str():
            return LLMatcher.grammar_from_json_schema(_schema(value, param), overrides=JSON_OPTIONS)  # type: ignore[arg-type]
        case "regex", str():
            return LLMatcher.grammar_from_regex(_sized(value, param))
        case "choice", list() if value and all(isinstance(item, str) and item for item in value):
            if len(value) > MAX_CHOICES:
                raise GrammarTooComplex(f"too many choices; send at most {MAX_CHOICES} choices", param=param)
            # Lark's strings are JSON's, but for DEL, which they take as an escape only.
            spelled = " | ".join(json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f") for item in value)
            return LLMatcher.grammar_from_lark(_sized(f"start: {spelled}", param))
        case "grammar", str():
            try:
                return LLMatcher.grammar_from_lark(any_to_lark(_sized(value, param)))
            except Exception:  # the converter raises what it likes; its message quotes the grammar
                raise InvalidRequest(
                    "the grammar cannot be read; send a grammar in Lark or GBNF", param=param
                ) from None
    wanted = {"json": "a JSON schema", "choice": "a list of texts", "json_object": "true"}.get(kind, "a text")
    raise InvalidRequest(f"the value is of another type; send {wanted}", param=param)


def _schema(value: Any, param: str) -> str:
    """Return a schema, given as JSON or as text, as JSON."""
    text = _sized(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), param)
    try:
        schema = json.loads(text, parse_float=_finite, parse_int=_finite, parse_constant=_finite)
    except OverflowError:
        raise InvalidRequest(
            "a number in the schema is not finite or beyond a double (about 1.8e308); send smaller numbers", param=param
        ) from None
    except ValueError:
        raise InvalidRequest("the schema is not JSON; send valid JSON", param=param) from None
    if not isinstance(schema, dict):
        raise InvalidRequest("the schema is not an object; send an object", param=param)
    if _depth(schema) > MAX_DEPTH:
        raise GrammarTooComplex("the schema is nested too deeply; use fewer levels, or $ref", param=param)
    return text


def _finite(text: str) -> float:
    """A number of JSON. Raises OverflowError for one that no double can hold, and for NaN."""
    number = float(text)
    if not isfinite(number):
        raise OverflowError(text)
    return number


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level = inner
    return deepest


def _sized(text: str, param: str) -> str:
    if len(text.encode("utf-8", errors="surrogatepass")) > MAX_GRAMMAR_BYTES // 2:
        raise GrammarTooComplex(f"the grammar is too long; send at most {MAX_GRAMMAR_BYTES // 2} bytes", param=param)
    return text
