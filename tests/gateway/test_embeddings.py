"""Embeddings, by our own engine and by a tenant's own server: decided, redacted, recorded and metered as any call."""

import pytest

from regions.identity.trust import Trust
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import lab
from tests.gateway import test_own_servers
from tests.gateway.openai.test_answer_formats import ANSWER
from tests.gateway.test_own_servers import Server, files, pin_of, registering  # noqa: F401  # `files` is a fixture

PATH = "/v1/embeddings"
POLICY = """
policy: embeds
version: 1
residency: {process_in: EEA, store_in: EEA}
redaction: {input: {email: mask, secret: block}, output: {email: mask}}
limits: {rpm: 100, tpm: 100000}
"""


@pytest.fixture(autouse=True)
def vectors(monkeypatch):
    monkeypatch.setattr(test_own_servers, "ANSWER", ANSWER)


async def test_an_input_leaves_redacted_and_the_vectors_come_back_on_record(tmp_path, files):  # noqa: F811
    async with Server(files) as server:
        set_up = registering(server.url, Trust(pin=pin_of(files)), POLICY)
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            answer = await made.post(
                {"model": "small", "input": ["write to jan@example.org", "b"], "user": "u"}, path=PATH
            )
            assert answer.status == 200 and answer.json == ANSWER
            assert answer.headers["x-domicile-receipt"] and answer.headers["x-domicile-country"] == "FR"
            accepted, completed = [event for event in made.events() if event["type"].startswith("inference.")]
    (head, body) = server.received[0]
    assert head.startswith(b"POST /v1/embeddings ")
    assert body == {"model": "small", "input": ["write to [EMAIL]", "b"]}, "no user, no salt of a prefix cache"
    assert accepted["endpoint"] == PATH and accepted["redaction"]["counts_by_type"] == {"email": 1}
    assert (completed["tokens_in"], completed["tokens_out"]) == (3, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"input": "AKIAIOSFODNN7EXAMPLE"}, "redaction_blocked"), ({"input": [1, 2, 3]}, "redaction_refused")],
)
async def test_what_is_blocked_or_cannot_be_read_reaches_no_server(tmp_path, files, fields, code):  # noqa: F811
    async with Server(files) as server:
        set_up = registering(server.url, Trust(pin=pin_of(files)), POLICY)
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            answer = await made.post({"model": "small", **fields}, path=PATH)
            assert (answer.status, answer.error["code"]) == (422, code)
    assert server.received == []


async def test_our_own_engine_is_asked_with_its_salt_and_the_policys_place_in_the_queue(tmp_path):
    policy = POLICY + "priority: low\n"
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", policy)) as made:
        answer = await made.post({"model": "small", "input": "write to jan@example.org", "user": "u"}, path=PATH)
        assert (answer.status, answer.json["data"]) == (200, ANSWER["data"])
        (body,) = made.backends["acme-1"].bodies
    assert body == {"model": "small", "input": "write to [EMAIL]", "cache_salt": "main:", "priority": 1}


async def test_a_refusal_of_the_engine_is_told_and_on_record(tmp_path):
    error = {"message": "'small' writes text and makes no embeddings", "type": "invalid_request_error",
             "param": "model", "code": "no_embeddings"}  # fmt: skip
    backend = FakeBackend(status=400, error=error)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        answer = await made.post({"model": "small", "input": "a"}, path=PATH)
        assert (answer.status, answer.error) == (400, error)
        assert made.types()[-1] == "inference.aborted"


async def test_an_answer_of_another_kind_is_the_servers_failure(tmp_path, files, monkeypatch):  # noqa: F811
    monkeypatch.setattr(test_own_servers, "ANSWER", {"choices": [{"text": "jan@example.org"}]})
    async with Server(files) as server:
        set_up = registering(server.url, Trust(pin=pin_of(files)), POLICY)
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            answer = await made.post({"model": "small", "input": "a"}, path=PATH)
            assert answer.status == 502 and "jan@" not in answer.body.decode()
            assert made.types()[-1] == "inference.aborted"
