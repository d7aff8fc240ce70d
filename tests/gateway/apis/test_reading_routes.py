"""Tokenize, detokenize, rerank and score through a whole gateway: redacted, judged, recorded, and in their shapes."""

import json

import pytest
import pytest_asyncio

from gateway.apis.endpoints import RERANK
from gateway.errors import BackendFailed
from gateway.openai.checked_call import parse_call
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import OPEN_POLICY, POLICY, lab
from tests.gateway.test_same_on_every_route import NONCE

MAIL = "anna.schmidt@example.org"
DOCUMENTS = ["short", f"a longer text about {MAIL}", "a text"]
QUERY = {"model": "small", "query": f"who is {MAIL}?", "documents": DOCUMENTS}
BODIES = {
    "/v1/tokenize": {"model": "small", "prompt": f"write to {MAIL}"},
    "/v1/detokenize": {"model": "small", "tokens": [1, 2]},
    "/v1/rerank": QUERY,
    "/v1/score": {"model": "small", "text_1": f"who is {MAIL}?", "text_2": DOCUMENTS},
}
OUTPUT = POLICY.replace(
    "  input: {email: pseudonymise, iban: pseudonymise, card: mask, phone: pseudonymise, secret: block}\n", ""
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    def set_up(made):
        made.tenant("acme")
        made.tenant("open", OPEN_POLICY)
        made.tenant("us", POLICY.replace("process_in: EEA", "process_in: [DE]"))
        made.tenant("late", OUTPUT)

    backends = {f"{tenant}/eu-fr-par/{tenant}-1": FakeBackend() for tenant in ("acme", "open", "us", "late")}
    async with lab(tmp_path_factory.mktemp("reading"), set_up=set_up, backends=backends) as made:
        yield made


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("path", BODIES)
async def test_a_policy_that_forbids_the_place_forbids_every_route_and_no_byte_leaves(made, path):
    refused = await made.post(BODIES[path], path, key="us/main")
    assert refused.status == 403 and refused.error["reasons"], refused.body
    assert made.backends["us-1"].bodies == []
    [*_, denied] = made.acts("us")
    assert (denied["type"], denied["endpoint"]) == ("inference.denied", path)


@pytest.mark.parametrize("path", [path for path in BODIES if path != "/v1/detokenize"])
async def test_every_text_is_redacted_and_the_call_is_on_record_under_its_route(made, path):
    backend = made.backends["acme-1"]
    backend.bodies.clear()
    assert (await made.post(BODIES[path], path)).status == 200
    [sent] = backend.bodies
    assert MAIL not in json.dumps(sent) and "<EMAIL_1_" in json.dumps(sent)
    accepted, completed = made.acts()[-2:]
    assert (accepted["type"], accepted["endpoint"]) == ("inference.accepted", path)
    assert completed["type"] == "inference.completed"
    assert accepted["redaction"]["counts_by_type"]["email"] >= 1


async def test_tokens_are_those_of_the_prompt_as_it_leaves(made):
    answer = await made.post(BODIES["/v1/tokenize"], "/v1/tokenize")
    assert answer.json["count"] == 3 and answer.json["tokens"][:2] == [5, 2] and answer.json["token_strs"] is None
    chat = {"model": "small", "messages": [{"role": "user", "content": f"hi {MAIL}"}], "temperature": 0}
    assert (await made.post(chat, "/tokenize")).json["max_model_len"] == 4096
    assert made.backends["acme-1"].bodies[-1].keys() == {"model", "messages"}
    spelled = {"model": "small", "prompt": "a bc", "return_token_strs": True}
    refused = await made.post(spelled, "/v1/tokenize")
    assert (refused.status, refused.error["param"]) == (400, "return_token_strs")
    assert (await made.post(spelled, "/v1/tokenize", key="open/main")).json["token_strs"] == ["a", "bc"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "x", "messages": [{"role": "user"}]},
        {"messages": []},
        {"prompt": 5},
        {"prompt": "x", "stream": True},
    ],
)
async def test_a_prompt_to_tokenize_is_one_text_or_one_conversation(made, body):
    assert (await made.post({"model": "small", **body}, "/v1/tokenize")).status == 400


