"""From a wire request to what the engine is asked for."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from backend import sampling_parameters
from backend.chat.choice import TextOptions
from backend.engine.core.sampling import SamplingParams
from backend.errors import ContextLengthExceeded, InvalidRequest
from backend.marks.scheme import MarkKey, shard_key
from backend.models.checkpoints.generation_config import SamplingDefaults
from backend.process.messages import AddSequence
from backend.wire import ChatCompletionRequest, ChatMessage, CompletionRequest, GenerationRequest

SEED_STEP = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: choices of one request draw from seeds far apart
SEED_SPACE = 1 << 63
MAX_BIASES = 1024
NEUTRAL_DEFAULTS = SamplingDefaults()
NOT_RENDERED = {"annotations", "audio", "refusal"}  # of an answer that comes back: `unsupported` has looked at them


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready for the engine.

    Attributes:
        sequences: `made` for each prompt, one prompt after the other.
        n: answers a prompt that are given; the best, if more are made.
        text: how their tokens become text.
        echo: the prompts, if their text is to precede the answers.
        prompt_logprobs: log probabilities of the prompts were asked for by that name.
        only_echo: no token of an answer is wanted; the engine still makes one.
    """

    sequences: list[AddSequence]
    text: TextOptions
    prompt_tokens: int
    n: int
    made: int
    echo: list[list[int]] | None = None
    prompt_logprobs: bool = False
    only_echo: bool = False
    deadline_s: float | None = None


def template_messages(request: ChatCompletionRequest, *, in_parts: bool = False) -> list[dict[str, Any]]:
    """The conversation as chat templates expect it: every content one string, or with ``in_parts`` its text parts as
    they came. Raises InvalidRequest naming the field."""
    return [_template_message(m, f"messages[{i}]", in_parts) for i, m in enumerate(request.messages)]


def _template_message(message: ChatMessage, at: str, in_parts: bool) -> dict[str, Any]:
    rendered = message.model_dump(exclude_none=True, exclude=NOT_RENDERED)
    if thoughts := rendered.pop("reasoning", None):
        rendered.setdefault("reasoning_content", thoughts)  # the name that templates know
    if not isinstance(message.content, list):
        return {**rendered, "content": message.content or ""}
    for i, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise InvalidRequest("this model reads text only; send content as text", param=f"{at}.content[{i}].type")
    texts = [part.text or "" for part in message.content]
    if in_parts and texts:
        return {**rendered, "content": [{"type": "text", "text": text} for text in texts]}
    return {**rendered, "content": "\n".join(texts)}


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
        raise InvalidRequest("the prompt is empty; send at least one character", param="prompt")
    return prompts


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a served model accepts. max_model_len: tokens of prompt plus answer. vocab_size: token ids are below it.
    defaults: hold for sampling parameters that a request does not set."""

    max_model_len: int
    vocab_size: int
    defaults: SamplingDefaults = NEUTRAL_DEFAULTS


@dataclass(frozen=True, slots=True)
class Constraints:
    """Which answers are allowed. The fields are those of `SamplingParams` with the same names."""

    grammar: str = ""
    grammar_after: int | None = None
    thought_token: int | None = None
    grammar_size: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()


UNCONSTRAINED = Constraints()


@dataclass(frozen=True, slots=True)
class _RequestedParameters:
    """A request's parameters in one form for chats and completions.

    Attributes:
        n: answers given for each prompt. made: answers generated for each prompt, of which the best `n` are given.
        max_tokens: most tokens of an answer; None if the request sets no bound.
        echo: the prompt's text precedes the answer.
        logprobs: number of likeliest tokens reported beside each token; None: no log probabilities are reported.
        seed: of the first choice.
    """

    n: int
    made: int
    max_tokens: int | None
    echo: bool
    logprobs: int | None
    seed: int


def job(
    request: GenerationRequest,
    prompts: list[list[int]],
    *,
    limits: ModelLimits,
    param: str,
    project: str = "",
    constraints: Constraints = UNCONSTRAINED,
    mark_key: bytes | None = None,
    commits: bool = False,
) -> Job:
    """Sequences for every prompt and choice. commits: as in `SamplingParams`.

    mark_key: by which the answers are watermarked; each choice has a shard of its own, as far as there are some.

    An answer may take what the prompt leaves of the context: a larger ``max_tokens`` is lowered to that, and without
    one it is that. Raises ContextLengthExceeded when nothing is left, InvalidRequest for token ids outside the
    vocabulary and for parameters that contradict each other. `param` names the field that prompts came from.
    """
    asked = _asked(request)
    _refuse_contradictions(request, asked, constraints)
    require_token_ids(request.allowed_token_ids or (), limits.vocab_size, "allowed_token_ids")
    room = limits.max_model_len - max(1, asked.max_tokens or 1)
    prompts = _truncated(prompts, request.truncate_prompt_tokens, room)
    sequences: list[AddSequence] = []
    for prompt in prompts:
        most = _most_tokens(prompt, asked, limits, param)
        first = len(sequences)
        sequences += (
            AddSequence(
                id=0,
                prompt=prompt,
                params=_sampling_params(
                    request,
                    asked,
                    limits,
                    constraints,
                    _mark(mark_key, asked.seed + first + choice),
                    choice=choice,
                    max_tokens=most,
                    commits=commits,
                ),
                priority=request.priority or 0,
                leader=first if choice else None,
                cache_root=cache_root(project, request.cache_salt or ""),
                project=project.encode(),
            )
            for choice in range(asked.made)
        )
    return Job(
        sequences,
        _text_options(request, asked.logprobs),
        prompt_tokens=sum(map(len, prompts)),
        n=asked.n,
        made=asked.made,
        echo=prompts if asked.echo else None,
        prompt_logprobs=request.prompt_logprobs is not None,
        only_echo=asked.max_tokens == 0,
        deadline_s=request.deadline_s,
    )


def _asked(request: GenerationRequest) -> _RequestedParameters:
    """The request's counts, its reports and a seed, which is random if the request sets none."""
    n = request.n or 1
    completion = request if isinstance(request, CompletionRequest) else None
    return _RequestedParameters(
        n=n,
        made=n if completion is None or completion.best_of is None else completion.best_of,
        max_tokens=_max_tokens(request),
        echo=completion is not None and bool(completion.echo),
        logprobs=_logprobs(request),
        seed=secrets.randbelow(SEED_SPACE) if request.seed is None else request.seed,
    )


