"""Responses and messages through a whole gateway: keys, scopes, record, metrics, limits, kept content, lost clients."""

import asyncio
import json

import pytest
from aiohttp import web

from gateway.records.control import Scopes
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab
from tests.fakes.tool_user import ToolUser
from tests.gateway.apis.recorded import events
from tests.gateway.test_keeping import ALICE, ANSWER, QUESTION, audit, keeping, kept

RESPONSES = ("/v1/responses", {"model": "small", "input": QUESTION})
MESSAGES = ("/v1/messages", {"model": "small", "max_tokens": 9, "messages": [{"role": "user", "content": QUESTION}]})
COUNT = ("/v1/messages/count_tokens", {"model": "small", "messages": [{"role": "user", "content": QUESTION}]})
BOTH = pytest.mark.parametrize(("path", "body"), [RESPONSES, MESSAGES], ids=["responses", "messages"])


@BOTH
@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_policy_keeps_of_a_call_is_what_it_keeps_of_a_chat(tmp_path, path, body, stream):
    backend = ToolUser(say=ANSWER, thought="Over the lake", pieces=5)
    async with lab(tmp_path, set_up=keeping, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        for where, asked in (("/v1/chat/completions", chat(QUESTION)), (path, body)):
            told = {"x-domicile-subject": ALICE}
            assert (await made.post({**asked, "stream": stream}, where, headers=told)).status == 200
        chat_in, chat_out, intent, outcome = kept(await audit(made, "dsar", "acme", "--subject", ALICE))
        assert intent[0] == "inference.accepted" and outcome[0] == "inference.completed"
        assert outcome[1]["output"] == chat_out[1]["output"]
        assert outcome[1]["output"][0]["content"] == ANSWER
        assert outcome[1]["output"][0]["reasoning_content"] == "Over the lake"
        sent, chat_sent = (json.loads(each[1]["input"])["messages"] for each in (intent, chat_in))
        assert sent == chat_sent


@BOTH
async def test_record_and_metrics_name_the_route_and_a_key_can_be_limited_to_it(tmp_path, path, body):
    def set_up(made):
        made.tenant("acme")
        for name, allowed in (("narrow", path.removeprefix("/v1/")), ("chats", "chat/completions")):
            _, key = made.control.create_key("acme", "main", scopes=Scopes(endpoints=(allowed,)))
            made.keys[name] = key.token

    async with lab(tmp_path, set_up=set_up) as made:
        assert (await made.post(body, path, key="narrow")).status == 200
        accepted = next(event for event in made.acts() if event["type"] == "inference.accepted")
        assert accepted["endpoint"] == path
        refused = await made.post(body, path, key="chats")
        assert (refused.status, refused.error["code"]) == (403, "key.scope")
        assert (await made.post(chat("hi"), key="narrow")).status == 403
        metrics = (await made.get("/metrics")).body.decode()
        name = path.removeprefix("/v1/")
        assert (
            f'domicile_requests_total{{gen_ai_operation_name="{name}"' in metrics
            or f'gen_ai_operation_name="{name}"' in metrics
        )
        assert [backend["model"] for backend in made.backends["acme-1"].bodies] == ["small"]


@BOTH
async def test_a_body_of_another_route_is_refused_and_leaves_no_record_of_its_own(tmp_path, path, body):
    async with lab(tmp_path) as made:
        others = {"/v1/chat/completions": chat("hi"), "/v1/completions": {"model": "small", "prompt": "x"}}
        others |= {where: asked for where, asked in (RESPONSES, MESSAGES) if where != path}
        for other in others.values():
            answer = await made.post(other, path)
            assert answer.status == 400 and answer.error.get("param"), other
        for raw in (b"", b"{", b"[]", b"null", b"5", b'{"model": "small"}', b"\xff", b'{"model": NaN}'):
            assert (await made.post(None, path, raw=raw)).status == 400
        assert made.backends["acme-1"].bodies == []
        assert not [event for event in made.acts() if event["type"].startswith("inference")]


@BOTH
async def test_a_limit_is_reserved_and_settled_as_of_a_chat(tmp_path, path, body):
    limited = POLICY + "limits: {rpm: 2}\n"
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", limited)) as made:
        assert (await made.post(body, path)).headers["x-ratelimit-remaining-requests"] == "1"
        await made.post(body, path)
        refused = await made.post(body, path)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert int(refused.headers["retry-after"]) > 0


@BOTH
async def test_a_client_that_leaves_cancels_the_answer(tmp_path, path, body):
    backend = FakeBackend(say="word " * 40, pieces=40, delay_s=0.1)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        sent = {"authorization": f"Bearer {made.key()}"}
        async with made.http.post(made.base + path, json={**body, "stream": True}, headers=sent) as response:
            await response.content.readany()
        assert await backend.abandoned(1)
        for _ in range(200):
            if made.acts()[-1]["type"] == "inference.aborted":
                break
            await asyncio.sleep(0.02)
        assert made.acts()[-1]["reason"] == "client_disconnected"


@BOTH
async def test_an_error_after_silence_comes_in_the_events_of_its_api(tmp_path, path, body):
    """Comments keep the stream open, so the status is out before the backend fails."""

    class FailsLate(FakeBackend):
        async def generate(self, request):
            await asyncio.sleep(0.5)
            return web.json_response({"error": {"message": "x"}}, status=500)

    silence = {"comment_after_s": 0.1}
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": FailsLate()}, requests=silence) as made:
        answer = await made.post({**body, "stream": True}, path)
        assert (answer.status, answer.body[:2]) == (200, b": ")
        names = [name for name, _ in events(answer.body)]
        whole = ["response.created", "response.in_progress", "error", "response.failed"]
        assert names == (whole if path == "/v1/responses" else ["error"])
        assert made.acts()[-1]["type"] == "inference.aborted"


async def test_a_count_of_tokens_is_on_record_and_costs_nothing(tmp_path):
    path, body = COUNT
    async with lab(tmp_path) as made:
        answer = await made.post({**body, "system": "write to anna@example.org"}, path)
        assert answer.json == {"input_tokens": answer.json["input_tokens"]}
        assert answer.json["input_tokens"] > 0
        (sent,) = made.backends["acme-1"].bodies
        assert sent.keys() == {"model", "messages"}
        assert "anna@example.org" not in json.dumps(sent)
        accepted, completed = made.acts()[-2:]
        assert (accepted["endpoint"], completed["type"]) == (path, "inference.completed")
        assert (completed.get("tokens_in"), completed.get("tokens_out")) in ((0, 0), (None, None))


async def test_a_server_without_the_route_of_the_count_is_not_counted_as_failed(tmp_path):
    path, body = COUNT
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(tokenizes=False)}
    async with lab(tmp_path, backends=backends) as made:
        for _ in range(8):
            answer = await made.post(body, path)
            assert (answer.status, answer.error["type"], answer.error["code"]) == (
                404,
                "not_found_error",
                "unknown_url",
            )
        assert (await made.post(chat("hi"))).status == 200


