"""Commitments to activations from policy to challenge: a real engine of a deployment behind a gateway, and servers that
cannot commit."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from backend.models.checkpoints.checkpoint import Checkpoint
from gateway.cli.app import app
from gateway.cli.remote.credentials import Credentials, save
from regions.fleet.deployment import Deployment
from regions.identity.trust import Trust
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import POLICY, chat, lab
from tests.fakes.small_engines import small_engines
from tests.gateway.test_marks import words_of
from tests.gateway.test_own_servers import Server, files, pin_of, registering  # noqa: F401  (a fixture)

COMMITTED = POLICY + "models: {commitments: activations}\n"
ELSEWHERE = "policy: strict\nversion: 1\nresidency: {process_in: [DE], store_in: EEA}\n"
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
                    tenant=tenant,
                    id="writer",
                    model="writer",
                    weights="writer",
                    regions=("eu-fr-par",),
                    wait_s=200,
                    min_replicas=1,
                )
            )

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


def committing(made):
    """Two tenants with engines of their own, two of acme's, which has two projects, a DPO and staff."""
    for tenant, replicas in (("acme", 2), ("globex", 1)):
        made.tenant(tenant, COMMITTED)
        made.control.create_deployment(
            Deployment(
                tenant=tenant,
                id="writer",
                model="writer",
                weights="writer",
                regions=("eu-fr-par",),
                wait_s=200,
                min_replicas=replicas,
                max_replicas=replicas,
            )
        )
    made.project("acme", "strict")
    for tenant, role in (("acme", "dpo"), ("globex", "dpo"), (None, "operator")):
        person = made.control.create_person(tenant, "Ada", [role])
        _, token = made.control.create_token(tenant, person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
        made.keys[f"{tenant}/{role}"] = token.token


async def test_a_running_backend_computes_a_challenge_where_policy_lets_the_texts_go(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    asked = {**BASE, "allowed_token_ids": words_of(Checkpoint(models(tmp_path) / "writer").text)}

    async def command(made, *words):
        file, given = tmp_path / "text.txt", tmp_path / "given.txt"
        given.write_text(PROMPT)
        file.write_text(whole.text)
        words = [*words, whole.headers["x-request-id"], "--text", str(file), "--prompt", str(given), "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, app, words)
        return done.exit_code, json.loads(done.stdout) if done.stdout.startswith("{") else done.output

    async def by_gateway(made, answer, key="acme/dpo", tenant="acme", **more):
        body = {
            "request_id": answer.headers["x-request-id"],
            "text": answer.text,
            "prompt": PROMPT,
            "reason": "dispute",
        }
        path = f"/admin/v1/tenants/{tenant}/answers/challenge"
        return await made.post({**body, **more}, path, key=key, headers={"content-type": "application/json"})

    with small_engines():
        async with lab(tmp_path, set_up=committing, backends={}, fleet={"models": str(tmp_path / "models")}) as made:
            whole, theirs = await made.post(asked, PATH), await made.post(asked, PATH, key="globex/main")
            strict = await made.post({**asked, "max_tokens": 40}, PATH, key="acme/strict")
            assert [answer.status for answer in (whole, theirs, strict)] == [200] * 3
            found = await by_gateway(made, whole)
            assert found.status == 200, found.body
            for _ in range(20):  # until the second of the two engines is up
                if not found.json["gave_answer"]:
                    break
                await asyncio.sleep(1)
                found = await by_gateway(made, whole)
            said = found.json
            assert (said["verdict"], said["compared"], said["same_weights"]) == ("matched", 70, True)
            assert said["gave_answer"] is False and said["region"] == "eu-fr-par", "the other of the two"
            (event,) = [each for each in made.events() if each["type"] == "inference.completed"][:1]
            own = (await by_gateway(made, whole, backend=event["backend_id"])).json
            assert (own["verdict"], own["gave_answer"], own["steps"]) == ("matched", True, 0.0)
            for more, verdict in (({"prompt": "the sea"}, "other_prompt"), ({"text": theirs.text}, "other_text")):
                assert (await by_gateway(made, whole, **more)).json["verdict"] == verdict
            assert (await by_gateway(made, theirs, key="globex/dpo", tenant="globex")).json["verdict"] == "matched"

            for more, status, why in (
                ({"key": "acme/main"}, 401, ""),
                ({"key": "None/operator"}, 403, "content.read"),
                ({"key": "globex/dpo"}, 404, "no tenant"),
                ({"request_id": theirs.headers["x-request-id"]}, 422, "no record of acme"),
                ({"backend": said["backend"].replace("writer", "other")}, 422, "name one of"),
                ({"reason": "It is odd"}, 422, "reason"),
                ({"choice": 3}, 422, "give --choice"),
                ({"prompt": "write to ada@example.org"}, 422, "redacts"),
                ({"text": "reach me at ada@example.org"}, 422, "redacts"),
                ({"prompt": '{"prompt": "the sea", "temperature": "warm"}'}, 422, "could not be inspected"),
            ):
                refused = await by_gateway(made, whole, **more)
                assert refused.status == status and why in refused.body.decode(), (more, refused.body)

            local = ["audit", "challenge", "acme", "--data", str(made.data)]
            code, told = await command(made, *local)
            assert code == 0, told
            assert (code, told["verdict"], told["gave_answer"]) == (0, "matched", False), told
            code, told = await command(made, *local, "--model", str(tmp_path / "models" / "writer"))
            assert (code, told["verdict"], told["backend"]) == (0, "matched", None), told
            monkeypatch.setenv("DOMICILE_URL", made.base)
            await asyncio.to_thread(save, Credentials(made.base, made.keys["acme/dpo"]))
            code, told = await command(made, "audit", "challenge", "acme")
            assert code == 0, told
            assert (code, told["verdict"], told["backend"]) == (0, "matched", said["backend"]), told
            code, told = await command(made, "audit", "challenge", "acme", "--cpu")
            assert code > 0, told
            assert "run it on its host" in str(told)
            monkeypatch.delenv("DOMICILE_URL")

            made.control.activate_policy("acme", ELSEWHERE, project="strict")
            await made.taken_over()
            refused = await by_gateway(made, strict)
            assert refused.status == 422 and "lets no backend" in refused.body.decode(), refused.body
            assert (await by_gateway(made, whole)).json["verdict"] == "matched", (
                "the other project's policy is as before"
            )
            events, report = made.events(), made.verify()
    assert report.ok
    challenges = [event for event in events if event["type"] == "content.challenged"]
    assert [event["actor"] for event in challenges if event.get("backend_id") is None] == ["cli"]
    assert {event["region"] for event in challenges if event.get("backend_id")} == {"eu-fr-par"}
    read = [event for event in events if event["type"] == "content.accessed"]
    assert len(read) > len(challenges), "that the commitment was read is on record also where nothing was sent"
    assert whole.text[:20] not in json.dumps(events) and "ada@example.org" not in json.dumps(events)


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
