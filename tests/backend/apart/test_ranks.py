"""Pairs of backends whose models are divided among ranks, two and two or two and one, and adapters across a pair."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.models.checkpoints.checkpoint import Checkpoint
from tests.backend.adapters_on_disk import write_adapter
from tests.backend.apart.pair import Cell, Member
from tests.backend.apart.test_processes import answer, pieces, rotated
from tests.backend.tiny import tiny_model, write_folder

TRANSFERS = "domicile_backend_kv_transfers_total"
TWO = ("--tensor-parallel-size", "2")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    return Cell(tmp_path_factory.mktemp("cell"))


@pytest.fixture(scope="module")
def divisible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"num_heads": 8, "num_kv_heads": 4, "head_dim": 16, "hidden_size": 64, "intermediate_size": 128}
    return write_folder(tmp_path_factory.mktemp("model") / "model", tiny_model(7, **shape))


@pytest.fixture(scope="module")
def options(divisible: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """All take adapters, and share memory where they can."""
    root, config = tmp_path_factory.mktemp("adapters"), Checkpoint(divisible).config
    write_adapter(root / "french", config, 1)
    write_adapter(root / "legal", config, 2)
    return "--max-adapters", "2", "--adapters", str(root), "--transfer-timeout", "30", "--transfer-memory"


@pytest.fixture(scope="module")
def source(cell: Cell, divisible: Path, options: tuple[str, ...]) -> Iterator[Member]:
    with cell.backend("source-1", divisible, "prefill", *TWO, *options) as member:
        member.measured()
        yield member


@pytest.fixture(scope="module")
def decode(cell: Cell, divisible: Path, options: tuple[str, ...]) -> Iterator[Member]:
    with cell.backend("decode-1", divisible, "decode", *TWO, *options) as member:
        member.measured()
        yield member


def received(decode: Member, outcome: str = "completed") -> float:
    return decode.metric(TRANSFERS, f'direction="received",.*outcome="{outcome}"')


@pytest.mark.parametrize("body", [{}, {"temperature": 0.9, "seed": 5, "n": 2}], ids=["greedy", "drawn"])
def test_answers_are_those_of_one_backend(source: Member, decode: Member, body: dict[str, Any]) -> None:
    prompt, before = rotated(10 + len(body)), received(decode)
    found = decode.complete(prompt, source.place(decode), **body)[1]
    assert received(decode) == before + 1, decode.process.log + source.process.log
    decode.scrubbed()
    assert pieces(found) == pieces(decode.complete(prompt, **body)[1])
    assert source.scrubbed() == decode.scrubbed() == 0


def load(member: Member, name: str, path: str, project: str = "") -> None:
    status, found = member.post("/adapters", {"name": name, "path": path, "project": project})
    assert status == 200, found


def unload(member: Member, name: str, project: str = "") -> None:
    status, found = member.post("/adapters/unload", {"name": name, "project": project})
    assert status == 200, found


def test_the_blocks_of_an_adapter_come_from_the_same_adapter(source: Member, decode: Member) -> None:
    for each in (source, decode):
        load(each, "french", "french")
    try:
        prompt, before = rotated(20), received(decode)
        found = answer(decode.complete(prompt, source.place(decode), model="tiny:french"))
        assert received(decode) == before + 1, decode.process.log + source.process.log
        decode.scrubbed()
        assert found == answer(decode.complete(prompt, model="tiny:french")) != answer(decode.complete(prompt))
        base = answer(decode.complete([*prompt, 5], source.place(decode)))
        assert received(decode) == before + 2  # the adapter's blocks are not the base's, in either cache
        decode.scrubbed()
        assert base == answer(decode.complete([*prompt, 5]))
    finally:
        for each in (source, decode):
            unload(each, "french")


@pytest.mark.parametrize("there", ["none", "another by this name", "another project's"])
def test_an_adapter_that_is_not_the_same_there_costs_one_attempt(source: Member, decode: Member, there: str) -> None:
    load(decode, "french", "french")
    project = "globex/shop" if there == "another project's" else ""
    if there != "none":
        load(source, "french", "legal" if there == "another by this name" else "french", project)
    try:
        prompt, before = rotated(30 + len(there)), received(decode, "failed")
        found = answer(decode.complete(prompt, source.place(decode), model="tiny:french"))
        assert received(decode, "failed") == before + 1
        assert "the adapter is not loaded here" in decode.process.log
        decode.scrubbed()
        assert found == answer(decode.complete(prompt, model="tiny:french"))
    finally:
        unload(decode, "french")
        if there != "none":
            unload(source, "french", project)


def test_in_deterministic_mode_one_rank_takes_what_two_have_computed(
    cell: Cell, source: Member, divisible: Path
) -> None:
    """And refuses what was computed in another mode, in which two ranks make other bits than one."""
    fixed = ("--deterministic", "--transfer-timeout", "30")
    with (
        cell.backend("source-2", divisible, "prefill", *TWO, *fixed) as two,
        cell.backend("decode-2", divisible, "decode", *fixed) as one,
    ):
        two.measured()
        one.measured()
        bodies: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 5}]
        for number, body in enumerate(bodies):
            prompt = rotated(40 + number)
            found = answer(one.complete(prompt, two.place(one), **body))
            assert received(one) == number + 1, one.process.log + two.process.log
            one.scrubbed()
            assert found == answer(one.complete(prompt, **body))
        assert answer(one.complete(rotated(45), source.place(one)))
        assert (received(one), received(one, "failed")) == (2, 1)
        assert "weights or computation" in one.process.log
        assert two.scrubbed() == one.scrubbed() == 0
