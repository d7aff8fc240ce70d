"""Names that a project gives to models: aliases, fallbacks that are judged and recorded, defaults and notices."""

import asyncio
import json

import openai
import pytest
import pytest_asyncio

from gateway.database.errors import Duplicate, InvalidValue, NotFound
from gateway.records.control import Scopes
from gateway.store.control.models import named
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab

pytestmark = pytest.mark.asyncio(loop_scope="module")

FRENCH = POLICY.replace("process_in: EEA", "process_in: [FR]")
PRICES = {
    "small": {"input_eur_per_million": 1, "output_eur_per_million": 1},
    "large": {"input_eur_per_million": 1000, "output_eur_per_million": 1000},
}
NAMES = {
    "assistant": {"targets": ["large", "small"]},
    "careful": {"targets": ["small"], "defaults": {"temperature": 0.25, "max_tokens": 33}},
    "old": {
        "targets": ["small"],
        "deprecated_at": "2026-11-01T00:00:00Z",
        "sunset_at": "2027-06-30T12:00:00+02:00",
        "replacement": "assistant",
    },
    "vectors": {"targets": ["large", "small"]},
    "any-vectors": {"targets": ["large", "small"], "other_vectors": True},
    "small": {"targets": ["small", "large"]},
    "abroad": {"targets": ["german", "small"]},
    "only-abroad": {"targets": ["german"]},
    "then-abroad": {"targets": ["large", "german"]},
}


def set_up(made):
    made.tenant("acme", FRENCH.replace("content: none", "content: 'encrypted, 7d'"))
    made.project("acme", "other")
    made.tenant("globex")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    backends = {
        "acme/eu-fr-par/large-1": FakeBackend("large", say="I am large."),
        "acme/eu-fr-par/small-1": FakeBackend("small", say="I am small."),
        "acme/eu-de-fra/german-1": FakeBackend("german", say="I am German."),
        "globex/eu-fr-par/globex-1": FakeBackend("small"),
    }
    folder = tmp_path_factory.mktemp("names")
    async with lab(folder, set_up=set_up, backends=backends, prices=PRICES) as made:
        for name, naming in NAMES.items():
            made.control.create_model_name("acme", "main", name, named(**naming))
        for key, models in (
            ("alias-only", ("assistant",)),
            ("target-only", ("large",)),
            ("both", ("assistant", "large")),
        ):
            _, made_key = made.control.create_key("acme", "main", scopes=Scopes(models=models))
            made.keys[key] = made_key.token
        await made.taken_over()
        yield made


@pytest.fixture(autouse=True)
def well(made):
    for backend in made.backends.values():
        backend.status, backend.error = 200, None
        backend.bodies.clear()


def ask(name, **more):
    return {**chat("hi"), "model": name, **more}


def last(made, kind):
    return [event for event in made.acts() if event["type"] == kind][-1]


# --- which model answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_model_answers_and_the_record_has_both_names(made, stream):
    answer = await made.post(ask("assistant", stream=stream))
    assert (answer.status, answer.text) == (200, "I am large.")
    assert answer.headers["x-domicile-model"] == "large"
    accepted, completed = last(made, "inference.accepted"), last(made, "inference.completed")
    assert (accepted["model_requested"], accepted["model_served"]) == ("assistant", "large")
    assert completed["model_served"] == "large"
    assert made.backends["large-1"].bodies[0]["model"] == "large"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_model_answers_where_no_backend_of_the_first_does_and_why_is_on_record(made, stream):
    made.backends["large-1"].status, made.backends["large-1"].error = 500, {"message": "broken"}
    answer = await made.post(ask("assistant", stream=stream))
    assert (answer.status, answer.text, answer.headers["x-domicile-model"]) == (200, "I am small.", "small")
    moved, completed = last(made, "routing.decision"), last(made, "inference.completed")
    assert (moved["reason"], moved["model_served"], moved["fallback_index"]) == ("model_fallback", "small", 1)
    assert moved["decision"]["reasons"][-1]["rule"] == "model.fallback"
    assert "large did not answer" in moved["decision"]["reasons"][-1]["because"]
    assert (completed["model_served"], completed["backend_id"]) == ("small", "small-1")
    assert made.verify().ok


