"""What servers stream, chunk by chunk, in their own order and with their own members; the texts are ours.

Each was written down from the server's source or documentation, which is named with it (with the commit that was read),
or recorded from the server where it runs here (llama.cpp, bench/gateway/own_server.py). Where no commit stands, the
shape is from a release or from the page that is named. Every one says the same: thoughts and content with an e-mail
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
_sglang_choice = {"logprobs": None, "matched_stop": None}
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
        "sgl-project/sglang@06713058, python/sglang/srt/entrypoints/openai/sse_utils.py, build_sse_content: members of "
        "a delta that say nothing are left out, those of the choice are null; @004c82e0, protocol.py, "
        "ChatCompletionStreamResponse: the end in a chunk of its own, in which every member stands",
        (
            _chunk({"role": "assistant", "content": ""}, choice=_sglang_choice),
            _chunk({"reasoning_content": THOUGHT[:12]}, choice=_sglang_choice),
            _chunk({"reasoning_content": THOUGHT[12:]}, choice=_sglang_choice),
            _chunk({"content": CONTENT[:13]}, choice=_sglang_choice),
            _chunk({"content": CONTENT[13:]}, choice=_sglang_choice),
            _chunk(_sglang, "stop", choice={"logprobs": None, "matched_stop": 2}, usage=None),
            _usage(usage={**USAGE, "prompt_tokens_details": None, "reasoning_tokens": 4}),
        ),
        THINKS_OLD, "stop",
    ),
    RecordedStream(
        "SGLang, thoughts that are null where there are none",
        "an earlier sse_utils.py, whose StreamDelta has a reasoning_content without a default",
        (
            _chunk({"reasoning_content": None, "role": "assistant", "content": ""}, choice=_sglang_choice),
            _chunk({"reasoning_content": THOUGHT}, choice=_sglang_choice),
            _chunk({"reasoning_content": None, "content": CONTENT[:13]}, choice=_sglang_choice),
            _chunk({"reasoning_content": None, "content": CONTENT[13:]}, choice=_sglang_choice),
            _chunk(_sglang, "stop", choice={"logprobs": None, "matched_stop": "\n"}), _usage(),
        ),
        THINKS_OLD, "stop",
    ),
    RecordedStream(
        "SGLang, a tool call",
        "sgl-project/sglang@004c82e0, protocol.py, DeltaMessage: through the class, so every member stands in every "
        "delta; id and name are null where a call goes on",
        (
            _chunk({"role": "assistant", "content": ""}, choice=_sglang_choice),
            _chunk({**_sglang, **_arguments("", id="call_1", type="function", name="mail")}, choice=_sglang_choice),
            _chunk({**_sglang, **_arguments(ARGUMENTS[:14], id=None, type="function", name=None)}, usage=None),
            _chunk({**_sglang, **_arguments(ARGUMENTS[14:], id=None, type="function", name=None)}, usage=None),
            _chunk(_sglang, "tool_calls", choice=_sglang_choice), _usage(),
        ),
        CALLS, "tool_calls",
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
        "BerriAI/litellm@001c64f2, litellm/types/utils.py, Delta, as its proxy writes it (model_dump_json with "
        "exclude_none and exclude_unset): what is null is left out, the reason of an end too; thoughts stand in "
        "reasoning_content and again in thinking_blocks, whatever their name was at the provider",
        (
            _open({"role": "assistant", "content": "", "reasoning_content": THOUGHT[:14],
                   "thinking_blocks": [{"type": "thinking", "thinking": THOUGHT[:14]}]}),
            _open({"content": "", "reasoning_content": THOUGHT[14:],
                   "thinking_blocks": [{"type": "thinking", "thinking": THOUGHT[14:], "signature": "c2ln"}]}),
            _open({"content": CONTENT[:13]}), _open({"content": CONTENT[13:]}),
            _chunk({}, "stop"), _usage(),
        ),
        THINKS_OLD, "stop",
    ),
    RecordedStream(
        "LiteLLM, as a library's classes are written",
        "BerriAI/litellm@001c64f2, the same class with model_dump: content, role, function_call, tool_calls and audio "
        "always stand; the others only where they say something",
        (
            _chunk({**_litellm, "role": "assistant", "content": "", "reasoning_content": THOUGHT[:14]}),
            _chunk({**_litellm, "content": "", "reasoning_content": THOUGHT[14:], "role": None}),
            _chunk({**_litellm, "content": CONTENT[:13]}), _chunk({**_litellm, "content": CONTENT[13:]}),
            _chunk({**_litellm, "content": None}, "stop", citations=None), _usage(),
        ),
        THINKS_OLD, "stop",
    ),
    RecordedStream(
        "LiteLLM, a tool call",
        "BerriAI/litellm@001c64f2, Delta.__init__: an index and the type function are added where a provider gave none",
        (
            _open({"role": "assistant", **_arguments("", id="call_1", type="function", name="mail")}),
            _open(_arguments(ARGUMENTS[:14], type="function")), _open(_arguments(ARGUMENTS[14:], type="function")),
            _chunk({}, "tool_calls"), _usage(),
        ),
        CALLS, "tool_calls",
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
        "Gemini's OpenAI endpoint, a signed tool call that ends in stop",
        "googleapis/python-genai issue 2868 (a stream with a call ends in stop) and noho/dayu-agent issue 45 (captured "
        "events): a call whole in one delta, without index, with extra_content",
        (
            _chunk({"role": "assistant", "tool_calls": [
                {"extra_content": {"google": {"thought_signature": "EjQKMgEM"}},
                 "function": {"arguments": ARGUMENTS, "name": "mail"}, "id": "jm4", "type": "function"}]}, usage=USAGE),
            _chunk({"role": "assistant"}, "stop", usage=USAGE),
        ),
        CALLS, "stop",
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
