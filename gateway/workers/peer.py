"""Requests and replies, both ways, between a supervisor and one worker: JSON with its length in front.

The connection is a pair of sockets that the supervisor makes and the worker inherits; no other process has it.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from pydantic_core import from_json, to_json

log = logging.getLogger(__name__)

MAX_BYTES = 64 << 20
"""Size limit of one message; the metrics of a gateway with thousands of tenants take several megabytes."""

Handler = Callable[[Any], Awaitable[Any]]


class PeerGone(Exception):
    """The other process ended, or closed its end."""


class Peer:
    """One end. `handlers`: by name, what answers a request of the other end."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handlers: Mapping[str, Handler]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handlers = handlers
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.gone = asyncio.Event()
        self._reading = asyncio.create_task(self._read(), name="peer")

    @classmethod
    async def over(cls, end: socket.socket, handlers: Mapping[str, Handler]) -> Self:
        """Takes the socket over."""
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end, limit=1 << 20), handlers)

    async def ask(self, name: str, given: Any = None) -> Any:
        """What the other end's handler `name` answers. Raises PeerGone; RuntimeError where that handler failed."""
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        try:
            self._send({"ask": number, "name": name, "given": given})
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        tasks = [self._reading, *self._answering]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._end()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.gone.is_set():
            raise PeerGone
        body = to_json(message)
        self._writer.write(len(body).to_bytes(4, "big") + body)

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                if size > MAX_BYTES:
                    log.error(
                        "another process sent %d bytes at once, more than %d; restart the gateway", size, MAX_BYTES
                    )
                    return
                self._take(from_json(await self._reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it ended
        finally:
            self._end()

    def _take(self, message: Mapping[str, Any]) -> None:
        if "ask" in message:
            task = asyncio.create_task(self._answer(message), name="peer answer")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
            return
        waiter = self._waiting.get(message["answer"])
        if waiter is None or waiter.done():
            return
        if (failed := message.get("failed")) is not None:
            waiter.set_exception(RuntimeError(failed))
        else:
            waiter.set_result(message["with"])

    async def _answer(self, message: Mapping[str, Any]) -> None:
        answer: dict[str, Any] = {"answer": message["ask"]}
        try:
            answer["with"] = await self._handlers[message["name"]](message["given"])
        except Exception as error:  # the other end is informed, and continues
            log.exception("a request of another process failed; report it with this traceback: %s", message["name"])
            answer["failed"] = type(error).__name__
        if not self.gone.is_set():
            self._send(answer)

    def _end(self) -> None:
        self.gone.set()
        self._writer.close()
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(PeerGone())
