"""The sum over cards with the norm behind it, from the side of each rank: the others have written and signalled."""

import pytest
import torch

from backend.kernels.collectives.peer_norm import PLACES, PeerMemory, peer_add_rms_norm, peer_add_rms_norm_fp8
from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.reference import add_rms_norm

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, MOST = 8, 8 * 96
EPS = 1e-5


class Cards:
    """Memory of all ranks on one card, in which those beside `rank` have done their part of a turn."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.buffers = [torch.zeros(PLACES * MOST, dtype=dtype, device=DEVICE) for _ in range(size)]
        self.signals = [torch.zeros(ROWS, size, dtype=torch.int32, device=DEVICE) for _ in range(size)]
        self.turns = torch.zeros(ROWS, dtype=torch.int32, device=DEVICE)

    def memory(self, rank: int) -> PeerMemory:
        return PeerMemory(tuple(self.buffers), tuple(self.signals), self.turns, rank)

    def run(
        self, rank: int, parts: list[torch.Tensor], residual: torch.Tensor, weight: torch.Tensor, *, fp8: bool = False
    ) -> torch.Tensor:
        tokens = len(residual)
        for row in range(tokens):
            turn = int(self.turns[row])
            for other, part in enumerate(parts):
                if other != rank:
                    width = residual.shape[1]
                    begin = turn % 2 * MOST + row * width
                    self.buffers[other][begin : begin + width] = part[row]
                    self.signals[rank][row, other] = turn + 1
        own = parts[rank]
        memory = self.memory(rank)
        if fp8:
            y, scale, h = peer_add_rms_norm_fp8(own, residual, weight, EPS, memory)
            return torch.stack((y.float() * scale, h.float()))
        return torch.stack(peer_add_rms_norm(own, residual, weight, EPS, memory))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rank_gets_the_norm_of_the_sum_and_tells_the_others(size: int, dtype: torch.dtype) -> None:
    for rank in range(size):
        cards = Cards(size, dtype)
        for tokens in (3, 8, 1):  # a row's turn is its own
            parts = [torch.randn(tokens, 96, device=DEVICE).to(dtype) for _ in range(size)]
            residual, weight = torch.randn(tokens, 96, device=DEVICE).to(dtype), torch.randn(96, device=DEVICE)
            before = cards.turns.clone()
            found = cards.run(rank, parts, residual, weight)
            total = torch.stack([part.float() for part in parts]).sum(0)
            expected = torch.stack(add_rms_norm(total[None], residual, weight.to(dtype), EPS))
            near = 1e-5 if dtype == torch.float32 else 0.05
            assert torch.allclose(found.float(), expected.float(), atol=near, rtol=near)
            assert cards.turns.tolist() == [turn + (row < tokens) for row, turn in enumerate(before.tolist())]
            told = [cards.signals[other][:, rank].tolist() for other in range(size) if other != rank]
            assert told == [cards.turns.tolist()] * (size - 1)


def test_the_norm_may_be_quantised_on_its_way() -> None:
    cards = Cards(2, torch.float32)
    parts = [torch.randn(4, 64, device=DEVICE) for _ in range(2)]
    residual, weight = torch.randn(4, 64, device=DEVICE), torch.ones(64, device=DEVICE)
    found = cards.run(1, parts, residual, weight, fp8=True)
    expected = torch.stack(add_rms_norm(parts[0] + parts[1], residual, weight, EPS))
    assert torch.allclose(found[0], expected[0], rtol=0.07, atol=0.02)
    assert torch.allclose(found[1], expected[1], atol=1e-5)


def test_parts_are_summed_before_they_are_told() -> None:
    cards = Cards(2, torch.bfloat16)
    own, other = torch.randn(3, 5, 64, device=DEVICE), torch.randn(5, 64, device=DEVICE).bfloat16()
    residual, weight = torch.randn(5, 64, device=DEVICE).bfloat16(), torch.ones(64, device=DEVICE)
    found = cards.run(0, [own, other], residual, weight)
    rounded = own.sum(0).bfloat16().float() + other.float()
    expected = (residual.float() + rounded).bfloat16().float()
    # Interpreted, what becomes bfloat16 is cut off and not rounded: the sum that is told, and the result.
    assert torch.allclose(found[1].float(), expected, atol=0.04, rtol=2**-6)


def test_a_turn_may_pass_the_largest_number() -> None:
    cards = Cards(2, torch.float32)
    cards.turns += 2**31 - 1
    x, weight = torch.ones(2, 32, device=DEVICE), torch.ones(32, device=DEVICE)
    tokens = len(x)
    for row in range(tokens):
        cards.buffers[1][MOST + row * 32 : MOST + (row + 1) * 32] = 1.0
        cards.signals[0][row, 1] = -(2**31)
    _, h = peer_add_rms_norm(x, x, weight, EPS, cards.memory(0))
    assert torch.equal(h, torch.full_like(h, 3.0))
    assert cards.turns[:tokens].tolist() == [-(2**31)] * tokens


def test_more_rows_than_there_is_memory_for_are_refused() -> None:
    cards = Cards(2, torch.float32)
    x = torch.zeros(9, 96, device=DEVICE)
    with pytest.raises(KernelArgumentError, match="9 rows of 96 do not fit"):
        peer_add_rms_norm(x, x, x[0], EPS, cards.memory(0))
