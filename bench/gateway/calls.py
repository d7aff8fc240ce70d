"""What a request and a streamed event cost in function calls: a figure that a busy machine does not change.

    python -m bench.gateway.calls
    python -m bench.gateway.calls --out calls.json       # before a change
    python -m bench.gateway.calls --against calls.json   # after it: what grew

A whole gateway runs in this process with everything on (`run.POLICY`). A scripted event loop stands in for the
network: the client's bytes are fed to the connection that uvicorn would make, and the backend's bytes to the
connection of `gateway.upstream.http1`, one server-sent event at a time. So no socket decides how bytes are divided.
Counted are the Python and C functions that code of the project and of its libraries calls, in the event loop's thread
and in the sequencer of the record; asyncio's, threading's and queue's own calls, which depend on the moment, are not.
Of several equal requests the cheapest counts: what runs beside them on a timer only adds.

`peak_kb` is the most memory that Python holds during one request beyond what it held before (tracemalloc).
"""

import argparse
import asyncio
import gc
import json
import platform
import re
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from audit.storage.file_watch import SETTLED_NS
from bench.gateway.run import POLICY, installation
from gateway.configuration.settings import Settings
from gateway.console import preparation
from gateway.server.assembly import open_gateway
from gateway.server.connection import BoundedConnection, bounded

REPEATS = 6
WARM = 3
FEW, MANY = 20, 60
"""Events of the two streams whose difference is the cost of an event."""
WORDS = "The gateway answered with a fixed text that is about fifty tokens long so that each run is the same".split()  # noqa: SIM905
USAGE = {"prompt_tokens": 12, "completion_tokens": 50, "total_tokens": 62}
MOMENTARY = re.compile(r"[/\\](asyncio|concurrent)[/\\]|[/\\](threading|queue|selectors|weakref)\.py$|^<frozen")
"""Files whose calls depend on when a thread or the event loop wakes up."""


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "mock"}
    return b"data: " + json.dumps({**head, "choices": [choice], **more}, separators=(",", ":")).encode() + b"\n\n"


def stream(events: int) -> list[bytes]:
    """The pieces of an HTTP answer: its head, then each event as a chunk of its own."""
    usage = chunk({}, usage=USAGE).replace(b'[{"index":0,"delta":{},"finish_reason":null}]', b"[]")
    said = [chunk({"content": f" {WORDS[number % len(WORDS)]}"}) for number in range(events)]
    parts = [chunk({"role": "assistant", "content": ""}), *said, chunk({}, "stop"), usage, b"data: [DONE]\n\n"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


def whole() -> list[bytes]:
    message = {"role": "assistant", "content": " ".join(WORDS)}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "mock"}
    body = json.dumps({**head, "choices": [choice], "usage": USAGE}).encode()
    return [b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body), body]


PROMPT = "Say something of fifty tokens."
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}]}),
    "responses": ("/v1/responses", {"input": PROMPT}),
    "ollama": ("/api/chat", {"stream": False, "messages": [{"role": "user", "content": PROMPT}]}),
    "messages": ("/v1/messages", {"max_tokens": 64, "messages": [{"role": "user", "content": PROMPT}]}),
}
"""Path and body of each route that is measured: the same question."""


def request(key: str, route: str, *, streamed: bool) -> bytes:
    path, asked = ROUTES[route]
    body: dict[str, Any] = {"model": "mock", **asked}
    if streamed:
        body |= {"stream": True, **({"stream_options": {"include_usage": True}} if route == "chat" else {})}
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode() + raw


