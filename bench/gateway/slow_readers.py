"""Memory that clients who do not read cost the gateway: RSS before, with and after 64 and 128 of them.

    python bench/gateway/slow_readers.py --out bench/results/slow-readers.json
    python bench/gateway/slow_readers.py --whole 200   (answers of 200 kB that are not streamed)

Everything is on loopback. The upstream streams as fast as it is read; each client sends a request, reads the head and
nothing more. Before the first figure other clients read whole answers, so that caches and pools are filled. Prints
kilobytes a reader, and what is left of that after they have gone.

A figure is taken when the memory stands still, not after a fixed time. A whole answer is in memory while it is
filtered and for the second that its client is given to take it, and on disk afterwards; on a busy machine that takes
longer than any time that suits a quiet one (64 answers of 2,000 kB: 408 kB each after 2.5 s, 93 kB each from 5 s on).
With whole answers a first round of 16 readers is not counted: it starts the threads and processes that filter and
write, and fills their heaps, once and for any number of readers (`first_fill_kb`, some 6 MB). At the end further
clients leave in the middle of a fast stream; the log must hold no traceback of that.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from run import POLICY, installation, process

HERE = Path(__file__).parent
MOCK_PORT, OUR_PORT = 9100, 9401
SETTLE_S, GONE_S = 5.0, 22.0
LOOK_S, STEADY, LONGEST_S = 2.0, 0.01, 90.0  # steady: three looks that differ by less than this share
EVENTS = 300
AT_ONCE = 16
BUDGET_KB = 256


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    body = {
        "id": "chatcmpl-mock",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "mock",
        "choices": [choice],
    }
    data = b"data: " + json.dumps(body).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


PIECE = b"".join(chunk(f" word{number % 7}") for number in range(100))
END = chunk("", "stop") + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def upstream(port: int) -> None:
    """Streams 300 events to a prompt with "short" in it, and without end to any other, as fast as they are read."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
                )
                asked = await reader.readexactly(length)
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                    continue
                if (size := re.search(rb"whole ([0-9]+)", asked)) is not None:
                    body = json.dumps(
                        {
                            "model": "mock",
                            "choices": [
                                {
                                    "index": 0,
                                    "finish_reason": "stop",
                                    "message": {"role": "assistant", "content": "word " * (int(size[1]) * 200)},
                                }
                            ],
                        }
                    ).encode()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                    )
                    writer.write(body)
                    await writer.drain()
                    continue
                writer.write(HEAD)
                pieces = 0
                while b"short" not in asked or pieces < EVENTS // 100:
                    writer.write(PIECE)
                    pieces += 1
                    await writer.drain()
                writer.write(END)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    await server.serve_forever()


def request(key: str, prompt: str) -> bytes:
    body = json.dumps(
        {"model": "mock", "stream": "whole" not in prompt, "messages": [{"role": "user", "content": prompt}]}
    ).encode()
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def reader(key: str, prompt: str, *, reads: bool) -> asyncio.StreamWriter:
    own = socket.socket()
    own.setblocking(False)
    if not reads:  # so that what waits is in the gateway and not in the client's kernel
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
    await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", OUR_PORT))
    connection, writer = await asyncio.open_connection(sock=own, limit=4096)
    writer.write(request(key, prompt))
    head = await connection.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    if reads:
        while not (await connection.read(65536)).endswith(b"0\r\n\r\n"):
            pass
    else:
        writer.transport.pause_reading()
    return writer


def rss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


async def steady_rss_kb(pid: int) -> int:
    """The memory once it stands still. Raises SystemExit where it does not within LONGEST_S seconds."""
    seen: list[int] = []
    for _ in range(int(LONGEST_S / LOOK_S)):
        await asyncio.sleep(LOOK_S)
        seen = [*seen[-2:], rss_kb(pid)]
        if len(seen) == 3 and max(seen) - min(seen) <= STEADY * max(seen):
            return seen[-1]
    raise SystemExit(f"the gateway's memory still changed after {LONGEST_S:g} s: {seen} kB")


async def measure(key: str, pid: int, counts: list[int], prompt: str) -> list[dict[str, int]]:
    """The figures of each of `counts`; with whole answers those of the first fill before them."""
    for _ in range(4):
        for writer in await asyncio.gather(*(reader(key, "short", reads=True) for _ in range(AT_ONCE))):
            writer.close()
    await asyncio.sleep(SETTLE_S)
    found = []
    for count in [AT_ONCE, *counts] if "whole" in prompt else counts:  # the first fill pools and the heaps of threads
        before = rss_kb(pid)
        slow: list[asyncio.StreamWriter] = []
        while len(slow) < count:
            slow += await asyncio.gather(*(reader(key, prompt, reads=False) for _ in range(AT_ONCE)))
        held = await steady_rss_kb(pid)
        for writer in slow:
            writer.transport.abort()
        await asyncio.sleep(GONE_S)
        left = rss_kb(pid)
        found.append(
            {
                "readers": count,
                "rss_kb_before": before,
                "rss_kb_with_them": held,
                "rss_kb_after": left,
                "kb_a_reader": round((held - before) / count),
                "kb_a_reader_kept": round((left - before) / count),
            }
        )
    return found


async def vanish(key: str, waves: int = 12) -> None:
    """Clients that read a fast stream and leave in the middle of it, without a word."""

    async def leave(number: int) -> None:
        writer = await reader(key, "long", reads=False)
        writer.transport.resume_reading()
        await asyncio.sleep(0.01 * (number % 7))
        writer.transport.abort()

    for _ in range(waves):
        await asyncio.gather(*(leave(number) for number in range(AT_ONCE)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--readers", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--whole", type=int, help="kB of an answer that is not streamed, in place of streams")
    parser.add_argument("--upstream", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upstream:
        asyncio.run(upstream(options.upstream))
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        key = installation(folder / "data", POLICY)
        mock = f"http://127.0.0.1:{MOCK_PORT}/"
        stack.enter_context(process(sys.executable, "slow_readers.py", "--upstream", str(MOCK_PORT), ready=mock))
        log = stack.enter_context((folder / "log").open("wb"))
        command = [sys.executable, "-m", "gateway", "up", "--data", str(folder / "data")]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "DOMICILE__LISTEN__PORT": str(OUR_PORT)}
        gateway = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_for(OUR_PORT)
            prompt = f"whole {options.whole}" if options.whole else "long"
            found = asyncio.run(measure(key, gateway.pid, options.readers, prompt))
            fill, found = found[: -len(options.readers)], found[-len(options.readers) :]
            asyncio.run(vanish(key))
        finally:
            gateway.send_signal(signal.SIGTERM)
            gateway.wait(40)
        tracebacks = (folder / "log").read_text(errors="replace").count("Traceback")
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "answers": f"whole, {options.whole} kB" if options.whole else "streams",
        "budget_kb_a_reader": BUDGET_KB,
        "met": all(one["kb_a_reader"] <= BUDGET_KB for one in found),
        "tracebacks_in_the_log": tracebacks,
        "first_fill_kb": fill[0]["rss_kb_with_them"] - fill[0]["rss_kb_before"] if fill else None,
        "found": found,
    }
    text = json.dumps(report, indent=2)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


def wait_for(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the gateway did not start")


if __name__ == "__main__":
    main()