def _most_tokens(prompt: list[int], asked: _RequestedParameters, limits: ModelLimits, param: str) -> int:
    """Most tokens of an answer to this prompt, at least 1.

    Raises InvalidRequest for an empty prompt or a token outside the vocabulary, ContextLengthExceeded if the prompt
    leaves no token of the context.
    """
    if not prompt:
        raise InvalidRequest("the prompt is empty; send at least one character", param=param)
    require_token_ids(prompt, limits.vocab_size, param)
    room = limits.max_model_len - len(prompt)
    if room < 1:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {limits.max_model_len} tokens; the prompt has {len(prompt)}, "
            "which leaves none for the answer",
            param=param,
        )
    return max(1, room if asked.max_tokens is None else min(asked.max_tokens, room))


def _sampling_params(
    request: GenerationRequest,
    asked: _RequestedParameters,
    limits: ModelLimits,
    constraints: Constraints,
    mark: MarkKey | None,
    *,
    choice: int,
    max_tokens: int,
    commits: bool,
) -> SamplingParams:
    """How the tokens of one choice are drawn. Only the first choice of a prompt reports the prompt's log
    probabilities. Raises InvalidRequest for a token outside the vocabulary."""
    best_of = asked.made > asked.n
    return SamplingParams(
        max_tokens=max_tokens,
        **sampling_parameters.values(request, limits.defaults),
        logit_bias=_logit_bias(request, limits.vocab_size),
        seed=(asked.seed + choice * SEED_STEP) % SEED_SPACE,
        min_tokens=min(request.min_tokens or 0, max_tokens),
        stop_token_ids=_stop_token_ids(request, limits.vocab_size),
        allowed_token_ids=tuple(request.allowed_token_ids or ()),
        bad_words=constraints.bad_words,
        ignore_eos=bool(request.ignore_eos),
        logprobs=0 if asked.logprobs is None and best_of else asked.logprobs,  # they decide which answers are the best
        prompt_logprobs=None if choice else _prompt_logprobs(request, echo=asked.echo),
        grammar=constraints.grammar,
        grammar_after=constraints.grammar_after,
        thought_token=constraints.thought_token,
        grammar_size=constraints.grammar_size,
        mark=mark,
        commits=commits,
    )


def _mark(key: bytes | None, shard: int) -> MarkKey | None:
    return None if key is None else shard_key(key, shard)


def _truncated(prompts: list[list[int]], most: int | None, room: int) -> list[list[int]]:
    """Each prompt's last tokens: so many, or for -1 as many as leave room for the answer. Raises InvalidRequest."""
    if most is None:
        return prompts
    if most == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens is 0; send at least 1, or -1 for as many as fit", param="truncate_prompt_tokens"
        )
    kept = max(1, room) if most == -1 else most
    return [prompt[-kept:] for prompt in prompts]