class _Wire(asyncio.Transport):
    """A transport without a socket: what is written goes to `written`."""

    def __init__(self, written: Callable[[bytes], None]) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 8080)})
        self._written = written
        self._closing = False

    def write(self, data: Any) -> None:
        self._written(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self._written(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0


class ScriptedLoop(asyncio.SelectorEventLoop):
    """An event loop on which every connection that is opened is to one backend, which answers with `answer`."""

    answer: Sequence[bytes] = (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",)  # to a probe, until it is set

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        protocol: asyncio.BufferedProtocol = factory()

        def say(pieces: Iterator[bytes]) -> None:
            piece = next(pieces, None)
            if piece is not None:
                protocol.get_buffer(-1)[: len(piece)] = piece
                protocol.buffer_updated(len(piece))
                self.call_soon(say, pieces)

        wire = _Wire(lambda sent: self.call_soon(say, iter(self.answer)) and None)
        protocol.connection_made(wire)
        return wire, protocol


class Caller:
    """A client on a kept connection to the gateway."""

    def __init__(self, app: Any, loop: ScriptedLoop) -> None:
        make: Any = bounded(lambda: 60)
        config = uvicorn.Config(
            app,
            http=make,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
        )
        config.load()
        self.received = bytearray()
        self.more = asyncio.Event()
        self.connection: BoundedConnection = make(config=config, server_state=ServerState(), app_state={}, _loop=loop)
        self.connection.connection_made(_Wire(self.hear))

    async def ask(self, raw: bytes) -> bytes:
        """Send a request; what is answered, head and body."""
        self.received.clear()
        self.more.clear()
        self.connection.data_received(raw)
        while self.connection.cycle is None or not self.connection.cycle.response_complete:
            await self.more.wait()  # not a busy loop: the sequencer needs the interpreter too
            self.more.clear()
            await asyncio.sleep(0)
        return bytes(self.received)

    def hear(self, data: bytes) -> None:
        self.received += data
        self.more.set()


class Calls:
    """Counts calls while `counting`, in this thread and in the sequencer's, where that begins after `installed`."""

    def __init__(self) -> None:
        self.counting = False
        self._threads: dict[int, bool] = {}
        self.found: Counter[object] = Counter()
        self._momentary: dict[CodeType, bool] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)  # type: ignore[arg-type]

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.counting or not self._is_counted(threading.get_ident()):
            return
        if event == "call":
            caller, called = frame.f_back, frame.f_code
            if not self._is_momentary(called) and not (caller is not None and caller.f_code.co_filename == __file__):
                self.found[called] += 1
        elif event == "c_call" and not self._is_momentary(frame.f_code):
            self.found[argument.__qualname__] += 1

    def _is_counted(self, thread: int) -> bool:
        known = self._threads.get(thread)
        if known is None:
            known = self._threads[thread] = threading.current_thread().name in ("MainThread", "audit-sequencer")
        return known

    def _is_momentary(self, code: CodeType) -> bool:
        known = self._momentary.get(code)
        if known is None:
            known = code.co_filename == __file__ or MOMENTARY.search(code.co_filename) is not None
            self._momentary[code] = known
        return known


def _name(called: object) -> str:
    if not isinstance(called, CodeType):
        return f"C {called}"
    path = Path(called.co_filename)
    parts = path.parts
    start = max((at for at, part in enumerate(parts) if part in _ROOTS), default=len(parts) - 2)
    return f"{'/'.join(parts[start:])}:{called.co_qualname}"


_ROOTS = frozenset({"gateway", "audit", "policy", "regions", "backend", "uvicorn", "pydantic", "prometheus_client"})


@dataclass(frozen=True, slots=True)
class Cost:
    """Calls and peak memory (KiB) of one kind of request. `by_name`: calls of each function."""

    calls: int
    peak_kb: float
    by_name: Counter[str]


async def _cost(loop: ScriptedLoop, caller: Caller, raw: bytes, answer: list[bytes], calls: Calls) -> Cost:
    loop.answer = answer
    for _ in range(WARM):
        said = await caller.ask(raw)
        if not said.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the gateway answered {said[:200]!r}")
    cheapest: Counter[object] | None = None
    for _ in range(REPEATS):
        calls.found, calls.counting = Counter(), True
        await caller.ask(raw)
        calls.counting = False
        if cheapest is None or calls.found.total() < cheapest.total():
            cheapest = calls.found
    by_name: Counter[str] = Counter()
    for called, count in (cheapest or Counter()).items():
        by_name[_name(called)] += count
    return Cost(by_name.total(), await _peak_kb(caller, raw), by_name)


async def _peak_kb(caller: Caller, raw: bytes) -> float:
    peaks = []
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(REPEATS):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            await caller.ask(raw)
            peaks.append((tracemalloc.get_traced_memory()[1] - before) / 1024)
    finally:
        tracemalloc.stop()
    return round(min(peaks), 1)


async def _measure(folder: Path, key: str, calls: Calls, routes: Sequence[str]) -> dict[str, dict[str, Cost]]:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, ScriptedLoop):
        raise TypeError("the measurement needs a ScriptedLoop")
    async with open_gateway(Settings(data=folder)) as gateway:
        caller = Caller(gateway.app, loop)
        loop.answer = whole()
        await caller.ask(request(key, "chat", streamed=False))  # which makes the last files of a new installation
        await asyncio.sleep(SETTLED_NS / 1e9)  # a gateway in service has had its folders for long
        asked = {"request": (False, whole()), "few": (True, stream(FEW)), "many": (True, stream(MANY))}
        return {
            route: {
                name: await _cost(loop, caller, request(key, route, streamed=streamed), answer, calls)
                for name, (streamed, answer) in asked.items()
            }
            for route in routes
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Calls of a whole request, of a stream beside its events, and of one event; each with its functions."""

    request: Cost
    stream: Cost
    event: Cost


def measured(folder: Path, routes: Sequence[str] = ("chat",)) -> dict[str, Report]:
    """Counts of each route in a new installation at `folder`, which must not exist."""
    key = installation(folder, POLICY)
    preparation.AFTER_S = 3600.0  # pages are prepared once, some time after a start: within what is counted, or not
    calls = Calls()
    with calls.installed(), asyncio.Runner(loop_factory=ScriptedLoop) as runner:
        found = runner.run(_measure(folder, key, calls, routes))
    return {route: _report(costs) for route, costs in found.items()}


def _report(found: dict[str, Cost]) -> Report:
    few, many = found["few"], found["many"]
    names = {name: (many.by_name[name] - few.by_name[name]) / (MANY - FEW) for name in many.by_name | few.by_name}
    event = Counter({name: count for name, count in names.items() if count})
    beside = Counter({name: round(few.by_name[name] - FEW * event[name]) for name in few.by_name})
    return Report(
        found["request"],
        Cost(beside.total(), few.peak_kb, +beside),
        Cost(event.total(), round((many.peak_kb - few.peak_kb) / (MANY - FEW), 2), event),
    )


def table(report: Report, top: int, before: dict[str, dict[str, float]]) -> Iterator[str]:
    """Lines of text: the totals, then the functions that are called most, or where `before` is given, that grew."""
    for kind in ("request", "stream", "event"):
        cost: Cost = getattr(report, kind)
        known = before.get(kind)
        was = f" (before: {sum(known.values()):g})" if known is not None else ""
        yield f"{kind}: {cost.calls:g} calls{was}, peak {cost.peak_kb:g} KiB"
        grown = {name: cost.by_name[name] - (known or {}).get(name, 0) for name in cost.by_name | Counter(known or {})}
        for name in sorted(grown, key=lambda name: -abs(grown[name]))[:top]:
            if grown[name]:
                yield f"  {grown[name]:{'+' if known is not None else ''}8g}  {name}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--top", type=int, default=30, help="functions to list for each kind")
    parser.add_argument("--out", type=Path, help="write the calls of each function here, as JSON")
    parser.add_argument("--against", type=Path, help="list what differs from this file of an earlier run")
    parser.add_argument("--route", choices=ROUTES, default="chat")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measured(Path(folder) / "data", [options.route])[options.route]
    before = json.loads(options.against.read_text())["calls"] if options.against else {}
    print("\n".join(table(report, options.top, before)))
    if options.out:
        found = {kind: dict(getattr(report, kind).by_name.most_common()) for kind in ("request", "stream", "event")}
        peaks = {kind: getattr(report, kind).peak_kb for kind in ("request", "stream", "event")}
        said = {"python": platform.python_version(), "peak_kb": peaks, "calls": found}
        options.out.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
