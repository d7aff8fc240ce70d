import json

from pydantic_core import to_json

from gateway.openai.answer import rewrite_body
from gateway.openai.stream_filter import StreamRewriter


class Upper:
    """Holds back the last character until more comes, and shouts: easy to see where text went through."""

    def __init__(self, json_escaped):
        self.held = ""
        self.json_escaped = json_escaped

    def feed(self, text):
        text = self.held + text
        self.held = text[-1:]
        return text[:-1].upper()

    def rest(self):
        return self.held.upper()

    def flush(self, last=""):
        rest, self.held = (self.held + last).upper(), ""
        return rest


class Identity(Upper):
    def feed(self, text):
        return text

    def rest(self):
        return ""

    def flush(self, last=""):
        return last


def chunk(delta, finish=None, index=0):
    return {
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": index, "delta": delta, "finish_reason": finish}],
    }  # fmt: skip


def rewritten(rewriter, *chunks, ends=True):
    sent = []
    for one in chunks:
        sent += map(to_json, rewriter.rewrite(one))
    if ends:
        sent += map(to_json, rewriter.end({"object": "chat.completion.chunk"}))
    return [json.loads(payload) for payload in sent]


def text_of(chunks, index=0):
    return "".join(
        choice["delta"].get("content") or "" for c in chunks for choice in c["choices"] if choice["index"] == index
    )


def test_held_back_text_goes_out_before_the_end_of_its_choice():
    sent = rewritten(
        StreamRewriter(Upper),
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "he"}),
        chunk({"content": "llo"}),
        chunk({}, "stop"),
    )
    assert text_of(sent) == "HELLO"
    assert sent[-1]["choices"][0]["finish_reason"] == "stop"
    assert sent[-2]["choices"][0]["delta"] == {"content": "O"}


def test_a_chunk_whose_text_is_all_held_back_is_not_sent():
    assert rewritten(StreamRewriter(Upper), chunk({"content": "x"}), ends=False) == []


def test_a_chunk_is_written_anew_also_where_nothing_in_it_changed():
    """The bytes that came may hold what a parser does not show: a member that stands twice."""
    payload = b'{"choices": [ {"index":0,"delta":{"content":"y","content":"x"}} ],  "model": "odd"}'
    (sent,) = StreamRewriter(Identity).rewrite(json.loads(payload))
    assert to_json(sent) == b'{"choices":[{"index":0,"delta":{"content":"x"}}],"model":"odd"}'


def test_choices_do_not_mix():
    sent = rewritten(
        StreamRewriter(Upper),
        chunk({"content": "ab"}),
        chunk({"content": "xy"}, index=1),
        chunk({"content": "c"}),
        chunk({}, "stop"),
        chunk({"content": "z"}, index=1),
        chunk({}, "length", index=1),
    )
    assert text_of(sent, 0) == "ABC"
    assert text_of(sent, 1) == "XYZ"


def test_tool_call_arguments_have_a_filter_each_that_knows_they_are_json():
    made = []

    def make(json_escaped):
        made.append(json_escaped)
        return Upper(json_escaped)

    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    sent = rewritten(
        StreamRewriter(make),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": "x"}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        chunk({}, "tool_calls"),
    )
    arguments = {0: "", 1: ""}
    for one in sent:
        for part in one["choices"][0]["delta"].get("tool_calls") or []:
            arguments[part["index"]] += part["function"].get("arguments") or ""
    assert arguments == {0: '{"A":1}', 1: "X"}
    assert made == [False, True, True]  # the first one is of the name


def test_fields_nobody_has_looked_at_do_not_pass():
    sent = rewritten(StreamRewriter(Identity), chunk({"content": "a", "audio": {"transcript": "secret"}}))
    assert sent[0]["choices"][0]["delta"] == {"content": "a"}
    body = {"choices": [{"message": {"role": "assistant", "content": "a", "annotations": ["secret"]}}]}
    rewrite_body(body, Identity)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "a"}


def test_log_probabilities_do_not_tell_what_the_filter_hides():
    one = chunk({"content": "a"})
    one["choices"][0]["logprobs"] = {"content": [{"token": "secret"}]}
    assert rewritten(StreamRewriter(Identity), one)[0]["choices"][0]["logprobs"] is None


