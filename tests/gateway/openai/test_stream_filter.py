"""Streams in any order of their members, against the filter of the whole answer.

The filter is the product's own (`policy.redact`), with masks, blocks and placeholders to restore.
"""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from gateway.errors import BackendFailed
from gateway.openai import stream_filter
from gateway.openai.answer import rewrite_body
from gateway.openai.shape import DELTA, choices_of
from gateway.openai.stream_filter import StreamRewriter
from policy.errors import RedactionBlocked, RedactionError
from policy.redact.actions.plan import RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor

MAIL, OTHER_MAIL, IBAN = "carl@example.org", "jan.de.vries@voorbeeld.example", "DE89 3704 0044 0532 0130 00"
REDACTORS = {
    action: Redactor(RedactionPlan({"email": "pseudonymise"}, {"email": action, "iban": action}))
    for action in ("mask", "tag", "block")
}


def placeholders():
    table = Pseudonyms("k7f3")
    return table, [table.placeholder("email", OTHER_MAIL), table.placeholder("iban", IBAN)]


TABLE, HIDDEN = placeholders()
TEXTS = [
    "", "Plain words only, and a few of them.", f"Write to {MAIL} or call.", f"{MAIL}", f"It is {IBAN}.",
    f"Ask {HIDDEN[0]} about {HIDDEN[1]}", "The answer is 42.", "Größe 日本 🙂 naïve", f"{MAIL} {MAIL}, {HIDDEN[0]}x",
]  # fmt: skip
ARGUMENTS = [
    "",
    "{}",
    json.dumps({"to": MAIL, "n": 1}),
    json.dumps({"to": HIDDEN[0], "text": f"é {MAIL}"}),
    '{"cut": "',
]


def make_filter(action):
    return lambda json_escaped: REDACTORS[action].stream_filter(TABLE, json_escaped=json_escaped)


class Assembled:
    """What a client puts together from chunks, the way the SDKs do; and in which order the texts of a choice began
    and ended."""

    def __init__(self, payloads):
        self.choices, self.order, self.ends = {}, {}, {}
        for chunk in map(json.loads, payloads):
            for choice in chunk["choices"]:
                index = choice["index"]
                for field, text in pieces_of(choice):
                    said = self.choices.setdefault(index, {})
                    said[field] = said.get(field, "") + text
                    self.order.setdefault(index, []).append(field)
                if choice.get("finish_reason") is not None:
                    assert index not in self.ends
                    self.ends[index] = choice["finish_reason"]
                else:
                    assert index not in self.ends, "text after the end"


def pieces_of(choice):
    delta = choice.get("delta", {"text": choice.get("text")}) or {}
    for field in ("reasoning", "reasoning_content", "content", "refusal", "text"):
        if delta.get(field):
            yield field, delta[field]
    for call in delta.get("tool_calls") or ():
        for kind, field in (("function", "name"), ("function", "arguments"), ("custom", "input")):
            if text := (call.get(kind) or {}).get(field):
                yield f"{field} {call.get('index') or 0}", text


def streamed(chunks, action):
    rewriter, sent = StreamRewriter(make_filter(action)), []
    for chunk in chunks:
        payload = json.dumps(chunk).encode()
        chunk = json.loads(payload)
        choices_of(chunk, DELTA)
        sent += map(to_json, rewriter.rewrite(chunk))
    return sent + [to_json(one) for one in rewriter.end({"object": "chat.completion.chunk", "id": "x"})]


def whole(fields, action):
    """The same texts through the filter of a whole answer."""
    calls = {}
    for field, text in fields.items():
        name, _, number = field.partition(" ")
        if number:
            calls.setdefault(number, {"name": "f"})[name] = text
    message = {field: text for field, text in fields.items() if " " not in field and field != "text"}
    if calls:
        message["tool_calls"] = [{"id": number, "function": call} for number, call in calls.items()]
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    if "text" in fields:
        body["choices"][0]["text"] = fields["text"]
    rewrite_body(body, make_filter(action))
    choice = body["choices"][0]
    said = {field: text for field, text in choice["message"].items() if isinstance(text, str)}
    if "text" in choice:
        said["text"] = choice["text"]
    for call in choice["message"].get("tool_calls") or ():
        for field, text in call["function"].items():
            said[f"{field} {call['id']}"] = text
    return {field: text for field, text in said.items() if text}


