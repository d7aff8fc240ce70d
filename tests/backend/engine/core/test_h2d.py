"""Numbers on their way to the device."""

import ast
import random
from pathlib import Path

import pytest
import torch

from backend.engine.core.h2d import pinned, sent

BACKEND = Path(__file__).resolve().parents[4] / "backend"
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([3, 1, 2], torch.int64), ([-1], torch.int32), ([0.5, -2.0], torch.float32), ([], torch.int64)],
)
def test_what_is_sent_arrives_as_it_was(values: list[int] | list[float], dtype: torch.dtype) -> None:
    there = sent(values, dtype, DEVICE)
    assert there.device.type == DEVICE.type
    assert there.dtype == dtype
    assert there.tolist() == values


def test_a_host_tensor_may_be_written_again_at_once_where_it_was_not_pinned() -> None:
    """Many copies wait behind work of the device, while their sources are freed and others take their memory."""
    rng = random.Random(5)
    work = torch.randn(2048, 2048, device=DEVICE) if GPU else torch.ones(4, 4)
    kept = []
    for _ in range(40 if GPU else 2):
        for _ in range(5):
            work @ work
        for _ in range(20):
            values = [rng.randrange(1 << 40) for _ in range(rng.randrange(1, 6))]
            kept.append((values, sent(values, torch.int64, DEVICE) + 0))
            sent([-7] * rng.randrange(1, 6), torch.int64, DEVICE)
    assert all(there.tolist() == values for values, there in kept)


def test_a_whole_tensor_is_sent_with_its_shape() -> None:
    host = torch.arange(6, dtype=torch.int32).view(2, 3)
    assert torch.equal(pinned(host, DEVICE).cpu(), host)


def test_nothing_is_sent_without_waiting_but_from_pinned_memory() -> None:
    """One place that knows what `tensor.to(device, non_blocking=True)` asks of memory."""
    calls = {
        path.relative_to(BACKEND).as_posix()
        for path in BACKEND.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("to", "cuda")
        and any(keyword.arg == "non_blocking" for keyword in node.keywords)
    }
    assert calls == {"engine/core/h2d.py"}
