"""How far loading is reaches whoever started the backend."""

import io
import logging
from pathlib import Path

import pytest

from backend.engine.core.progress import Stage
from backend.engine_config import EngineConfig
from backend.process.engine_client import EngineClient
from backend.process.messages import Loading
from backend.server.serving import LoadingBar


async def test_the_engine_process_tells_how_far_it_is_before_it_is_ready(folder: Path) -> None:
    seen: list[Loading] = []
    client = EngineClient(EngineConfig(model=str(folder), num_blocks=16, threads=1))
    try:
        await client.start(seen.append)
    finally:
        await client.stop()
    assert {s.stage for s in seen} == {Stage.WEIGHTS}  # on a CPU there is nothing else to wait for
    assert [s.done for s in seen] == sorted({s.done for s in seen})
    assert seen[-1].done == seen[-1].total > 0


def test_a_log_gets_a_line_a_tenth(caplog: pytest.LogCaptureFixture) -> None:
    bar = LoadingBar(io.StringIO())
    with caplog.at_level(logging.INFO):
        for done in range(0, 1001, 7):
            bar(Loading(Stage.WEIGHTS, done, 1000))
        bar(Loading(Stage.WEIGHTS, 1000, 1000))
    assert len(caplog.messages) == 11
    assert caplog.messages[-1].startswith("weights: 100 %")


def test_a_terminal_gets_one_bar_that_fills() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    bar = LoadingBar(out)
    for done in (0, 2**29, 2**30):
        bar(Loading(Stage.WEIGHTS, done, 2**30))
    lines = out.getvalue().split("\r")[1:]
    assert [line.count("█") for line in lines] == [0, 15, 30]
    assert out.getvalue().endswith("100% of 1.0 GiB\n")


def test_each_stage_has_a_bar_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    bar = LoadingBar(io.StringIO())
    with caplog.at_level(logging.INFO):
        bar(Loading(Stage.WEIGHTS, 1, 1))
        bar(Loading(Stage.KERNELS, 1, 1))
        bar(Loading(Stage.GRAPHS, 17, 34))
        bar(Loading(Stage.GRAPHS, 34, 34))
    assert [m.split(",")[0] for m in caplog.messages] == [
        "weights: 100 % of 0.0 GiB", "kernels: 100 % of 1", "graphs: 50 % of 34", "graphs: 100 % of 34",
    ]  # fmt: skip
