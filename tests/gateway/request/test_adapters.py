"""LoRA adapters of projects: who may call them, what policy and record say of them, and where they are loaded."""

import asyncio
import json
import subprocess
import sys

import pytest
import pytest_asyncio

from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.loader import load_model
from gateway.database.errors import Duplicate, InvalidValue, NotFound
from gateway.records.control import Scopes
from gateway.store.control.adapters import adapter_setting
from gateway.store.control.models import named
from regions.identity.identity import BackendIdentity
from tests.backend.adapters_on_disk import merged, write_adapter
from tests.backend.running import Backend
from tests.backend.tiny import generate, greedy, tiny_engine, tiny_model, write_folder
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab

pytestmark = pytest.mark.asyncio(loop_scope="module")

DIGESTS = {name: f"{number:064x}" for number, name in enumerate(("legal", "french", "third", "fourth", "theirs"), 10)}
NARROW = POLICY.replace("retention:", "models: [small, 'small:legal']\nretention:")


def set_up(made):
    made.tenant("acme")
    made.project("acme", "other")
    made.project("acme", "narrow", policy=NARROW)
    made.tenant("globex")


def setting(name, model="small"):
    return adapter_setting(model=model, path=f"{name}/v1", sha256=DIGESTS[name])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    backends = {
        "acme/eu-fr-par/small-1": FakeBackend("small", places=2),
        "acme/eu-fr-par/plain-1": FakeBackend("llama3:8b"),
        "globex/eu-fr-par/globex-1": FakeBackend("small", places=2),
    }
    async with lab(tmp_path_factory.mktemp("adapters"), set_up=set_up, backends=backends) as made:
        for project in ("main", "narrow"):
            for name in ("legal", "french", "third", "fourth"):
                made.control.create_adapter("acme", project, name, setting(name))
        made.control.create_adapter("globex", "main", "theirs", setting("theirs"))
        for key, models in (("base-only", ("small",)), ("legal-only", ("small:legal",))):
            _, made_key = made.control.create_key("acme", "main", scopes=Scopes(models=models))
            made.keys[key] = made_key.token
        await made.taken_over()
        yield made


@pytest.fixture(autouse=True)
def well(made):
    for backend in made.backends.values():
        backend.status, backend.error, backend.digests = 200, None, {}
        backend.bodies.clear()
        backend.busy.clear()


def ask(name, **more):
    return {**chat("hi"), "model": name, **more}


def last(made, kind, tenant="acme"):
    return [event for event in made.acts(tenant) if event["type"] == kind][-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_names_the_adapter_behind_its_model_and_the_record_has_its_digest(made, stream):
    answer = await made.post(ask("small:legal", stream=stream))
    assert answer.status == 200
    backend = made.backends["small-1"]
    assert backend.bodies[-1]["model"] == "small:legal"
    assert {"name": "legal", "path": "legal/v1", "project": "main", "sha256": DIGESTS["legal"]} in backend.adapters
    accepted, completed = last(made, "inference.accepted"), last(made, "inference.completed")
    assert accepted["adapter_sha256"] == DIGESTS["legal"]
    assert accepted["model_requested"] == completed["model_served"] == "small:legal"
    assert made.verify().ok


async def test_a_call_of_the_base_has_no_adapter_on_record(made):
    assert (await made.post(ask("small"))).status == 200
    assert "adapter_sha256" not in last(made, "inference.accepted")


async def test_an_adapter_is_loaded_once_and_then_known(made):
    backend = made.backends["small-1"]
    assert (await made.post(ask("small:legal"))).status == 200
    backend.loads.clear()
    for _ in range(3):
        assert (await made.post(ask("small:legal"))).status == 200
    assert backend.loads == []
    found = await asyncio.gather(*(made.post(ask("small:french")) for _ in range(5)))
    assert [answer.status for answer in found] == [200] * 5
    assert backend.loads.count("french") == 1


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("small:legal", "acme/other"),  # another project of the tenant
        ("small:theirs", "acme/main"),  # another tenant
        ("small:legal", "globex/main"),
        ("small:absent", "acme/main"),
        ("small:", "acme/main"),
        ("other:legal", "acme/main"),
        ("small:legal:legal", "acme/main"),
    ],
)
async def test_what_is_not_the_projects_is_answered_as_what_is_not_there(made, name, key):
    tenant = key.partition("/")[0]
    before = len(made.acts(tenant))
    answer = await made.post(ask(name), key=key)
    absent = await made.post(ask("small:nothing"), key=key)
    assert (answer.status, answer.json) == (404, absent.json)
    assert len(made.acts(tenant)) == before
    assert all(backend.bodies == [] for backend in made.backends.values())


