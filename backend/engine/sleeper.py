"""Giving memory back between uses, and taking it again: what `Engine.sleep` and `Engine.wake` ask for.

Asleep, an engine holds no key, value or token of anybody's, and next to no memory of the device; its process, kernels
and graphs stay. Weights go to the host's memory where they lie on a card (`card_sleeper`). On a CPU they lie in the
host's memory already, so that they are dropped, and read again from the checkpoint.
"""

from collections.abc import Callable
from typing import Protocol

from backend.engine.model_runner import ModelRunner
from backend.models.decoder import Decoder
from backend.models.direct import OnProgress


class Sleeper(Protocol):
    """Both are called between steps, with no sequence there, and in turn."""

    def sleep(self, on_progress: OnProgress) -> int:
        """Bytes given back. Raises CannotSleep, with everything as it was, if what is to be kept has no place."""
        ...

    def wake(self, on_progress: OnProgress) -> None:
        """Raises CannotWake, still asleep, if the memory is not to be had. ModelError if the checkpoint is no more."""
        ...


class HostSleeper:
    """Of a `ModelRunner`. reload: gives the model again; None: its weights stay."""

    def __init__(self, runner: ModelRunner, reload: Callable[[OnProgress], Decoder] | None) -> None:
        self._runner, self._reload = runner, reload

    def sleep(self, on_progress: OnProgress) -> int:
        given = self._runner.cache.release()
        if self._reload is not None:
            parameters = {id(p): p for p in self._runner.model.parameters()}.values()
            given += sum(p.numel() * p.element_size() for p in parameters)
            for parameter in parameters:
                parameter.data = parameter.data.new_empty(0)
        on_progress(given, given)
        return given

    def wake(self, on_progress: OnProgress) -> None:
        if self._reload is not None:
            self._runner.model = self._reload(on_progress)
        self._runner.cache.restore()
