"""A stream on its way: usage taken out, `[DONE]` held back, anything that is not an answer refused."""

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BackendFailed
from gateway.openai.endpoints import COMPLETIONS
from gateway.openai.stream_filter import StreamRewriter
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.relay import EVENT_BYTES, INLINE_TEXTS, MOST_AT_ONCE, STEP_BYTES, StreamRelay
from tests.gateway.parts import call

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}


def event(text=None, finish=None, **more):
    delta = {} if text is None else {"content": text}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "small", "choices": choices, **more}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def only_usage():
    return event(choices=[], usage=USAGE)


WHOLE = event("Hel") + event("lo") + event(finish="stop") + only_usage() + DONE


class Holding:
    """An output filter that keeps the last letter back until it is told to give it."""

    def __init__(self):
        self.kept = ""

    def feed(self, text):
        said, self.kept = (self.kept + text)[:-1], (self.kept + text)[-1:]
        return said

    def rest(self):
        return self.kept

    def flush(self):
        said, self.kept = self.kept, ""
        return said


async def relayed(source, asked=None, received=None, *, held=False):
    """What the client gets of `source`, the pieces a backend sends, and how it ends."""
    rewriter = StreamRewriter(lambda _: Holding()) if held else None
    relay = StreamRelay(asked or call(stream=True), received or ReceivedAnswer(), rewriter)

    async def pieces():
        for data in source:
            yield data

    sent = b"".join([piece async for piece in relay.pieces(pieces())])
    return sent, relay.ending()


def said(data, index=None):
    """The content, of all choices or of one."""
    events = [json.loads(block[6:]) for block in data.decode().split("\n\n") if block and block != "data: [DONE]"]
    choices = [choice for each in events for choice in each["choices"] if index in (None, choice["index"])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_chunks_pass_as_they_are_and_done_waits_for_the_record():
    sent, ending = await relayed([WHOLE])
    assert sent == event("Hel") + event("lo") + event(finish="stop")
    assert ending == DONE


async def test_usage_is_kept_for_the_meter_and_shown_last_to_whom_asked():
    asked, received = call(stream=True, stream_options={"include_usage": True}), ReceivedAnswer()
    sent, ending = await relayed([WHOLE], asked, received)
    assert b"usage" not in sent
    shown = json.loads(ending.removesuffix(DONE)[6:])
    assert (shown["choices"], shown["usage"], shown["id"]) == ([], USAGE, "x")
    assert received.usage.total_tokens == 9


async def test_usage_inside_a_chunk_that_says_something_is_taken_out_of_it():
    asked, received = call(stream=True), ReceivedAnswer()
    sent, _ = await relayed([event("Hello", usage=USAGE) + DONE], asked, received)
    assert (said(sent), received.usage.total_tokens) == ("Hello", 9)
    assert b"total_tokens" not in sent


@pytest.mark.parametrize("held", [False, True])
async def test_a_number_beyond_a_float_leaves_no_word_that_strict_readers_refuse(held):
    asked, received = call(stream=True, stream_options={"include_usage": True}), ReceivedAnswer()
    source = [each.replace(b'"created": 1', b'"created": 1e400') for each in (event("Hel"), event(finish="stop"))]
    sent, ending = await relayed([*source, only_usage(), DONE], asked, received, held=held)
    assert ending.endswith(DONE) and b"Infinity" not in sent + ending
    assert said(sent) == "Hel"


async def test_what_was_said_is_counted():
    asked, received = call(stream=True), ReceivedAnswer()
    await relayed([WHOLE], asked, received)
    assert (received.chunks_out, received.finish_reasons) == (3, ["stop"])


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=20), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_client_gets_the_same_bytes_however_the_stream_is_cut(cuts, held):
    edges = [0, *sorted(set(cuts)), len(WHOLE)]
    pieces = [WHOLE[start:end] for start, end in pairwise(edges)]

    async def both():
        return await relayed(pieces, held=held), await relayed([WHOLE], held=held)

    cut, whole = asyncio.run(both())
    assert cut == whole
    assert said(cut[0]) == "Hello"


