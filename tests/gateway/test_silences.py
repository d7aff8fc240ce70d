"""Streams whose backend is silent for long: the client gets comments meanwhile, and the same answer, record and errors
as without."""

import asyncio
import json

import openai
import pytest
from aiohttp import web

from tests.fakes.backend import FakeBackend
from tests.fakes.lab import chat, lab

SOON = {"comment_after_s": 0.05}
NEVER = {"comment_after_s": 0}
COMMENT = b": the answer goes on\n\n"
A, B = "acme/eu-fr-par/acme-1", "acme/eu-de-fra/acme-2"
WORDS = ("The ", "capital ", "is ", "Paris.")


class Silent(FakeBackend):
    """Says nothing at the place `where` until the test lets it go on."""

    def __init__(self, where="", **more):
        super().__init__(**more)
        self.where = where
        self.go = asyncio.Event()

    async def pause(self, where, response=None):
        if where != self.where:
            return
        while not self.go.is_set():
            if where == "only comments" and response is not None:
                await response.write(b": still here\n\n")
            try:
                await asyncio.wait_for(self.go.wait(), 0.01)
            except TimeoutError:
                continue

    async def stream(self, request, body, chat):
        await self.pause("before the head")
        if self.where == "fails":
            return web.json_response({"error": {"message": "out of memory"}}, status=503)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await self.pause("before the first token")
        for number, word in enumerate(WORDS):
            if number == 2:
                await self.pause("inside", response)
                await self.pause("only comments", response)
            await response.write(b"data: " + json.dumps(self.chunk(word)).encode() + b"\n\n")
        await response.write(b"data: " + json.dumps(self.chunk("", "stop")).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    def chunk(self, text, finish=None):
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
        return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": self.model, "choices": [choice]}


def streaming(made, text):
    sent = {"authorization": f"Bearer {made.key()}"}
    return made.http.post(f"{made.base}/v1/chat/completions", json=chat(text, stream=True), headers=sent)


async def read_until(response, wanted, count):
    """The body up to the `count`-th `wanted`."""
    body = b""
    async with asyncio.timeout(30):
        while body.count(wanted) < count:
            body += await response.content.readany()
    return body


def text_of(body):
    events = [line[6:] for line in body.decode().split("\n") if line.startswith("data: {")]
    chunks = [json.loads(event) for event in events]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ()))


@pytest.mark.parametrize("where", ["before the head", "before the first token", "inside", "only comments"])
async def test_comments_come_while_nothing_does_and_then_the_answer(tmp_path, where):
    backend = Silent(where)
    async with lab(tmp_path, backends={A: backend}, requests=SOON) as made:
        async with streaming(made, "hi") as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            body = await read_until(response, COMMENT, 3)
            backend.go.set()
            body += await response.content.read()
        assert text_of(body) == "".join(WORDS)
        assert body.endswith(b"data: [DONE]\n\n")
        assert b"still here" not in body, "a backend's comments are not ours"
        assert b"x-domicile-backend" in body or "x-domicile-backend" in response.headers
        assert made.types().count("inference.completed") == 1


@pytest.mark.parametrize("where", ["before the head", "inside"])
async def test_the_official_client_reads_on(tmp_path, where):
    backend = Silent(where)
    async with lab(tmp_path, backends={A: backend}, requests=SOON) as made:
        client = openai.AsyncOpenAI(base_url=f"{made.base}/v1", api_key=made.key(), max_retries=0)
        asyncio.get_running_loop().call_later(0.5, backend.go.set)
        stream = await client.chat.completions.create(**chat("hi", stream=True))
        said = [each.choices[0].delta.content or "" async for each in stream]
        await client.close()
    assert "".join(said) == "".join(WORDS)


async def test_a_stream_that_is_not_silent_and_a_whole_answer_get_none(tmp_path):
    async with lab(tmp_path, backends={A: FakeBackend()}, requests={"comment_after_s": 60}) as made:
        for stream in (True, False):
            answer = await made.post(chat("hi", stream=stream))
            assert (answer.status, answer.text) == (200, "The capital is Paris.")
            assert COMMENT not in answer.body


async def test_a_whole_answer_that_takes_long_is_json_alone(tmp_path):
    async with lab(tmp_path, backends={A: FakeBackend(delay_s=0.3)}, requests=SOON) as made:
        answer = await made.post(chat("hi"))
        assert answer.text == "The capital is Paris."


async def test_they_can_be_turned_off(tmp_path):
    async with lab(tmp_path, backends={A: FakeBackend(delay_s=0.2)}, requests=NEVER) as made:
        answer = await made.post(chat("hi", stream=True))
        assert answer.text == "The capital is Paris."
        assert b": " not in answer.body.replace(b'": ', b"").replace(b"data: ", b"")


async def test_after_a_comment_another_backend_may_still_take_the_call(tmp_path):
    first, second = Silent("before the head"), FakeBackend()
    async with lab(tmp_path, backends={A: first, B: second}, requests=SOON) as made:
        for number in range(20):
            async with streaming(made, f"hi {number}") as response:
                if not first.bodies:
                    await response.read()
                    continue
                body = await read_until(response, COMMENT, 1)
                first.where = "fails"
                first.go.set()
                body += await response.content.read()
                break
        assert first.bodies
        assert text_of(body) == "The capital is Paris."
        assert body.endswith(b"data: [DONE]\n\n")
        assert body.count(b"acme-2") >= 1, "where it ran follows as a comment"


async def test_an_error_after_a_comment_is_an_event_and_the_call_is_closed_on_record(tmp_path):
    backend = Silent("before the head")
    async with lab(tmp_path, backends={A: backend}, requests=SOON) as made:
        async with streaming(made, "hi") as response:
            body = await read_until(response, COMMENT, 1)
            backend.where = "fails"
            backend.go.set()
            body += await response.content.read()
        last = json.loads(body.decode().rstrip().rsplit("data: ", 1)[1])
        assert last["error"]["code"]
        assert b"[DONE]" not in body
        assert made.types().count("inference.accepted") == made.types().count("inference.aborted") == 1


async def test_a_silence_that_is_too_long_still_ends_the_call(tmp_path):
    backend = Silent("inside")
    async with lab(tmp_path, backends={A: backend}, requests={**SOON, "silence_timeout_s": 0.4}) as made:
        answer = await made.post(chat("hi", stream=True))
        assert answer.body.count(COMMENT) >= 2
        assert answer.events[-1]["error"]["code"] == "backend_timeout"
        backend.go.set()


@pytest.mark.parametrize("where", ["before the head", "inside"])
async def test_a_client_that_leaves_in_a_silence_frees_the_backend(tmp_path, where):
    backend = Silent(where)
    async with lab(tmp_path, backends={A: backend}, requests=SOON) as made:
        async with streaming(made, "hi") as response:
            await read_until(response, COMMENT, 1)
            response.close()
        assert await backend.abandoned(1)
        for _ in range(500):
            if "inference.aborted" in made.types():
                break
            await asyncio.sleep(0.02)
        assert made.types().count("inference.aborted") == 1
