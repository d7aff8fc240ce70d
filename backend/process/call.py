"""One request's sequences in the engine, as its response sees them."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from backend.engine.core.progress import Progress
from backend.errors import DeadlineExceeded
from backend.process.messages import OfTransfer, ToEngine


class ClientGone(Exception):
    """Whoever asked has left; put into a call's queue by `Call.leave`."""


Event = tuple[int, Progress]  # index of the choice, what happened to it


class Call:
    """The sequences of one request. Iterate with `next_event` until all are done; then or earlier, `close`.

    abort: makes the engine forget some of them. project: whose share of the queue they take. tell: sends the engine a
    message about blocks of them that travel; `told` are its answers.
    """

    def __init__(
        self, abort: Callable[[list[int]], None], ids: Sequence[int], project: bytes = b"",
        tell: Callable[[ToEngine], None] = lambda message: None,
    ) -> None:  # fmt: skip
        self._abort = abort
        self.tell = tell
        self.told: asyncio.Queue[OfTransfer | Exception] = asyncio.Queue()
        self.project = project
        self._index = {id: index for index, id in enumerate(ids)}
        self._live = set(ids)
        self.prefill: str | None = (
            None  # where the prompt was computed, if another backend was named: elsewhere or here
        )
        self._companion: asyncio.Task[None] | None = None
        self._queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.begun = False  # something of an answer is there

    @property
    def ids(self) -> list[int]:
        return list(self._index)

    @property
    def done(self) -> bool:
        """No event is to come, and none is left."""
        return not self._live and self._queue.empty()

    async def next_event(self) -> Event:
        """Raises EngineDead, RequestError (the engine refused a sequence) or ClientGone."""
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    def stop(self, index: int) -> None:
        """Abort one choice: its text is complete, and tokens that follow it in the same step are discarded."""
        self._drop([id for id, i in self._index.items() if i == index])
        items = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for item in items:
            if isinstance(item, Exception) or item[0] != index:
                self._queue.put_nowait(item)

    def leave(self) -> None:
        """The client is gone: abort everything at once and wake the response that waits for events."""
        self.close()
        self._queue.put_nowait(ClientGone())

    def expire(self) -> None:
        """Its deadline has passed: abort everything; the response that waits for events gets DeadlineExceeded."""
        self.close()
        self._queue.put_nowait(DeadlineExceeded("the request's deadline has passed"))

    def close(self) -> None:
        """Abort what still runs. Harmless when nothing does."""
        if self._companion is not None:
            self._companion.cancel()
        self._drop(list(self._live))

    def accompany(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` beside the call, and cancel it with the call."""
        self._companion = asyncio.create_task(work)

    def release(self) -> None:
        """Forget all of it, also blocks that the engine holds for another backend behind a sequence's end."""
        self._live.clear()
        self._abort(self.ids)

    def _drop(self, ids: list[int]) -> None:
        ids = [id for id in ids if id in self._live]
        self._live.difference_update(ids)
        self._abort(ids)

    def deliver(self, progress: Progress) -> None:
        self.begun = True
        if progress.id in self._live:
            if progress.finish is not None:
                self._live.discard(progress.id)
            self._queue.put_nowait((self._index[progress.id], progress))

    def fail(self, error: Exception) -> None:
        self._live.clear()
        self.told.put_nowait(error)
        self._queue.put_nowait(error)
