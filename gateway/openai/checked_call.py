"""How a request body becomes a checked call."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from backend.wire import GenerationRequest
from gateway.api_format import NO_STATE, CallState, Translation, rename
from gateway.errors import InvalidRequest, invalid_body
from gateway.openai.bounds import BOUNDS, check_shape, may_exceed_shape
from gateway.openai.endpoints import Endpoint
from gateway.openai.finite_json import read

# Fields that say who the person is and that no model needs (GDPR 5(1)(c)): they stay on this side.
IDENTIFYING_FIELDS = ("user", "metadata", "safety_identifier")

PROMPT_FIELDS = (
    "messages", "prompt", "suffix", "input", "query", "documents", "text_1", "text_2", "tools", "functions",
)  # fmt: skip
NO_TEXT = frozenset({"role", "type", "id", "tool_call_id", "data", "file_data", "cache_control"})
"""Members, at any depth, that say what something is, or hold a file."""

LEADING_CHARACTERS = 16 << 10
MAX_ANSWER_TOKENS = 2**31 - 1
MAX_NUMBER_TEXT = 64
"""Characters of a number that is written as text."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is well-formed: the checked model, and the body as the client wrote it.

    `raw`: the client's bytes; of a call that continues from stored items, with these in it. Of another
    API's call `body` is the chat body that asks for the same, and `translation`
    is how it is answered. `thinking_budgets`: the smallest and the largest budget of thinking in it, -1 where the model
    decides. `model` and `stream` are those of `request`; every step asks for them, so they are fields and no
    properties.
    """

    endpoint: Endpoint
    request: GenerationRequest
    body: dict[str, Any]
    raw: bytes
    translation: Translation | None = None
    thinking_budgets: tuple[int, ...] = ()
    model: str = field(init=False)
    stream: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.request.model)
        object.__setattr__(self, "stream", bool(self.request.stream))

    @property
    def choices(self) -> int:
        """How many answers it asks for: `n` for each prompt."""
        return self.request.answers

    def most_tokens(self, default: int) -> int:
        """Tokens of all answers that may be generated, where one without a bound has `default`; `min_tokens` where that
        is more. What the client asks for beyond what any server can do counts as that. A budget of thinking comes on
        top, since not every server counts thoughts in the length of an answer (Alibaba's does not)."""
        longest = self.request.longest_answer
        each = max(default if longest is None else longest, self.request.min_tokens or 0)
        if self.thinking_budgets:
            each += max(default if budget < 0 else budget for budget in self.thinking_budgets)
        return min(each, MAX_ANSWER_TOKENS) * self.request.sequences

    @property
    def has_no_end(self) -> bool:
        """It forbids the end of its answer and gives no other bound, so it runs to the end of the model's context."""
        request = self.request
        return bool(self.endpoint.generates and request.ignore_eos and request.longest_answer is None)

    @property
    def prompt_characters(self) -> int:
        """Characters of the prompt's text: what an estimate of its tokens is made of where the server reports none.
        Names of members, punctuation of JSON, and images and sound in base64 are no text."""
        size, left = 0, [self.body.get(name) for name in PROMPT_FIELDS]
        while left:
            value = left.pop()
            if isinstance(value, str):
                size += 0 if value.startswith("data:") else len(value)
            elif isinstance(value, dict):
                left += [inner for name, inner in value.items() if name not in NO_TEXT]
            elif isinstance(value, list) and not (value and type(value[0]) is int):  # token ids are counted as such
                left += value
        return size

    @property
    def leading_text(self) -> str:
        """The start of the prompt, for prefix-cache affinity: requests that begin alike go to the same backend."""
        pieces, size = [], 0
        for piece in self.request.leading_texts():
            pieces.append(piece[:LEADING_CHARACTERS])
            size += len(piece)
            if size >= LEADING_CHARACTERS:
                break
        return "".join(pieces)[:LEADING_CHARACTERS]


def parse_call(endpoint: Endpoint, raw: bytes, state: CallState = NO_STATE) -> Call:
    """Check `raw` against the wire model. Raises InvalidRequest naming the field, never quoting its value; GoesOn."""
    BOUNDS.check(raw)
    return checked_call(endpoint, raw, read_body(raw), state)


def read_body(raw: bytes, parse: Callable[[bytes], Any] = read) -> Any:
    """The first half of `parse_call`, of a body that is known to be within `BOUNDS`. Raises InvalidRequest."""
    if not raw:
        raise InvalidRequest("The body is empty; send a JSON object", code="invalid_json")
    try:
        return parse(raw)
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}; send valid JSON", code="invalid_json") from None


def checked_call(endpoint: Endpoint, raw: bytes, body: Any, state: CallState = NO_STATE) -> Call:
    """The second half of `parse_call`; `body`: what `raw` is parsed to."""
    try:
        return _translated(endpoint, raw, body, state)
    except InvalidRequest as error:
        if isinstance(body, dict) and isinstance(name := body.get("model"), str):
            error.model = name
        raise


def _translated(endpoint: Endpoint, raw: bytes, body: Any, state: CallState) -> Call:
    body, translation = endpoint.format.chat(body, state)
    if translation is None:
        return _checked(endpoint, raw, body)
    try:
        return _checked(endpoint, raw, body, translation)
    except InvalidRequest as error:
        rename(error, translation.place)
        raise


def _checked(endpoint: Endpoint, raw: bytes, body: Any, translation: Translation | None = None) -> Call:
    if isinstance(body, dict) and may_exceed_shape(raw):
        check_shape(body)
    try:
        request = endpoint.request_type.model_validate(body)
    except ValidationError as error:
        raise invalid_body(error.errors(include_url=False, include_input=False)) from None
    _refuse_uncounted(endpoint, request)
    budgets = _thinking_budgets(request) if endpoint.generates else ()
    return Call(endpoint, request, body, raw, translation, budgets)