def cut(draw, text):
    edges = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[a:b] for a, b in zip([0, *edges], [*edges, len(text)], strict=True)]


def delta_of(field, piece, first):
    number = field.partition(" ")[2]
    if not number:
        return {field: piece}
    call = {"index": int(number), "function": {"arguments": piece}}
    if first:
        call |= {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": piece}}
    return {"tool_calls": [call]}


THOUGHTS = st.sampled_from([(), ("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")])
END = st.sampled_from([None, "", "stop", "length", "max tokens", "STOP"])
NOISE = st.sampled_from(
    [{}, {"content": None}, {"content": ""}, {"role": "assistant"}, {"role": None, "tool_calls": None},
     {"reasoning_content": None, "reasoning": None, "refusal": None}, {"tool_calls": []}, {"function_call": None}, None]
)  # fmt: skip


@st.composite
def answers(draw):
    """One choice: its texts in the order of a client's reading, cut anywhere, with every other member anywhere."""
    texts = []
    thought = draw(st.sampled_from(TEXTS))
    parallel = draw(THOUGHTS)
    if parallel:
        texts.append([(field, thought) for field in parallel])
    texts.append([("content", draw(st.sampled_from(TEXTS)))])
    if draw(st.booleans()):
        texts.append([("refusal", draw(st.sampled_from(TEXTS)))])
    for number in range(draw(st.integers(0, 2))):
        texts.append([(f"arguments {number}", draw(st.sampled_from(ARGUMENTS)))])
    if draw(st.booleans()):
        draw(st.randoms(use_true_random=False)).shuffle(texts)
    index, position, events = draw(st.sampled_from([0, None])), {}, []
    for group in texts:
        for at, piece in enumerate(cut(draw, group[0][1])):
            delta = {}
            for field, _ in group:
                delta |= delta_of(field, piece, at == 0)
            events.append((delta, group))
        for field, text in group:
            position[field] = text
    if draw(st.booleans()) and len(events) > 1:  # the end of one text and the beginning of the next in one delta
        at = draw(st.integers(0, len(events) - 2))
        (one, first), (two, second) = events[at], events[at + 1]
        if first is not second and not (one.keys() & two.keys()) and reads_in_order(one, two):
            events[at : at + 2] = [({**one, **two}, second)]
    chunks = []
    for delta, _ in events:
        noise = draw(NOISE)
        if noise is not None and draw(st.booleans()):
            delta = {**noise, **delta}
        choice = {"delta": delta, "finish_reason": draw(END)}
        if index is not None:
            choice["index"] = index
        chunks.append({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})
    for _ in range(draw(st.integers(0, 3))):
        noise = draw(NOISE)
        extra = draw(st.sampled_from([
            {"choices": []}, {"choices": None}, {},
            {"choices": [{"index": 0, "delta": noise, "finish_reason": draw(END), "logprobs": None}]},
        ]))  # fmt: skip
        chunks.insert(draw(st.integers(0, len(chunks))), {"id": "x", "object": "chat.completion.chunk", **extra})
    return position, [field for group in texts for field, _ in group], chunks


READ = ("reasoning", "reasoning_content", "content", "refusal", "tool_calls")


def reads_in_order(one, two):
    return max(map(READ.index, one)) < min(map(READ.index, two))


@given(answers(), st.sampled_from(["mask", "tag"]))
@settings(max_examples=250, deadline=None)
def test_put_together_a_stream_says_what_the_whole_answer_says_field_by_field_in_order(answer, action):
    fields, order, chunks = answer
    got = Assembled(streamed(chunks, action))
    expected = whole(fields, action)
    said = {field: text for field, text in got.choices.get(0, {}).items() if not field.startswith("name")}
    assert said == {field: text for field, text in expected.items() if not field.startswith("name")}
    seen = [field for field in got.order.get(0, []) if not field.startswith("name")]
    groups = [position_in(order, field) for field in seen]
    assert groups == sorted(groups), seen
    ends = [c["finish_reason"] for chunk in chunks for c in chunk.get("choices") or () if c.get("finish_reason")]
    assert got.ends.get(0) == (ends[-1] if ends else None)


UNSEEN = "hidden@example.org"
OTHERS = (  # members that servers put beside the text, and that a client without a filter may show
    ("delta", "thinking_blocks", [{"type": "thinking", "thinking": UNSEEN, "signature": "c2ln"}]),
    ("delta", "reasoning_items", [{"summary": UNSEEN}]), ("delta", "annotations", [{"title": UNSEEN}]),
    ("delta", "extra_content", {"google": {"thought_signature": UNSEEN}}), ("delta", "audio", {"transcript": UNSEEN}),
    ("delta", "hidden_states", [UNSEEN]), ("delta", "provider_specific_fields", {"citation": UNSEEN}),
    ("choice", "meta_info", {"text": UNSEEN}), ("choice", "matched_stop", UNSEEN), ("choice", "token_ids", [1]),
    ("choice", "content_filter_results", {"hate": UNSEEN}), ("chunk", "sglext", {"text": UNSEEN}),
    ("chunk", "citations", [UNSEEN]), ("chunk", "timings", {"prompt_n": 7}), ("chunk", "obfuscation", UNSEEN),
)  # fmt: skip


@given(answers(), st.data())
@settings(max_examples=100, deadline=None)
def test_members_of_any_server_anywhere_change_nothing_and_pass_nothing(answer, data):
    _, _, chunks = answer
    alone = Assembled(streamed(chunks, "mask"))
    for chunk in chunks:
        for place, name, value in data.draw(st.lists(st.sampled_from(OTHERS), max_size=3)):
            holders = {"chunk": [chunk], "choice": chunk.get("choices") or []}
            holders["delta"] = [one["delta"] for one in holders["choice"] if one["delta"] is not None]
            for holder in holders[place]:
                holder[name] = value
    payloads = streamed(chunks, "mask")
    got = Assembled(payloads)
    assert (got.choices, got.ends) == (alone.choices, alone.ends)
    assert UNSEEN.encode() not in b"".join(payloads)


@given(answers(), answers(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_choices_that_take_turns_in_any_way_each_say_what_they_say_alone(one, other, random):
    alone, waiting = [], []
    for number, (_, _, chunks) in enumerate((one, other)):
        for choice in (choice for chunk in chunks for choice in chunk.get("choices") or ()):
            choice["index"] = number
        alone.append(Assembled(streamed(chunks, "mask")))
        waiting.append(list(chunks))
    mixed = []
    while any(waiting):
        mixed.append(random.choice([each for each in waiting if each]).pop(0))
    got = Assembled(streamed(mixed, "mask"))
    for number, each in enumerate(alone):
        assert got.choices.get(number) == each.choices.get(number)
        assert got.ends.get(number) == each.ends.get(number)


def position_in(order, field):
    return order.index("reasoning") if field == "reasoning_content" and "reasoning" in order else order.index(field)


@given(answers())
@settings(max_examples=150, deadline=None)
def test_a_block_stops_a_stream_exactly_where_it_stops_the_whole_answer(answer):
    fields, _, chunks = answer
    try:
        expected = whole(fields, "block")
    except RedactionBlocked:
        with pytest.raises(RedactionBlocked):
            streamed(chunks, "block")
        return
    said = Assembled(streamed(chunks, "block")).choices.get(0, {})
    assert {k: v for k, v in said.items() if k[:4] != "name"} == {k: v for k, v in expected.items() if k[:4] != "name"}


@given(st.lists(answers(), min_size=2, max_size=3), st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=60, deadline=None)
def test_several_choices_interleaved_in_any_way_do_not_mix(each, chance, together):
    queues = []
    for index, (_, _, chunks) in enumerate(each):
        choices = [choice for chunk in chunks for choice in chunk.get("choices") or ()]
        queues.append([{**choice, "index": index} for choice in choices])
    chunks = []
    while any(queues):
        able = [queue for queue in queues if queue]
        taken = [queue.pop(0) for queue in able] if together else [chance.choice(able).pop(0)]
        chunks.append({"id": "x", "object": "chat.completion.chunk", "choices": taken})
    got = Assembled(streamed(chunks, "mask"))
    for index, (fields, _, _) in enumerate(each):
        said = {k: v for k, v in got.choices.get(index, {}).items() if k[:4] != "name"}
        assert said == {k: v for k, v in whole(fields, "mask").items() if k[:4] != "name"}


def chunk(delta, finish=None, **choice):
    choices = [{"index": 0, "delta": delta, "finish_reason": finish, **choice}]
    return {"id": "x", "object": "chat.completion.chunk", "choices": choices}


def said(chunks, action="mask", index=0):
    return Assembled(streamed(chunks, action)).choices.get(index, {})


@pytest.mark.parametrize("end", ["", "stop", "length", "STOP", 5])
def test_an_end_on_every_chunk_ends_no_filter(end):
    chunks = [chunk({"content": "carl@exam"}, end), chunk({"content": "ple.org"}, end)]
    assert said(chunks) == {"content": "[EMAIL]"}
    with pytest.raises(RedactionBlocked):
        streamed(chunks, "block")


def test_text_after_the_end_is_filtered_like_text_before_it():
    assert said([chunk({"content": "carl@exam"}), chunk({}, "stop"), chunk({"content": "ple.org"})]) == {
        "content": "[EMAIL]"
    }


@pytest.mark.parametrize("between", ["x", " ", "Let me think"])
def test_a_text_that_another_interrupts_in_the_middle_of_a_finding_is_not_completed(between):
    """What was sent of it cannot be recalled, so the answer ends there."""
    rewriter, sent = StreamRewriter(make_filter("mask")), b""
    chunks = [chunk({"reasoning": "carl@exam"}), chunk({"content": between}), chunk({"reasoning": "ple.org, "})]
    with pytest.raises(RedactionError):
        for one in chunks:
            sent += b"".join(map(to_json, rewriter.rewrite(one)))
        rewriter.end({})
    assert b"ple.org" not in sent


def test_texts_that_alternate_without_cutting_a_finding_are_whole():
    pieces = [("reasoning", "Let me "), ("content", "The ans"), ("reasoning", "think ab"), ("content", "wer is "),
              ("reasoning", f"out {MAIL} now"), ("content", "42.")]  # fmt: skip
    assert said([chunk({field: piece}) for field, piece in pieces]) == {
        "reasoning": "Let me think about [EMAIL] now",
        "content": "The answer is 42.",
    }


def test_two_names_for_the_same_thoughts_run_beside_each_other():
    pieces = ["carl@e", "xample.o", "rg is it"]
    got = Assembled(streamed([chunk({"reasoning": p, "reasoning_content": p}) for p in pieces], "mask"))
    assert got.choices[0] == {"reasoning": "[EMAIL] is it", "reasoning_content": "[EMAIL] is it"}


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}], ids=str)
def test_calls_that_share_a_number_or_have_none_are_each_whole_where_they_stand(index):
    """Gemini's OpenAI endpoint sends parallel calls so."""
    calls = [{**index, "id": f"c{n}", "function": {"name": "f", "arguments": json.dumps({"n": n})}} for n in range(3)]
    sent = [json.loads(payload) for payload in streamed([chunk({"tool_calls": [call]}) for call in calls], "mask")]
    got = [call for one in sent for choice in one["choices"] for call in choice["delta"].get("tool_calls") or ()]
    if index.get("index") is None:
        assert got == calls
    joined = "".join(call["function"].get("arguments", "") for call in got)
    assert joined == "".join(call["function"]["arguments"] for call in calls)


