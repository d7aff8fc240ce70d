"""The windows of a backend (`cache.windows`): those that it reads blocks into, one for each backend that asks, with
their free slots; and those of others that it has mapped."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from backend.engine.cache.window_handle import WindowHandle
from backend.engine.core.runner import BlockBytes, Window
from backend.errors import BackendError

log = logging.getLogger(__name__)

MOST = 8
"""Windows of a process, of either sort. A backend that asks beyond them gets frames."""


@dataclass(slots=True)
class OwnWindow:
    """free: slots that nothing is read into, and that no backend has still to read. used: the most bytes that each slot
    has had."""

    window: Window
    free: list[int]
    used: dict[int, int] = field(default_factory=dict)

    @property
    def handle(self) -> WindowHandle:
        handle: WindowHandle = self.window.handle
        return handle


@dataclass
class Windows:
    """pages: of the cache as it is now."""

    pages: Callable[[], BlockBytes | None]
    _own: dict[str, OwnWindow] = field(default_factory=dict)  # by the URI of the backend that maps it
    _opened: OrderedDict[bytes, Window] = field(default_factory=OrderedDict)
    _unusable: bool = False  # none can be made here

    def make(self, peer: str) -> WindowHandle | None:
        """The window to this backend; None if there can be none, or a slot would not hold a block."""
        pages = self.pages()
        if peer in self._own:
            return self._own[peer].handle
        if pages is None or self._unusable or len(self._own) >= MOST:
            return None
        try:
            window = pages.make_window()
        except BackendError as error:
            log.warning("%s; blocks go in frames, and nothing has to be done", str(error).partition("; ")[0])
            self._unusable = True
            return None
        handle: WindowHandle = window.handle
        if sum(pages.block_bytes) > handle.slot_bytes:
            window.close()
            return None
        self._own[peer] = OwnWindow(window, list(range(handle.slots)))
        return handle

    def own(self, id: bytes) -> OwnWindow | None:
        return next((own for own in self._own.values() if own.handle.id == id), None)

    def open(self, handle: WindowHandle) -> str:
        """Map another backend's window. Return why that failed, or ""."""
        pages = self.pages()
        if pages is None:
            return "the blocks of this engine cannot travel"
        if handle.id in self._opened:
            self._opened.move_to_end(handle.id)
            return ""
        try:
            self._opened[handle.id] = pages.open_window(handle)
        except BackendError as error:
            return str(error)
        while len(self._opened) > MOST:
            self._opened.popitem(last=False)[1].close()
        return ""

    def residues(self) -> Iterator[int]:
        """Bytes of free slots that are not zero, a slot at a time."""
        for own in list(self._own.values()):
            for slot, size in list(own.used.items()):
                pages = self.pages()
                if pages is not None and slot in own.free:
                    yield pages.left_in(own.window, slot, size)

    def opened(self, id: bytes) -> Window | None:
        return self._opened.get(id)

    def close(self) -> None:
        """All of them: own ones are zeroed."""
        for window in [*(own.window for own in self._own.values()), *self._opened.values()]:
            window.close()
        self._own.clear()
        self._opened.clear()
