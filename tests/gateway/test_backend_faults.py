"""What a backend does wrong is its own fault: told as such, counted against it, and never harm to anybody else."""

import json

import pytest
from aiohttp import web

from gateway.request.answer import delivery
from gateway.upstream.answer_memory import AnswerMemory
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import OPEN_POLICY, POLICY, chat, lab

ONE, TWO = "acme/eu-fr-par/acme-1", "acme/eu-fr-par/acme-2"
MAIL, IBAN = "leak.victim@example.org", "DE89370400440532013000"
BLOCKING = POLICY.replace("output: {email: mask,", "output: {email: block,")
WHOLE = {"id": "x", "object": "chat.completion", "created": 1, "model": "small"}


class Raw(FakeBackend):
    """Answers with these bytes, or what this function makes of the request. `cut`: the connection breaks then."""

    def __init__(self, said, status=200, cut=False, **more):
        super().__init__(**more)
        self.raw, self.code, self.cut = said, status, cut

    async def generate(self, request):
        self.bodies.append(await request.json())
        if not self.bodies[-1].get("stream"):
            said = self.raw(self.bodies[-1]) if callable(self.raw) else self.raw
            return web.Response(body=said, status=self.code, content_type="application/json")
        response = web.StreamResponse(status=self.code, headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(self.raw)
        if self.cut:
            request.transport.close()
        else:
            await response.write_eof()
        return response


def body(message=None, **choice):
    choices = [{"index": 0, "message": message or {"role": "assistant", "content": "hi"}, **choice}]
    return json.dumps({**WHOLE, "choices": choices}).encode()


def event(delta, finish=None, **more):
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"object": "chat.completion.chunk", "choices": choices, **more}).encode() + b"\n\n"


def tenant(policy):
    return lambda made: made.tenant("acme", policy)


MALFORMED = [
    b"[]", b"5", b'"text"', b"null", b"{}", b'{"choices": null}', b'{"choices": []}', b'{"choices": {}}',
    b'{"choices": [null]}', b'{"choices": [{"message": 5}]}', b"NaN", b'{"choices": [{"logprobs": NaN}]}',
    b'{"choices": [{"message": {"tool_calls": [null, 5, "a"]}}]}', b'{"choices": [{"message": {"tool_calls": 5}}]}',
    b'{"choices": [{"message": {"tool_calls": [{"function": [1]}]}}]}', b"[" * 100_000,
    b'{"choices": "' + b"\xff" + b'"}',
    b'{"choices": [{"message": {"content": "\\ud800"}}]}', b'{"choices": [{"message": {}}], "usage": 5}',
    b'{"choices": [{"message": {}}], "usage": {"prompt_tokens": "many"}}',
]  # fmt: skip


@pytest.mark.parametrize("policy", [OPEN_POLICY, POLICY], ids=["plain", "filtered"])
async def test_an_answer_that_is_none_is_a_502_and_three_of_them_put_its_backend_out(tmp_path, policy):
    backend = Raw(b"")
    async with lab(tmp_path, set_up=tenant(policy), backends={ONE: backend}) as made:
        for said in MALFORMED:
            backend.raw = said
            for _ in range(3):
                answer = await made.post(chat("hi"))
                assert (answer.status, answer.error["code"]) == (502, "backend_error"), said[:60]
            assert not is_available(made), said[:60]
            heal(made)


MALFORMED_EVENTS = [
    b"data: [1]\n\n", b"data: null\n\n", b"data: {nonsense\n\n", b'data: {"choices": 5}\n\n',
    b'data: {"choices": [{"delta": {"tool_calls": [null, 5, "a"]}}]}\n\n', b'data: {"choices": [[]]}\n\n',
    b'data: {"choices": [{"delta": {"content": "a"}, "logprobs": NaN}]}\n\n',
    b'data: {"choices": [{"delta": "a"}]}\n\n', b'data: {"choices": [], "usage": "much"}\n\n',
]  # fmt: skip


@pytest.mark.parametrize("policy", [OPEN_POLICY, POLICY], ids=["plain", "filtered"])
async def test_the_same_of_a_stream_before_its_first_event_and_behind_it(tmp_path, policy):
    backend = Raw(b"")
    async with lab(tmp_path, set_up=tenant(policy), backends={ONE: backend}) as made:
        for said in MALFORMED_EVENTS:
            backend.raw = said
            answer = await made.post(chat("hi", stream=True))
            assert (answer.status, answer.error["code"]) == (502, "backend_error"), said
            backend.raw = event({"role": "assistant", "content": "Hello you"}) + said
            for _ in range(2):
                answer = await made.post(chat("hi", stream=True))
                assert answer.events[-1]["error"]["code"] == "backend_error", said
            assert not is_available(made), said
            heal(made)


