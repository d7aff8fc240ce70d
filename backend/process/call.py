"""One request's sequences in the engine, as its response sees them."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

from backend.engine.core.progress import Progress
from backend.errors import DeadlineExceeded
from backend.process.messages import OfTransfer, ToEngine


class ClientGone(Exception):
    """Whoever asked has left; put behind a call's events by `Call.leave`."""


Event = tuple[int, Progress]  # index of the choice, what happened to it
AT_ONCE = 64  # events that a response is given at a time, at most: it may be far behind the engine


class Call:
    """The sequences of one request. Iterate with `next_events` until all are done; then or earlier, `close`.

    abort: makes the engine forget some of them. project: whose share of the queue they take. tell: sends the engine a
    message about blocks of them that travel; `told` are its answers.
    """

    def __init__(
        self,
        abort: Callable[[list[int]], None],
        ids: Sequence[int],
        project: bytes = b"",
        tell: Callable[[ToEngine], None] = lambda message: None,
    ) -> None:
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
        self._events: deque[Event | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.sink: Callable[[Event | Exception], None] | None = None
        """What takes events at once, in the place of `next_events`; set before there are any."""
        self.at_once = AT_ONCE
        self.begun = False  # something of an answer is there

    @property
    def ids(self) -> list[int]:
        return list(self._index)

    @property
    def live(self) -> bool:
        """Some of it is still computed."""
        return bool(self._live)

    @property
    def done(self) -> bool:
        """No event is to come, and none is left."""
        return not self._live and not self._events

    async def next_events(self) -> list[Event]:
        """Those that are there, at least one and at most `at_once`: all that a step brought, and of a response that is
        behind, all that it missed. One response waits at a time.

        Raises EngineDead, RequestError (the engine refused a sequence) or ClientGone, once what came before is taken.
        """
        taken = [await self.next_event()]
        while self._events and len(taken) < self.at_once:
            if isinstance(item := self._events[0], Exception):
                break
            taken.append(item)
            self._events.popleft()
        return taken

    async def next_event(self) -> Event:
        """The first of them alone. Raises as `next_events` does."""
        while not self._events:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if isinstance(first := self._events.popleft(), Exception):
            raise first
        return first

    def _put(self, item: Event | Exception) -> None:
        if self.sink is not None:
            self.sink(item)
            return
        self._events.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def stop(self, index: int) -> None:
        """Abort one choice: its text is complete, and tokens that follow it in the same step are discarded."""
        self._drop([id for id, i in self._index.items() if i == index])
        self._events = deque(item for item in self._events if isinstance(item, Exception) or item[0] != index)

    def leave(self) -> None:
        """The client is gone: abort everything at once and wake the response that waits for events."""
        self.close()
        self._put(ClientGone())

    def expire(self) -> None:
        """Its deadline has passed: abort everything; the response that waits for events gets DeadlineExceeded."""
        self.close()
        self._put(DeadlineExceeded("the request's deadline has passed"))

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

    def deliver(self, progress: Progress, id: int | None = None) -> None:
        """id: the sequence's here, if `progress` has its number of another process."""
        id = progress.id if id is None else id
        self.begun = True
        if id in self._live:
            if progress.finish is not None:
                self._live.discard(id)
            self._put((self._index[id], progress))

    def fail(self, error: Exception) -> None:
        self._live.clear()
        self.told.put_nowait(error)
        self._put(error)
