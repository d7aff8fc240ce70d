"""Slots of the host tier: blocks cross as they are, and what is cleared is zero."""

from types import SimpleNamespace

import pytest
import torch

from backend.engine.cache.host_pages import HostPages
from backend.engine.core.host_tier import HostClear, HostLoad, HostSettle, HostStore


def cache(dtype: torch.dtype = torch.float32, widths: tuple[int, int] = (8, 8)) -> SimpleNamespace:
    """Random bytes, so that blocks of NaN and infinities cross, too."""
    parts = [torch.randint(0, 256, (3, 6, 4, 2, width * dtype.itemsize), dtype=torch.uint8) for width in widths]
    return SimpleNamespace(keys=parts[0].view(dtype), values=parts[1].view(dtype))


def block(of: SimpleNamespace, index: int) -> list[torch.Tensor]:
    return [part.view(torch.uint8)[:, index].clone() for part in (of.keys, of.values)]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("widths", [(8, 8), (12, 4)])  # latent attention keeps parts of unlike widths
def test_blocks_come_back_as_they_were_and_others_stay(dtype: torch.dtype, widths: tuple[int, int]) -> None:
    pages = cache(dtype, widths)
    host = HostPages(pages, 5)
    before = [block(pages, i) for i in range(6)]
    host.do(HostStore([(1, 4), (5, 0)]))
    pages.keys.view(torch.uint8)[:, 1] = 0
    pages.values.view(torch.uint8)[:, 1] = 0
    host.do(HostLoad(7, [(2, 3)], [(4, 1), (0, 2)]))
    assert host.arrived(7) is not None
    host.do(HostSettle(7))
    assert host.arrived(7) is None
    after = [block(pages, i) for i in range(6)]
    assert [same(after[i], before[j]) for i, j in enumerate([0, 1, 5, 3, 4, 5])] == [True] * 6
    host.do(HostLoad(8, [], [(3, 0)]))
    assert same(block(pages, 0), before[2])


def test_what_is_cleared_is_zero_and_the_residue_counts_bytes_of_the_slots_asked_for() -> None:
    pages = cache()
    pages.keys.fill_(1.0)
    host = HostPages(pages, 3)
    assert host.residue([0, 1, 2]) == 0
    host.do(HostStore([(0, 0), (1, 1)]))
    whole = host.residue([0])
    assert 0 < whole <= host.slot_bytes
    host.do(HostClear([0]))
    assert (host.residue([0]), host.residue([2])) == (0, 0)
    assert host.residue([0, 1, 2]) == host.residue([1]) > 0
    host.forget()
    assert host.residue([0, 1, 2]) == 0