async def test_a_policy_that_lists_models_has_to_name_the_adapter(made):
    assert (await made.post(ask("small:legal"), key="acme/narrow")).status == 200
    refused = await made.post(ask("small:french"), key="acme/narrow")
    assert refused.status == 403
    assert "policy does not list model small:french" in json.dumps(refused.json)
    assert last(made, "inference.denied")["model_requested"] == "small:french"


async def test_a_key_for_the_base_is_not_one_for_its_adapters_nor_the_other_way_round(made):
    assert (await made.post(ask("small"), key="base-only")).status == 200
    assert (await made.post(ask("small:legal"), key="base-only")).status == 403
    assert (await made.post(ask("small:legal"), key="legal-only")).status == 200
    assert (await made.post(ask("small"), key="legal-only")).status == 403


async def test_a_model_that_is_called_like_an_adapter_stays_a_model(made):
    assert (await made.post(ask("llama3:8b"))).status == 200
    assert made.backends["plain-1"].adapters == []


async def test_where_there_is_no_place_the_one_that_was_used_least_recently_goes_unless_it_is_in_use(made):
    backend = made.backends["small-1"]
    for name in ("legal", "french"):
        assert (await made.post(ask(f"small:{name}"))).status == 200
    assert {a["name"] for a in backend.adapters} == {"legal", "french"}
    assert (await made.post(ask("small:third"))).status == 200
    assert {a["name"] for a in backend.adapters} == {"french", "third"}
    backend.busy.add("french")
    assert (await made.post(ask("small:legal"))).status == 200
    assert {a["name"] for a in backend.adapters} == {"french", "legal"}
    backend.busy.add("legal")
    refused = await made.post(ask("small:third"))
    assert (refused.status, refused.error["code"]) == (503, "adapter_unavailable")
    assert {a["name"] for a in backend.adapters} == {"french", "legal"}


async def test_a_backend_whose_folder_holds_other_weights_gets_no_byte_of_the_call(made):
    backend = made.backends["small-1"]
    backend.digests["fourth/v1"] = "f" * 64
    refused = await made.post(ask("small:fourth"))
    assert (refused.status, refused.error["code"]) == (503, "adapter_unavailable")
    assert backend.bodies == []
    assert last(made, "inference.aborted")["reason"] == "adapter_unavailable"


async def test_a_backend_that_policy_forbids_meanwhile_is_asked_for_no_adapter(made, monkeypatch):
    made.project("acme", "late")
    made.control.create_adapter("acme", "late", "legal", setting("legal"))
    await made.taken_over()
    recorder = made.gateway.app._pipeline.recorder
    accepted = recorder.accepted

    async def narrowed(self, routed, before):
        result = await accepted(routed, before)
        elsewhere = POLICY.replace("process_in: EEA", "process_in: [DE]")
        made.control.activate_policy("acme", elsewhere, project="late")
        await made.gateway.directory._check()
        return result

    monkeypatch.setattr(type(recorder), "accepted", narrowed)
    backend = made.backends["small-1"]
    before = len(backend.loads)
    assert (await made.post(ask("small:legal"), key="acme/late")).status == 403
    assert (len(backend.loads), backend.bodies) == (before, [])
    assert made.verify().ok


async def test_a_backend_that_lost_an_adapter_gets_it_again_at_the_next_call(made):
    backend = made.backends["small-1"]
    assert (await made.post(ask("small:legal"))).status == 200
    backend.adapters = []
    backend.status, backend.error = 404, {"message": "no", "code": "model_not_found", "type": "invalid_request_error"}
    assert (await made.post(ask("small:legal"))).status == 404
    backend.status = 200
    assert (await made.post(ask("small:legal"))).status == 200
    assert [a["name"] for a in backend.adapters] == ["legal"]


async def test_models_that_may_be_called_are_listed_with_the_adapters_of_the_project(made):
    def listed(answer):
        return {model["id"] for model in answer.json["data"]}

    assert {"small", "small:legal", "small:french"} <= listed(await made.get("/v1/models"))
    assert not any(name.startswith("small:") for name in listed(await made.get("/v1/models", key="acme/other")))
    narrow = listed(await made.get("/v1/models", key="acme/narrow"))
    assert {name for name in narrow if ":" in name} == {"small:legal"}