async def test_text_that_the_filter_held_back_comes_before_the_end():
    sent, _ = await relayed([event("Hello") + DONE], held=True)
    assert said(sent) == "Hello"


async def test_nothing_after_done_is_sent():
    sent, _ = await relayed([event("a") + DONE + event("more"), event("and more")])
    assert said(sent) == "a"


async def test_a_clean_end_after_every_choice_has_ended_is_a_whole_answer_also_without_done():
    sent, ending = await relayed([event("Hello") + event(finish="stop") + only_usage()], held=True)
    assert (said(sent), ending) == ("Hello", DONE)
    asked, received = call(stream=True, n=2), ReceivedAnswer()
    second = event(choices=[{"index": 1, "delta": {"content": "b"}, "finish_reason": "length"}])
    sent, ending = await relayed([event("a", finish="stop") + second], asked, received)
    assert (said(sent), ending, received.finish_reasons) == ("ab", DONE, ["stop", "length"])


@pytest.mark.parametrize("last", [b"data: [DONE]\n", b"data: [DONE]", b"data:[DONE]\r\n"])
async def test_a_done_without_a_blank_line_behind_it_ends_the_answer(last):
    sent, ending = await relayed([event("Hello") + last], held=True)
    assert (said(sent), ending) == ("Hello", DONE)


@pytest.mark.parametrize("last", [b"data: [DON", b"data: {}", b": [DONE]", b"event: [DONE]"])
async def test_half_a_done_does_not(last):
    with pytest.raises(BackendFailed) as failed:
        await relayed([event("Hello") + last])
    assert failed.value.code == "stream_truncated"


def halved(*texts, field="content"):
    return [event(choices=[{"index": 0, "delta": {field: text}, "finish_reason": None}]) for text in texts]


@pytest.mark.parametrize("held", [False, True])
async def test_a_character_that_the_server_cut_in_two_events_is_whole_for_the_client(held):
    source = [*halved("a\ud83d", "\ude42 b", "c\ud83d", "", "\ude42"), event(finish="stop"), DONE]
    sent, ending = await relayed(source, held=held)
    assert (said(sent), ending) == ("a\U0001f642 bc\U0001f642", DONE)
    assert b"\\ud" not in sent


async def test_halves_of_two_texts_are_not_joined_to_each_other():
    both = [
        *halved("\ud83d"),
        *halved("\ud83c", field="reasoning"),
        *halved("\ude42"),
        *halved("\udf0a", field="reasoning"),
    ]
    sent, _ = await relayed([*both, event(finish="stop"), DONE])
    assert said(sent) == "\U0001f642"
    assert "\U0001f30a" in sent.decode()


@pytest.mark.parametrize(
    "texts",
    [["\ud83d"], ["\ude42"], ["\ud83d", "b"], ["\ud83d", "\ud83d"], ["a\ud83db"], ["\ud83d", "x", "\ude42"]],
    ids=ascii,
)
@pytest.mark.parametrize("held", [False, True])
async def test_half_a_character_that_stays_alone_is_the_backends_fault(texts, held):
    with pytest.raises(BackendFailed, match="not JSON"):
        await relayed([*halved(*texts), event(finish="stop"), DONE], held=held)


async def test_text_that_was_held_back_of_a_choice_without_an_end_of_its_own_is_not_lost_without_done():
    unfinished = event(choices=[{"index": 1, "delta": {"content": "left"}, "finish_reason": None}])
    sent, _ = await relayed([event("a", finish="stop") + unfinished], held=True)
    assert (said(sent, 0), said(sent, 1)) == ("a", "left")


