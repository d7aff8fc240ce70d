"""Fields that a request may have and that we do not act on.

Nothing that would change the answer is ignored: a parameter that we do not implement is refused, by name, unless it
holds its neutral value. Sources: OpenAI API reference and vLLM's protocol.
"""

from typing import Any

from backend.errors import InvalidRequest
from backend.wire import ChatCompletionRequest, ChatMessage, GenerationRequest, WireModel

IGNORED = {  # they say something about the request and nothing about the answer
    "guided_decoding_backend",
    "metadata",
    "parallel_tool_calls",
    "prediction",  # it may make an answer faster, and no other
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "spaces_between_special_tokens",  # decoding is byte by byte: it adds none
    "store",
}
OF_CHATS = {"tools", "tool_choice", "chat_template_kwargs", "include_reasoning", "reasoning_effort"}  # `conversation`
NEUTRAL: dict[str, tuple[Any, ...]] = {  # known and not supported, and the values of each that ask for nothing
    "add_special_tokens": (False,),  # of a chat: its template writes them
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": ("none",),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "structural_tag": (),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "web_search_options": (),
}


IN_MESSAGES: dict[str, tuple[Any, ...]] = {  # beside what the wire model has; () : any value
    "annotations": (),  # of an answer that comes back: they say something about its text
    "audio": (None,),
    "function_call": (None,),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (None, ""),
}
IN_PARTS: dict[str, tuple[Any, ...]] = {"annotations": (), "cache_control": ()}
IN_STREAM_OPTIONS: dict[str, tuple[Any, ...]] = {"continuous_usage_stats": (False,), "include_obfuscation": (False,)}


def refuse_unsupported(request: GenerationRequest) -> None:
    """Raises InvalidRequest naming the first parameter that would be ignored, in messages and options as well."""
    if request.stream_options is not None:
        _refuse_members(request.stream_options, IN_STREAM_OPTIONS, "stream_options")
    understood = IGNORED
    if isinstance(request, ChatCompletionRequest):
        _refuse_in_messages(request.messages)
        understood = IGNORED | OF_CHATS
    for name, value in (request.model_extra or {}).items():
        if value is not None and name not in understood:
            _refuse_parameter(name, value)


def _refuse_in_messages(messages: list[ChatMessage]) -> None:
    """Raises InvalidRequest naming the first field of a message or of its parts that would be ignored."""
    for i, message in enumerate(messages):
        _refuse_members(message, IN_MESSAGES, f"messages[{i}]")
        for j, part in enumerate(message.content if isinstance(message.content, list) else ()):
            _refuse_members(part, IN_PARTS, f"messages[{i}].content[{j}]", of="text" if part.type == "text" else None)


def _refuse_parameter(name: str, value: Any) -> None:
    """Raises InvalidRequest unless the parameter is known and this value of it asks for nothing."""
    if name not in NEUTRAL:
        raise InvalidRequest(f"unknown parameter {name!r}; remove it", param=name, code="unknown_parameter")
    if value not in NEUTRAL[name] or (isinstance(value, bool) and value is not False):
        raise InvalidRequest(
            f"{name} is not supported by this backend with this value; remove it, or send its default",
            param=name,
            code="unsupported_parameter",
        )


def _refuse_members(given: WireModel, known: dict[str, tuple[Any, ...]], at: str, *, of: str | None = "object") -> None:
    """of: None for what is refused as a whole elsewhere."""
    for name, value in (given.model_extra or {}).items():
        if value is None or of is None or (name in known and (not known[name] or value in known[name])):
            continue
        path = f"{at}.{name}"
        if name in known:
            raise InvalidRequest(
                f"this backend does not support {name} with this value; remove it, or send its default",
                param=path,
                code="unsupported_parameter",
            )
        raise InvalidRequest(f"unknown parameter {name!r}; remove it", param=path, code="unknown_parameter")