async def test_the_key_is_taken_from_x_api_key_at_messages_alone(tmp_path):
    async with lab(tmp_path) as made:

        async def status(path, body, headers):
            async with made.http.post(made.base + path, json=body, headers=headers) as response:
                return response.status

        key = made.key()
        assert await status(*MESSAGES, {"x-api-key": key}) == 200
        assert await status(*MESSAGES, {"x-api-key": "dom_live_wrong"}) == 401
        assert await status(*MESSAGES, {"x-api-key": key, "authorization": "Bearer dom_live_wrong"}) == 401
        assert await status(*MESSAGES, {"x-api-key": "other", "authorization": f"Bearer {key}"}) == 200
        assert await status(*RESPONSES, {"x-api-key": key}) == 401
        assert (
            await status("/v1/messages?beta=true", MESSAGES[1], {"x-api-key": key, "anthropic-beta": "new-2099"}) == 200
        )


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_other_methods_are_refused_in_the_shape_of_the_api(tmp_path, path):
    async with lab(tmp_path) as made:
        answer = await made.get(path)
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert answer.error["code"] == "method_not_allowed"
        assert answer.json.get("type") == ("error" if path == "/v1/messages" else None)


@BOTH
async def test_a_long_question_and_a_long_answer_are_translated_where_long_ones_are_inspected(tmp_path, path, body):
    """In a thread and in another process, into which the translation is sent."""
    mail = "anna.schmidt@example.org"
    long = f"Write to {mail} please. " * 6000
    asked = {**body, "input": long} if "input" in body else {**body, "messages": [{"role": "user", "content": long}]}
    backend = ToolUser(say=lambda told: told["messages"][-1]["content"], thought="", pieces=3)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        whole = await made.post(asked, path)
        assert whole.status == 200
        content = whole.json["output"][0]["content"] if "input" in body else whole.json["content"]
        assert content[0]["text"] == long
        streamed = await made.post({**asked, "stream": True}, path)
        found = [data.get("delta") for name, data in events(streamed.body) if name.endswith("delta")]
        pieces = [piece if isinstance(piece, str) else piece.get("text", "") for piece in found]
        assert "".join(pieces) == long
        assert mail not in backend.received


@BOTH
async def test_an_integrator_sees_what_left_for_the_backend(tmp_path, path, body):
    async with lab(tmp_path) as made:
        answer = await made.post(body, path, headers={"x-domicile-debug": "upstream"})
        assert answer.json["domicile"]["upstream_request"] == made.backends["acme-1"].bodies[0]


async def test_a_refusal_is_on_record_in_the_words_that_the_client_reads(tmp_path):
    image = {"type": "input_image", "image_url": "data:,"}
    body = {"model": "small", "instructions": "x", "input": [{"role": "user", "content": [image]}]}
    async with lab(tmp_path) as made:
        answer = await made.post(body, "/v1/responses")
        assert "(at input[0].content[0])" in answer.error["message"]
        denied = made.acts()[-1]
        assert denied["type"] == "inference.denied"
        assert denied["decision"]["reasons"][0]["because"] == answer.error["message"]
