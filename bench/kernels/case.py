"""What a case of the kernels' benchmark is: how to run it, what it must give, the least it must read and compute."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from backend.kernels.launching.tuning import Choice

L2_BYTES = 50e6
BLOCK_SIZE = 16  # tokens of a cache block, unless a case says otherwise


@dataclass(frozen=True)
class Shape:
    """Attention and vocabulary of a model."""

    name: str
    width: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ff_width: int
    vocab: int
    qk_norm: bool


LLAMA_8B = Shape("llama-3.1-8b", 4096, 32, 8, 128, 14336, 128256, False)


LLAMA_8B = Shape("llama-3.1-8b", 4096, 32, 8, 128, 14336, 128256, False)
WIDE = Shape("llama-3.1-70b", 8192, 64, 8, 128, 28672, 128256, False)
QWEN3_06B = Shape("qwen3-0.6b", 1024, 16, 8, 128, 3072, 151936, True)


@dataclass(frozen=True)
class Case:
    """One kernel at one shape.

    ``run(i)`` runs it on the i-th of ``sets`` equal sets of inputs, together larger than the L2 cache, and returns the
    tensors it wrote; ``twin(i)`` the same in torch. ``peer(i)``: what a torch user would call instead, for its time.
    bytes: each input read once, each output written once. tolerance: of ‖out - twin‖ / ‖twin‖, or of the share of
    unequal integers. seen: what of the outputs is compared, where the outputs themselves may differ and be right.
    candidates: launch choices that are worth timing (`formats_tune.py`).
    """

    name: str
    sets: int
    bytes: float
    run: Callable[[int], tuple[Tensor, ...]]
    twin: Callable[[int], tuple[Tensor, ...]]
    tolerance: float
    flops: float = 0.0
    peer: Callable[[int], Any] | None = None
    peer_name: str = ""
    seen: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = lambda outputs: outputs
    candidates: tuple[Choice, ...] = ()


def sets_of(size: float, most: int = 64) -> int:
    return max(1, min(most, round(3 * L2_BYTES / size)))


def label(*parts: object) -> str:
    return " ".join(str(part).removeprefix("torch.") for part in parts)
