"""CPU of HTTP servers in Python under one minimal application: ours beside others, in one run.

    pip install --target build/servers granian hypercorn
    PYTHONPATH=build/servers python -m bench.gateway.servers --out bench/results/servers-DATE.json

Every server answers a POST of 600 bytes with 900 bytes of JSON, on one kept connection in turn with others. Figures are
microseconds of CPU of the server's processes for one request (user and system), which do not depend on what else the
machine does as wall time would; each server is measured ROUNDS times, in turn, and the median is reported.
"""

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REQUESTS, CONNECTIONS, ROUNDS = 4000, 8, 3
BODY = b'{"model": "small", "messages": [{"role": "user", "content": "' + b"x" * 530 + b'"}]}'
ANSWER = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "' + b"y" * 800 + b'"}}]}'
START_S = 30.0


async def app(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """Reads the whole body, and answers with a length."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


def serve_uvicorn(http: str, port: int) -> None:
    import uvicorn

    from gateway.server.connection import bounded

    protocol: Any = bounded(lambda: 30.0) if http == "ours" else http
    uvicorn.run(app, port=port, http=protocol, loop="uvloop", ws="none", lifespan="off", log_level="error")


def serve_granian(port: int) -> None:
    from granian import Granian
    from granian.constants import Interfaces, Loops

    Granian(
        "bench.gateway.servers:app", port=port, interface=Interfaces.ASGINL, loop=Loops.uvloop, log_enabled=False
    ).serve()


def serve_hypercorn(port: int) -> None:
    import uvloop
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind, config.accesslog, config.errorlog = [f"127.0.0.1:{port}"], None, None
    uvloop.run(serve(app, config))  # type: ignore[arg-type]


SERVERS: dict[str, tuple[str, Callable[[int], None]]] = {
    "ours (uvicorn, httptools, bounded)": ("uvicorn", lambda port: serve_uvicorn("ours", port)),
    "uvicorn, httptools": ("uvicorn", lambda port: serve_uvicorn("httptools", port)),
    "uvicorn, h11": ("uvicorn", lambda port: serve_uvicorn("h11", port)),
    "granian": ("granian", serve_granian),
    "hypercorn": ("hypercorn", serve_hypercorn),
}


def cpu_us(pid: int) -> int:
    """Of the process and its descendants, so far."""
    ticks, found = 0, [pid]
    while found:
        each = found.pop()
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return ticks * 1_000_000 // os.sysconf("SC_CLK_TCK")


async def load(port: int, requests: int) -> None:
    """Raises what fails: an answer that is not whole is no measurement."""
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n"
        b"content-type: application/json\r\n"
    )
    sent = head + b"content-length: %d\r\n\r\n" % len(BODY) + BODY

    async def one(count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(count):
            writer.write(sent)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            assert await reader.readexactly(len(ANSWER)) == ANSWER
        writer.close()

    await asyncio.gather(*(one(requests // CONNECTIONS) for _ in range(CONNECTIONS)))


def measured(name: str) -> float:
    """Microseconds of CPU for one request, after a quarter as many to warm up."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    child = subprocess.Popen([sys.executable, "-m", "bench.gateway.servers", "--serve", name, "--port", str(port)])
    try:
        ends = time.monotonic() + START_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if child.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"error: {name} does not start; see its message above")
            time.sleep(0.1)
        asyncio.run(load(port, REQUESTS // 4))
        before = cpu_us(child.pid)
        asyncio.run(load(port, REQUESTS))
        return (cpu_us(child.pid) - before) / REQUESTS
    finally:
        child.terminate()
        child.wait(20)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="write the result here as well")
    options = parser.parse_args()
    if options.serve:
        SERVERS[options.serve][1](options.port)
        return
    installed = {name: _version(package) for name, (package, _) in SERVERS.items()}
    if missing := [name for name, found in installed.items() if found is None]:
        raise SystemExit(
            f"error: {', '.join(missing)} not installed; run pip install --target build/servers {' '.join(missing)}"
        )
    runs: dict[str, list[float]] = {name: [] for name in SERVERS}
    for _ in range(ROUNDS):
        for name in SERVERS:
            runs[name].append(round(measured(name), 1))
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "requests": REQUESTS,
        "connections": CONNECTIONS,
        "python": platform.python_version(),
        "servers": {
            name: {"version": installed[name], "cpu_us": statistics.median(each), "runs": each}
            for name, each in runs.items()
        },
    }
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