@pytest.mark.parametrize(
    ("prompt", "n", "choices"),
    [("a", None, 1), ("a", 3, 3), (["a", "b"], 2, 4), ([1, 2, 3], None, 1), ([[1], [2]], None, 2)],
)
def test_a_call_asks_for_as_many_answers_as_prompts_times_n(prompt, n, choices):
    assert call({"model": "small", "prompt": prompt, "n": n}, COMPLETIONS).choices == choices


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ([], "stream_truncated"),
        ([event("a", finish="stop") + b"data: {"], "stream_truncated"),
        ([event("a")], "stream_truncated"),
        ([event("a"), b"data: [DO"], "stream_truncated"),
        ([b"data: {not json}\n\n" + DONE], "backend_error"),
        ([b"data: [1]\n\n" + DONE], "backend_error"),
        ([b'data: {"error": {"message": "boom"}}\n\n' + DONE], "backend_error"),
        ([event("a", usage={"total_tokens": "many"}) + DONE], "backend_error"),
    ],
    ids=[
        "nothing",
        "cut behind its end",
        "no end",
        "half an end",
        "no JSON",
        "no object",
        "an error inside",
        "usage that is none",
    ],
)
async def test_a_stream_that_is_no_answer_fails_and_says_nothing_of_what_it_held(source, code):
    with pytest.raises(BackendFailed) as failed:
        await relayed(source)
    assert failed.value.code == code
    assert "boom" not in failed.value.message


async def test_one_choice_of_two_that_ended_is_half_an_answer():
    with pytest.raises(BackendFailed) as failed:
        await relayed([event("a", finish="stop")], call(stream=True, n=2))
    assert failed.value.code == "stream_truncated"


async def test_of_a_stream_that_breaks_the_held_back_rest_can_still_be_had():
    relay = StreamRelay(call(stream=True), ReceivedAnswer(), StreamRewriter(lambda _: Holding()))

    async def breaks():
        yield event("Hello")
        raise BackendFailed("gone")

    heard = b""
    with pytest.raises(BackendFailed):
        async for piece in relay.pieces(breaks()):
            heard += piece
    assert said(heard) == "Hell"
    assert said(await relay.remainder()) == "o"
    assert await relay.remainder() == b""


@pytest.mark.parametrize("held", [False, True])
async def test_an_event_of_very_many_values_is_the_backends_fault_before_it_is_parsed(held, monkeypatch):
    monkeypatch.setattr("gateway.request.answer.relay.from_json", None)
    large = event("x", extra=[{}] * 20_000)
    with pytest.raises(BackendFailed, match="more values"):
        await relayed([large], held=held)


@pytest.mark.parametrize("held", [False, True])
async def test_between_the_many_small_events_of_one_read_others_have_their_turn(held):
    count = STEP_BYTES // EVENT_BYTES * 10
    source = [b"".join(event("x") for _ in range(count)) + event(finish="stop") + DONE]
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(other())
    sent, _ = await relayed(source, held=held)
    waiting.cancel()
    assert said(sent) == "x" * count
    assert turns >= 10


async def test_very_many_texts_are_ended_outside_of_the_event_loop_to_the_same_bytes(monkeypatch):
    choices = [{"index": n, "delta": {"content": f"text {n}"}} for n in range(INLINE_TEXTS + 1)]
    source = [event(choices=choices[at : at + 10]) for at in range(0, len(choices), 10)] + [DONE]
    threads = []
    to_thread = asyncio.to_thread

    async def noted(work, *arguments):
        threads.append(work.__name__)
        return await to_thread(work, *arguments)

    monkeypatch.setattr(asyncio, "to_thread", noted)
    outside = await relayed(source, held=True)
    assert threads == ["end"]
    monkeypatch.setattr("gateway.request.answer.relay.INLINE_TEXTS", 4096)
    assert await relayed(source, held=True) == outside
    assert threads == ["end"]
    assert all(said(outside[0], n) == f"text {n}" for n in range(len(choices)))


