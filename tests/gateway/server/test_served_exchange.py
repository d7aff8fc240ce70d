"""The head and the body of one answer as they go out, and a client who leaves."""

import asyncio
import logging

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.server.connection import ServedExchange


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data):
        self.sent += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def resume_reading(self):
        pass


def exchange(method="POST", *, keep_alive=True, expects=False):
    transport, log = Transport(), logging.getLogger("test")
    return ServedExchange(
        scope={"type": "http", "method": method},
        transport=transport,
        flow=FlowControl(transport),
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[(b"Date", b"today")],
        message_event=asyncio.Event(),
        expect_100_continue=expects,
        keep_alive=keep_alive,
        on_response=lambda: None,
    )


async def answered(one, *headers, status=200, pieces=(b"ok",)):
    await one.send({"type": "http.response.start", "status": status, "headers": list(headers)})
    for number, piece in enumerate(pieces, 1):
        await one.send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})
    return one.transport.sent


async def test_an_answer_with_its_length_goes_out_as_it_is():
    sent = await answered(exchange(), (b"Content-Length", b"2"), (b"x-a", b"b"))
    assert sent == b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-length: 2\r\nx-a: b\r\n\r\nok"


async def test_an_answer_without_a_length_is_chunked():
    sent = await answered(exchange(), pieces=(b"one", b"", b"two"))
    assert sent.partition(b"\r\n\r\n")[2] == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    assert b"transfer-encoding: chunked\r\n" in sent


async def test_chunked_wins_over_a_length_beside_it():
    sent = await answered(exchange(), (b"content-length", b"9"), (b"transfer-encoding", b"chunked"))
    assert sent.endswith(b"2\r\nok\r\n0\r\n\r\n")


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_is_not_chunked(status):
    assert b"chunked" not in await answered(exchange(), status=status, pieces=(b"",))


async def test_head_has_the_headers_of_the_answer_and_no_body():
    sent = await answered(exchange("HEAD"), (b"content-length", b"2"))
    assert sent.endswith(b"content-length: 2\r\n\r\n")


@pytest.mark.parametrize("field", [(b"x-a", b"b\r\nset-cookie: c=d"), (b"x-a", b"b\x00"), (b"x-a\r\nx-b", b"c"),
                                   (b"x a", b"b"), (b"x:", b"b")])  # fmt: skip
async def test_a_field_that_would_be_two_or_none_is_never_sent(field):
    one = exchange()
    with pytest.raises(RuntimeError, match="header field"):
        await answered(one, (b"x-good", b"1"), field)
    assert one.transport.sent == b""


@pytest.mark.parametrize(("length", "pieces"), [(b"1", (b"ok",)), (b"3", (b"ok",)), (b"3", (b"ok", b"ok"))])
async def test_a_body_of_another_length_than_announced_is_a_fault(length, pieces):
    with pytest.raises(RuntimeError, match="Content-Length"):
        await answered(exchange(), (b"content-length", length), pieces=pieces)


async def test_messages_out_of_their_order_are_faults():
    one = exchange()
    with pytest.raises(RuntimeError, match="order"):
        await one.send({"type": "http.response.body", "body": b"x"})
    await answered(one)
    with pytest.raises(RuntimeError, match="order"):
        await one.send({"type": "http.response.body", "body": b"x"})


@pytest.mark.parametrize(("keep_alive", "fields", "closes"), [
    (True, (), False), (False, (), True), (True, ((b"connection", b"x, Close"),), True),
    (False, ((b"connection", b"close"),), True),
])  # fmt: skip
async def test_the_connection_closes_where_either_side_says_so_and_is_told_once(keep_alive, fields, closes):
    one = exchange(keep_alive=keep_alive)
    sent = await answered(one, *fields)
    assert one.transport.closed == closes
    assert sent.lower().count(b"close") == int(closes)


async def test_a_client_who_leaves_is_told_once_and_gets_nothing_more():
    one, told = exchange(), []
    one.watch(lambda: told.append("gone"))
    one.leave()
    one.leave()
    await one.send({"type": "http.response.start", "status": 200, "headers": []})
    assert told == ["gone"]
    assert one.transport.sent == b""


async def test_one_who_left_before_is_told_at_once():
    one, told = exchange(), []
    one.leave()
    one.watch(lambda: told.append("gone"))
    assert told == ["gone"]


async def test_nothing_is_told_after_the_answer_or_when_the_watch_has_ended():
    for end in (lambda one: answered(one), lambda one: asyncio.sleep(0, one.watch(None))):
        one, told = exchange(), []
        one.watch(lambda told=told: told.append("gone"))
        await end(one)
        one.leave()
        assert told == []


async def test_a_body_that_is_all_here_is_given_once_and_one_that_is_not_is_none():
    one = exchange()
    one.body += b"abc"
    assert one.arrived() is None
    one.more_body = False
    assert one.arrived() == b"abc"
    assert not one.body


async def test_a_client_that_waits_for_a_100_is_asked_by_receive():
    one = exchange(expects=True)
    one.more_body = False
    assert one.arrived() is None