def is_available(made):
    """False: left alone after failures, but for a few calls that try it where no other may answer."""
    (load,) = made.gateway.app._pipeline.routes._fleet.live().values()
    return load.available


def heal(made):
    """As after the cool-down and a good answer."""
    fleet = made.gateway.app._pipeline.routes._fleet
    for backend in fleet:
        fleet.mark_ready(backend, False)
        fleet.mark_ready(backend, True)


ENDS = [None, "", "STOP", "max tokens", "stop", "eos_token", "x" * 300, 5, "café", MAIL]
RECORDED = [None, None, "other", "other", "stop", "eos_token", "other", "other", "other", "other"]


@pytest.mark.parametrize("policy", [OPEN_POLICY, POLICY], ids=["plain", "filtered"])
async def test_an_unusual_end_is_no_fault_and_the_record_has_a_word_for_it(tmp_path, policy):
    backend = Raw(b"")
    async with lab(tmp_path, set_up=tenant(policy), backends={ONE: backend}) as made:
        for end in ENDS:
            backend.raw = body(finish_reason=end)
            whole = await made.post(chat("hi"))
            backend.raw = event({"content": "hi"}, end) + b"data: [DONE]\n\n"
            streamed = await made.post(chat("hi", stream=True))
            assert (whole.status, whole.text, streamed.text) == (200, "hi", "hi"), end
            assert streamed.events[-1] == "[DONE]"
            if policy is POLICY:
                assert MAIL.encode() not in whole.body + streamed.body
        done = [event.get("finish_reason") for event in made.events() if event["type"] == "inference.completed"]
        assert done == [word for word in RECORDED for _ in range(2)]


def refusal(message, **more):
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "param": None, "code": None, **more}})


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_what_a_backend_says_of_a_refusal_goes_through_the_output_filter(tmp_path, status):
    backend = Raw(refusal(f"cannot mail {MAIL}, {IBAN}").encode(), status)
    async with lab(tmp_path, backends={ONE: backend}) as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["message"]) == (status, "cannot mail [EMAIL], [IBAN]")
        backend.raw = lambda asked: refusal(f"no such user: {asked['messages'][-1]['content']}").encode()
        answer = await made.post(chat("write to jan@example.org"))
        assert answer.error["message"] == "no such user: write to jan@example.org"  # its placeholder was restored


async def test_a_refusal_whose_words_are_blocked_keeps_its_status_and_says_nothing(tmp_path, caplog):
    backend = Raw(refusal(f"cannot mail {MAIL}", param=MAIL).encode(), 400)
    async with lab(tmp_path, set_up=tenant(BLOCKING), backends={ONE: backend}) as made:
        answer = await made.post(chat("hi"))
        assert answer.status == 400
        assert MAIL not in answer.body.decode()
        assert "withheld" in answer.error["message"]
    assert MAIL not in caplog.text


async def test_the_same_of_embeddings(tmp_path):
    backend = Raw(refusal(f"cannot read {MAIL}").encode(), 400)
    async with lab(tmp_path, backends={ONE: backend}) as made:
        answer = await made.post({"model": "small", "input": "hi"}, path="/v1/embeddings")
        assert (answer.status, answer.error["message"]) == (400, "cannot read [EMAIL]")


async def test_what_is_beside_the_words_of_a_refusal_is_made_harmless(tmp_path):
    said = refusal(
        "\x1b[31mred\x1b[0m\r\nnew\u202eline " + "x" * 5000,
        type="a\r\nset-cookie: b",
        param="a b\n<script>",
        code="A B",
    )
    async with lab(tmp_path, backends={ONE: Raw(said.encode(), 400)}) as made:
        error = (await made.post(chat("hi"))).error
    assert error["message"].startswith("red new line xx")
    assert len(error["message"]) <= 2000
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)