async def test_a_model_whose_place_the_policy_forbids_is_passed_over_and_gets_no_byte(made):
    answer = await made.post(ask("abroad"))
    assert (answer.status, answer.text) == (200, "I am small.")
    assert made.backends["german-1"].bodies == []
    accepted = last(made, "inference.accepted")
    assert (accepted["model_requested"], accepted["model_served"]) == ("abroad", "small")
    assert "german did not answer: residency.process_in" in accepted["decision"]["reasons"][-1]["because"]
    refused = await made.post(ask("only-abroad"))
    assert refused.status == 403 and refused.error["reasons"]
    assert last(made, "inference.denied")["model_requested"] == "only-abroad"


async def test_a_request_that_is_wrong_is_refused_and_goes_to_no_other_model(made):
    made.backends["large-1"].status, made.backends["large-1"].error = 400, {"message": "bad"}
    assert (await made.post(ask("assistant"))).status == 400
    assert (
        await made.post(ask("assistant", messages=[{"role": "user", "content": "ghp_" + "a1B2" * 9}]))
    ).status == 422
    assert made.backends["small-1"].bodies == []


async def test_where_no_model_answers_the_last_error_is_the_clients(made):
    for name in ("large-1", "small-1"):
        made.backends[name].status, made.backends[name].error = 429, {"message": "busy"}
    assert (await made.post(ask("assistant"))).status == 429
    assert last(made, "inference.aborted")["model_served"] == "small"


async def test_a_call_whose_next_model_is_refused_is_closed_on_record(made):
    made.backends["large-1"].status, made.backends["large-1"].error = 500, {"message": "broken"}
    refused = await made.post(ask("then-abroad"))
    assert refused.status == 403 and made.backends["german-1"].bodies == []
    accepted, aborted = [event for event in made.acts() if event["type"].startswith("inference.")][-2:]
    assert (accepted["type"], accepted["model_served"]) == ("inference.accepted", "large")
    assert (aborted["type"], aborted["request_id"]) == ("inference.aborted", accepted["request_id"])
    assert aborted["decision"]["outcome"] == "deny" and aborted["status"] == 403


async def test_a_name_that_is_that_of_a_model_may_have_fallbacks(made):
    made.backends["small-1"].status, made.backends["small-1"].error = 500, {"message": "broken"}
    assert (await made.post(ask("small"))).text == "I am large."


async def test_names_are_of_one_project(made):
    for key in ("acme/other", "globex/main"):
        assert (await made.post(ask("assistant"), key=key)).error["code"] == "model_not_found"
    plain = await made.post(ask("small"), key="globex/main")
    assert plain.status == 200 and "x-domicile-model" not in plain.headers
    [event] = [each for each in made.acts("globex") if each["type"] == "inference.accepted"]
    assert event["model_requested"] == "small" and "model_served" not in event


async def test_a_key_has_to_be_for_the_name_and_for_the_model(made):
    assert (await made.post(ask("assistant"), key="both")).status == 200
    for key in ("alias-only", "target-only"):
        refused = await made.post(ask("assistant"), key=key)
        assert (refused.status, refused.error["code"]) == (403, "key.scope"), key
    assert (await made.post(ask("large"), key="target-only")).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}], "stream": False}),
    ],
)
async def test_every_route_knows_the_names(made, path, body):
    made.backends["large-1"].status, made.backends["large-1"].error = 500, {"message": "broken"}
    answer = await made.post({"model": "assistant", **body}, path)
    assert answer.status == 200 and b"I am small." in answer.body
    assert last(made, "inference.accepted")["endpoint"] == path


async def test_vectors_come_from_another_model_only_where_the_name_says_so(made):
    made.backends["large-1"].status, made.backends["large-1"].error = 500, {"message": "broken"}
    assert (await made.post({"model": "vectors", "input": "x"}, "/v1/embeddings")).status == 502
    assert (await made.post({"model": "vectors", "input": "x"}, "/api/embed")).status == 502
    other = await made.post({"model": "any-vectors", "input": "x"}, "/v1/embeddings")
    assert other.status == 200 and other.headers["x-domicile-model"] == "small"


# --- defaults, notices, money, batches -------------------------------------------------------------------------------


async def test_defaults_are_of_callers_that_set_nothing(made):
    sent = made.backends["small-1"].bodies
    await made.post(ask("careful"))
    await made.post(ask("careful", temperature=1, max_completion_tokens=5))
    await made.post({"model": "careful", "input": "hi", "max_output_tokens": 7}, "/v1/responses")
    await made.post({"model": "careful", "input": "hi"}, "/v1/embeddings")
    told = [{name: body.get(name) for name in ("temperature", "max_tokens", "max_completion_tokens")} for body in sent]
    assert [tuple(each.values()) for each in told] == [(0.25, 33, None), (1, None, 5), (0.25, 7, None), (None,) * 3]


