import contextlib
from codecs import BOM_UTF8
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BackendFailed
from gateway.openai import sse
from gateway.openai.sse import MAX_EVENT_BYTES, EventSplitter

STREAM = (
    b'data: {"a":"Gr\xc3\xb6\xc3\x9fe"}\n\n: keep-alive\n\ndata: {"b":1}\r\n\r\n'
    b"event: x\nid: 7\ndata: one\ndata: two\n\ndata:no space\n\ndata: [DONE]\n\n"
)
PAYLOADS = [b'{"a":"Gr\xc3\xb6\xc3\x9fe"}', b'{"b":1}', b"one\ntwo", b"no space", b"[DONE]"]


def test_events_are_cut_and_comments_dropped():
    splitter = EventSplitter()
    assert splitter.feed(STREAM) == PAYLOADS
    assert splitter.empty


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_any_cut_of_the_bytes_gives_the_same_events(cuts):
    splitter = EventSplitter()
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in pairwise(edges)]
    assert [payload for piece in pieces for payload in splitter.feed(piece)] == PAYLOADS


@given(st.lists(st.integers(0, 60), max_size=8), st.sampled_from([b"\r", b"\r\n", b"\n"]))
def test_any_of_the_three_ends_of_a_line_gives_the_same_events_as_soon_as_they_end(cuts, end):
    stream = b"data: a\n\n: b\n\ndata: c\ndata: d\n\ndata: [DONE]\n\n".replace(b"\n", end)
    splitter = EventSplitter()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert [payload for a, b in pairwise(edges) for payload in splitter.feed(stream[a:b])] == [b"a", b"c\nd", b"[DONE]"]
    assert splitter.empty


@pytest.mark.parametrize("at", range(6))
def test_one_byte_order_mark_at_the_beginning_is_no_part_of_the_first_event(at):
    stream = BOM_UTF8 + STREAM
    splitter = EventSplitter()
    assert [*splitter.feed(stream[:at]), *splitter.feed(stream[at:])] == PAYLOADS
    assert splitter.empty


def test_a_second_mark_and_half_of_one_are_not_passed_over():
    assert EventSplitter().feed(BOM_UTF8 * 2 + b"data: 1\n\ndata: 2\n\n") == [b"2"]
    halved = EventSplitter()
    assert halved.feed(BOM_UTF8[:2]) == []
    assert not halved.empty


def test_a_stream_cut_inside_an_event_is_seen_to_be_cut():
    splitter = EventSplitter()
    assert splitter.feed(b'data: {"a"') == []
    assert not splitter.empty


def test_an_event_without_end_is_a_fault_of_the_backend(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    with pytest.raises(BackendFailed, match="without end"):
        EventSplitter().feed(b"data: " + b"x" * 101)


def test_an_event_of_just_the_size_that_may_be_is_waited_for(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    splitter = EventSplitter()
    assert splitter.feed(b"data: " + b"x" * 94) == []
    assert splitter.feed(b"\n\n") == [b"x" * 94]
    with pytest.raises(BackendFailed, match="without end"):
        EventSplitter().feed(b"data: " + b"x" * 95)


@pytest.mark.parametrize("piece", [b"\r", b"x\r", b"data: x\r", b"\r\rx", b"a\n", b"\n\r", b": \r\n"], ids=repr)
def test_what_an_incomplete_event_keeps_is_bounded_whatever_its_pieces_end_in(monkeypatch, piece):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    splitter = EventSplitter()
    fed = 0
    with contextlib.suppress(BackendFailed):
        while fed < 20_000:
            fed += len(piece)
            splitter.feed(piece)
            assert len(splitter._pending) <= 1000
    assert len(splitter._pending) <= 1000


def test_pieces_that_end_in_a_carriage_return_cost_linear_work():
    """Half a MB in pieces of two bytes; with a search or a copy of the whole for each piece this would not end."""
    splitter = EventSplitter()
    for _ in range(MAX_EVENT_BYTES // 256):
        for _ in range(8):
            splitter.feed(b"a\r")
    assert splitter.feed(b"\rdata: x\r\n\r\n") == [b"x"]


@pytest.mark.parametrize(
    "event", [b"data:\n\n", b"data: \n\n", b"data\n\n", b"\n\n\n\n", b":\n\n", b"id: 1\n\n"], ids=repr
)
def test_an_event_without_data_is_no_event(event):
    assert EventSplitter().feed(event + b"data: x\n\n") == [b"x"]
