"""Events that are relayed where they arrive: only to a client that keeps up, and never past a check."""

from types import SimpleNamespace

import pytest

from gateway.openai.stream_filter import StreamRewriter
from gateway.request.answer.delivery import _Sender
from gateway.request.answer.keep_alive import COMMENT, KeepAlive
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.relay import StreamRelay
from policy.errors import RedactionBlocked
from policy.redact.actions.plan import RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor
from tests.gateway.parts import call
from tests.gateway.request.answer.test_relay import Holding, event


class Server:
    """The connection of a client."""

    def __init__(self):
        self.up, self.sent = True, b""

    def keeps_up(self):
        return self.up

    def write_now(self, piece):
        self.sent += piece


class Kept:
    def __init__(self):
        self.pieces = b""

    def add_piece(self, frames):
        self.pieces += frames


class Begun:
    """A stream whose first event was relayed by its task."""

    def __init__(self, make=None, silence=False, server=True):
        self.received, self.server, self.kept, self.stopped = ReceivedAnswer(), Server(), Kept(), False
        self.relay = StreamRelay(call(stream=True), self.received, StreamRewriter(make) if make else None)
        client = SimpleNamespace(server=self.server if server else None, held=False, started=True)
        routed = SimpleNamespace(redacted=SimpleNamespace(content=self.kept))
        accepted = SimpleNamespace(request=SimpleNamespace(client=client), routed=routed)
        self.silence = KeepAlive(accepted, self.received, 0.0 if silence else 60.0)
        self.sender = _Sender(accepted, self.received, self.relay, self.check, self.silence)
        self.sender.begun = True

    def check(self):
        if self.stopped:
            raise PermissionError("stopped")

    async def begin(self):
        async def source():
            yield event("a")

        self.received.bytes_out += len(await anext(self.relay.pieces(source())))
        return self


async def test_an_event_is_written_kept_and_counted():
    stream = await Begun().begin()
    before = stream.received.bytes_out
    assert stream.sender.relayed_at_once(event("b"))
    assert stream.server.sent == stream.kept.pieces == event("b")
    assert stream.received.bytes_out == before + len(event("b"))
    assert stream.received.chunks_out == 2


@pytest.mark.parametrize("why", ["slow", "not begun", "over", "another server"])
async def test_what_cannot_be_relayed_at_once_is_left_to_the_task_and_nothing_has_changed(why):
    stream = await Begun(server=why != "another server").begin()
    if why == "slow":
        stream.server.up = False
    elif why == "not begun":
        stream.sender.begun = False
    elif why == "over":
        stream.sender.is_over = True
    assert not stream.sender.relayed_at_once(event("b"))
    assert not stream.server.sent and stream.received.chunks_out == 1


async def test_a_call_that_a_person_stopped_says_nothing_more():
    stream = await Begun().begin()
    stream.stopped = True
    with pytest.raises(PermissionError):
        stream.sender.relayed_at_once(event("b"))
    assert not stream.server.sent and stream.received.chunks_out == 1


async def test_what_the_policy_blocks_in_an_answer_is_not_sent():
    blocking = Redactor(RedactionPlan({}, {"email": "block"}))
    stream = await Begun(lambda _: blocking.stream_filter(Pseudonyms("k7f3"))).begin()
    assert stream.sender.relayed_at_once(event(" write to anna.schmidt@exam"))
    with pytest.raises(RedactionBlocked):
        stream.sender.relayed_at_once(event("ple.org at once"))
    assert b"schmidt" not in stream.server.sent


@pytest.mark.parametrize("due", [False, True])
async def test_a_comment_comes_while_the_filter_holds_everything_back_if_it_is_due(due):
    stream = await Begun(lambda _: Holding(), silence=due).begin()
    assert stream.sender.relayed_at_once(event("b"))
    stream.server.sent = b""
    stream.relay._feed = lambda text: ""
    assert stream.sender.relayed_at_once(event("c"))
    assert stream.server.sent == (COMMENT if due else b"")
    assert COMMENT not in stream.kept.pieces
