"""Two backend processes of one host that share memory: the answers are those of one; frames where they cannot."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.backend.apart.pair import Cell, Member
from tests.backend.apart.test_processes import LONG, PROMPT, answer, pieces, rotated

MEMORY, TCP = 'way="memory"', 'way="tcp"'
TRANSFERS = "domicile_backend_kv_transfers_total"


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    return Cell(tmp_path_factory.mktemp("cell"))


@pytest.fixture(scope="module")
def source(cell: Cell, folder: Path) -> Iterator[Member]:
    with cell.backend("source-1", folder, "prefill", "--transfer-memory") as member:
        member.measured()
        yield member


@pytest.fixture(scope="module")
def decode(cell: Cell, folder: Path) -> Iterator[Member]:
    with cell.backend("decode-1", folder, "decode", "--transfer-memory", "--transfer-timeout", "30") as member:
        member.measured()
        yield member


@pytest.fixture(scope="module")
def framed(cell: Cell, folder: Path) -> Iterator[Member]:
    """It takes no windows."""
    with cell.backend("decode-2", folder, "decode") as member:
        member.measured()
        yield member


@pytest.mark.parametrize("body", [{}, {"temperature": 0.9, "seed": 5, "n": 3}], ids=["greedy", "drawn"])
def test_answers_are_those_of_one_backend(source: Member, decode: Member, body: dict[str, Any]) -> None:
    prompt, before = rotated(70 + len(body)), decode.metric(TRANSFERS, f"completed.*{MEMORY}")
    found = decode.complete(prompt, source.place(decode), **body)[1]
    assert decode.metric(TRANSFERS, f"completed.*{MEMORY}") == before + 1, decode.process.log
    decode.scrubbed()
    assert pieces(found) == pieces(decode.complete(prompt, **body)[1])


def test_both_count_the_same_bytes_and_keep_none(source: Member, decode: Member) -> None:
    name = "domicile_backend_kv_transfer_bytes_total"
    before = [each.metric(name, MEMORY) for each in (source, decode)]
    assert answer(decode.complete(rotated(81), source.place(decode)))
    size = 2 * 13 * 16 * 2 * 2 * 8 * 4  # layers, blocks, tokens, keys and values, heads, width, bytes
    assert [each.metric(name, MEMORY) - b for each, b in zip((source, decode), before, strict=True)] == [size, size]
    for each in (source, decode):
        assert each.scrubbed() == 0
        assert each.metric("domicile_backend_kv_blocks_used") == 0


@pytest.mark.parametrize("way", ["memory", "tcp"])
def test_a_transfer_that_went_well_is_no_failure_of_the_source(
    source: Member, decode: Member, framed: Member, way: str
) -> None:
    asker = decode if way == "memory" else framed
    for number in range(3):
        assert answer(asker.complete([*rotated(90), number], source.place(asker)))
    assert source.metric(TRANSFERS, f'completed.*way="{way}"') >= 3
    assert source.transfers("sent", "failed") == 0
    assert "were not sent" not in source.process.log


def test_many_prompts_at_once_share_the_window(source: Member, decode: Member) -> None:
    before = decode.metric(TRANSFERS, f"completed.*{MEMORY}")
    prompts = [[n, *LONG] for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda prompt: answer(decode.complete(prompt, source.place(decode))), prompts))
    assert decode.metric(TRANSFERS, f"completed.*{MEMORY}") == before + 6, decode.process.log
    decode.scrubbed()
    assert found == [answer(decode.complete(prompt)) for prompt in prompts]
    assert source.scrubbed() == decode.scrubbed() == 0


def test_a_backend_that_takes_no_windows_gets_frames(source: Member, framed: Member) -> None:
    before = framed.metric(TRANSFERS, f"completed.*{TCP}")
    assert answer(framed.complete(rotated(83), source.place(framed)))
    assert framed.metric(TRANSFERS, f"completed.*{TCP}") == before + 1
    assert framed.metric(TRANSFERS, MEMORY) == 0


def test_a_backend_that_has_come_again_maps_the_window_again(cell: Cell, source: Member, folder: Path) -> None:
    """And its engine alone, too: a window is mapped by an engine."""
    with cell.backend("decode-3", folder, "decode", "--transfer-memory") as decode:
        decode.measured()
        assert answer(decode.complete(rotated(84), source.place(decode)))
        engine = decode.process.engine
        engine.kill()
        engine.wait(30)
        while decode.post("/readyz", None, method="GET")[0] != 200:
            pass
        assert answer(decode.complete(rotated(85), source.place(decode)))
        assert decode.metric(TRANSFERS, f"completed.*{MEMORY}") == 2, decode.process.log


def test_a_source_that_is_killed_costs_one_attempt_and_leaves_no_memory(
    cell: Cell, decode: Member, folder: Path
) -> None:
    before = set(os.listdir("/dev/shm"))
    with cell.backend("source-2", folder, "prefill", "--transfer-memory") as source:
        source.measured()
        assert answer(decode.complete(rotated(86), source.place(decode)))
        engine = source.process.engine
        source.process.process.send_signal(signal.SIGKILL)
        engine.kill()
        place = source.place(decode)
        assert source.process.process.wait(30) == -signal.SIGKILL
        failed = decode.transfers("received", "failed")
        found = answer(decode.complete([*PROMPT, 5], place))
        assert decode.transfers("received", "failed") == failed + 1
        decode.scrubbed()
        assert found == answer(decode.complete([*PROMPT, 5]))
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "domicile" in name]
