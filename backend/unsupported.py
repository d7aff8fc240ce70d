"""Fields that a request may have and that we do not act on.

Nothing that would change the answer is ignored: a parameter that we do not implement is refused, by name, unless it
holds its neutral value. Sources: OpenAI API reference and vLLM's protocol.
"""

from typing import Any

from backend.errors import InvalidRequest
from backend.wire import ChatCompletionRequest, GenerationRequest

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


def refuse_unsupported(request: GenerationRequest) -> None:
    """Raises InvalidRequest naming the first parameter that would be ignored. Also looks into messages."""
    for name, value in (request.model_extra or {}).items():
        if value is None or name in IGNORED:
            continue
        if name in OF_CHATS and isinstance(request, ChatCompletionRequest):
            continue
        if name not in NEUTRAL:
            raise InvalidRequest(f"unknown parameter {name!r}", param=name, code="unknown_parameter")
        if value not in NEUTRAL[name] or (isinstance(value, bool) and value is not False):
            raise InvalidRequest(
                f"{name} is not supported by this backend with this value", param=name, code="unsupported_parameter"
            )
