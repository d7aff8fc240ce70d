"""Commitments to activations from policy to challenge: a real engine of a deployment behind a gateway, and servers that
cannot commit."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from backend.models.checkpoints.checkpoint import Checkpoint
from gateway.cli.app import app
from regions.fleet.deployment import Deployment
from regions.identity.trust import Trust
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import POLICY, chat, lab
from tests.fakes.small_engines import small_engines
from tests.gateway.test_marks import words_of
from tests.gateway.test_own_servers import Server, files, pin_of, registering  # noqa: F401  (a fixture)

COMMITTED = POLICY + "models: {commitments: activations}\n"
PROMPT = "the sea and the land"
BASE = {"model": "writer", "prompt": PROMPT, "temperature": 0.7, "max_tokens": 70, "ignore_eos": True}
PATH = "/v1/completions"


async def challenged(made, answer, text, *more, tenant="acme", prompt=PROMPT):
    """Exit code and what the command says, as JSON."""
    file, asked = made.data.parent / "answer.txt", made.data.parent / "prompt.txt"
    file.write_text(text)
    asked.write_text(prompt)
    words = ["audit", "challenge", tenant, answer.headers["x-request-id"], "--text", str(file), "--prompt", str(asked)]
    weights = () if "--model" in more else ("--model", str(made.data.parent / "models" / "writer"))
    words += ["--data", str(made.data), "--json", *weights, *more]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    try:
        return done.exit_code, json.loads(done.stdout)
    except ValueError:
        return done.exit_code, {"verdict": None, "said": f"{done.output} {done.exception!r}"}


def models(tmp_path):
    folder = tmp_path / "models"
    for name, seed in (("writer", 0), ("other", 1)):
        (folder / name).mkdir(parents=True)
        write_folder(folder / name, tiny_model(seed))
    return folder


async def test_an_answer_is_traced_to_its_model_by_its_client_s_own_text(tmp_path):
    folder = models(tmp_path)
    asked = {**BASE, "allowed_token_ids": words_of(Checkpoint(folder / "writer").text)}

    def set_up(made):
        for tenant, policy in (("acme", COMMITTED), ("globex", POLICY)):
            made.tenant(tenant, policy)
            made.control.create_deployment(
                Deployment(
                    tenant=tenant, id="writer", model="writer", weights="writer", regions=("eu-fr-par",), wait_s=200,
                    min_replicas=1,
                )
            )  # fmt: skip

    with small_engines():
        async with lab(tmp_path, set_up=set_up, backends={}, fleet={"models": str(folder)}) as made:
            whole = await made.post(asked, PATH)
            assert whole.status == 200, whole.body
            stream = await made.post({**asked, "stream": True}, PATH)
            several = await made.post({**asked, "n": 2, "max_tokens": 40}, PATH)
            other = await made.post(asked, PATH, key="globex/main")
            for answer in (whole, stream, several, other):
                assert b"activations" not in answer.body, "the commitment is for the record"
            texts = [choice["text"] for choice in several.json["choices"]]
            code, said = await challenged(made, whole, whole.text, "--dtype", "float32")
            assert (code, said["verdict"]) == (0, "matched"), said
            assert (said["tokens"], said["compared"], said["same_weights"]) == (70, 70, True)
            assert [part["verdict"] for part in said["parts"]] == ["matched"] * 3
            assert (await challenged(made, whole, whole.text + "\n"))[1]["verdict"] == "matched", "as editors save it"
            assert (await challenged(made, stream, stream.text))[1]["verdict"] == "matched"
            for number, text in enumerate(texts):
                code, said = await challenged(made, several, text, "--choice", str(number))
                assert (code, said["verdict"]) == (0, "matched"), said
            assert (await challenged(made, several, texts[0], "--choice", "1"))[1]["verdict"] == "other_text"
            code, said = await challenged(made, whole, whole.text, "--model", str(folder / "other"))
            assert (code, said["verdict"], said["same_weights"]) == (1, "other_model", False)
            code, said = await challenged(made, whole, whole.text, prompt="the sea and the lamp")
            assert (code, said["verdict"], said["compared"]) == (1, "other_prompt", 0)
            code, said = await challenged(made, whole, other.text)
            assert (code, said["verdict"], said["compared"]) == (1, "other_text", 0)
            code, said = await challenged(made, whole, whole.text[:20])
            assert (code, said["verdict"]) == (2, "not_compared")
            body = json.dumps(asked)
            assert (await challenged(made, whole, whole.text, prompt=body))[1]["verdict"] == "matched"
            for answer, more, why in (
                (other, (), "no record of acme"),
                (whole, ("--choice", "1"), "give --choice"),
                (whole, ("--model", str(tmp_path / "none")), "no model at"),
                (whole, ("--reason", "It is odd"), "is not a code"),
            ):
                code, said = await challenged(made, answer, whole.text, *more)
                assert code == 2 and why in str(said), said
            code, said = await challenged(made, other, other.text, tenant="globex")
            assert code == 2 and "does not commit to activations" in str(said)
            events, foreign = made.events(), made.events(tenant="globex")
            report = made.verify()
            erase = ["audit", "erase", "acme", "--all", "--yes", "--data", str(made.data)]
            await asyncio.to_thread(CliRunner().invoke, app, erase)
            code, said = await challenged(made, whole, whole.text)
            assert code == 2 and "was erased" in str(said), said
    assert report.ok
    completed = [event for event in events if event["type"] == "inference.completed"]
    assert all(list(event["commits"]) == ["activations"] for event in completed)
    assert not any(event.get("commits") for event in foreign if event["type"] == "inference.completed")
    verdicts = [event["verdict"] for event in events if event["type"] == "content.challenged"]
    assert verdicts.count("matched") == 6
    assert {"other_model", "other_prompt", "other_text", "not_compared"} <= set(verdicts)
    assert all(event["fields"] == ["activations"] for event in events if event["type"] == "content.accessed")
    assert whole.text[:20] not in json.dumps(events)


async def test_a_server_that_cannot_commit_is_refused_where_policy_demands_it(tmp_path, files):  # noqa: F811
    async with Server(files) as server:
        set_up = registering(server.url, Trust(pin=pin_of(files)), policy=COMMITTED)
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            answer = await made.post(chat("hello"))
    assert answer.status == 403
    assert "models.commitments" in answer.body.decode()
    assert server.received == []


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_says_nothing_of_its_activations_does_not_answer(tmp_path, stream):
    """As an older version would, or one that does not check request tokens."""
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", COMMITTED)) as made:
        answer = await made.post(chat("hello", stream=stream))
        events = made.events()
    if not stream:
        assert answer.status in (502, 503), answer.body
    assert not [event for event in events if event["type"] == "inference.completed"]
    assert b"[DONE]" not in answer.body