def test_a_call_without_a_number_cannot_complete_what_another_chunk_began():
    pieces = ['{"to": "carl@exam', 'ple.org"}']
    chunks = [chunk({"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": piece}}]}) for piece in pieces]
    with pytest.raises(RedactionError):
        streamed(chunks, "mask")


def test_a_name_is_whole_in_the_first_chunk_of_its_call_and_is_filtered():
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": HIDDEN[0], "arguments": ""}}
    (sent,) = streamed([chunk({"tool_calls": [call]})], "mask")
    assert json.loads(sent)["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == OTHER_MAIL


@pytest.mark.parametrize(
    "odd",
    [
        {"delta": {"role": MAIL}}, {"delta": {}, "finish_reason": MAIL}, {"delta": {}, "stop_reason": MAIL},
        {"delta": {"tool_calls": [{"index": 0, "id": MAIL, "type": MAIL, "function": {"name": MAIL}}]}},
        {"message": {"content": MAIL}}, {"delta": {"audio": {"transcript": MAIL}}}, {"mail": MAIL},
        {"delta": {"function_call": {"name": MAIL, "arguments": MAIL, "more": MAIL}}},
        {"delta": {"content": [{"type": "text", "text": MAIL}, {"type": "thinking", "thinking": [{"text": MAIL}]}]}},
        {"delta": {"content": [{"type": "image", "text": {"x": MAIL}}]}}, {"delta": {"refusal": MAIL}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": {"to": MAIL}}}]}},
        {"delta": {}, "logprobs": {"content": [{"token": MAIL}]}}, {"index": MAIL, "delta": {"content": "a"}},
    ],
    ids=lambda odd: json.dumps(odd)[:60],
)  # fmt: skip
def test_no_member_whatever_it_is_called_carries_text_past_the_filter(odd):
    one = {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "finish_reason": None, **odd}]}
    assert MAIL.encode() not in b"".join(streamed([one], "mask"))


