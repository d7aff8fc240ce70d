"""What adapters add to a product: the kernels are their twins, and the twins are float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from backend.kernels.adapters import deltas, reference
from backend.kernels.launching.launch import KernelArgumentError

KINDS: dict[str, tuple[int, int, tuple[int, ...]]] = {  # width, rank, outputs of each module that shares a matrix
    "one module": (48, 8, (70,)),
    "gate and up": (130, 4, (96, 96)),
    "q, k and v": (1100, 16, (144, 48, 48)),
    "rank above a tile": (64, 40, (33,)),
}


def case(kind: str, rows: int, adapters: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    width, rank, heights = KINDS[kind]
    return {
        "x": torch.randn(rows, width, device=device).to(dtype),
        "a": (torch.randn(adapters, len(heights) * rank, width, device=device) * width**-0.5).to(dtype),
        "b": torch.randn(adapters, sum(heights), rank, device=device).to(dtype),
        "y": torch.randn(rows, sum(heights), device=device).to(dtype),
        "slots": torch.randint(-1, adapters, (rows,), dtype=torch.int32, device=device),
        "heights": heights,
    }


def exact(x: Tensor, a: Tensor, b: Tensor, y: Tensor, slots: Tensor, heights: tuple[int, ...]) -> Tensor:
    """Row by row, in float64."""
    found, rank = y.double().clone(), b.shape[2]
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        h, at = a[slot].double() @ x[row].double(), 0
        for group, height in enumerate(heights):
            inner = h[group * rank : (group + 1) * rank]
            found[row, at : at + height] += b[slot, at : at + height].double() @ inner
            at += height
    return found


def added(ops: Any, c: dict[str, Any], *, batch_invariant: bool = False) -> Tensor:
    rows = ops.segments(c["slots"], len(c["a"]), batch_invariant=batch_invariant)
    y = c["y"].clone()
    ops.expand(y, ops.shrink(c["x"], c["a"], rows, len(c["heights"])), c["b"], rows, c["heights"])
    return y


@pytest.mark.parametrize(("rows", "adapters"), [(1, 1), (5, 3), (37, 8), (70, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_kernel_and_twin_add_what_float64_adds(
    kind: str, rows: int, adapters: int, dtype: torch.dtype, device: torch.device
) -> None:
    c = case(kind, rows, adapters, dtype, device)
    expected = exact(**c)
    bound = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype] * float(expected.abs().max())
    for ops in (deltas, reference):
        assert float((added(ops, c).double() - expected).abs().max()) <= bound, ops.__name__


@pytest.mark.parametrize("rows", [1, 20])
def test_rows_without_an_adapter_keep_every_bit(rows: int, dtype: torch.dtype, device: torch.device) -> None:
    c = case("q, k and v", rows, 3, dtype, device)
    c["slots"].fill_(-1)
    assert torch.equal(added(deltas, c), c["y"])
    assert torch.equal(added(reference, c), c["y"])


def test_an_adapter_changes_no_row_of_another(device: torch.device) -> None:
    c = case("gate and up", 30, 4, torch.float32, device)
    before = added(deltas, c)
    c["a"][2] += 1
    c["b"][2] *= -1
    after, own = added(deltas, c), c["slots"] == 2
    assert torch.equal(before[~own], after[~own])
    assert not own.any() or not torch.equal(before[own], after[own])


@pytest.mark.parametrize("rows", [3, 33, 600])
def test_in_invariant_mode_the_bits_of_a_row_are_those_that_it_has_alone(
    rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    c = case("one module", rows, 3, dtype, device)
    together = added(deltas, c, batch_invariant=True)
    for row in {0, 1, rows // 2, rows - 1}:
        alone = {**c, **{name: c[name][row : row + 1].contiguous() for name in ("x", "y", "slots")}}
        assert torch.equal(added(deltas, alone, batch_invariant=True)[0], together[row])


def test_many_rows_are_laid_out_in_large_blocks_and_add_the_same(device: torch.device) -> None:
    c = case("one module", 700, 5, torch.float32, device)
    assert deltas.segments(c["slots"], 5).blocks.size == deltas.LARGE
    assert float((added(deltas, c).double() - exact(**c)).abs().max()) < 1e-4


def test_sums_that_stay_in_float32_are_added_to_in_float32(dtype: torch.dtype, device: torch.device) -> None:
    """The parts of a product of few rows are float32 whatever the model's dtype."""
    c = case("one module", 9, 2, dtype, device)
    c["y"] = c["y"].float()
    found = added(deltas, c)
    assert found.dtype == torch.float32
    assert float((found - added(reference, c)).abs().max()) < (1e-5 if dtype == torch.float32 else 2e-2)


def test_tokens_get_the_adapter_of_their_sequence_and_padding_none(device: torch.device) -> None:
    rows = torch.tensor([4, 0, -1, 2], dtype=torch.int32, device=device)
    starts = torch.tensor([0, 1, 4, 4, 6], dtype=torch.int32, device=device)
    slots = torch.tensor([7, 9, -1, 9, 3], dtype=torch.int32, device=device)
    out = torch.full((9,), 5, dtype=torch.int32, device=device)
    reference.slots_of_tokens(rows, starts, slots, out)
    assert out.tolist() == [3, 7, 7, 7, -1, -1, -1, -1, -1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.zeros(4, 9)}, "is not multiplied by"),
        ({"x": torch.zeros(4, 8, dtype=torch.float64)}, "is not multiplied by"),
        ({"slots": torch.zeros(3, dtype=torch.int32)}, "3 slots for 4 rows"),
        ({"slots": torch.zeros(4)}, "slots are contiguous int32"),
        ({"heights": (3, 2)}, "does not fit"),
        ({"heights": (7,)}, "are not those of 6 outputs"),
        ({"y": torch.zeros(6, 4).t()}, "contiguous"),
        ({"a": torch.zeros(1, 400, 8), "b": torch.zeros(1, 6, 400)}, "rank 400"),
        ({"a": torch.zeros(600, 2, 8)}, "600 adapters"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("ops", [deltas, reference], ids=["kernel", "twin"])
def test_arguments_that_do_not_fit_are_refused(ops: Any, change: dict[str, Any], said: str, device: Any) -> None:
    c: dict[str, Any] = {
        "x": torch.zeros(4, 8), "a": torch.zeros(1, 2, 8), "b": torch.zeros(1, 6, 2), "y": torch.zeros(4, 6),
        "slots": torch.zeros(4, dtype=torch.int32), "heights": (6,),
    }  # fmt: skip
    with pytest.raises(KernelArgumentError, match=said):
        added(ops, {k: v.to(device) if isinstance(v, Tensor) else v for k, v in {**c, **change}.items()})