async def test_a_deprecated_name_says_so_in_headers(made):
    answer = await made.post(ask("old"))
    assert answer.status == 200
    assert answer.headers["deprecation"] == "@1793491200"
    assert answer.headers["sunset"] == "Wed, 30 Jun 2027 10:00:00 GMT"
    assert answer.headers["link"] == '</v1/models/assistant>; rel="successor-version"'


async def test_the_model_that_answered_is_billed(made):
    made.backends["large-1"].status, made.backends["large-1"].error = 500, {"message": "broken"}
    request = (await made.post(ask("assistant"))).headers["x-request-id"]
    query = "select model, nano_eur from ledger where request_id = :id and outcome is not null"
    async with asyncio.timeout(30):
        while True:
            with made.control._database.read() as session:
                import sqlalchemy

                if rows := session.connection().execute(sqlalchemy.text(query), {"id": request}).all():
                    break
            await asyncio.sleep(0.05)
    assert [tuple(row) for row in rows] == [("small", 12_000)]


async def test_lines_of_a_batch_know_the_names(made):
    made.backends["large-1"].status, made.backends["large-1"].error = 500, {"message": "broken"}
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": ask(name)}
        for name in ("assistant", "careful", "nothing")
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    async with openai.AsyncOpenAI(base_url=f"{made.base}/v1", api_key=made.key(), max_retries=0) as sdk:
        file = await sdk.files.create(file=("r.jsonl", content), purpose="batch")
        batch = await sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        async with asyncio.timeout(60):
            while (batch := await sdk.batches.retrieve(batch.id)).status != "completed":
                await asyncio.sleep(0.05)
        told = (await sdk.files.content(batch.output_file_id)).text + (
            await sdk.files.content(batch.error_file_id)
        ).text
    found = {each["custom_id"]: each["response"]["status_code"] for each in map(json.loads, told.splitlines())}
    assert found == {"assistant": 200, "careful": 200, "nothing": 404}


# --- administration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "naming", "word"),
    [
        ("x", {"targets": ["nothing"]}, "has no such model"),
        ("x", {"targets": ["assistant"]}, "itself a name"),
        ("x", {"targets": ["large"], "replacement": "nothing"}, "not there"),
        ("large", {"targets": ["german"]}, "change the other one first"),
        ("two words", {"targets": ["large"]}, "choose another one"),
        ("", {"targets": ["large"]}, "choose another one"),
        ("x", {"targets": []}, "targets"),
        ("x", {"targets": ["large", "large"]}, "twice"),
        ("x", {"targets": ["large"], "defaults": {"temperature": 9}}, "temperature"),
        ("x", {"targets": ["large"], "defaults": {"model": 9}}, "no default"),
        ("x", {"targets": ["large"], "defaults": {"max_tokens": 1.5}}, "max_tokens"),
        ("x", {"targets": ["large"], "sunset_at": "2027-06-30T00:00:00Z"}, "deprecated_at"),
    ],
)
async def test_a_name_that_leads_nowhere_or_in_a_circle_is_refused(made, name, naming, word):
    with pytest.raises(InvalidValue, match=word) as error:
        made.control.create_model_name("acme", "main", name, named(**naming))
    assert "; " in str(error.value)


async def test_a_name_is_made_once_replaced_and_deleted_with_each_change_on_record(made):
    control = made.control
    with pytest.raises(Duplicate):
        control.create_model_name("acme", "main", "assistant", named(targets=["small"]))
    for tenant, project in (("acme", "nothing"), ("nobody", "main")):
        with pytest.raises(NotFound):
            control.create_model_name(tenant, project, "y", named(targets=["small"]))
    control.create_model_name("acme", "main", "brief", named(targets=["large"]))
    control.update_model_name("acme", "main", "brief", named(targets=["small"]))
    await made.taken_over()
    assert (await made.post(ask("brief"))).text == "I am small."
    control.delete_model_name("acme", "main", "brief")
    await made.taken_over()
    assert (await made.post(ask("brief"))).status == 404
    for again in (
        control.delete_model_name,
        lambda *place: control.update_model_name(*place, named(targets=["small"])),
    ):
        with pytest.raises(NotFound):
            again("acme", "main", "brief")
    assert control.create_model_name("acme", "main", "brief", named(targets=["large"])).deleted_at is None
