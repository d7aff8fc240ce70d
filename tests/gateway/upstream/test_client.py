import asyncio
from contextlib import asynccontextmanager

import pytest

from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Requests
from gateway.errors import BackendFailed, BackendRefused, BackendTimeout, BackendUnavailable
from gateway.upstream.client import Target, Upstream

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Scripted:
    """A backend on loopback that answers with the bytes it is told to, and notes what it received."""

    def __init__(self):
        self.answer = [OK]
        self.received = []
        self.connections = 0
        self.closed = asyncio.Event()

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                self.received.append(head + await reader.readexactly(length))
                for piece in self.answer:
                    if piece is None:
                        return
                    if isinstance(piece, float):
                        await asyncio.sleep(piece)
                        continue
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.closed.set()
            writer.close()


@asynccontextmanager
async def scripted(**settings):
    backend = Scripted()
    server = await asyncio.start_server(backend.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Upstream(Bounds(Requests(**settings))) as upstream:
        yield backend, upstream, Target("b-1", f"http://127.0.0.1:{port}", None)
    server.close()


async def body(upstream, target, max_bytes=1 << 20):
    async with upstream.call(target, "/v1/chat/completions", b'{"a":1}', "req-1") as answer:
        return await answer.body(max_bytes)


async def test_the_body_arrives_as_it_was_given_and_nothing_of_the_client_with_it():
    async with scripted() as (backend, upstream, target):
        assert await body(upstream, target) == b"{}"
        head, _, sent = backend.received[0].partition(b"\r\n\r\n")
        assert sent == b'{"a":1}'
        names = {line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
        assert names == {b"host", b"content-type", b"x-request-id", b"content-length", b"accept"}


async def test_connections_are_kept_for_the_next_call():
    async with scripted() as (backend, upstream, target):
        for _ in range(3):
            await body(upstream, target)
        assert backend.connections == 1


async def test_nobody_there_is_unavailable():
    async with Upstream(Bounds()) as upstream:
        with pytest.raises(BackendUnavailable):
            await body(upstream, Target("b-1", "http://127.0.0.1:1", None))


async def test_plain_http_off_this_host_is_refused_before_connecting():
    async with Upstream(Bounds()) as upstream:
        with pytest.raises(BackendUnavailable, match="no TLS identity"):
            await body(upstream, Target("b-1", "http://192.0.2.1:80", None))


def error_answer(status, payload, extra=b""):
    return b"HTTP/1.1 %s\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n" % (
        status, extra, len(payload),
    ) + payload  # fmt: skip


async def test_a_refusal_keeps_the_backends_words_and_its_retry_after():
    async with scripted() as (backend, upstream, target):
        payload = b'{"error":{"message":"slow down","type":"rate_limit_error","code":"busy"}}'
        backend.answer = [error_answer(b"429 Too Many Requests", payload, b"retry-after: 7\r\n")]
        with pytest.raises(BackendRefused) as caught:
            await body(upstream, target)
        assert (caught.value.http_status, caught.value.code) == (429, "busy")
        assert caught.value.headers() == [(b"retry-after", b"7")]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([error_answer(b"500 Internal Server Error", b"{}")], BackendFailed),
        ([error_answer(b"503 Service Unavailable", b"{}")], BackendUnavailable),
        ([error_answer(b"400 Bad Request", b"<html>")], BackendFailed),
        ([error_answer(b"302 Found", b"{}", b"location: http://192.0.2.1/\r\n")], BackendFailed),
        ([None], BackendUnavailable),
        ([b"not http\r\n\r\n", None], BackendFailed),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", None], BackendFailed),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", 3.0], BackendTimeout),
        ([3.0], BackendTimeout),
    ],
)
async def test_what_is_not_an_answer_is_a_named_error(answer, error):
    async with scripted(silence_timeout_s=0.3) as (backend, upstream, target):
        backend.answer = answer
        with pytest.raises(error):
            await body(upstream, target)


async def test_an_answer_without_end_is_cut():
    async with scripted() as (backend, upstream, target):
        backend.answer = [b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1000000]
        with pytest.raises(BackendFailed, match="more than one answer"):
            await body(upstream, target, max_bytes=1000)


async def test_leaving_an_answer_early_closes_the_connection():
    async with scripted() as (backend, upstream, target):
        backend.answer = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", 0.2] + [
            b"1\r\nx\r\n"
        ] * 3
        async with upstream.call(target, "/v1/chat/completions", b"{}", "req-1") as answer:
            async for _ in answer.pieces():
                break
        await asyncio.wait_for(backend.closed.wait(), 5)


async def test_of_backends_that_left_no_connection_is_kept():
    async with scripted() as (backend, upstream, target):
        await body(upstream, target)
        upstream.forget({"b-1"})
        await body(upstream, target)
        assert backend.connections == 1
        upstream.forget(set())
        await asyncio.wait_for(backend.closed.wait(), 2)
        await body(upstream, target)
        assert backend.connections == 2


async def test_an_answer_that_runs_goes_on_when_its_backend_left():
    async with scripted() as (backend, upstream, target):
        head, piece = OK.removesuffix(b"{}"), b"{"
        backend.answer = [head + piece, 0.2, b"}"]
        async with upstream.call(target, "/v1/chat/completions", b"{}", "req-1") as answer:
            upstream.forget(set())
            assert await answer.body(100) == b"{}"
        await asyncio.wait_for(backend.closed.wait(), 2)


async def test_what_is_fetched_with_a_body_is_posted():
    async with scripted() as (backend, upstream, target):
        assert await upstream.fetch(target, "/sleep", 2, b'{"grace_s": 30}') == b"{}"
        assert backend.received[0].startswith(b"POST /sleep ")
        assert backend.received[0].endswith(b'{"grace_s": 30}')
