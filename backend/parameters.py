"""From a wire request to what the engine is asked for.

Nothing that would change the answer is ignored: a parameter that we do not implement is refused, by name, unless it
holds its neutral value.
"""

import secrets
from dataclasses import dataclass
from typing import Any, cast

from backend.engine.sampling import SamplingParams
from backend.errors import ContextLengthExceeded, InvalidRequest
from backend.messages import AddSequence
from backend.wire import ChatCompletionRequest, ChatMessage, CompletionRequest, GenerationRequest

SEED_STEP = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: choices of one request draw from seeds far apart
SEED_SPACE = 1 << 63

IGNORED = {  # they say something about the request and nothing about the answer
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
}
OURS = {"stop_token_ids", "priority", "cache_salt"}  # vLLM's extensions that we implement
OF_CHATS = {"tools", "tool_choice", "chat_template_kwargs", "include_reasoning"}  # see `conversation`
NEUTRAL: dict[str, tuple[Any, ...]] = {  # values that ask for nothing
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
}


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready for the engine. Choice i answers prompt ``i // n``."""

    sequences: list[AddSequence]
    stops: list[str]
    prompt_tokens: int
    n: int


def refuse_unsupported(request: GenerationRequest) -> None:
    """Raises InvalidRequest naming the first parameter that would be ignored. Also looks into messages."""
    for name, value in (request.model_extra or {}).items():
        if value is None or name in IGNORED or name in OURS:
            continue
        if name in OF_CHATS and isinstance(request, ChatCompletionRequest):
            continue
        if name not in NEUTRAL:
            raise InvalidRequest(f"unknown parameter {name!r}", param=name, code="unknown_parameter")
        if value not in NEUTRAL[name] or (isinstance(value, bool) and value is not False):
            raise InvalidRequest(
                f"{name} is not supported by this backend with this value", param=name, code="unsupported_parameter"
            )


def template_messages(request: ChatCompletionRequest) -> list[dict[str, Any]]:
    """The conversation as chat templates expect it: every content one string. Raises InvalidRequest."""
    return [_template_message(m, f"messages[{i}]") for i, m in enumerate(request.messages)]


def _template_message(message: ChatMessage, at: str) -> dict[str, Any]:
    rendered = message.model_dump(exclude_none=True)
    if not isinstance(message.content, list):
        return {**rendered, "content": message.content or ""}
    for i, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise InvalidRequest("this model reads text only", param=f"{at}.content[{i}].type")
    return {**rendered, "content": "\n".join(part.text or "" for part in message.content)}


def completion_prompts(request: CompletionRequest) -> list[str | list[int]]:
    """`prompt` in its four shapes, as a list of texts or token lists. Raises InvalidRequest when there is none."""
    prompt = request.prompt
    if isinstance(prompt, str):
        prompts: list[str | list[int]] = [prompt]
    elif all(isinstance(item, int) for item in prompt):
        prompts = [cast(list[int], prompt)]
    else:
        prompts = cast(list[str | list[int]], prompt)
    if not prompts or not all(prompts):
        raise InvalidRequest("the prompt is empty", param="prompt")
    return prompts


def job(
    request: GenerationRequest, prompts: list[list[int]], *, max_model_len: int, vocab_size: int, param: str
) -> Job:
    """Sequences for every prompt and choice.

    An answer may take what the prompt leaves of the context: a larger ``max_tokens`` is lowered to that, and without
    one it is that. Raises ContextLengthExceeded when nothing is left, InvalidRequest for token ids outside the
    vocabulary. `param` names the field that prompts came from.
    """
    n = request.n or 1
    seed = secrets.randbelow(SEED_SPACE) if request.seed is None else request.seed
    extra = request.model_extra or {}
    stop_token_ids = _stop_token_ids(extra.get("stop_token_ids"))
    priority = _integer(extra, "priority")
    cache_root = _text(extra, "cache_salt").encode()
    wanted = _max_tokens(request)
    sequences: list[AddSequence] = []
    for prompt in prompts:
        if not prompt:
            raise InvalidRequest("the prompt is empty", param=param)
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise InvalidRequest(f"token ids must be from 0 to {vocab_size - 1}", param=param)
        room = max_model_len - len(prompt)
        if room < 1:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {max_model_len} tokens; the prompt has {len(prompt)}, which "
                "leaves none for the answer",
                param=param,
            )
        first = len(sequences)
        for choice in range(n):
            params = SamplingParams(
                max_tokens=room if wanted is None else min(wanted, room),
                temperature=1.0 if request.temperature is None else request.temperature,
                top_k=max(0, request.top_k or 0),
                top_p=1.0 if request.top_p is None else request.top_p,
                seed=(seed + choice * SEED_STEP) % SEED_SPACE,
                stop_token_ids=stop_token_ids,
                ignore_eos=bool(request.ignore_eos),
            )
            leader = first if choice else None
            sequences.append(AddSequence(0, prompt, params, priority, leader, cache_root))
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if not all(stops):
        raise InvalidRequest("a stop string is empty", param="stop")
    return Job(sequences, stops, sum(map(len, prompts)), n)


def _max_tokens(request: GenerationRequest) -> int | None:
    newer = request.max_completion_tokens if isinstance(request, ChatCompletionRequest) else None
    return newer if newer is not None else request.max_tokens


def _stop_token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        raise InvalidRequest("stop_token_ids must be a list of integers", param="stop_token_ids")
    return tuple(value)


def _integer(extra: dict[str, Any], name: str) -> int:
    value = extra.get(name)
    if value is None:
        return 0
    if type(value) is not int or abs(value) >= 1 << 31:
        raise InvalidRequest(f"{name} must be an integer", param=name)
    return value


def _text(extra: dict[str, Any], name: str) -> str:
    value = extra.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string", param=name)
    return value
