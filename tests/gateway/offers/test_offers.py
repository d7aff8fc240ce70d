"""Lists of models: those that the caller may ask for, with what their backends say, as OpenAI and Ollama spell it."""

import asyncio
import json

import pytest
import pytest_asyncio

from gateway.offers.model_cards import UNKNOWN, Card, Cards, parse_cards
from gateway.records.control import Scopes
from gateway.store.control.models import named
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, lab

pytestmark = pytest.mark.asyncio(loop_scope="module")

CAN = {"chat": True, "tools": True, "reasoning": True, "vision": False, "structured_output": True, "embeddings": False}
FRENCH = POLICY.replace("process_in: EEA", "process_in: [FR]")


def set_up(made):
    made.tenant("acme", FRENCH)
    made.project("acme", "wide")
    made.tenant("globex")
    made.tenant("lawless", policy=None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    backends = {
        "acme/eu-fr-par/a-1": FakeBackend("large", card={"max_model_len": 32768, "capabilities": CAN}),
        "acme/eu-fr-par/a-2": FakeBackend(
            "large", card={"context_length": 16384, "capabilities": {**CAN, "tools": False}}
        ),
        "acme/eu-fr-par/a-3": FakeBackend("plain"),
        "acme/eu-de-fra/a-4": FakeBackend("german"),
        "globex/eu-fr-par/g-1": FakeBackend("theirs"),
        "lawless/eu-fr-par/l-1": FakeBackend("loose"),
    }
    async with lab(tmp_path_factory.mktemp("offers"), set_up=set_up, backends=backends) as made:
        control = made.control
        control.create_model_name("acme", "main", "assistant", named(targets=["german", "large"]))
        old = named(targets=["large"], deprecated_at="2026-11-01T00:00:00Z", replacement="assistant")
        control.create_model_name("acme", "main", "old", old)
        control.create_model_name("acme", "main", "abroad", named(targets=["german"]))
        _, key = control.create_key("acme", "main", scopes=Scopes(models=("plain", "assistant")))
        made.keys["narrow"] = key.token
        await made.taken_over()
        async with asyncio.timeout(30):
            while "max_model_len" not in (await made.get("/v1/models/large")).json:
                await asyncio.sleep(0.05)
        yield made


async def listed(made, key="acme/main"):
    return {one["id"]: one for one in (await made.get("/v1/models", key)).json["data"]}


async def test_a_model_is_listed_where_its_policy_lets_it_run_and_its_key_is_for_it(made):
    assert (await listed(made)).keys() == {"large", "plain", "assistant", "old"}
    assert (await listed(made, "acme/wide")).keys() == {"large", "plain"}
    assert (await listed(made, "narrow")).keys() == {"plain"}, "its key is for no model that the name stands for"
    assert (await listed(made, "globex/main")).keys() == {"theirs"}
    assert (await listed(made, "lawless/main")) == {}
    for name in ("german", "abroad", "theirs"):
        assert (await made.get(f"/v1/models/{name}")).error["code"] == "model_not_found"


async def test_a_model_can_what_each_of_its_backends_can(made):
    async with asyncio.timeout(30):
        while (await listed(made))["large"].get("max_model_len") != 16384:
            await asyncio.sleep(0.05)
    large = (await made.get("/v1/models/large")).json
    assert large["context_length"] == large["context_window"] == 16384
    assert large["capabilities"] == {**CAN, "tools": False}
    assert large["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    assert "tools" not in large["supported_parameters"] and "reasoning" in large["supported_parameters"]
    plain = (await made.get("/v1/models/plain")).json
    assert plain.keys() == {"id", "object", "created", "owned_by"}, "what is not known is left out"


async def test_a_name_shows_which_model_answers_and_its_notice(made):
    models = await listed(made)
    assert models["assistant"]["root"] == models["old"]["root"] == "large"
    assert models["old"]["deprecation"] == {"deprecated_at": "2026-11-01T00:00:00Z", "replacement": "assistant"}
    assert "deprecation" not in models["assistant"] and "root" not in models["large"]


async def test_ollamas_clients_find_the_same_models(made):
    tags = (await made.get("/api/tags")).json["models"]
    assert {one["name"] for one in tags} == (await listed(made)).keys()
    assert (await made.get("/api/version")).json["version"]
    shown = (await made.post({"model": "large"}, "/api/show")).json
    assert shown["capabilities"] == ["completion", "thinking"]
    assert shown["model_info"]["domicile.context_length"] == 16384
    for body, status in (({"model": "german"}, 404), ({}, 400), ([], 400), ({"model": 5}, 400)):
        refused = await made.post(body, "/api/show")
        assert refused.status == status and isinstance(refused.json["error"], str)
    assert (await made.get("/api/tags", "dom_live_x")).status == 401
    pulled = await made.post({"model": "x"}, "/api/pull")
    assert pulled.status == 404 and "/api/pull is not offered here; ask the operator" in pulled.json["error"]


# --- what servers say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "card"),
    [
        ({"max_model_len": 8192}, Card(8192)),
        (
            {"context_length": 9, "supported_parameters": ["tools"]},
            Card(9, {"tools": True, "structured_output": False, "reasoning": False}),
        ),
        (
            {"max_context_length": 5, "capabilities": {"function_calling": True, "completion_chat": True, "x": True}},
            Card(5, {"tools": True, "chat": True}),
        ),
        ({"architecture": {"input_modalities": ["text", "image"]}}, Card(None, {"vision": True})),
        ({"meta": {"n_ctx": 4096}}, Card(4096)),
        ({"max_model_len": True, "capabilities": ["x"], "supported_parameters": "x", "architecture": 5}, UNKNOWN),
        ({"max_model_len": -1}, UNKNOWN),
        ({"max_model_len": 1 << 60, "capabilities": {"chat": "yes"}}, UNKNOWN),
    ],
)  # fmt: skip
async def test_each_server_is_read_in_its_own_words(said, card):
    assert parse_cards(json.dumps({"data": [{"id": "m", **said}]}).encode()) == {"m": card}


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"data": 5}', b'{"data": [5]}', b'{"data": [{"id": 5}]}', b"\xff"]
)
async def test_what_is_no_list_of_models_says_nothing(raw):
    assert parse_cards(raw) == {}


async def test_a_backend_that_changed_is_asked_again_and_one_that_is_gone_is_forgotten():
    cards, first, second = Cards(), object(), object()
    cards.note("a", first, {"m": Card(5)})
    assert cards.knows("a", first) and not cards.knows("a", second) and not cards.knows("b", first)
    assert cards.of("m", ["a", "b"]) == Card(5) and cards.of("other", ["a"]) == UNKNOWN
    cards.forget({"b"})
    assert cards.of("m", ["a"]) == UNKNOWN