async def test_a_second_done_says_nothing():
    done = DONE
    once = await relayed([event("Hello"), event(finish="stop"), done], held=True)
    assert await relayed([event("Hello"), event(finish="stop"), done + done, event("more") + done], held=True) == once


class Lane:
    """Relays as a stream is relayed: at once what can be, by `pieces` what cannot."""

    def __init__(self, *, held):
        self.received = ReceivedAnswer()
        rewriter = StreamRewriter(lambda _: Holding()) if held else None
        self.relay = StreamRelay(call(stream=True), self.received, rewriter)
        self.sent, self.at_once = b"", 0

    async def relayed(self, reads):
        async def source():
            for data in reads:
                if (frames := self.relay.at_once(data)) is None:
                    yield data
                else:
                    self.at_once += 1
                    self.sent += frames

        async for piece in self.relay.pieces(source()):
            self.sent += piece
        return self.sent + self.relay.ending()


ODD = [
    event("é\n\"x"), event("b", finish="length"), event(""), event(role="assistant"), b": comment\n\n", only_usage(),
    event("a").replace(b"\n\n", b"\r\n\r\n"), event("a").replace(b'"a"', b'\n"a"'),
    event("a").replace(b'"a"', b'"\\u0061"'),
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from("abc ").map(event), st.sampled_from(ODD)), max_size=20),
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.booleans(),
    st.booleans(),
)
def test_what_is_relayed_at_once_is_what_the_task_would_have_relayed(events, sizes, whole, held):
    data = b"".join([event("x"), *events, event(finish="stop"), DONE])
    reads, at = [event("x"), *events, event(finish="stop"), DONE] if whole else [], 0
    while not whole and at < len(data):
        reads.append(data[at : at + sizes[len(reads) % len(sizes)]])
        at += len(reads[-1])

    async def both():
        received, lane = ReceivedAnswer(), Lane(held=held)
        try:
            expected = b"".join(await relayed(reads, received=received, held=held))
        except BackendFailed as failure:
            with pytest.raises(BackendFailed, match=str(failure)):
                await lane.relayed(reads)
        else:
            assert await lane.relayed(reads) == expected
        assert lane.received.chunks_out == received.chunks_out
        assert lane.received.characters_out == received.characters_out
        assert lane.received.finish_reasons == received.finish_reasons

    asyncio.run(both())


async def test_all_events_of_a_stream_but_its_ends_are_relayed_at_once():
    lane = Lane(held=False)
    reads = [event("a"), event("b"), event("c") + event("d"), event(finish="stop"), only_usage() + DONE]
    assert said(await lane.relayed(reads)) == "abcd"
    assert lane.at_once == 2


@pytest.mark.parametrize(
    "odd",
    [event("b")[:-1], event("b")[:-2], event("b")[9:], event("b") * (MOST_AT_ONCE + 1), event("b" * STEP_BYTES), DONE,
     event("b") + DONE, event("b") + only_usage(), event(error={"message": "no"}), b"data: {\n\n", b"\n\n"],
)  # fmt: skip
async def test_what_is_not_a_few_whole_repetitions_is_left_to_the_task_and_changes_nothing(odd):
    received = ReceivedAnswer()
    relay = StreamRelay(call(stream=True), received, None)

    async def source():
        yield event("a")
        assert relay.at_once(odd) is None
        assert received.chunks_out == 1

    with pytest.raises(BackendFailed):
        assert b"".join([piece async for piece in relay.pieces(source())]) == event("a")


async def test_nothing_is_relayed_at_once_inside_an_event_or_before_one_was_checked():
    relay = StreamRelay(call(stream=True), ReceivedAnswer(), None)
    assert relay.at_once(event("a")) is None

    async def source():
        yield event("a") + event("b")[:20]
        assert relay.at_once(event("c")) is None
        yield event("b")[20:] + event(finish="stop") + DONE
        assert relay.at_once(event("c")) is None

    assert said(b"".join([piece async for piece in relay.pieces(source())])) == "ab"
