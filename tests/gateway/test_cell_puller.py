"""Pulling bundles: an answer that does not end is given up on before it fills memory."""

import httpx2
import pytest

from gateway.bundle import BundleError
from gateway.cell_puller import bounded


async def endless():
    while True:
        yield b"x" * 1000


async def test_an_answer_without_an_end_is_given_up_on():
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, content=endless()))
    async with httpx2.AsyncClient(transport=transport) as client:
        with pytest.raises(BundleError, match="too large"):
            await bounded(client, 10_000)("https://home.example/cells", content=b"?")


@pytest.mark.parametrize("status", [200, 403])
async def test_a_small_answer_comes_with_its_status(status):
    transport = httpx2.MockTransport(lambda request: httpx2.Response(status, content=request.content * 2))
    async with httpx2.AsyncClient(transport=transport) as client:
        answer = await bounded(client, 10)("https://home.example/cells", content=b"hello")
    assert (answer.status_code, answer.content) == (status, b"hellohello")