def test_a_whole_body_is_filtered_in_every_text():
    body = {
        "choices": [
            {
                "text": "plain",
                "message": {
                    "role": "assistant", "content": "hi", "reasoning_content": "why", "refusal": "no",
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
                },
            }
        ]
    }  # fmt: skip
    rewrite_body(body, Upper)
    message = body["choices"][0]["message"]
    assert body["choices"][0]["text"] == "PLAIN"
    assert (message["content"], message["reasoning_content"], message["refusal"]) == ("HI", "WHY", "NO")
    assert message["tool_calls"][0]["function"] == {"name": "F", "arguments": '{"A":1}'}


def test_a_stream_that_is_cut_gives_up_what_it_held_back():
    rewriter = StreamRewriter(Upper)
    rewritten(rewriter, chunk({"content": "abc"}, "stop"), ends=False)
    rest = rewriter.rest({"object": "chat.completion.chunk", "id": "c"})
    assert text_of(rest) == "C"
    assert [choice["finish_reason"] for one in rest for choice in one["choices"]] == [None]  # it was cut, not ended


def test_completions_carry_their_text_beside_the_index():
    rewriter = StreamRewriter(Upper)
    first = {"object": "text_completion", "choices": [{"index": 0, "text": "abc", "finish_reason": None}]}
    last = {"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    sent = rewritten(rewriter, first, last)
    assert "".join(choice.get("text", "") for c in sent for choice in c["choices"]) == "ABC"


def test_what_is_not_known_may_be_text_and_does_not_pass():
    body = {
        "id": "c", "prompt_token_ids": [1], "prompt_text": "x",
        "choices": [{"index": 0, "token_ids": [2], "reasoning": "x", "message": {"role": "assistant", "content": "a"}}],
    }  # fmt: skip
    rewrite_body(body, Upper)
    assert body == {"id": "c", "choices": [{"index": 0, "message": {"role": "assistant", "content": "A"}}]}
    one = {**chunk({"content": "ab"}), "prompt_text": "x"}
    one["choices"][0]["token_ids"] = [2]
    (sent,) = rewritten(StreamRewriter(Identity), one)
    assert sent == chunk({"content": "ab"})


def test_a_custom_tools_input_is_text_and_goes_through_the_filter():
    call = {"id": "t", "type": "custom", "custom": {"name": "shell", "input": "ls"}, "note": "x"}
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}
    rewrite_body(body, Upper)
    assert body["choices"][0]["message"]["tool_calls"] == [
        {"id": "t", "type": "custom", "custom": {"name": "SHELL", "input": "LS"}}
    ]
    sent = rewritten(
        StreamRewriter(Upper),
        chunk({"tool_calls": [{"index": 0, "id": "t", "custom": {"name": "s", "input": "l"}}]}),
        chunk({"tool_calls": [{"index": 0, "custom": {"input": "s"}}]}),
        chunk({}, "tool_calls"),
    )
    calls = [call for one in sent for choice in one["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert "".join(call["custom"].get("input", "") for call in calls) == "LS"
    assert not any("function" in call for call in calls)


def test_arguments_that_came_as_an_object_are_filtered_as_the_text_they_stand_for():
    call = {"id": "t", "function": {"name": "f", "arguments": {"to": "me"}}}
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "tool_calls": [call]}}]}
    rewrite_body(body, Upper)
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"TO":"ME"}'
    sent = rewritten(
        StreamRewriter(Upper),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": {"to": "me"}}}]}),
        chunk({}, "tool_calls"),
    )
    calls = [call for one in sent for choice in one["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"TO":"ME"}'


def test_a_text_that_came_in_parts_is_filtered_and_what_is_no_text_is_dropped():
    parts = [{"type": "text", "text": "ab"}, {"type": "image", "url": "x"}, "loose", {"type": "thinking", "text": "c"}]
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": parts, "refusal": {"odd": 1}}}]}
    rewrite_body(body, Upper)
    said = {"role": "assistant", "content": "AB", "reasoning_content": "C", "refusal": ""}
    assert body["choices"][0]["message"] == said
    sent = rewritten(StreamRewriter(Upper), chunk({"content": parts}), chunk({}, "stop"))
    assert text_of(sent) == "AB"
    assert sent[0]["choices"][0]["delta"]["reasoning_content"] == "C"
