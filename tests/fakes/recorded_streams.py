"""What servers stream, chunk by chunk, in their own order and with their own members; the texts are ours.

Each was written down from the server's source or documentation, which is named with it (with the commit that was read),
or recorded from the server where it runs here (llama.cpp, bench/own_server.py). Where no commit stands, the shape is
from a release or from the page that is named. Every one says the same: thoughts and content with an e-mail
address cut in two, or a tool call with one in its arguments.
"""

from dataclasses import dataclass

MAIL = "carl@example.org"
THOUGHT, CONTENT = f"I know {MAIL} carefully", f"Write to {MAIL} or call 42."
ARGUMENTS = '{"to": "carl@example.org", "n": 1}'
USAGE = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}


@dataclass(frozen=True)
class RecordedStream:
    """`said`: what a client without a filter puts together. `ends`: its finish reason. `done`: ``[DONE]`` comes."""

    server: str
    source: str
    chunks: tuple[dict, ...]
    said: dict[str, str]
    ends: str
    done: bool = True


def _chunk(delta=None, finish=None, *, choice=None, **more):
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish, **(choice or {})}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, **more}


def _bare(delta, finish=None, **more):
    """Without an index."""
    chunk = _chunk(delta, finish, **more)
    del chunk["choices"][0]["index"]
    return chunk


def _open(delta, **more):
    """Without the reason of an end, where that is left out and not null."""
    chunk = _chunk(delta, **more)
    del chunk["choices"][0]["finish_reason"]
    return chunk


def _usage(**more):
    return {**_chunk(), "choices": [], "usage": USAGE, **more}


THINKS = {"reasoning": THOUGHT, "content": CONTENT}
THINKS_OLD = {"reasoning_content": THOUGHT, "content": CONTENT}
TALKS, CALLS = {"content": CONTENT}, {"arguments 0": ARGUMENTS}

_sglang = {"role": None, "content": None, "reasoning_content": None, "tool_calls": None}
_litellm = {"provider_specific_fields": None, "function_call": None, "tool_calls": None, "audio": None}
_call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "mail", "arguments": ""}}


def _arguments(text, *, name=..., **more):
    named = {} if name is ... else {"name": name}
    return {"tool_calls": [{"index": 0, **more, "function": {**named, "arguments": text}}]}


