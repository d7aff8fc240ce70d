"""How far a transfer is: a bar on a terminal, lines elsewhere."""

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

log = logging.getLogger(__name__)

EVERY_S = 10.0


class Told(Protocol):
    """Takes bytes that arrived; fewer than none where they have to come again. Called from several threads."""

    def __call__(self, arrived: int, /) -> None: ...


class Shown:
    """A transfer of `total` bytes under `name`, on stderr; `quiet`: nothing is said."""

    def __init__(self, name: str, total: int, *, quiet: bool = False) -> None:
        self._name, self._total, self._done = name, total, 0
        self._lock = threading.Lock()
        self._said_at = time.monotonic()
        self._quiet = quiet
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task(name, total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        elif not self._quiet:
            log.info("fetching %s: %.2f GB", self._name, self._total / 1e9)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None and not self._quiet:
            log.info("fetched %s", self._name)

    def __call__(self, arrived: int, /) -> None:
        with self._lock:
            self._done += arrived
            if self._bar is not None:
                self._bar.update(self._task, completed=self._done)
            elif not self._quiet and time.monotonic() - self._said_at >= EVERY_S:
                self._said_at = time.monotonic()
                log.info("fetching %s: %.2f of %.2f GB", self._name, self._done / 1e9, self._total / 1e9)