def _refuse_uncounted(endpoint: Endpoint, request: GenerationRequest) -> None:
    """Raises InvalidRequest for a field by which some server would generate more than `Call.most_tokens`."""
    for name, value in (request.model_extra or {}).items():
        plain = _plain(name)
        if plain in _CONTAINERS:
            found = _uncounted_in(name, value)
        else:
            found = name if plain in _COUNTED and _raises(plain, value) else None
        if found is not None:
            use = _COUNTED[_plain(found.rpartition(".")[2])]
            where = " at the top of the body" if "." in found else ""
            fix = f"use {use}{where}" if endpoint.generates else "leave it out"
            raise InvalidRequest(
                f"{found} is not a field of {endpoint.path}; {fix}", param=found, code="unsupported_parameter"
            )


def _plain(name: str) -> str:
    """`name` without what spellings differ in: servers in C# or Go read ``MAX_TOKENS`` and ``maxTokens`` alike."""
    return name.replace("_", "").replace("-", "").lower()


def _raises(plain: str, value: object) -> bool:
    return value is not None and value is not False and not (plain == "bestof" and value == 1)


def _uncounted_in(place: str, value: Any) -> str | None:
    """The path of the first name inside of `value` that says how much is generated, thoughts aside."""
    for path, member in _members(place, _parsed(place, value)):
        plain = _plain(path.rpartition(".")[2])
        if plain in _COUNTED and _raises(plain, member) and not _is_of_thoughts(path):
            return path
    return None


def _parsed(place: str, value: Any) -> Any:
    """`value`, read from JSON where it is a text: transformers reads generation_config so. Raises InvalidRequest."""
    if not isinstance(value, str):
        return value
    raw = value.encode()
    BOUNDS.check(raw)
    try:
        return read(raw)
    except ValueError:
        raise InvalidRequest(
            f"The value of {place} is not an object; send a JSON object", param=place, code="invalid_value"
        ) from None


def _members(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The path and the value of everything inside of `value`, the nearest first."""
    level: list[tuple[str, Any]] = [(place, value)]
    while level:
        inner: list[tuple[str, Any]] = []
        for path, each in level:
            members = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
            inner += [(f"{path}.{name}", member) for name, member in members]
        yield from inner
        level = inner


def _thinking_budgets(request: GenerationRequest) -> tuple[int, ...]:
    """The smallest and the largest number that any server may read as how long the model shall think."""
    budgets: list[int] = []
    for name, value in (request.model_extra or {}).items():
        if name in IDENTIFYING_FIELDS:
            continue
        whole = _parsed(name, value) if _plain(name) in _CONTAINERS else value
        for path, member in ((name, whole), *_members(name, whole)):
            if _is_of_thoughts(path) and (budget := _number_in(member)) is not None:
                budgets.append(budget)
    return (min(budgets), max(budgets)) if budgets else ()


def _is_of_thoughts(path: str) -> bool:
    """Servers have many names for it and put it at many places: ``thinking.budget_tokens`` (Anthropic, LiteLLM),
    ``thinking_token_budget`` (vLLM), ``thinking_budget_tokens`` (llama.cpp), ``thinking_budget`` (SGLang, Alibaba),
    ``reasoning.max_tokens`` (OpenRouter), ``nvext.max_thinking_tokens`` (NVIDIA NIM),
    ``thinking_config.thinking_budget`` (Gemini), and a number as ``reasoning_effort`` (Fireworks)."""
    plain = _plain(path)
    return "think" in plain or "thought" in plain or "reasoning" in plain


def _number_in(value: Any) -> int | None:
    """`value` as a number of tokens, at least -1; None where a server would not read it as one."""
    if isinstance(value, str) and len(value) <= MAX_NUMBER_TEXT:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return int(max(-1, min(value, MAX_ANSWER_TOKENS)))


_COUNTED = {
    "beamwidth": "n",
    "bestof": "n",
    "candidatecount": "n",
    "ignoreeos": "ignore_eos",
    "maxcompletiontokens": "max_tokens",
    "maxgenlen": "max_tokens",
    "maxlength": "max_tokens",
    "maxnewtokens": "max_tokens",
    "maxoutputtokens": "max_tokens",
    "maxtokens": "max_tokens",
    "maxtokenstosample": "max_tokens",
    "minlength": "min_tokens",
    "minnewtokens": "min_tokens",
    "mintokens": "min_tokens",
    "n": "n",
    "ncmpl": "n",
    "npredict": "max_tokens",
    "numbeams": "n",
    "numgenerations": "n",
    "numpredict": "max_tokens",
    "numreturnsequences": "n",
    "usebeamsearch": "n",
}
"""Names that servers other than ours, or other endpoints, have for how much is generated (llama.cpp, TGI, Ollama,
transformers, SGLang, TensorRT-LLM, OpenAI's other APIs, Anthropic, Gemini), as `_plain` spells them, and what to use
instead. A limit that did not know them would be bypassed by them. Those that an endpoint does have are in its model,
and never get here."""

_CONTAINERS = frozenset({"extrabody", "generationconfig", "nvext", "options", "parameters", "samplingparams"})
"""Fields of one server or another that hold parameters of their own: transformers (generation_config, as a JSON text),
LiteLLM and Gemini (extra_body), Ollama (options), TGI (parameters), SGLang (sampling_params), NVIDIA NIM (nvext)."""