STREAMS = (
    RecordedStream(
        "vLLM, a stop in the last step",
        "vLLM 0.33.0, entrypoints/openai/chat_completion/serving.py and stream_processor.py: the last step's delta and "
        "finish_reason are one chunk; reasoning and content meet in one delta",
        (
            _chunk({"role": "assistant", "content": ""}, choice={"logprobs": None, "token_ids": None}),
            _chunk({"reasoning": "I know carl@ex"}), _chunk({"reasoning": "ample.org care"}),
            _chunk({"reasoning": "fully", "content": "Write to carl@exa"}), _chunk({"content": "mple.org or"}),
            _chunk({"content": " call 42."}, "length", choice={"stop_reason": None, "token_ids": [1, 2]}),
            _usage(),
        ),
        THINKS, "length",
    ),
    RecordedStream(
        "vLLM, both names of thoughts and usage on every chunk",
        "vLLM 0.11 to 0.13, entrypoints/openai/protocol.py: reasoning beside reasoning_content; "
        "stream_options.continuous_usage_stats",
        (
            _chunk({"role": "assistant", "content": ""}, usage=USAGE),
            _chunk({"reasoning": "I know carl@ex", "reasoning_content": "I know carl@ex"}, usage=USAGE),
            _chunk({"reasoning": "ample.org carefully", "reasoning_content": "ample.org carefully"}, usage=USAGE),
            _chunk({"content": CONTENT[:14]}, usage=USAGE), _chunk({"content": CONTENT[14:]}, "stop", usage=USAGE),
        ),
        {**THINKS, **THINKS_OLD}, "stop",
    ),
    RecordedStream(
        "SGLang",
        "sgl-project/sglang, python/sglang/srt/entrypoints/openai/serving_chat.py (excerpts of 2026): every member in "
        "every delta, null where it says nothing; matched_stop; the end in a chunk of its own",
        (
            _chunk({**_sglang, "role": "assistant", "content": ""}, choice={"logprobs": None, "matched_stop": None}),
            _chunk({**_sglang, "reasoning_content": THOUGHT[:12]}),
            _chunk({**_sglang, "reasoning_content": THOUGHT[12:]}),
            _chunk({**_sglang, "content": CONTENT[:13]}), _chunk({**_sglang, "content": CONTENT[13:]}),
            _chunk(_sglang, "stop", choice={"logprobs": None, "matched_stop": 2}), _usage(),
        ),
        THINKS_OLD, "stop",
    ),
    RecordedStream(
        "TensorRT-LLM",
        "NVIDIA/TensorRT-LLM@01bf1923, tensorrt_llm/serve/postprocess_handlers.py, chat_stream_post_processor: what is "
        "null is left out, the reason of an end too; content and reasoning_content both stand in every delta "
        "after the role; the end beside the last text; usage on each chunk with continuous_usage_stats",
        (
            _open({"role": "assistant"}, usage=USAGE),
            _open({"content": "", "reasoning_content": THOUGHT[:15]}, usage=USAGE),
            _open({"content": CONTENT[:12], "reasoning_content": THOUGHT[15:]}, usage=USAGE),
            _chunk({"content": CONTENT[12:], "reasoning_content": ""}, "length", usage=USAGE),
            _usage(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 0}}),
        ),
        THINKS_OLD, "length",
    ),
    RecordedStream(
        "TensorRT-LLM, a tool call",
        "the same function: id and name in the first delta of a call only, arguments as they come",
        (
            _open({"role": "assistant"}),
            _open({"content": "", "reasoning_content": "", "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "mail", "arguments": ""}}]}),
            _open({"content": "", "reasoning_content": "", **_arguments(ARGUMENTS[:14], type="function")}),
            _chunk({"content": "", "reasoning_content": "", **_arguments(ARGUMENTS[14:], type="function")},
                   "tool_calls"),
        ),
        CALLS, "tool_calls",
    ),
    RecordedStream(
        "TGI, a tool call",
        "huggingface/text-generation-inference@03fe626a, router/src/chat.rs, ChatState::push: one brace with the name "
        "first; id and type of the call in every delta; the end beside the last text",
        (
            _chunk({"role": "assistant", "tool_calls": [{**_call, "id": "0", "function": {
                "name": "mail", "arguments": ARGUMENTS[:1]}}]}, id=""),
            _chunk({"role": "assistant", **_arguments(ARGUMENTS[1:14], id="0", type="function", name=None)}, id=""),
            _chunk({"role": "assistant", **_arguments(ARGUMENTS[14:], id="0", type="function", name=None)}, "stop",
                   id=""),
        ),
        CALLS, "stop", done=False,
    ),
    RecordedStream(
        "TGI",
        "the same file, StreamState::Content: the role in every delta, no id; a special token is an empty text; the "
        "end beside it; usage in a chunk of its own",
        (
            _chunk({"role": "assistant", "content": CONTENT[:13]}, id=""),
            _chunk({"role": "assistant", "content": CONTENT[13:]}, id=""),
            _chunk({"role": "assistant", "content": ""}, "stop", id=""), _usage(id=""),
        ),
        TALKS, "stop", done=False,
    ),
    RecordedStream(
        "TGI, an end of its own name",
        "TGI 1.4, whose chats ended in the names of /generate: eos_token, stop_sequence",
        (
            _chunk({"role": "assistant", "content": CONTENT[:13]}, id=""),
            _chunk({"role": "assistant", "content": CONTENT[13:]}, "eos_token", id=""),
        ),
        TALKS, "eos_token", done=False,
    ),
    RecordedStream(
        "Ollama",
        "ollama/ollama@00988753, openai/openai.go, ToChunk: the role and a content, which may be empty, in every "
        "delta; the end beside what the last response says, which is usually nothing",
        (
            _chunk({"role": "assistant", "content": "", "reasoning": THOUGHT[:13]}, system_fingerprint="fp_ollama"),
            _chunk({"role": "assistant", "content": "", "reasoning": THOUGHT[13:]}, system_fingerprint="fp_ollama"),
            _chunk({"role": "assistant", "content": CONTENT[:15]}, system_fingerprint="fp_ollama"),
            _chunk({"role": "assistant", "content": CONTENT[15:]}, system_fingerprint="fp_ollama"),
            _chunk({"role": "assistant", "content": ""}, "stop", system_fingerprint="fp_ollama"), _usage(),
        ),
        THINKS, "stop",
    ),
    RecordedStream(
        "Ollama, an empty end on every chunk",
        "ollama/ollama issue 4357: FinishReason was the address of an empty string",
        (
            _chunk({"role": "assistant", "content": CONTENT[:13]}, ""),
            _chunk({"role": "assistant", "content": CONTENT[13:]}, ""),
            _chunk({"role": "assistant", "content": ""}, "stop"),
        ),
        TALKS, "stop",
    ),
    RecordedStream(
        "Ollama, a tool call in one piece beside text",
        "ollama/ollama@00988753, openai/openai.go, ToToolCalls and ToChunk",
        (
            _chunk({"role": "assistant", "content": CONTENT,
                    "tool_calls": [{**_call, "function": {"name": "mail", "arguments": ARGUMENTS}}]}),
            _chunk({"role": "assistant", "content": ""}, "tool_calls"), _usage(),
        ),
        {**TALKS, **CALLS}, "tool_calls",
    ),
    RecordedStream(
        "llama.cpp",
        "recorded from llama.cpp's server (xllamacpp 2026.10.11549); tools/server/server-task.cpp: content null in the "
        "first chunk, timings beside usage",
        (
            _chunk({"role": "assistant", "content": None}, system_fingerprint="b0-unknown"),
            _chunk({"reasoning_content": THOUGHT}), _chunk({"content": CONTENT[:14]}),
            _chunk({"content": CONTENT[14:]}),
            _chunk({}, "stop"), _usage(timings={"prompt_n": 7, "predicted_per_second": 51.5}),
        ),
        THINKS_OLD, "stop",
    ),
    RecordedStream(
        "LiteLLM",
        "BerriAI/litellm, litellm/types/utils.py, Delta (read in the indexed main of 2026): members of all providers; "
        "reasoning_content, thinking_blocks and audio are left out where they are null, the others are not",
        (
            _chunk({**_litellm, "role": "assistant", "content": "", "reasoning_content": THOUGHT[:14],
                    "thinking_blocks": [{"type": "thinking", "thinking": THOUGHT[:14]}]}),
            _chunk({**_litellm, "content": "", "reasoning_content": THOUGHT[14:], "role": None}),
            _chunk({**_litellm, "content": CONTENT[:13]}), _chunk({**_litellm, "content": CONTENT[13:]}),
            _chunk({**_litellm, "content": None}, "stop", citations=None), _usage(),
        ),
        THINKS_OLD, "stop",
    ),
    RecordedStream(
        "Mistral",
        "mistralai/client-python@2b92a76f, models/thinkchunk.py, and deltamessage.py: thoughts are parts of content; "
        "usage beside the end",
        (
            _chunk({"role": "assistant", "content": ""}),
            _chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT[:14]}]}]}),
            _chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT[14:]}]}]}),
            _chunk({"content": [{"type": "text", "text": CONTENT[:14]}]}), _chunk({"content": CONTENT[14:]}),
            _chunk({"content": ""}, "stop", usage=USAGE),
        ),
        THINKS_OLD, "stop",
    ),
    RecordedStream(
        "Gemini's OpenAI endpoint",
        "ai.google.dev/gemini-api/docs/openai: role, text and usage in every chunk, the end beside text",
        (
            _chunk({"role": "assistant", "content": CONTENT[:14]}, usage=USAGE),
            _chunk({"role": "assistant", "content": CONTENT[14:]}, "stop", usage=USAGE),
        ),
        TALKS, "stop",
    ),
    RecordedStream(
        "Gemini's OpenAI endpoint, a tool call without an index",
        "langchain-ai/langchainjs issue 11373",
        (
            _bare({"role": "assistant", "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "mail", "arguments": ARGUMENTS}}]}, "tool_calls"),
        ),
        CALLS, "tool_calls",
    ),
    RecordedStream(
        "Azure OpenAI",
        "learn.microsoft.com, asynchronous content filter: chunks without choices before and behind the text",
        (
            {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [{"index": 0}]},
            _chunk({"role": "assistant", "content": "", "refusal": None}), _chunk({"content": CONTENT[:13]}),
            _chunk({"content": CONTENT[13:]}), _chunk({}, "stop", choice={"content_filter_results": {}}), _usage(),
        ),
        TALKS, "stop",
    ),
)  # fmt: skip
