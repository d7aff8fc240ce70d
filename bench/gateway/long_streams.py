"""Memory that a long streamed answer takes in the gateway, on each route: the most that Python holds beyond what it
held before, and that for each character of the answer's text.

    PYTHONPATH=. python -m bench.gateway.long_streams --events 20000 --out bench/results/long-streams.json

The gateway and the network are those of `bench.gateway.calls`; what the client has received is dropped at once. A
chat is the peer in the same run: it holds nothing of what it has sent. Responses repeat the whole text in their last
events, so they hold it, once; Messages do not.
"""

import argparse
import asyncio
import gc
import json
import platform
import tempfile
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from audit.storage.file_watch import SETTLED_NS
from bench.gateway.calls import ROUTES, WORDS, Caller, ScriptedLoop, _Wire, request, stream, whole
from bench.gateway.run import POLICY, installation
from gateway.configuration.settings import Settings
from gateway.server.assembly import open_gateway

FEW = 200


class _PausingWire(_Wire):
    """Says no more while the other side does not read."""

    paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class PacedLoop(ScriptedLoop):
    """A backend that sends one event a turn of the loop, and none while the gateway does not read."""

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        protocol: asyncio.BufferedProtocol = factory()

        def say(pieces: Iterator[bytes]) -> None:
            if wire.paused:
                self.call_soon(say, pieces)
                return
            piece = next(pieces, None)
            if piece is not None:
                protocol.get_buffer(-1)[: len(piece)] = piece
                protocol.buffer_updated(len(piece))
                self.call_soon(self.call_soon, say, pieces)

        def answered(sent: bytes) -> None:
            self.call_soon(say, iter(ScriptedLoop.answer if sent.startswith(b"GET ") else self.answer))  # a probe

        wire = _PausingWire(answered)
        protocol.connection_made(wire)
        return wire, protocol


class Dropping(Caller):
    """A client that keeps only the beginning and the end of what it receives."""

    def hear(self, data: bytes) -> None:
        self.total = getattr(self, "total", 0) + len(data)
        self.received = (self.received + data)[-200:]
        self.more.set()


async def _peak_kb(caller: Dropping, raw: bytes) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        await caller.ask(raw)
        return tracemalloc.get_traced_memory()[1] / 1024
    finally:
        tracemalloc.stop()


async def _measure(folder: Path, key: str, events: int, routes: Sequence[str]) -> dict[str, dict[str, float]]:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, PacedLoop):
        raise TypeError("the measurement needs a PacedLoop")
    found = {}
    async with open_gateway(Settings(data=folder)) as gateway:
        caller = Dropping(gateway.app, loop)
        loop.answer = whole()
        await caller.ask(request(key, "chat", streamed=False))
        await asyncio.sleep(SETTLED_NS / 1e9)
        long = stream(events)
        for route in routes:
            raw = request(key, route, streamed=True)
            loop.answer = stream(FEW)
            few = [await _peak_kb(caller, raw) for _ in range(3)]
            loop.answer = long
            caller.total = 0
            peak = await _peak_kb(caller, raw)
            if caller.total < events * 50:
                raise RuntimeError(f"the gateway answered {bytes(caller.received)!r}")
            text = sum(len(WORDS[number % len(WORDS)]) + 1 for number in range(events))
            found[route] = {
                "events": events,
                "text_kb": round(text / 1024, 1),
                "sent_kb": round(caller.total / 1024, 1),
                "peak_kb": round(peak, 1),
                "peak_kb_of_200_events": round(min(few), 1),
                "peak_bytes_a_character": round((peak - min(few)) * 1024 / text, 2),
            }
    return found


def measured(folder: Path, events: int, routes: Sequence[str] = tuple(ROUTES)) -> dict[str, dict[str, float]]:
    """By route, of a new installation at `folder`, which must not exist."""
    key = installation(folder, POLICY)
    with asyncio.Runner(loop_factory=PacedLoop) as runner:
        return runner.run(_measure(folder, key, events, routes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder) / "data", options.events)
    said = {"python": platform.python_version(), "routes": found}
    print(json.dumps(said, indent=1))
    if options.out:
        options.out.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
