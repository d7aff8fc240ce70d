"""Giving memory back between uses, and taking it again: what `Engine.sleep` and `Engine.wake` ask for.

Asleep, an engine holds no key, value or token, and almost no memory of the device; its process, kernels
and graphs stay. Weights on a GPU are moved to the host's memory (`gpu.sleeper`). On a CPU they are in the
host's memory already, so that they are dropped, and read again from the checkpoint.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

from backend.engine.cache.attention import KVCache
from backend.models.checkpoints.direct import OnProgress


class Sleeper(Protocol):
    """Both are called between steps, with no sequence there, and in turn."""

    def sleep(self, on_progress: OnProgress) -> int:
        """Bytes given back. Raises CannotSleep, with everything as it was, if what is to be kept has no place."""
        ...

    def wake(self, on_progress: OnProgress) -> None:
        """Raises CannotWake, still asleep, if the memory is not available; ModelError if the checkpoint is missing."""
        ...


class OnHost(Protocol):
    """A runner whose model and cache are in the host's memory; an encoder's has no cache."""

    model: Any

    @property
    def cache(self) -> KVCache | None: ...


class HostSleeper:
    """reload: gives the model again; None: its weights stay."""

    def __init__(self, runner: OnHost, reload: Callable[[OnProgress], nn.Module] | None) -> None:
        self._runner, self._reload = runner, reload

    def sleep(self, on_progress: OnProgress) -> int:
        given = self._runner.cache.release() if self._runner.cache else 0
        if self._reload is not None:
            parameters = {id(p): p for p in self._runner.model.parameters()}.values()
            given += sum(p.numel() * p.element_size() for p in parameters)
            for parameter in parameters:
                parameter.data = parameter.data.new_empty(0)
        exposure = getattr(self._runner.model, "exposure", None)  # an encoder has none
        if exposure is not None:
            exposure.clear()
        on_progress(given, given)
        return given

    def wake(self, on_progress: OnProgress) -> None:
        if self._reload is not None:
            self._runner.model = self._reload(on_progress)
        if self._runner.cache:
            self._runner.cache.restore()
