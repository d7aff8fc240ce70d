"""One step of an encoder: whole texts in, their vectors out, or the scores of pairs. Nothing is kept of them."""

import torch
from torch import Tensor

from backend.engine.core.runner import Masks
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.speculation import Drafted
from backend.engine.embedding.pooling_runner import Pooled, as_bytes
from backend.models.checkpoints.pooling import Pooling
from backend.models.decoders.encoder import Encoder


class EncoderRunner:
    """A `runner.Runner`; its scheduler must schedule whole texts. There is no cache: its blocks are
    numbers that bound how many texts run at once, and hold no data."""

    ahead = 0
    windows: tuple[int | None, ...] = (None,)
    plain_only = False
    missed = 0
    cache = None
    pages = None

    def __init__(self, model: Encoder, pooling: Pooling) -> None:
        self.model = model
        self._pooling = pooling

    @torch.inference_mode()
    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> Pooled:
        states = self.model([s.sequence.tokens for s in batch])
        if self._pooling is Pooling.SCORE:
            return Pooled(as_bytes([self.model.score(own[0]).float() for own in states]))
        return Pooled(as_bytes([self._pooled(own.float()) for own in states]))

    def _pooled(self, states: Tensor) -> Tensor:
        match self._pooling:
            case Pooling.MEAN:
                return states.mean(0)
            case Pooling.FIRST:
                return states[0]
            case Pooling.LAST:
                return states[-1]
            case Pooling.SCORE:
                raise AssertionError("a score is made by the model's head")

    def profile_run(self, lengths: list[int]) -> None:
        """Dummy forward pass over such texts, for warm-up and profiling."""
        self.model([[0] * length for length in lengths])

    def forget(self) -> None:
        """Nothing is kept between steps."""

    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        raise AssertionError("nothing is drawn, so nothing can have been guessed")

    def checked_activations(self) -> list[list[bytes]]:
        raise AssertionError("nothing is drawn, so nothing can have been guessed")

    def prepare(self) -> bool:
        """Every step runs as it is from the first on."""
        return False

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Does nothing: blocks hold no data."""

    def scrub(self, blocks: list[int]) -> None:
        """Does nothing: blocks hold no data."""

    def residue(self, blocks: list[int]) -> int:
        return 0
