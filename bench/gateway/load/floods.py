"""Attacks by the number, the pace or the order of connections, each until SIGTERM.

    floods.py NAME PORT KEY     KEY: of a tenant whose policy keeps content

Prints `ready` before the first, and at the end one JSON line: how often each answer came. Connections that the attacker
closes are reset, so that its ports are free at once.
"""

import asyncio
import json
import os
import signal
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import uvloop

AT_ONCE = 2000
"""Connections of what is slow."""
PACE_S = 0.1
"""Between two bytes of what is slow; 20,000 reads a second of all connections together."""
CHAT = b'{"model":"mock","messages":[{"role":"user","content":"hi"}]}'
CALL = ("content-type: application/json", f"content-length: {len(CHAT)}")
BOUNDARY = b"x" * 60
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Target:
    """`tls`: what the gateway at `port` speaks, if it does."""

    port: int
    key: str
    tls: ssl.SSLContext | None
    answers: Counter[str]

    @asynccontextmanager
    async def connection(
        self, *, plain: bool = False
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """`plain`: without TLS, whatever the gateway speaks."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=None if plain else self.tls)
        try:
            yield reader, writer
        finally:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

    def head(self, line: str, *fields: str) -> bytes:
        named = (f"{line} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {self.key}", *fields)
        return "\r\n".join((*named, "\r\n")).encode()

    async def answer(self, reader: asyncio.StreamReader, *, body: bool = True) -> None:
        """Read one with a Content-Length, or none where `body` is False, and count its status."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        self.answers[head[9:12].decode()] += 1
        if body and b"content-length:" in head:
            await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))


@dataclass(frozen=True, slots=True)
class Flood:
    """`one`: of one of `at_once` connections, again and again. `tls`: at a gateway that speaks it."""

    one: Callable[[Target], Awaitable[None]]
    at_once: int = 64
    tls: bool = False


async def opened(target: Target) -> None:
    async with target.connection():
        target.answers["opened"] += 1


async def opened_together(target: Target) -> None:
    await asyncio.gather(*(opened(target) for _ in range(AT_ONCE)), return_exceptions=True)


async def asked_once(target: Target) -> None:
    async with target.connection() as (reader, writer):
        writer.write(target.head("GET /v1/models"))
        await target.answer(reader)


async def head_requests(target: Target) -> None:
    async with target.connection() as (reader, writer):
        while True:
            writer.write(target.head("HEAD /v1/models"))
            await target.answer(reader, body=False)


async def hundred_continue(target: Target) -> None:
    async with target.connection() as (reader, writer):
        while True:
            writer.write(target.head("POST /v1/chat/completions", *CALL, "expect: 100-continue"))
            await target.answer(reader, body=False)
            writer.write(CHAT)
            await target.answer(reader)


async def continued_and_gone(target: Target) -> None:
    async with target.connection() as (reader, writer):
        writer.write(target.head("POST /v1/chat/completions", *CALL, "expect: 100-continue"))
        await target.answer(reader, body=False)


async def slowly(target: Target, first: bytes, byte: bytes) -> None:
    async with target.connection() as (reader, writer):
        writer.write(first)
        while not reader.at_eof():
            await asyncio.sleep(PACE_S)
            writer.write(byte)
            target.answers["byte"] += 1


async def slow_head(target: Target) -> None:
    await slowly(target, b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx: ", b"a")


async def slow_body(target: Target) -> None:
    fields = ("content-type: application/json", "content-length: 1000000")
    await slowly(target, target.head("POST /v1/chat/completions", *fields), b" ")


async def slow_chunks(target: Target) -> None:
    fields = ("content-type: application/json", "transfer-encoding: chunked")
    await slowly(target, target.head("POST /v1/chat/completions", *fields), b"1\r\n \r\n")


async def ahead(target: Target) -> None:
    async with target.connection() as (reader, writer):
        writer.write(target.head("GET /v1/models") * 500)
        for _ in range(500):
            await target.answer(reader)


async def calls_ahead(target: Target) -> None:
    call = target.head("POST /v1/chat/completions", *CALL)
    async with target.connection() as (reader, writer):
        writer.write((call + CHAT) * 100)
        for _ in range(100):
            await target.answer(reader)


def together(message: Callable[[Target], bytes]) -> Callable[[Target], Awaitable[None]]:
    """`message` on all of AT_ONCE kept connections at the same moment, again once all have their answers."""

    async def ask(target: Target) -> None:
        async with AsyncExitStack() as stack:
            kept = [await stack.enter_async_context(target.connection()) for _ in range(AT_ONCE)]
            while True:
                for _, writer in kept:
                    writer.write(message(target))
                await asyncio.gather(*(target.answer(reader) for reader, _ in kept))

    return ask


def form(*parts: tuple[str, bytes]) -> bytes:
    """Of each part its Content-Disposition's options and its content."""
    return (
        b"".join(
            b"--%s\r\ncontent-disposition: form-data; %s\r\n\r\n%s\r\n" % (BOUNDARY, options.encode(), content)
            for options, content in parts
        )
        + b"--%s--\r\n" % BOUNDARY
    )


PURPOSE = ('name="purpose"', b"batch")
FORM = f"multipart/form-data; boundary={BOUNDARY.decode()}"


def posted(path: str, kind: str, body: bytes) -> Callable[[Target], Awaitable[None]]:
    async def post(target: Target) -> None:
        async with target.connection() as (reader, writer):
            writer.write(target.head(f"POST {path}", f"content-type: {kind}", f"content-length: {len(body)}"))
            with suppress(ConnectionError):  # refused before all was sent
                writer.write(body)
                await writer.drain()
            await target.answer(reader)

    return post


def asked(line: str, key: str = "", *fields: str, body: bytes = b"") -> Callable[[Target], Awaitable[None]]:
    """The same request again and again on one connection, with `key` if given."""

    async def ask(target: Target) -> None:
        named = Target(target.port, key or target.key, target.tls, target.answers)
        async with named.connection() as (reader, writer):
            while True:
                writer.write(named.head(line, *fields, f"content-length: {len(body)}") + body)
                await named.answer(reader)

    return ask


def uploaded(content: bytes) -> Flood:
    return Flood(posted("/v1/files", FORM, form(PURPOSE, ('name="file"; filename="a"', content))), 2)


LINE = json.dumps(
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": json.loads(CHAT)}
).encode()
WRONG = "dml_wrong_0123456789abcdefghijklmnopqrstuvwxyz"
OURSELVES = "origin: http://127.0.0.1"
PARTS = form(*[('name="a"', b"")] * 100_000)
URLENCODED = "application/x-www-form-urlencoded"


async def silent(target: Target) -> None:
    async with target.connection(plain=True) as (reader, _):
        target.answers["opened"] += 1
        await reader.read()


async def hellos_together(target: Target) -> None:
    """The first message of a handshake, on all of AT_ONCE open connections at the same moment."""
    assert target.tls is not None
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        target.tls.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    hello = outgoing.read()
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(target.connection(plain=True)) for _ in range(AT_ONCE)]
        for _, writer in opened:
            writer.write(hello)
        await asyncio.gather(*(reader.read(1) for reader, _ in opened))
        target.answers["answered"] += AT_ONCE


