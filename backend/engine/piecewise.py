"""A model's layers as CUDA graphs with attention between them: large steps without their launches.

Everything but attention depends on the number of tokens alone. So the layers are captured once for a number of tokens,
the capture breaking off at each attention and going on behind it; a step then replays the pieces and calls attention in
between, whatever its sequences are (vLLM's piecewise graphs, SGLang's breakable ones). What would take a small model's
host ten launches a layer takes it two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.engine.replays import uncollected
from backend.models.paged_decoder import Hidden, PagedCache, PagedDecoder, StepTokens

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, qkv, where to leave the result


@dataclass(frozen=True, slots=True)
class Piece:
    """A graph that ends where attention of its layer is due; what it leaves for that, in the graphs' own memory."""

    graph: "torch.cuda.CUDAGraph"
    q: Tensor
    qkv: Tensor


class PiecewiseBody:
    """`PagedDecoder.body` for one number of tokens.

    Args:
        tokens: of that number; read anew by each replay, as is the cache.
        attended: [at least that many, heads, head_dim], where each layer's attention leaves its result.
        pool: memory of the graphs; replays of all that share it must follow one another on a stream.

    Nothing may run on the device meanwhile.
    """

    def __init__(
        self, model: PagedDecoder, tokens: StepTokens, cache: PagedCache, attended: Tensor, stream: "torch.cuda.Stream",
        pool: Any,
    ) -> None:  # fmt: skip
        self.size = len(tokens.ids)
        self._attended = attended[: self.size]
        model.body(tokens, cache, _Rehearsal(self._attended))  # compiles, and lets the libraries allocate
        capture = _Capture(self._attended, pool)
        torch.cuda.synchronize()
        with uncollected(), torch.cuda.stream(stream):
            capture.begin()
            try:
                hidden = model.body(tokens, cache, capture)
            finally:
                self._last = capture.end()
        self._pieces = capture.pieces
        self._hidden = Hidden(
            _alias(hidden.residual),
            None if hidden.added is None else _alias(hidden.added),
            None if hidden.scales is None else (_alias(hidden.scales[0]), hidden.scales[1]),
        )

    def __call__(self, attention: Attention, used: int) -> Hidden:
        """used: tokens that belong to someone. The result stays until the pool's next replay."""
        self._attended[used:] = 0
        for layer, piece in enumerate(self._pieces):
            piece.graph.replay()
            attention(layer, piece.q, piece.qkv, self._attended)
        self._last.replay()
        return self._hidden


class _Rehearsal:
    """No attention."""

    keys_in_place = True

    def __init__(self, attended: Tensor) -> None:
        self._attended = attended

    def __call__(self, layer: int, q: Tensor, qkv: Tensor) -> Tensor:
        return self._attended.view(len(q), -1)


class _Capture:
    """The attention that a body is captured with: it ends one graph and begins the next."""

    keys_in_place = True

    def __init__(self, attended: Tensor, pool: Any) -> None:
        self.pieces: list[Piece] = []
        self._attended = attended
        self._pool = pool

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> "torch.cuda.CUDAGraph":
        self._graph.capture_end()
        return self._graph

    def __call__(self, layer: int, q: Tensor, qkv: Tensor) -> Tensor:
        self.pieces.append(Piece(self.end(), _alias(q), _alias(qkv)))
        self.begin()
        return self._attended.view(len(q), -1)


class _Memory:
    def __init__(self, tensor: Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (tensor.data_ptr(), False), "version": 3,
        }  # fmt: skip


def _alias(tensor: Tensor) -> Tensor:
    """The same memory, without keeping it: what one piece is done with, the next ones use again."""
    return torch.as_tensor(_Memory(tensor), device=tensor.device).view(tensor.dtype).view(tensor.shape)
