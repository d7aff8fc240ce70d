"""One client over raw ASGI: what it sends in what pieces, when it is too much or too slow, and when it leaves."""

import asyncio

import pytest

from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.openai.asgi_client import Client, ClientGone

GONE = {"type": "http.disconnect"}


def piece(body=b"", more=False):
    return {"type": "http.request", "body": body, "more_body": more}


class Wire:
    """The server's side: gives messages one after another, then waits for ever; keeps what was sent."""

    def __init__(self, *messages, headers=()):
        self.messages = list(messages)
        self.sent = []
        self.client = Client({"headers": list(headers)}, self.receive, self.send)

    async def receive(self):
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)

    async def send(self, message):
        self.sent.append(message)


async def test_a_body_is_put_together_from_its_pieces():
    assert await Wire(piece(b"ab", more=True), piece(b"", more=True), piece(b"c")).client.body(10, 1) == b"abc"


async def test_a_body_of_exactly_the_limit_passes_and_one_byte_more_does_not():
    assert await Wire(piece(b"x" * 10)).client.body(10, 1) == b"x" * 10
    with pytest.raises(RequestTooLarge, match="larger than 10 bytes"):
        await Wire(piece(b"x" * 5, more=True), piece(b"x" * 6)).client.body(10, 1)


async def test_a_declared_length_that_is_too_large_is_refused_before_a_byte_is_asked_for():
    wire = Wire(piece(b"x" * 20), headers=[(b"content-length", b"20")])
    with pytest.raises(RequestTooLarge):
        await wire.client.body(10, 1)
    assert len(wire.messages) == 1, "asking for it would send a 100 to a client that waits for one"


async def test_an_endless_body_is_refused_as_soon_as_it_is_too_large():
    wire = Wire(*[piece(b"x" * 10, more=True)] * 100)
    with pytest.raises(RequestTooLarge):
        await wire.client.body(10, 1)
    assert 100 - len(wire.messages) == 2


async def test_an_answer_without_the_expected_body_says_that_the_connection_ends():
    wire = Wire(piece(b"x"), headers=[(b"expect", b"100-continue")])
    await wire.client.start(401, [])
    assert wire.sent[0]["headers"] == [(b"connection", b"close")]
    wire = Wire(piece(b"x"), headers=[(b"expect", b"100-continue")])
    await wire.client.body(10, 1)
    await wire.client.start(200, [])
    assert wire.sent[0]["headers"] == []


async def test_a_lie_about_the_length_does_not_help():
    wire = Wire(piece(b"x" * 20), headers=[(b"content-length", b"3")])
    with pytest.raises(RequestTooLarge):
        await wire.client.body(10, 1)
    assert await Wire(piece(b"abc"), headers=[(b"content-length", b"+-nonsense")]).client.body(10, 1) == b"abc"


async def test_a_body_that_trickles_is_given_up():
    with pytest.raises(InvalidRequest) as refused:
        await Wire(piece(b"a", more=True)).client.body(10, 0.05)
    assert (refused.value.http_status, refused.value.code) == (400, "body_timeout")


async def test_a_client_that_leaves_before_it_has_asked_is_gone():
    with pytest.raises(ClientGone):
        await Wire(piece(b"a", more=True), GONE).client.body(10, 1)


async def test_a_client_that_leaves_later_cancels_the_work_for_it():
    wire = Wire(piece(b"ab"))

    async def work():
        await wire.client.body(10, 1)
        wire.client.cancel_when_gone()
        wire.messages.append(GONE)
        await asyncio.sleep(5)

    task = asyncio.ensure_future(work())
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 2)
    assert wire.client.gone


async def test_after_the_last_byte_leaving_cancels_nothing():
    wire = Wire(piece(b"ab"))
    await wire.client.body(10, 1)
    wire.client.cancel_when_gone()
    await wire.client.start(200, [(b"a", b"b")])
    await wire.client.write(b"1")
    await wire.client.end(b"2")
    wire.messages.append(GONE)
    await asyncio.sleep(0.02)
    assert not wire.client.gone
    assert wire.sent == [
        {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]},
        {"type": "http.response.body", "body": b"1", "more_body": True},
        {"type": "http.response.body", "body": b"2", "more_body": False},
    ]


async def test_it_knows_whether_an_answer_has_begun_and_with_what_status():
    wire = Wire()
    assert (wire.client.started, wire.client.status) == (False, 0)
    await wire.client.start(503, [])
    assert (wire.client.started, wire.client.status) == (True, 503)


def test_header_values_are_read_as_the_bytes_they_are():
    assert Wire(headers=[(b"x", b"caf\xe9")]).client.headers == {"x": "café"}