FAILURES = [
    {"status": 500}, {"status": 502}, {"status": 503}, {"status": 504}, {"status": 429}, {"status": 401},
    {"said": b'data: {"error": {"message": "boom"}}\n\n', "stream": True},
    {"said": b"", "stream": True, "cut": True}, {"said": b": ping\n\n", "stream": True},
    {"said": b'data: {"choi', "stream": True, "cut": True},
    {"said": event({"content": "car"}), "stream": True, "cut": True},
]  # fmt: skip


@pytest.mark.parametrize("how", FAILURES, ids=repr)
async def test_one_that_fails_before_the_first_byte_has_reached_the_client_is_replaced_by_an_idle_one(tmp_path, how):
    how = {"said": refusal("no").encode(), **how}
    stream = how.pop("stream", False)
    broken = Raw(how.pop("said"), **how)
    async with lab(tmp_path, backends={ONE: broken, TWO: FakeBackend()}) as made:
        answers = [await made.post(chat(f"question {number}", stream=stream)) for number in range(6)]
        assert {answer.status for answer in answers} == {200}
        assert {answer.text for answer in answers} == {"The capital is Paris."}
        assert {answer.headers["x-domicile-backend"] for answer in answers} == {"acme-2"}
        assert broken.bodies
        done = [event for event in made.events() if event["type"] == "inference.completed"]
        assert {(one["tokens_in"], one["tokens_out"]) for one in done} == {(7, 5)}
        assert "inference.aborted" not in made.types()


async def test_a_request_that_breaks_two_servers_is_not_given_to_a_third(tmp_path):
    places = [f"acme/eu-fr-par/acme-{number}" for number in range(4)]
    backends = {place: Raw(refusal("crash").encode(), 500) for place in places}
    async with lab(tmp_path, backends=backends, requests={"max_attempts": 4}) as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (502, "backend_error")
        assert sum(len(backend.bodies) for backend in backends.values()) == 2


USAGES = [
    10**30, 2**31, 2**63, -1, -(10**30),
]  # fmt: skip


