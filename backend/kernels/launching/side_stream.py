"""A second stream of a card, for what a captured step computes while its products wait for memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """Of the step that a thread captures. Off a card there is none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def usable(self) -> bool:
        """Whether a step is being captured: elsewhere streams cost the host more than the card gains."""
        return self._stream is not None and torch.cuda.is_current_stream_capturing()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What is launched within runs behind what was launched before, and beside what is launched until `join`.
        Memory that it reads is to be kept until then. Only where `usable`."""
        assert self._stream is not None  # noqa: S101 -- see above
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """What is launched from now on runs behind all that."""
        assert self._stream is not None  # noqa: S101 -- see above
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
