from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from backend.engine import engine as engine_module
from backend.engine.cache import pages
from backend.engine.cache.pages import Pages
from backend.engine.cpu.model_runner import ModelRunner
from backend.engine.engine import Engine
from backend.errors import CannotScrub
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model

LAYERS, BLOCKS, BLOCK = 3, 40, (4, 2, 8)  # positions, heads, width
BLOCK_BYTES = 4 * 2 * 8 * 2


class LargestResult(TorchDispatchMode):
    """Bytes of the largest new tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        fresh = isinstance(out, Tensor) and not func.is_view and not func.__name__.split(".")[0].endswith("_")
        if fresh:
            self.size = max(self.size, out.numel() * out.element_size())
        return out


@contextmanager
def largest_result() -> Iterator[LargestResult]:
    with LargestResult() as mode:
        yield mode


@pytest.fixture
def parts() -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(LAYERS, BLOCKS, *BLOCK).half(), torch.randn(LAYERS, BLOCKS, *BLOCK).half()


@pytest.fixture(params=[1, 3 * BLOCK_BYTES, 1 << 24], ids=["one block", "three blocks", "all"])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(pages, "PIECE_BYTES", request.param)
    return max(request.param, BLOCK_BYTES)


def test_residue_counts_the_bytes_of_chosen_blocks_in_pieces_of_any_size(
    parts: tuple[Tensor, Tensor], piece: int
) -> None:
    chosen = [39, 0, 7, 8, 9, 21, 22]
    exact = sum(int((part[:, chosen].view(torch.uint8) != 0).sum()) for part in parts)
    store = Pages(*parts)
    with largest_result() as largest:
        assert store.residue(chosen) == exact
    assert largest.size <= 8 * piece
    assert store.residue([]) == 0


def test_zeroed_blocks_leave_no_byte_and_the_others_keep_theirs(parts: tuple[Tensor, Tensor], piece: int) -> None:
    before = [part.clone() for part in parts]
    store = Pages(*parts)
    store.zero([1, 2, 30])
    assert store.residue([1, 2, 30]) == 0
    kept = [b for b in range(BLOCKS) if b not in (1, 2, 30)]
    assert all(torch.equal(part[:, kept], old[:, kept]) for part, old in zip(parts, before, strict=True))


def test_copies_are_made_in_pieces_of_any_size(parts: tuple[Tensor, Tensor], piece: int) -> None:
    before = [part.clone() for part in parts]
    pairs = [(3, 20), (3, 21), (4, 22), (39, 0)]
    with largest_result() as largest:
        Pages(*parts).copy(pairs)
    assert largest.size <= max(piece, LAYERS * BLOCK_BYTES)
    for part, old in zip(parts, before, strict=True):
        assert all(torch.equal(part[:, to], old[:, source]) for source, to in pairs)
        assert torch.equal(part[:, 1:20], old[:, 1:20])


def test_a_scrub_that_runs_out_of_memory_is_refused_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Engine = tiny_engine(tiny_model())
    expected = generate(engine, [[1, 2, 3]])

    def exhausted(*_: Any) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(ModelRunner, "residue", exhausted)
        with pytest.raises(CannotScrub, match="zeroed, but the device has no memory left to read them back"):
            engine.scrub()
    assert engine.scrub() == 0
    assert generate(engine, [[1, 2, 3]]) == expected


def test_a_scrub_between_steps_leaves_out_blocks_that_a_sequence_has_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "SCRUB_BLOCKS", 4)
    alone = generate(tiny_engine(tiny_model()), [[5, 6, 7], list(range(30))])
    engine = tiny_engine(tiny_model())
    generate(engine, [list(range(40))])  # leaves blocks in the prefix cache
    parts = engine.scrubbing()
    residue = next(parts)
    engine.add(0, [5, 6, 7], greedy(12))
    engine.add(1, list(range(30)), greedy(12))
    tokens: dict[int, list[int | None]] = {0: [], 1: []}
    for found in parts:
        residue += found
        for item in engine.step() if engine.has_work else ():
            tokens[item.id].append(item.token)
    while engine.has_work:
        for item in engine.step():
            tokens[item.id].append(item.token)
    assert residue == 0
    assert [tokens[0], tokens[1]] == alone
    assert engine.scrub() == 0


def drawn(dtype: torch.dtype, widths: tuple[int, int] = (8, 8)) -> Pages:
    """Of random content; on a card where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Pages(*(torch.randn(LAYERS, BLOCKS, 4, 2, width, device=device).to(dtype) for width in widths))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("widths", [(8, 8), (12, 4)], ids=["heads", "latents"])
def test_blocks_are_read_and_written_byte_for_byte(dtype: torch.dtype, widths: tuple[int, int]) -> None:
    source, target, untouched = (drawn(dtype, widths) for _ in range(3))
    assert source.dtype == str(dtype).removeprefix("torch.")
    assert source.block_bytes == tuple(4 * 2 * width * dtype.itemsize for width in widths)
    keys, values = source.read(1, [7, 3], source.now()).take()
    before = target.read(1, [8], target.now()).take(), target.read(0, [5, 9], target.now()).take()
    target.write(1, [5, 9], keys, values)
    assert target.read(1, [9, 5], target.now()).take() == source.read(1, [3, 7], source.now()).take()
    assert (target.read(1, [8], target.now()).take(), target.read(0, [5, 9], target.now()).take()) == before
    assert (keys, values) != untouched.read(1, [7, 3], untouched.now()).take()


def test_the_buffer_that_blocks_were_read_through_is_zeroed() -> None:
    read = drawn(torch.float32).read(0, [1, 2], drawn(torch.float32).now())
    keys, _ = read.take()
    assert any(keys)
    assert not read.keys.any() and not read.values.any()
