"""One gateway before every server that speaks OpenAI's API in its own way: clients cannot tell which it was."""

from contextlib import asynccontextmanager

import pytest

from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.fakes.dialects import DIALECTS, SAID, TRANSFORMERS, Server, start
from tests.fakes.lab import POLICY, chat, lab

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda one: one.name.split()[0])


@asynccontextmanager
async def before(tmp_path, dialect, count=1, policy=POLICY, **trust):
    """A gateway before `count` servers of that kind."""
    servers, runners, urls = [Server(dialect) for _ in range(count)], [], []
    for server in servers:
        runner, url = await start(server)
        runners.append(runner)
        urls.append(url)

    def set_up(made):
        made.tenant("acme", policy)
        for number, url in enumerate(urls):
            identity = BackendIdentity("eu-1", "acme", "eu-fr-par", f"acme-{number}")
            said = Trust(plain=dialect is TRANSFORMERS, **trust)
            made.control.register_backend(identity, url=url, models=["small"], kind="openai", trust=said)

    try:
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            yield made, servers
    finally:
        for runner in runners:
            await runner.cleanup()


@pytest.mark.parametrize("policy", [POLICY, "policy: o\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"])
async def test_whole_and_streamed_answers_say_the_same_are_metered_and_end_as_openais(tmp_path, dialect, policy):
    async with before(tmp_path, dialect, policy=policy) as (made, (server,)):
        whole = await made.post(chat("hello"))
        streamed = await made.post(chat("hello", stream=True, stream_options={"include_usage": True}))
        assert (whole.status, whole.text, streamed.text) == (200, "".join(SAID), "".join(SAID))
        assert streamed.events[-1] == "[DONE]"
        assert streamed.events[-2]["usage"]["total_tokens"] == whole.json["usage"]["total_tokens"] == 9
        done = [event for event in made.events() if event["type"] == "inference.completed"]
        assert [(one["tokens_in"], one["tokens_out"]) for one in done] == [(7, 2), (7, 2)]
    assert len(server.bodies) == 2


async def test_a_stream_that_ends_before_it_says_why_is_no_answer(tmp_path, dialect):
    async with before(tmp_path, dialect) as (made, (server,)):
        server.cut = True
        answer = await made.post(chat("hello", stream=True))
        assert answer.events[-1]["error"]["code"] == "stream_truncated"
        assert made.types()[-1] == "inference.aborted"


async def test_what_it_refuses_is_told_in_openais_shape_with_its_own_words(tmp_path, dialect):
    async with before(tmp_path, dialect) as (made, (server,)):
        server.fail = 400
        answer = await made.post(chat("hello"))
        assert (answer.status, answer.error["message"]) == (400, "no")
        assert set(answer.error) >= {"message", "type", "param", "code"}
        assert isinstance(answer.error["code"], str | None)


async def test_one_that_is_busy_is_left_for_an_idle_one_and_affinity_does_not_return_to_it(tmp_path, dialect):
    async with before(tmp_path, dialect, count=2) as (made, servers):
        assert (await made.post(chat("hello"))).status == 200
        (first,) = [server for server in servers if server.bodies]
        first.fail = 429
        for _ in range(5):
            assert (await made.post(chat("hello"))).text == "".join(SAID)
        assert len(first.bodies) == 2  # its answer, and its refusal
        first.fail = None


async def test_where_all_are_busy_each_is_asked_once_and_the_client_hears_when_to_come_back(tmp_path, dialect):
    """After that a call asks one of them: a caller over its limits must not multiply itself."""
    async with before(tmp_path, dialect, count=3) as (made, servers):
        for server in servers:
            server.fail = 429
        for number in range(3):
            answer = await made.post(chat("hello"))
            assert (answer.status, answer.headers["retry-after"]) == (429, "3")
            assert sum(len(server.bodies) for server in servers) == 3 + number
        for server in servers:
            server.fail = None
        assert (await made.post(chat("hello"))).status == 200  # and none was taken for broken


async def test_of_the_policys_priority_it_gets_what_it_takes(tmp_path, dialect):
    async with before(tmp_path, dialect, policy=POLICY + "priority: high\n") as (made, (server,)):
        assert (await made.post(chat("hello", deadline_s=30))).status == 200
    assert not {"priority", "deadline_s"} & server.bodies[0].keys()
    assert ("cache_salt" in server.bodies[0]) is (dialect is not TRANSFORMERS)