@pytest.mark.parametrize("name", ["id", "object", "model", "system_fingerprint", "service_tier", "error", "created"])
def test_no_name_around_the_answer_carries_text_past_the_filter(name):
    one = {**chunk({"content": "a"}), name: MAIL}
    assert MAIL.encode() not in b"".join(streamed([one], "mask"))


def test_an_answer_of_more_texts_than_any_has_is_the_servers_fault(monkeypatch):
    monkeypatch.setattr(stream_filter, "MAX_TEXTS", 10)
    with pytest.raises(BackendFailed):
        streamed([chunk({"content": "a"}, index=number) for number in range(11)], "mask")
    calls = [chunk({"tool_calls": [{"index": n, "function": {"arguments": "1"}}]}) for n in range(11)]
    with pytest.raises(BackendFailed):
        streamed(calls, "mask")


@pytest.mark.parametrize(
    "chunk",
    [
        [], 5, None, {"choices": 5}, {"choices": {}, "x": 1} | {"choices": {"a": 1}}, {"choices": [None]},
        {"choices": [{"delta": 5}]}, {"choices": [{"delta": []}]}, {"choices": [{"delta": {"tool_calls": 5}}]},
        {"choices": [{"delta": {"tool_calls": [None, 5, "a"]}}]}, {"choices": [{"delta": {"tool_calls": {"a": 1}}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": 5}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"custom": []}]}}]}, {"choices": [{"delta": {"function_call": "a"}}]},
    ],
    ids=repr,
)  # fmt: skip
def test_what_has_not_the_shape_of_a_chunk_is_the_servers_fault(chunk):
    with pytest.raises(BackendFailed):
        choices_of(chunk, DELTA)