async def test_an_adapter_that_was_replaced_is_another_one_under_the_same_name(made):
    control = made.control
    control.create_adapter("acme", "other", "mine", adapter_setting(model="small", path="a", sha256="a" * 64))
    await made.taken_over()
    assert (await made.post(ask("small:mine"), key="acme/other")).status == 200
    control.delete_adapter("acme", "other", "mine")
    await made.taken_over()
    assert (await made.post(ask("small:mine"), key="acme/other")).status == 404
    control.create_adapter("acme", "other", "mine", adapter_setting(model="small", path="a", sha256="b" * 64))
    await made.taken_over()
    assert (await made.post(ask("small:mine"), key="acme/other")).status == 200
    assert last(made, "inference.accepted")["adapter_sha256"] == "b" * 64
    own = [a["sha256"] for a in made.backends["small-1"].adapters if a["project"] == "other"]
    assert own == ["b" * 64]


async def test_what_makes_no_sense_is_refused(made):
    control = made.control
    with pytest.raises(Duplicate):
        control.create_adapter("acme", "main", "legal", setting("legal"))
    with pytest.raises(InvalidValue, match="the tenant has no such model"):
        control.create_adapter("acme", "main", "new", setting("legal", model="huge"))
    for name in ("", "a:b", "a b", "-a", "ü", "a" * 65):
        with pytest.raises(InvalidValue, match="the name is not"):
            control.create_adapter("acme", "main", name, setting("legal"))
    with pytest.raises(NotFound):
        control.create_adapter("acme", "nowhere", "new", setting("legal"))
    with pytest.raises(NotFound):
        control.delete_adapter("acme", "main", "absent")
    with pytest.raises(NotFound):  # of another project
        control.delete_adapter("acme", "other", "legal")
    for wrong in ("", "f" * 63, "F" * 64, "g" * 64):
        with pytest.raises(InvalidValue, match="sha256"):
            adapter_setting(model="small", path="a", sha256=wrong)
    with pytest.raises(InvalidValue):  # names stand for models
        control.create_model_name("acme", "main", "alias", named(targets=["small:legal"]))


async def test_who_registered_and_deleted_an_adapter_is_on_record_without_its_name(tmp_path):
    """By the command line, beside a gateway that runs."""
    data = tmp_path / "data"

    def command(*words):
        whole = [sys.executable, "-m", "gateway", "adapter", *words, "--data", str(data)]
        return subprocess.run(whole, capture_output=True, text=True, check=True).stdout

    async with lab(tmp_path) as made:
        place = ["acme", "main", "secret-name"]
        more = ["--model", "small", "--path", "secret-name/v1", "--sha256", DIGESTS["legal"]]
        said = await asyncio.to_thread(command, "create", *place, *more, "--json")
        assert json.loads(said)["sha256"] == DIGESTS["legal"]
        await asyncio.to_thread(command, "delete", *place, "--yes")
        recorded = [event for event in made.acts() if event["type"].startswith("admin.adapter.")]
    assert [event["type"] for event in recorded] == ["admin.adapter.created", "admin.adapter.deleted"]
    assert "secret-name" not in json.dumps(recorded)


async def test_a_real_backend_answers_by_the_adapter(tmp_path):
    folder, root = write_folder(tmp_path / "model", tiny_model()), tmp_path / "adapters"
    checkpoint = Checkpoint(folder)
    write_adapter(root / "legal", checkpoint.config, 4)
    options = ["--model", str(folder), "--served-name", "tiny", "--max-adapters", "1", "--adapters", str(root)]
    with Backend(tmp_path / "log", *options, "--max-model-len", "512") as running:
        async with lab(tmp_path, backends={}) as made:
            identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "tiny-1")
            made.control.register_backend(identity, url=running.url, models=["tiny"])
            async with made.http.post(f"{running.url}/adapters", json={"name": "x", "path": "legal"}) as answer:
                digest = (await answer.json())["sha256"]
            legal = adapter_setting(model="tiny", path="legal", sha256=digest)
            made.control.create_adapter("acme", "main", "legal", legal)
            await made.taken_over()
            asked = {"prompt": "the rain", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            answer = await made.post({"model": "tiny:legal", **asked}, path="/v1/completions")
            assert answer.status == 200, answer.body
            assert answer.json["model"] == "tiny:legal"
            own = merged(load_model(checkpoint, "float32"), root / "legal")
            prompt = checkpoint.text.encode_completion("the rain")
            assert answer.text == checkpoint.text.decode(generate(tiny_engine(own), [prompt], greedy(8))[0])
            assert last(made, "inference.accepted")["adapter_sha256"] == digest
            absent = await made.post({"model": "tiny:x", **asked}, path="/v1/completions")
            assert absent.status == 404
