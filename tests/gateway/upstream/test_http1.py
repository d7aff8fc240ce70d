"""The client side of HTTP/1.1 against servers that misbehave in every way a byte can."""

import asyncio
import socket
import ssl
import struct
import time
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address

import pytest
from cryptography import x509

from gateway.server.serve import run
from gateway.upstream.http1 import (
    HIGH_WATER,
    LATE_S,
    READ_SIZE,
    ConnectError,
    ConnectionLost,
    Pool,
    ProtocolError,
)
from tests.backend.certificates import Authority

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def serving(answer):
    """`answer(number, writer)` is called for each request; `number` counts them over all connections."""
    seen = []

    async def serve(reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                seen.append(head + await reader.readexactly(length))
                await answer(len(seen), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = Pool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, 2)
    try:
        yield pool, seen
    finally:
        pool.close()
        server.close()


def saying(*pieces):
    async def answer(_number, writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)

    return answer


def test_a_project_is_named_in_a_way_that_cannot_end_a_header():
    head = Pool("http://127.0.0.1:1", None, 1).head("POST", "/", 0, "r", project="a\r\nx: y\u20ac")
    assert b"x-domicile-project: a%0D%0Ax%3A%20y%E2%82%AC\r\n" in head
    assert b"x-domicile-project" not in Pool("http://127.0.0.1:1", None, 1).head("POST", "/", 0, "r")


async def asked(pool, body=b"{}", silence=2.0):
    connection, kept = await pool.acquire()
    try:
        response = await connection.request(pool.head("POST", "/v1/x", len(body), "req-1"), body, silence)
        return response.status, b"".join([piece async for piece in response.pieces(silence)]), kept
    finally:
        pool.release(connection)


async def test_a_connection_is_used_again_and_the_request_is_what_it_should_be():
    async with serving(saying(OK)) as (pool, seen):
        assert [await asked(pool) for _ in range(3)] == [(200, b"{}", False), (200, b"{}", True), (200, b"{}", True)]
        assert seen[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
        assert seen[0].endswith(b"\r\nx-request-id: req-1\r\n\r\n{}")


async def test_an_answer_in_any_pieces_is_the_same():
    whole = CHUNKED + b"5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
    async with serving(saying(*(whole[i : i + 1] for i in range(len(whole))))) as (pool, _):
        assert (await asked(pool))[:2] == (200, b"hello!")
        assert (await asked(pool))[2], "the connection was whole again"


async def test_an_interim_answer_is_passed_over():
    async with serving(saying(b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n", OK)) as (pool, _):
        assert (await asked(pool))[:2] == (200, b"{}")


async def test_a_backend_that_says_close_is_not_asked_on_the_same_connection():
    async with serving(saying(OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))) as (pool, _):
        assert [(await asked(pool))[2] for _ in range(2)] == [False, False]


async def test_bytes_nobody_asked_for_spoil_the_connection():
    async with serving(saying(OK, b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")) as (pool, _):
        assert (await asked(pool))[:2] == (200, b"{}")
        await asyncio.sleep(0.05)
        assert (await asked(pool))[1:] == (b"{}", False)


async def test_a_second_answer_in_the_same_breath_is_nobodys():
    forged = b"HTTP/1.1 418 No\r\nx: y\r\ncontent-length: 6\r\n\r\nforged"
    async with serving(saying(OK + forged)) as (pool, _):
        assert [await asked(pool) for _ in range(2)] == [(200, b"{}", False)] * 2


@pytest.mark.parametrize("endless", [b"y" * 1000, b"\r\n\r\nHTTP/1.1 102 Processing\r\nx: y"])
async def test_a_head_that_does_not_end_is_not_kept(endless):
    async def trickle(_number, writer):
        writer.write(b"HTTP/1.1 102 Processing\r\nx: ")
        while not writer.is_closing():
            writer.write(endless)
            await writer.drain()
            await asyncio.sleep(0)

    async with serving(trickle) as (pool, _):
        async with asyncio.timeout(5):
            with pytest.raises(ProtocolError, match="head is too long"):
                await asked(pool)


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([b"SSH-2.0-x\r\n\r\n"], ProtocolError),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n"], ProtocolError),
        ([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], ProtocolError),
        ([CHUNKED + b"zz\r\n"], ProtocolError),
        ([CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n0\r\n\r\n")], ProtocolError),
        ([OK.replace(b"\r\n\r\n", b"\r\ncontent-length: 7\r\n\r\n")], ProtocolError),
        ([], TimeoutError),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"], TimeoutError),
    ],
)
async def test_what_is_not_an_answer_is_a_named_error_and_ends_the_connection(pieces, error):
    async with serving(saying(*pieces)) as (pool, _):
        with pytest.raises(error):
            await asked(pool, silence=0.2)
        assert not pool._idle


@pytest.mark.parametrize(
    ("sent", "answered"), [(b"", False), (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", True)]
)
async def test_a_lost_connection_tells_whether_an_answer_had_begun(sent, answered):
    async def cut(_number, writer):
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with serving(cut) as (pool, _):
        with pytest.raises(ConnectionLost) as lost:
            await asked(pool)
        assert lost.value.answered is answered


@pytest.mark.parametrize(
    "head", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]
)
async def test_a_body_without_a_length_ends_with_its_connection_which_is_not_used_again(head):
    async def answer(_number, writer):
        writer.write(head + b"hel")
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(b"lo")
        writer.close()

    async with serving(answer) as (pool, _):
        assert await asked(pool) == (200, b"hello", False)
        assert not pool._idle


async def test_a_body_without_a_length_whose_connection_breaks_is_lost():
    async def answer(_number, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhel")
        await writer.drain()
        await asyncio.sleep(0.05)
        linger = struct.pack("ii", 1, 0)  # a reset in place of an end
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    async with serving(answer) as (pool, _):
        with pytest.raises(ConnectionLost):
            await asked(pool)


async def test_nobody_there_is_no_connection():
    with pytest.raises(ConnectError) as refused:
        await Pool("http://127.0.0.1:1", None, 1).acquire()
    assert not refused.value.identity


async def test_a_server_that_does_not_speak_tls_has_no_identity():
    async def plain(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pool = Pool(f"https://127.0.0.1:{port}", ssl.create_default_context(), 2)
        with pytest.raises(ConnectError) as refused:
            await pool.acquire()
        assert refused.value.identity


@pytest.mark.parametrize("stands_still", [False, True])
async def test_only_silence_of_the_backend_itself_counts_as_no_connection(stands_still):
    asked = []

    async def silent_at_first(_reader, writer):  # in TLS the backend has to speak before there is a connection
        asked.append(writer)

    async with await asyncio.start_server(silent_at_first, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        pool = Pool(f"https://127.0.0.1:{port}", ssl.create_default_context(), 0.3)
        acquiring = asyncio.create_task(pool.acquire())
        while not asked:
            await asyncio.sleep(0.01)
        if stands_still:
            time.sleep(0.3 + LATE_S)
        with pytest.raises(ConnectError) as refused:
            await acquiring
        assert not refused.value.identity
        assert len(asked) == (2 if stands_still else 1), "where we stood still it gets one more chance, and no third"
        for writer in asked:
            writer.close()


async def test_a_process_that_stood_still_finds_the_backend_there():
    async with serving(saying(OK)) as (pool, _):
        pool._connect_s = 0.1
        acquiring = asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        time.sleep(0.1 + LATE_S)
        connection, kept = await acquiring
        assert not kept
        pool.release(connection)


async def test_a_slow_reader_stops_the_sender():
    sent = 0

    async def endless(_number, writer):
        nonlocal sent
        writer.write(CHUNKED)
        while sent < 200:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")

    async with serving(endless) as (pool, _):
        connection, _ = await pool.acquire()
        response = await connection.request(pool.head("POST", "/", 0, "r"), b"", 2)
        await asyncio.sleep(0.3)
        assert sent < 200, "it was held back"
        assert len(connection.pending) <= HIGH_WATER + READ_SIZE
        size = 0
        async for piece in response.pieces(2):
            size += len(piece)
        assert size == 200 * 65536
        pool.release(connection)


@pytest.mark.parametrize(
    "drip",
    [b"HTTP/1.1 100 Continue\r\n\r\n", b"H", b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"],
    ids=["interim answers", "a byte of the head", "hints"],
)
async def test_a_head_has_one_deadline_however_often_something_arrives(drip):
    async def trickle(_number, writer):
        said = drip if len(drip) > 1 else b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * 200
        for number in range(200):
            writer.write(drip if len(drip) > 1 else said[number : number + 1])
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serving(trickle) as (pool, _):
        connection, _ = await pool.acquire()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await connection.request(pool.head("POST", "/", 2, "r"), b"{}", 0.3)
        assert connection.status < 200
        connection.close()
        pool.release(connection)


def test_a_reader_that_takes_what_is_left_of_a_closed_connection_does_no_harm():
    """uvloop, on which the gateway runs, raises where a closed transport is paused or resumed."""

    async def much(_number, writer):
        writer.write(CHUNKED + b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()
        await asyncio.sleep(1)

    async def main():
        async with serving(much) as (pool, _):
            connection, _ = await pool.acquire()
            await connection.request(pool.head("POST", "/", 2, "r"), b"{}", 2)
            await asyncio.sleep(0.05)
            connection.close()
            await asyncio.sleep(0.05)
            assert connection.take()
            connection.complete = False
            connection.on_body(b"x" * HIGH_WATER * 2)
            assert connection.take()
            pool.release(connection)

    run(main())


async def test_a_trailer_is_no_header_field_of_the_answer():
    trailed = CHUNKED + b"2\r\n{}\r\n0\r\ncontent-type: text/event-stream\r\nretry-after: 1\r\n\r\n"
    async with serving(saying(trailed)) as (pool, _):
        connection, _ = await pool.acquire()
        response = await connection.request(pool.head("POST", "/", 2, "r"), b"{}", 2)
        assert [piece async for piece in response.pieces(2)] == [b"{}"]
        assert (response.header("content-type"), response.header("retry-after")) == ("", "")


@asynccontextmanager
async def streaming(*pieces, pause_s=0.03):
    """A response to whose body each piece is added after a pause."""

    async def answer(_number, writer):
        writer.write(CHUNKED)
        for piece in pieces:
            await asyncio.sleep(pause_s)
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await asyncio.sleep(pause_s)
        writer.write(b"0\r\n\r\n")

    async with serving(answer) as (pool, _):
        connection, _ = await pool.acquire()
        yield await connection.request(pool.head("POST", "/", 2, "r"), b"{}", 2), pool, connection
        pool.release(connection)


async def test_what_a_taker_takes_does_not_reach_the_reader_and_the_rest_does_in_order():
    taken = []

    def taker(data):
        if data.isdigit():
            taken.append(data)
        return data.isdigit()

    async with streaming(b"a", b"1", b"2", b"b", b"3", b"c") as (response, _, _):
        assert [piece async for piece in response.pieces(2, taker=taker)] == [b"a", b"b", b"c"]
        assert taken == [b"1", b"2", b"3"] and response.complete


@pytest.mark.parametrize("error", [ValueError("no"), ConnectionLost(True), TimeoutError()])
async def test_an_error_of_a_taker_is_raised_in_the_reader_and_ends_the_connection(error):
    def taker(_):
        raise error

    async with streaming(b"a", b"b") as (response, _, connection):
        with pytest.raises(type(error)):
            async for _ in response.pieces(2, taker=taker):
                pass
        assert not connection.usable


async def test_a_taker_gets_nothing_while_its_reader_is_at_work_or_gone():
    taken = []
    async with streaming(b"a", b"b", b"c", pause_s=0.01) as (response, _, _):
        pieces = response.pieces(2, taker=lambda data: taken.append(data) or True)
        task = asyncio.ensure_future(anext(pieces))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.1)
        assert not taken
    async with streaming(b"a", b"b", b"c", pause_s=0.01) as (response, _, _):
        read = []
        async for piece in response.pieces(2, taker=lambda data: bool(read) and bool(taken.append(data) or True)):
            read.append(piece)
            await asyncio.sleep(0.05)
        assert b"".join(read) == b"abc" and not taken


async def test_a_taker_of_one_response_takes_nothing_of_the_next():
    taken = []
    async with serving(saying(OK)) as (pool, _):
        connection, _ = await pool.acquire()
        response = await connection.request(pool.head("POST", "/", 2, "r"), b"{}", 2)
        assert [piece async for piece in response.pieces(2, taker=lambda data: bool(taken.append(data)))] == [b"{}"]
        pool.release(connection)
        assert (await asked(pool))[1:] == (b"{}", True)
        assert connection.taker is None


class Comments:
    every_s = 0.15

    def __init__(self):
        self.said = 0

    async def silent(self, for_s=0.0):
        self.said += 1


async def test_a_stream_that_is_taken_is_not_silent():
    comments = Comments()
    async with streaming(*[b"1"] * 8, pause_s=0.08) as (response, _, _):
        assert [piece async for piece in response.pieces(0.35, None, comments, lambda _: True)] == []
    async with streaming(b"1", b"1", pause_s=0.7) as (response, _, _):
        with pytest.raises(TimeoutError):
            [piece async for piece in response.pieces(0.35, None, comments, lambda _: True)]
    assert comments.said >= 1


@pytest.mark.parametrize("loop", [asyncio.run, run], ids=["asyncio", "uvloop"])
def test_a_reader_that_pauses_holds_little_of_tls_and_a_closed_connection_nothing(tmp_path, loop):
    ca = Authority(tmp_path)
    files = ca.issue("leaf", [x509.IPAddress(ip_address("127.0.0.1"))])
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(files.cert, files.key)
    sent = asyncio.Event()

    async def serve(reader, writer):
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(100):  # 800 kB, which the buffers of the kernel take
                writer.write(b"x" * (8 << 10))
                await asyncio.sleep(0.001)
            sent.set()
            await reader.read()
        writer.close()

    async def check():
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=of_server)
        port = server.sockets[0].getsockname()[1]
        pool = Pool(f"https://127.0.0.1:{port}", ssl.create_default_context(cafile=ca.cert), 10)
        connection, _ = await pool.acquire()
        await connection.request(pool.head("GET", "/", 0, "r"), b"", 10)
        await asyncio.wait_for(sent.wait(), 30)
        held = len(connection.pending), connection._transport.get_read_buffer_size()
        pool.release(connection)
        await asyncio.sleep(0.1)
        server.close()
        return held, connection._transport

    (pending, under_tls), transport = loop(check())
    assert HIGH_WATER < pending <= HIGH_WATER + READ_SIZE and under_tls <= 64 << 10 and transport is None