@pytest.mark.parametrize("policy", [OPEN_POLICY, POLICY], ids=["plain", "filtered"])
async def test_usage_that_cannot_be_true_is_estimated_from_the_text_and_billed_by_nobody(tmp_path, policy):
    backend = Raw(b"")
    text = "The answer has thirty characters"
    async with lab(tmp_path, set_up=tenant(policy), backends={ONE: backend}) as made:
        for number in USAGES:
            for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
                usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, field: number}
                said = json.loads(body({"role": "assistant", "content": text}))
                backend.raw = json.dumps({**said, "usage": usage}).encode()
                whole = await made.post(chat("hi"))
                last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
                backend.raw = event({"content": text}, "stop") + last
                streamed = await made.post(chat("hi", stream=True, stream_options={"include_usage": True}))
                assert (whole.text, streamed.text) == (text, text)
                assert str(abs(number)).encode() not in whole.body + streamed.body or abs(number) < 10
        done = [event for event in made.events() if event["type"] == "inference.completed"]
        assert {(one["tokens_out"], one["tokens_estimated"]) for one in done} == {(-(-len(text) // 3), True)}


async def test_usage_that_is_missing_is_estimated_from_the_text_whatever_stands_around_it(tmp_path):
    backend = Raw(b"")
    async with lab(tmp_path, set_up=tenant(OPEN_POLICY), backends={ONE: backend}) as made:
        said = json.loads(body({"role": "assistant", "content": "hi", "reasoning": "ok", "padding": "x" * 5000}))
        backend.raw = json.dumps({**said, "usage": {"prompt_tokens": 0, "completion_tokens": 0}}).encode()
        await made.post(chat("hi"))
        done = made.acts()[-1]
        assert (done["tokens_out"], done["tokens_estimated"]) == (2, True)


TOLD = [  # usage, what is charged for a prompt of two and an answer of six characters, whether that is estimated
    ({"prompt_tokens": "7", "completion_tokens": "5", "total_tokens": "12"}, (7, 5), False),
    ({"prompt_tokens": 7.0, "completion_tokens": 5.0, "total_tokens": 12.0}, (7, 5), False),
    ({"prompt_tokens": 7, "completion_tokens": 5}, (7, 5), False),
    ({"prompt_tokens": 7}, (7, 2), True),
    ({"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}, (7, 2), True),
    ({"completion_tokens": 5, "total_tokens": 5}, (1, 5), True),
    ({"total_tokens": 12}, (1, 2), True),
    ({"input_tokens": 7, "output_tokens": 5}, (1, 2), True),
]  # fmt: skip


async def test_counts_as_text_and_one_side_alone_are_charged_with_the_other_side_estimated(tmp_path):
    backend = Raw(b"")
    async with lab(tmp_path, set_up=tenant(POLICY), backends={ONE: backend}) as made:
        for usage, _, _ in TOLD:
            backend.raw = json.dumps(
                {**json.loads(body({"role": "assistant", "content": "answer"})), "usage": usage}
            ).encode()
            assert (await made.post(chat("hi"))).status == 200
            last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n"
            backend.raw = event({"content": "answer"}, "stop") + last
            assert (await made.post(chat("hi", stream=True))).text == "answer"
        done = [one for one in made.events() if one["type"] == "inference.completed"]
    charged = [(one["tokens_in"], one["tokens_out"], one.get("tokens_estimated", False)) for one in done]
    assert charged == [(*tokens, estimated) for _, tokens, estimated in TOLD for _ in range(2)]


async def test_a_failure_that_is_told_with_a_200_goes_to_another_backend(tmp_path):
    backends = {ONE: Raw(b'{"error": {"message": "out of memory"}}'), TWO: Raw(body())}
    async with lab(tmp_path, set_up=tenant(POLICY), backends=backends) as made:
        for _ in range(4):
            assert (await made.post(chat("hi"))).status == 200


def saying(field, text):
    return f'"{field}": {{"content": "{text}"}}'


def choice(members):
    return f'[{{"index": 0, {members}, "finish_reason": null}}]'


TWICE = {
    "text": lambda field: choice(f'"{field}": {{"content": "{MAIL}", "content": "fine "}}'),
    "escaped": lambda field: choice(f'"{field}": {{"con\\u0074ent": "{MAIL}", "content": "fine "}}'),
    "saying": lambda field: choice(f"{saying(field, MAIL)}, {saying(field, 'fine ')}"),
    "choices": lambda field: f'{choice(saying(field, MAIL))}, "choices": {choice(saying(field, "fine "))}',
}
"""The same member twice, at each level: parsers differ in which one they take (RFC 8259 §4)."""


@pytest.mark.parametrize("level", TWICE)
@pytest.mark.parametrize("where", ["whole", "first chunk", "later chunk"])
async def test_what_stands_in_a_member_that_comes_twice_does_not_pass_the_filter(tmp_path, level, where):
    if where == "whole":
        said = f'{{"choices": {TWICE[level]("message")}}}'.encode()
    else:  # a chunk is compared by its bytes with the one before
        usual, hidden = choice(saying("delta", "fine ")), TWICE[level]("delta")
        end = '[{"index": 0, "delta": {}, "finish_reason": "stop"}]'
        chunks = [hidden] * 4 if where == "first chunk" else [usual, usual, hidden, hidden]
        said = "".join(f'data: {{"choices": {one}}}\n\n' for one in [*chunks, end]).encode() + b"data: [DONE]\n\n"
    async with lab(tmp_path, set_up=tenant(POLICY), backends={ONE: Raw(said)}) as made:
        answer = await made.post(chat("hi", stream=where != "whole"))
        assert answer.status == 200, answer.body
        assert MAIL.encode() not in answer.body
        assert "fine" in answer.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_large_answer_that_finds_no_memory_is_a_503_that_says_what_to_do_and_not_its_backends_fault(
    tmp_path, monkeypatch, stream
):
    memories = []

    def small():
        memories.append(AnswerMemory(2 << 20, 2 << 20))
        return memories[-1]

    monkeypatch.setattr(delivery, "AnswerMemory", small)
    large, usual = "x" * (3 << 20), {"role": "assistant", "content": "hi"}
    done = b"data: [DONE]\n\n"
    backend = Raw(event({"content": large}, "stop") + done if stream else body({**usual, "content": large}))
    async with lab(tmp_path, set_up=tenant(OPEN_POLICY), backends={ONE: backend}) as made:
        for _ in range(4):
            answer = await made.post(chat("hi", stream=stream))
            assert (answer.status, answer.error["code"]) == (503, "answer_memory_full")
            assert "; ask for shorter answers" in answer.error["message"] and answer.headers["retry-after"] == "5"
        assert is_available(made)
        backend.raw = event({"content": "hi"}, "stop") + done if stream else body(usual)
        assert (await made.post(chat("hi", stream=stream))).status == 200
    assert [memory.held for memory in memories] == [0] * len(memories) != []