async def test_token_ids_are_refused_where_prompts_are_redacted_and_their_text_is_filtered_where_answers_are(made):
    body = BODIES["/v1/detokenize"]
    refused = await made.post(body, "/v1/detokenize")
    assert (refused.status, refused.error["code"], refused.error["param"]) == (422, "redaction_refused", "tokens")
    made.backends["late-1"].say = made.backends["open-1"].say = f"call {MAIL}"
    filtered = await made.post(body, "/detokenize", key="late/main")
    assert filtered.status == 200 and filtered.json.keys() == {"prompt"} and MAIL not in filtered.json["prompt"]
    assert (await made.post(body, "/detokenize", key="open/main")).json == {"prompt": f"call {MAIL}"}
    for wrong in ({"tokens": "x"}, {"tokens": [-1]}, {"tokens": [1.5]}, {}):
        assert (await made.post({"model": "small", **wrong}, "/v1/detokenize", key="open/main")).status == 400


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_documents_come_back_by_score_and_as_they_were_sent(made, path):
    answer = (await made.post({**QUERY, "return_documents": True, "top_n": 2}, path)).json
    assert [each["index"] for each in answer["results"]] == [1, 2]
    assert [each["document"]["text"] for each in answer["results"]] == [DOCUMENTS[1], DOCUMENTS[2]]
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7} and answer["model"] == "small"
    bare = (await made.post({**QUERY, "documents": [{"text": "x"}, "yy"]}, path)).json
    assert [each["index"] for each in bare["results"]] == [1, 0] and "document" not in bare["results"][0]
    assert MAIL not in json.dumps(bare)


async def test_query_and_document_share_the_placeholder_of_one_value(made):
    backend = made.backends["acme-1"]
    backend.bodies.clear()
    await made.post(QUERY, "/v1/rerank")
    [sent] = backend.bodies
    assert {NONCE.sub("", each) for each in sent["query"].split() if "<" in each}
    name = sent["query"].split()[-1].rstrip("?")
    assert sent["documents"][1].endswith(name)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"documents": []}, "documents"),
        ({"documents": "x"}, "documents"),
        ({"documents": [5]}, "documents.0"),
        ({"documents": [{"image": "x"}]}, "documents.0.text"),
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"rank_fields": ["a"]}, "rank_fields"),
        ({"max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ({"stream": True}, "stream"),
    ],
)
async def test_a_wrong_ranking_is_refused_by_its_field(made, more, param):
    answer = await made.post({**QUERY, **more}, "/v1/rerank")
    assert answer.status == 400 and answer.error["param"] == param, answer.body


@pytest.mark.parametrize(
    "results",
    [
        [{"index": 3, "relevance_score": 1}],
        [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 2}],
        [{"index": 0, "relevance_score": "nan"}],
        [{"index": True, "relevance_score": 1}],
        [{"index": 0}],
        "x",
    ],
)
async def test_a_ranking_of_other_documents_is_the_backends_fault(results):
    call = parse_call(RERANK, json.dumps(QUERY).encode())
    with pytest.raises(BackendFailed):
        answer = RERANK.answer.read(json.dumps({"results": results}).encode())
        call.translation.answer(answer.body, answer.usage)


async def test_scores_come_without_what_else_a_backend_says(made):
    answer = (await made.post(BODIES["/v1/score"], "/score")).json
    assert [each["index"] for each in answer["data"]] == [0, 1, 2]
    assert all(each.keys() == {"object", "index", "score"} for each in answer["data"])
    uneven = {"model": "small", "text_1": ["a", "b"], "text_2": ["c", "d", "e"]}
    assert (await made.post(uneven, "/v1/score")).status == 400
