"""A model's layers as CUDA graphs with attention between them: large steps without their launches.

Everything but attention depends on the number of tokens alone. So the layers are captured once for a number of tokens,
the capture breaking off at each attention and going on behind it; a step then replays the pieces and calls attention in
between, whatever its sequences are (vLLM's piecewise graphs, SGLang's breakable ones). What would take a small model's
host ten launches a layer takes it two. What follows the last attention is not captured: it is for few tokens, whose
number varies.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backend.engine.gpu.captures import uncollected
from backend.models.decoders.paged_decoder import Attended, PagedCache, PagedDecoder, StepTokens

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, qkv, where to leave the result


@dataclass(frozen=True, slots=True)
class Piece:
    """A graph that ends where attention of its layer is due; what it leaves for that, in the graphs' own memory."""

    graph: "torch.cuda.CUDAGraph"
    q: Tensor
    qkv: Tensor


class PiecewiseBody:
    """`PagedDecoder.attended` for one number of tokens.

    Args:
        tokens: of that number; read again by each replay, as is the cache.
        attended: [at least that many, heads, head_dim], where each layer's attention leaves its result.
        pool: memory of the graphs; replays of all that share it must follow one another on a stream.

    Nothing may run on the device meanwhile.
    """

    def __init__(
        self,
        model: PagedDecoder,
        tokens: StepTokens,
        cache: PagedCache,
        attended: Tensor,
        stream: "torch.cuda.Stream",
        pool: Any,
    ) -> None:
        self.size = len(tokens.ids)
        self._attended = attended[: self.size]
        model.attended(tokens, cache, _DryRun(self._attended))  # compiles, and lets the libraries allocate
        capture = _Capture(self._attended, pool, model.config.num_layers)
        torch.cuda.synchronize()
        with uncollected(), torch.cuda.stream(stream):
            capture.begin()
            try:
                left = model.attended(tokens, cache, capture)
            except BaseException:
                capture.abandon()
                raise
        self._pieces = capture.pieces
        self._left = Attended(_alias(left.residual), left.x, left.adapters)

    def __call__(self, attention: Attention, used: int) -> Attended:
        """used: tokens that belong to someone. The result stays until the pool's next replay."""
        self._attended[used:] = 0
        for layer, piece in enumerate(self._pieces):
            piece.graph.replay()
            attention(layer, piece.q, piece.qkv, self._attended)
        return self._left


class _DryRun:
    """No attention."""

    keys_in_place = True

    def __init__(self, attended: Tensor) -> None:
        self._attended = attended

    def __call__(self, layer: int, q: Tensor, qkv: Tensor) -> Tensor:
        return self._attended.view(len(q), -1)


class _Capture:
    """The attention that layers are captured with: it ends one graph and begins the next, if there is one."""

    keys_in_place = True

    def __init__(self, attended: Tensor, pool: Any, layers: int) -> None:
        self.pieces: list[Piece] = []
        self._attended = attended
        self._pool = pool
        self._layers = layers

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def abandon(self) -> None:
        """End a capture that failed, so that the stream can be used again."""
        if len(self.pieces) < self._layers:
            self._graph.capture_end()

    def __call__(self, layer: int, q: Tensor, qkv: Tensor) -> Tensor:
        self._graph.capture_end()
        self.pieces.append(Piece(self._graph, _alias(q), _alias(qkv)))
        if layer + 1 < self._layers:
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
