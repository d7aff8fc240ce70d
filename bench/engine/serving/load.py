"""Clients of a backend in a closed loop, cheap enough that they do not limit it: raw HTTP over loopback, one connection
a client, several processes. Each read that holds a token's event is timed; events are counted, and only the end of an
answer is looked into.
"""

import asyncio
import multiprocessing
import re
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvloop

DONE = b"data: [DONE]"
END = b"0\r\n\r\n"
EVENT = b"data: "
TAIL = 4096  # bytes of an answer's end that are kept, for its usage
LEAD_S = 0.5
"""Time for the processes to be there before the first request."""


@dataclass
class Seen:
    """What the clients of one process saw. first, gaps: seconds. begin, end: of the host's monotonic clock."""

    begin: float = 0.0
    end: float = 0.0
    first: "array[float]" = field(default_factory=lambda: array("d"))
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    tokens: int = 0
    events: int = 0
    prompt_tokens: int = 0
    answers: int = 0
    failures: list[str] = field(default_factory=list)


def drive(port: int, bodies: Sequence[bytes], clients: int, processes: int) -> Seen:
    """Send all bodies to `/v1/chat/completions`, from so many clients at a time. Raises RuntimeError if any answer is
    not whole."""
    processes = max(1, min(processes, clients))
    context = multiprocessing.get_context("fork")
    start = time.monotonic() + LEAD_S
    shares = [
        (bodies[number::processes], len(range(number, clients, processes)), start, port) for number in range(processes)
    ]
    with context.Pool(processes) as pool:
        found = pool.starmap(_of_one_process, shares, chunksize=1)
    whole = found[0]
    for seen in found[1:]:
        whole.begin, whole.end = min(whole.begin, seen.begin), max(whole.end, seen.end)
        whole.first.extend(seen.first)
        whole.gaps.extend(seen.gaps)
        whole.failures += seen.failures
        for name in ("tokens", "events", "prompt_tokens", "answers"):
            setattr(whole, name, getattr(whole, name) + getattr(seen, name))
    if whole.failures or whole.answers != len(bodies):
        raise RuntimeError(f"{whole.answers} of {len(bodies)} answers are whole: {whole.failures[:3]}")
    return whole


def _of_one_process(bodies: Sequence[bytes], clients: int, start: float, port: int) -> Seen:
    time.sleep(max(0.0, start - time.monotonic()))
    return uvloop.run(_closed_loop(port, deque(bodies), clients))


async def _closed_loop(port: int, bodies: deque[bytes], clients: int) -> Seen:
    seen = Seen(begin=time.monotonic())
    loop = asyncio.get_running_loop()
    ended = []
    for _ in range(clients):
        _, client = await loop.create_connection(partial(Client, bodies, seen), "127.0.0.1", port)
        ended.append(client.ended)
    await asyncio.gather(*ended)
    seen.end = time.monotonic()
    return seen


class Client(asyncio.Protocol):
    """Asks for one answer after the other, while there are bodies."""

    def __init__(self, bodies: deque[bytes], seen: Seen) -> None:
        self._bodies, self._seen = bodies, seen
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: Any = None
        self._tail = b""
        self._asked = self._last = 0.0
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        if not self._bodies:
            self._transport.close()
            return
        body = self._bodies.popleft()
        self._tail, self._begun = b"", False
        self._asked = time.monotonic()
        self._transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        events = data.count(EVENT)
        self._tail = (self._tail + data)[-TAIL:]
        over = DONE in self._tail and self._tail.endswith(END)
        events -= 2 * (DONE in data)  # the usage, and the end itself
        if events > 0:
            self._seen.events += events
            (self._seen.gaps if self._begun else self._seen.first).append(
                now - (self._last if self._begun else self._asked)
            )
            self._begun, self._last = True, now
        if over:
            self._take_usage()
            self._ask()
        elif self._tail.endswith(END) or not (self._begun or self._tail.startswith(b"HTTP/1.1 200")):
            self._fail(self._tail[:300].decode(errors="replace"))

    def _take_usage(self) -> None:
        self._seen.answers += 1
        self._seen.tokens += int(re.findall(rb'"completion_tokens":(\d+)', self._tail)[-1])
        self._seen.prompt_tokens += int(re.findall(rb'"prompt_tokens":(\d+)', self._tail)[-1])

    def _fail(self, why: str) -> None:
        self._seen.failures.append(why)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None or (self._tail and DONE not in self._tail):
            self._seen.failures.append(f"the connection ended early: {exc}")
        if not self.ended.done():
            self.ended.set_result(None)


def percentile(values: Sequence[float], share: float) -> float:
    """Milliseconds, of seconds; 0 of none."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 2) if ordered else 0.0