FLOODS: dict[str, Flood] = {
    "connections opened and closed": Flood(opened),
    "2,000 connections at once": Flood(opened_together, 1),
    "a connection a request": Flood(asked_once),
    "HEAD requests": Flood(head_requests),
    "100-continue": Flood(hundred_continue),
    "100-continue and gone": Flood(continued_and_gone),
    "2,000 slow heads": Flood(slow_head, AT_ONCE),
    "2,000 slow bodies": Flood(slow_body, AT_ONCE),
    "2,000 slow chunks": Flood(slow_chunks, AT_ONCE),
    "500 requests ahead on 200 connections": Flood(ahead, 200),
    "100 calls ahead on 64 connections": Flood(calls_ahead),
    "2,000 requests at once": Flood(together(lambda to: to.head("GET /v1/models")), 1),
    "2,000 calls at once": Flood(together(lambda to: to.head("POST /v1/chat/completions", *CALL) + CHAT), 1),
    "files of 8 MB": uploaded((LINE + b"\n") * 60_000),
    "files of line ends": uploaded(b"\r\n" * 4_000_000),
    "files of boundaries that are none": uploaded((b"\r\n--" + BOUNDARY[1:]) * 130_000),
    "forms of 100,000 parts": Flood(posted("/v1/files", FORM, PARTS), 2),
    "forms for audio": Flood(posted("/v1/audio/transcriptions", FORM, form(("name=file", b"\0" * 8_000_000))), 2),
    "keys that are wrong": Flood(asked("GET /v1/models", WRONG)),
    "admin tokens that are wrong": Flood(asked("GET /admin/v1/tenants", WRONG)),
    "the admin API's tenants": Flood(asked("GET /admin/v1/tenants")),
    "sign-in attempts": Flood(
        asked("POST /console/sign-in", "", f"content-type: {URLENCODED}", OURSELVES, body=b"token=" + WRONG.encode())
    ),
    "sign-in forms of 8 MB": Flood(posted("/console/sign-in", URLENCODED, b"a&" * 4_000_000), 2),
    "sign-in forms of many parts": Flood(posted("/console/sign-in", FORM, PARTS), 2),
    "TLS handshakes": Flood(opened, tls=True),
    "2,000 TLS handshakes at once": Flood(opened_together, 1, tls=True),
    "2,000 TLS hellos at once": Flood(hellos_together, 1, tls=True),
    "TLS, a connection a request": Flood(asked_once, tls=True),
    "2,000 TLS connections that say nothing": Flood(silent, AT_ONCE, tls=True),
}  # fmt: skip


async def flood(name: str, port: int, key: str) -> Counter[str]:
    chosen, ended = FLOODS[name], asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    context = None
    if chosen.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    target = Target(port, key, context, Counter())

    async def again() -> None:
        while True:
            try:
                await chosen.one(target)
            except (OSError, EOFError, RuntimeError) as error:
                target.answers[type(error).__name__] += 1
                await asyncio.sleep(0.01)

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # of TLS that was cut off
    print("ready", flush=True)
    running = [asyncio.create_task(again()) for _ in range(chosen.at_once)]
    await ended.wait()
    for each in running:
        each.cancel()
    await asyncio.wait(running)
    return target.answers


def main() -> None:
    os.nice(5)  # two cores are few for gateway, victim and attacker; a real one has its own
    name, port, key = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(flood(name, int(port), key))))


if __name__ == "__main__":
    main()
