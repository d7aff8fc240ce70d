import socket
import threading

import pytest

from backend.engine.core.progress import Finish, Progress, Stats
from backend.engine.core.sampling import SamplingParams
from backend.process.messages import (
    LENGTH,
    AbortSequences,
    AddSequence,
    ChannelClosed,
    EngineChannel,
    Ping,
    StepDone,
    frame,
    from_engine,
    to_engine,
)

ADD = AddSequence(7, [1, 2, 3], SamplingParams(max_tokens=4, stop_token_ids=(5,)), 1, None, b"root")


def test_messages_come_out_as_they_went_in() -> None:
    for message in (ADD, AbortSequences([1, 2]), Ping(3)):
        assert to_engine.decode(frame(message)[LENGTH.size :]) == message
    done = StepDone([Progress(1, 2, Finish.STOP, 3), Progress(4, None, None, 0)], Stats(1, 2, 3, 4, 5, 6, 7, 8))
    assert from_engine.decode(frame(done)[LENGTH.size :]) == done


def test_messages_cut_anywhere_arrive_whole_and_in_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = EngineChannel(theirs)
        assert channel.receive(wait_s=0) == []
        data = frame(ADD) + frame(Ping(1)) + frame(Ping(2))
        received = []
        for byte in data:
            ours.send(bytes([byte]))
            received += channel.receive(wait_s=0)
        assert received == [ADD, Ping(1), Ping(2)]


def test_waiting_ends_with_the_first_whole_message() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        timer = threading.Timer(0.05, ours.sendall, [frame(ADD)])
        timer.start()
        assert EngineChannel(theirs).receive(wait_s=None) == [ADD]
        timer.join()


def test_waiting_for_a_time_ends_with_nothing_and_leaves_the_next_wait_as_it_is() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = EngineChannel(theirs)
        assert channel.receive(wait_s=0.001) == []
        ours.sendall(frame(ADD)[:7])
        assert channel.receive(wait_s=0.001) == []
        ours.sendall(frame(ADD)[7:])
        assert channel.receive(wait_s=0) == [ADD]


@pytest.mark.parametrize("wait_s", [None, 0, 1.0])
def test_the_other_sides_end_is_noticed(wait_s: float | None) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(ChannelClosed):
            EngineChannel(theirs).receive(wait_s=wait_s)
        with pytest.raises(ChannelClosed):
            EngineChannel(theirs).send(StepDone([], Stats(0, 0, 0, 0, 0, 0, 0, 0)))


def test_a_frame_of_absurd_length_closes_the_channel() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ChannelClosed):
            EngineChannel(theirs).receive(wait_s=None)