def bad_word_tokens(words: Sequence[str], encode: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """Each word's tokens, at the beginning of a text and behind a space (as vLLM reads ``bad_words``)."""
    spelled = {tuple(encode(space + word.lstrip(" "))) for word in words for space in ("", " ")}
    return tuple(sorted(tokens for tokens in spelled if tokens))


def cache_root(project: str, salt: str) -> bytes:
    """What a sequence's chain of blocks begins from: of its project whatever its body says, so that no two share any.

    A header holds no NUL, so no salt can pass for another project's root.
    """
    return f"{project}\0{salt}".encode() if project or salt else b""


def _refuse_contradictions(request: GenerationRequest, asked: _RequestedParameters, constraints: Constraints) -> None:
    """Raises InvalidRequest for the first pair of parameters that contradict each other."""
    _refuse_counts(request, asked)
    _refuse_reports(request)
    _refuse_constraints(request, constraints)


def _refuse_counts(request: GenerationRequest, asked: _RequestedParameters) -> None:
    """Raises InvalidRequest for numbers of answers and tokens that contradict other parameters."""
    if asked.made < asked.n:
        raise InvalidRequest("best_of is below n; send best_of of at least n", param="best_of")
    if asked.made > asked.n and request.stream:
        raise InvalidRequest(
            "best_of cannot be streamed, since the best answer is known at the end only; set stream to false",
            param="best_of",
        )
    if asked.max_tokens == 0 and not asked.echo:
        raise InvalidRequest("max_tokens is 0 without echo; send at least 1, or set echo", param="max_tokens")


def _refuse_reports(request: GenerationRequest) -> None:
    """Raises InvalidRequest for log probabilities that the form of the answer has no place for."""
    if request.prompt_logprobs is not None and request.stream:
        raise InvalidRequest("prompt_logprobs cannot be streamed; set stream to false", param="prompt_logprobs")
    if isinstance(request, ChatCompletionRequest) and request.top_logprobs and not request.logprobs:
        raise InvalidRequest("top_logprobs is set without logprobs; set logprobs to true", param="top_logprobs")


def _refuse_constraints(request: GenerationRequest, constraints: Constraints) -> None:
    """Raises InvalidRequest for constraints that leave no answer, or that a stop string would break."""
    forbidden = {word[0] for word in constraints.bad_words if len(word) == 1}
    if request.allowed_token_ids and forbidden.issuperset(request.allowed_token_ids):
        raise InvalidRequest(
            "bad_words forbids every token of allowed_token_ids; remove one of the two, or allow other tokens",
            param="allowed_token_ids",
        )
    if request.include_stop_str_in_output and constraints.grammar:
        raise InvalidRequest(
            "include_stop_str_in_output contradicts a given form of the answer; remove one of the two",
            param="include_stop_str_in_output",
        )


def require_token_ids(ids: Iterable[int], vocab_size: int, param: str) -> None:
    """Raises InvalidRequest for an id outside the vocabulary."""
    if any(not 0 <= i < vocab_size for i in ids):
        raise InvalidRequest(f"a token id is outside the vocabulary; send ids from 0 to {vocab_size - 1}", param=param)


def _text_options(request: GenerationRequest, logprobs: int | None) -> TextOptions:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if not all(stops):
        raise InvalidRequest("a stop string is empty; send at least one character", param="stop")
    return TextOptions(
        stops=tuple(stops),
        include_stop=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        logprobs=logprobs is not None,
        stop_tokens=frozenset(request.stop_token_ids or ()),
    )


def _logprobs(request: GenerationRequest) -> int | None:
    """How many of the likeliest tokens are reported beside each; None: nothing is."""
    if isinstance(request, ChatCompletionRequest):
        return (request.top_logprobs or 0) if request.logprobs else None
    return request.logprobs if isinstance(request, CompletionRequest) else None


def _prompt_logprobs(request: GenerationRequest, *, echo: bool) -> int | None:
    asked = [request.prompt_logprobs, _logprobs(request) if echo else None]
    return max((number for number in asked if number is not None), default=None)


def _logit_bias(request: GenerationRequest, vocab_size: int) -> tuple[tuple[int, float], ...]:
    bias = request.logit_bias or {}
    if len(bias) > MAX_BIASES:
        raise InvalidRequest(f"logit_bias has too many tokens; send at most {MAX_BIASES} tokens", param="logit_bias")
    if not all(key.isascii() and key.isdecimal() and len(key) < 10 for key in bias):
        raise InvalidRequest(
            "a key of logit_bias is not a token id; send ids of the vocabulary as keys", param="logit_bias"
        )
    summed: dict[int, float] = {}
    for key, value in bias.items():  # "1" and "01" are one token
        summed[int(key)] = summed.get(int(key), 0.0) + value
    require_token_ids(summed, vocab_size, "logit_bias")
    return tuple(sorted(summed.items()))


def _stop_token_ids(request: GenerationRequest, vocab_size: int) -> tuple[int, ...]:
    ids = tuple(request.stop_token_ids or ())
    require_token_ids(ids, vocab_size, "stop_token_ids")
    return ids


def _max_tokens(request: GenerationRequest) -> int | None:
    newer = request.max_completion_tokens if isinstance(request, ChatCompletionRequest) else None
    return newer if newer is not None else request.max_tokens
