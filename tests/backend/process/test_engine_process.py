"""When an engine does what no answer waits for: the loop of its process, with an engine that takes down what it did."""

import socket
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from backend.engine.core.progress import Stats
from backend.engine.core.sampling import SamplingParams
from backend.engine.engine import Engine
from backend.process.engine_process import LIVE_SHARE, QUIET_S, Preparations, run
from backend.process.messages import AddSequence, ChannelClosed, EngineChannel, frame

ADD = AddSequence(1, [1, 2, 3], SamplingParams(max_tokens=2))
NOTHING = Stats(0, 0, 0, 0, 0, 0, 0, 0)


@dataclass
class Missing:
    missed: int = 0


@dataclass
class Noting:
    """An engine whose every request takes two steps; each step lacks `lacks` graphs, a preparation makes one."""

    later: int = 0
    lacks: int = 0
    takes_s: float = 0.0
    did: list[str] = field(default_factory=list)
    runner: Missing = field(default_factory=Missing)
    stats: Stats = NOTHING
    now: float = 100.0
    _steps: int = 0

    @property
    def has_work(self) -> bool:
        return self._steps > 0

    def make_room(self) -> list[Any]:
        return []

    def add(self, *_: Any, **__: Any) -> None:
        self._steps += 2
        self.did.append("add")

    def step(self) -> list[Any]:
        self._steps -= 1
        self.runner.missed += self.lacks
        self.did.append("step")
        return []

    def prepare(self) -> bool:
        self.now += self.takes_s
        if self.runner.missed:
            self.runner.missed -= 1
        elif self.later:
            self.later -= 1
        else:
            return False
        self.did.append("prepare")
        return True

    def clock(self) -> float:
        return self.now


def preparations(engine: Noting) -> Preparations:
    return Preparations(cast(Engine, engine), engine.clock)


def test_nothing_is_prepared_until_it_has_been_quiet_for_a_while() -> None:
    engine = Noting(later=3)
    pace = preparations(engine)
    assert pace.wait_s(idle=True) == QUIET_S


def test_in_the_quiet_one_preparation_follows_another_until_there_is_none_and_then_it_waits_for_ever() -> None:
    engine = Noting(later=2)
    pace = preparations(engine)
    waits = []
    for _ in range(3):
        pace.when_quiet()
        waits.append(pace.wait_s(idle=True))
    assert waits == [0, 0, None]
    assert engine.did == ["prepare", "prepare"]


def test_a_message_makes_it_wait_for_quiet_once_more() -> None:
    pace = preparations(Noting(later=2))
    pace.when_quiet()
    pace.on_messages()
    assert pace.wait_s(idle=True) == QUIET_S


def test_a_busy_engine_waits_for_no_message() -> None:
    assert preparations(Noting()).wait_s(idle=False) == 0


def test_between_steps_only_what_a_step_lacked_is_prepared() -> None:
    engine = Noting(later=3)
    preparations(engine).between_steps()
    assert engine.did == []
    engine.runner.missed = 1
    preparations(engine).between_steps()
    assert engine.did == ["prepare"]


def test_between_steps_preparations_take_a_small_share_of_the_time() -> None:
    engine = Noting(takes_s=0.25)
    engine.runner.missed = 1000
    pace = preparations(engine)
    begin = engine.now
    while engine.now < begin + 100:
        pace.between_steps()
        engine.now += 0.01
    assert len(engine.did) * 0.25 <= LIVE_SHARE * 100 + 0.25
    assert len(engine.did) >= 15


@pytest.fixture
def channel() -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, EngineChannel(theirs)


def runs_for(seconds: float, engine: Noting, channel: tuple[socket.socket, EngineChannel]) -> None:
    closing = threading.Timer(seconds, channel[0].shutdown, [socket.SHUT_WR])
    closing.start()
    with pytest.raises(ChannelClosed):
        run(cast(Engine, engine), channel[1])
    closing.join()


def test_requests_that_are_there_are_answered_before_anything_is_prepared(
    channel: tuple[socket.socket, EngineChannel],
) -> None:
    engine = Noting(later=1)
    channel[0].sendall(frame(ADD) * 2)
    runs_for(0.05, engine, channel)
    assert engine.did == ["add", "add", *["step"] * 4]


def test_a_step_that_lacked_a_graph_is_followed_by_its_preparation(
    channel: tuple[socket.socket, EngineChannel],
) -> None:
    engine = Noting(lacks=1)
    channel[0].sendall(frame(ADD))
    runs_for(0.05, engine, channel)
    assert engine.did[:3] == ["add", "step", "prepare"]


def test_an_engine_left_alone_prepares_all_there_is(channel: tuple[socket.socket, EngineChannel]) -> None:
    engine = Noting(later=4)
    runs_for(QUIET_S + 0.3, engine, channel)
    assert engine.did == ["prepare"] * 4
