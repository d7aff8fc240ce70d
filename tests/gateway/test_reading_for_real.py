"""Rankings of a cross-encoder and tokens of a text model, both real engines of deployments, through the gateway under
names of the project."""

import asyncio
import math

from backend.models.checkpoints.checkpoint import Checkpoint
from gateway.store.control.models import named
from regions.fleet.deployment import Deployment
from tests.backend.embedding_models import scored, write_scorer
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import lab
from tests.fakes.small_engines import small_engines

POLICY = """
policy: reads
version: 1
residency: {process_in: EEA, store_in: EEA}
redaction: {input: {email: mask}, output: {email: mask}}
"""
DOCUMENTS = ["wind on the hill", "write to jan@example.org", "the sea"]
LEAVING = ["wind on the hill", "write to [EMAIL]", "the sea"]


async def test_documents_are_ranked_as_transformers_scores_what_left_and_tokens_are_the_models(tmp_path):
    models = tmp_path / "models"
    for name in ("ranker", "writer"):
        (models / name).mkdir(parents=True)
    theirs = write_scorer(models / "ranker")
    write_folder(models / "writer", tiny_model())

    def set_up(made):
        made.tenant("acme", POLICY)
        for name in ("ranker", "writer"):
            made.control.create_deployment(
                Deployment(
                    tenant="acme",
                    id=name,
                    model=name,
                    weights=name,
                    regions=("eu-fr-par",),
                    wait_s=200,
                    min_replicas=1,
                )
            )
        made.control.create_model_name("acme", "main", "best", named(targets=["ranker"]))

    with small_engines():
        async with lab(tmp_path, set_up=set_up, backends={}, fleet={"models": str(models)}) as made:
            asked = {"model": "best", "query": "the wind", "documents": DOCUMENTS, "return_documents": True}
            ranked, written = await asyncio.gather(
                made.post(asked, "/v1/rerank"), made.post({"model": "writer", "prompt": "the sea"}, "/v1/tokenize")
            )
            wrong = await made.post({**asked, "model": "writer"}, "/v1/rerank")
            chat = {"model": "best", "messages": [{"role": "user", "content": "hi"}]}
            told = await made.post(chat)
            async with asyncio.timeout(60):  # until a probe has asked both engines
                while (await made.get("/v1/models")).body.count(b'"capabilities"') < 3:
                    await asyncio.sleep(0.1)
            listed = {one["id"]: one for one in (await made.get("/v1/models")).json["data"]}
            calls = [event for event in made.events() if event["type"].startswith("inference.")]
    assert ranked.status == 200, ranked.body
    scores = [1 / (1 + math.exp(-scored(theirs, models / "ranker", "the wind", text))) for text in LEAVING]
    order = sorted(range(3), key=lambda at: -scores[at])
    assert [each["index"] for each in ranked.json["results"]] == order
    for each in ranked.json["results"]:
        assert abs(each["relevance_score"] - scores[each["index"]]) < 1e-4
        assert each["document"]["text"] == DOCUMENTS[each["index"]], "the caller's own text"
    text = Checkpoint(models / "writer").text
    assert written.json["tokens"] == text.encode_completion("the sea")
    assert (wrong.status, wrong.error["code"]) == (400, "no_scores")
    assert (told.status, told.error["code"]) == (400, "scores_only")
    assert listed["best"]["root"] == "ranker" and listed["best"]["max_model_len"] == 128
    assert listed["best"]["capabilities"]["rerank"] and not listed["best"]["capabilities"]["chat"]
    assert listed["writer"]["capabilities"]["chat"] and not listed["writer"]["capabilities"]["rerank"]
    assert "jan@" not in str(calls)
    accepted = [event for event in calls if event.get("endpoint") == "/v1/rerank"]
    assert ("best", "ranker") in {(event["model_requested"], event.get("model_served")) for event in accepted}
