"""OpenAI's own client asks the gateway for vectors, and a real engine behind it makes them."""

import asyncio

import httpx
import openai
import torch

from backend.models.checkpoints.checkpoint import Checkpoint
from regions.fleet.deployment import Deployment
from tests.backend.embedding_models import reference, write_decoder
from tests.fakes.lab import lab

POLICY = """
policy: embeds
version: 1
residency: {process_in: EEA, store_in: EEA}
redaction: {input: {email: mask, secret: block}, output: {email: mask}}
limits: {rpm: 100, tpm: 100000}
"""
TEXTS = ["write to jan@example.org", "wind on the hill"]
LEAVING = ["write to [EMAIL]", "wind on the hill"]


def ask(client):
    """In a thread: the client of OpenAI waits."""
    answer = client.embeddings.with_raw_response.create(model="small", input=TEXTS)
    cut = client.embeddings.create(model="small", input=TEXTS[1], dimensions=8, encoding_format="float")
    refusals = []
    for call in (
        lambda: client.embeddings.create(model="small", input="AKIAIOSFODNN7EXAMPLE"),
        lambda: client.embeddings.create(model="small", input="x " * 400),
        lambda: client.embeddings.create(model="small", input=[1, 2, 3]),
        lambda: client.embeddings.create(model="small", input="a", dimensions=4096),
        lambda: client.chat.completions.create(model="small", messages=[{"role": "user", "content": "hi"}]),
    ):
        try:
            call()
        except openai.APIStatusError as error:
            refusals.append((error.status_code, error.code))
    return answer, cut, refusals


async def test_vectors_of_a_real_engine_through_the_gateway_are_transformers_on_record_and_metered(tmp_path):
    models = tmp_path / "models"
    (models / "vectors").mkdir(parents=True)
    theirs = write_decoder(models / "vectors")
    wish = Deployment(
        tenant="acme",
        id="small",
        model="small",
        weights="vectors",
        regions=("eu-fr-par",),
        wait_s=200,
        min_replicas=1,
        micro_eur_per_hour=2_500_000,
    )

    def set_up(made):
        made.tenant("acme", POLICY)
        made.control.create_deployment(wish)

    async with lab(tmp_path, set_up=set_up, backends={}, fleet={"models": str(models)}) as made:
        with httpx.Client(trust_env=False, timeout=200) as http:
            client = openai.OpenAI(base_url=f"{made.base}/v1", api_key=made.key(), max_retries=0, http_client=http)
            raw, cut, refusals = await asyncio.to_thread(ask, client)
        events = [event for event in made.events() if event["type"].startswith("inference.")]
        assert made.verify()
    answer = raw.parse()
    text = Checkpoint(models / "vectors").embedding_text
    for said, found in zip(LEAVING, answer.data, strict=True):
        expected = reference(theirs, text.encode(said), "lasttoken")
        torch.testing.assert_close(torch.tensor(found.embedding), expected, atol=1e-4, rtol=1e-4)
    counted = sum(len(text.encode(said)) for said in LEAVING)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (counted, counted)
    assert len(cut.data[0].embedding) == 8
    assert raw.headers["x-domicile-receipt"] and raw.headers["x-domicile-region"] == "eu-fr-par"
    accepted, completed = events[:2]
    assert (accepted["endpoint"], completed["type"]) == ("/v1/embeddings", "inference.completed")
    assert accepted["redaction"]["counts_by_type"] == {"email": 1}
    assert (completed["tokens_in"], completed["tokens_out"]) == (counted, 0)
    assert refusals == [
        (422, "redaction_blocked"),
        (400, "context_length_exceeded"),
        (422, "redaction_refused"),  # ids cannot be inspected
        (400, None),
        (400, "embeddings_only"),
    ]
    assert "jan@" not in str(events)
