"""Watermarks from policy to detector: a real engine of a deployment behind a gateway, and servers that are not ours."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from backend.models.checkpoints.checkpoint import Checkpoint
from gateway.cli.app import app
from regions.fleet.deployment import Deployment
from regions.identity.trust import Trust
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import POLICY, chat, lab, until
from tests.fakes.small_engines import small_engines
from tests.gateway.test_own_servers import Server, files, pin_of, registering  # noqa: F401  (a fixture)

MARKED = POLICY.replace("{art50_notice: header}", "{art50_notice: header, marking: [watermark]}").replace(
    "content: none", 'content: "encrypted, 7d"'
)
BASE = {"model": "writer", "prompt": "the sea", "temperature": 2.0, "max_tokens": 200, "ignore_eos": True}


def words_of(text):
    """Tokens that are a word with its space, which are the same tokens again when their text is read."""
    spelled = {token: text.decode([token]) for token in range(3, 320)}
    return [
        token
        for token, word in spelled.items()
        if word[:1] == " " and word[1:].isalpha() and text.encode_words(word) == [token]
    ]


def told(answer):
    return answer.json["choices"][0].get("watermark"), answer.headers.get("x-domicile-watermark")


SAID = [{"role": "user", "content": "the sea"}]
APIS = {
    "/v1/messages": {"messages": SAID, "max_tokens": 6},
    "/v1/responses": {"input": "the sea", "max_output_tokens": 16, "store": False},
    "/api/chat": {"messages": SAID, "options": {"num_predict": 6}},
    "/api/generate": {"prompt": "the sea", "options": {"num_predict": 6}},
}


async def in_other_apis(made):
    """What came of the mark is said by the object that ends the answer, whole or streamed."""
    for path, body in APIS.items():
        whole = await made.post({"model": "writer", "stream": False, **body}, path)
        assert whole.status == 200, (path, whole.body)
        assert whole.json["watermark"] == whole.headers["x-domicile-watermark"], path
        assert whole.json["watermark"] in ("short", "marked")
        stream = await made.post({"model": "writer", "stream": True, **body}, path)
        assert stream.headers["x-domicile-watermark"] == "demanded"
        last = [line for line in stream.body.decode().splitlines() if '"watermark"' in line]
        assert len(last) == 1, (path, stream.body)
        assert '"watermark":"short"' in last[0] or '"watermark":"marked"' in last[0]


async def cut_off(made, body):
    """The client leaves in the middle: the record says that what came of the mark is not known."""
    sent = {"authorization": f"Bearer {made.key()}"}
    async with made.http.post(made.base + "/v1/completions", json={**body, "stream": True}, headers=sent) as response:
        assert response.headers["x-domicile-watermark"] == "demanded"
        for _ in range(8):
            await response.content.readline()
        request = response.headers["x-request-id"]
        response.close()

    def ends():
        return [e for e in made.events() if e.get("request_id") == request and e["type"].startswith("inference.")]

    await until(lambda: len(ends()) >= 2)
    assert (ends()[-1]["type"], ends()[-1].get("watermark")) == ("inference.aborted", "cut")


async def over_the_turn_of_a_month(made, body, monkeypatch):
    """Its text and the month of its key: that in which it began."""
    month = ["2026-01"]
    monkeypatch.setattr("gateway.request.answer.marking.period_at", lambda _: month[0])
    sent = {"authorization": f"Bearer {made.key()}"}
    async with made.http.post(made.base + "/v1/completions", json={**body, "stream": True}, headers=sent) as response:
        begun = await response.content.readline()
        month[0] = "2026-02"
        text = (begun + await response.read()).decode()
        request = response.headers["x-request-id"]
    last = [e for e in made.events() if e.get("request_id") == request and e["type"] == "inference.completed"]
    assert [(e["watermark"], e["mark_period"]) for e in last] == [("marked", "2026-01")]
    after = await made.post(body, "/v1/completions")
    monkeypatch.undo()
    pieces = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    said = "".join(choice.get("text") or "" for piece in pieces for choice in piece["choices"])
    return {"2026-01": said, "2026-02": after.text}


async def test_policy_demands_a_mark_and_the_detector_finds_it(tmp_path, monkeypatch):
    models = tmp_path / "models"
    (models / "writer").mkdir(parents=True)
    write_folder(models / "writer", tiny_model())
    long = {**BASE, "allowed_token_ids": words_of(Checkpoint(models / "writer").text)}

    def set_up(made):
        for tenant, policy in (("acme", MARKED), ("globex", POLICY)):
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
        person = made.control.create_person("acme", "Ada", ["dpo"])
        _, token = made.control.create_token("acme", person.id, expires_at=datetime.now(UTC) + timedelta(days=1))
        made.keys["dpo"] = token.token

    with small_engines():
        async with lab(tmp_path, set_up=set_up, backends={}, fleet={"models": str(models)}) as made:
            path = "/v1/completions"
            whole = await made.post(long, path)
            assert whole.status == 200, whole.body
            assert told(whole) == ("marked", "marked")
            text = whole.text
            declined = await made.post({**long, "watermarking": False, "watermark": {"enabled": False}}, path)
            assert told(declined) == ("marked", "marked"), "a caller cannot decline it"
            several = await made.post({**long, "n": 3, "max_tokens": 100}, path)
            assert len({choice["text"] for choice in several.json["choices"]}) == 3
            assert {choice["watermark"] for choice in several.json["choices"]} == {"marked"}
            seeded = [await made.post({**long, "seed": 5}, path) for _ in "ab"]
            assert seeded[0].text == seeded[1].text
            assert told(await made.post({**long, "temperature": 0}, path)) == ("greedy", "greedy")
            assert told(await made.post({**long, "max_tokens": 5}, path)) == ("short", "short")
            form = {"response_format": {"type": "json_object"}, "max_tokens": 60, "ignore_eos": False}
            assert told(await made.post({**BASE, **form}, path))[0] in ("form", "short", "marked")
            stream = await made.post({**long, "stream": True}, path)
            ends = [
                choice["watermark"]
                for event in stream.events
                if isinstance(event, dict)
                for choice in event["choices"]
                if choice.get("watermark") is not None
            ]
            assert (ends, stream.headers["x-domicile-watermark"]) == (["marked"], "demanded")
            await in_other_apis(made)
            await cut_off(made, {**long, "max_tokens": 400})
            across = await over_the_turn_of_a_month(made, long, monkeypatch)
            other = await made.post(long, path, key="globex/main")
            assert told(other) == (None, None)

            async def tested(said, tenant="acme", **more):
                body = {"project": "main", "text": said, **more}
                json_body = {"content-type": "application/json"}
                return await made.post(body, f"/admin/v1/tenants/{tenant}/marks/detect", key="dpo", headers=json_body)

            period = datetime.now(UTC).strftime("%Y-%m")
            found = (await tested(text)).json
            assert (found["verdict"], found["period"], found["models"]) == ("marked", period, ["writer"])
            assert found["p_below"] in (1e-12, 1e-9, 1e-6, 1e-3) and found["tests"] == 3
            assert "domicile mark measure acme --weights" in found["warning"]
            for month, said in across.items():
                seen = (await tested(said)).json
                assert (seen["verdict"], seen["period"]) == ("marked", month)
            assert (await tested(stream.text)).json["verdict"] == "marked"
            unmarked = (await tested(other.text)).json
            assert (unmarked["verdict"], unmarked["warning"]) == ("not_found", None), "of a tenant without a mark"
            assert (await tested("short")).json["verdict"] == "too_short"
            assert (await tested(text, project="none")).status == 404
            assert (await tested(text, tenant="globex")).status == 404, "of another tenant"
            assert (
                await made.post({"project": "main", "text": text}, "/admin/v1/tenants/acme/marks/detect")
            ).status == 401
            events = made.events()
            file = tmp_path / "text.txt"
            file.write_text(text)
            asked = ["mark", "detect", "acme", str(file), "--project", "main", "--data", str(made.data), "--json"]
            local = await asyncio.to_thread(CliRunner().invoke, app, [*asked, "--weights", str(models / "writer")])
            again = ["backend", "replay", "acme", seeded[0].headers["x-request-id"], "--data", str(made.data), "--json"]
            replayed = await asyncio.to_thread(CliRunner().invoke, app, again)
            live = await asyncio.to_thread(CliRunner().invoke, app, asked)
            said = await asyncio.to_thread(CliRunner().invoke, app, asked[:-1])
            listed = CliRunner().invoke(app, ["mark", "list", "acme", "--data", str(made.data), "--json"])
        gone = await asyncio.to_thread(CliRunner().invoke, app, asked)
    completed = [event for event in events if event["type"] == "inference.completed"]
    assert {event["watermark"] for event in completed} >= {"marked", "greedy", "short"}
    assert {event["mark_period"] for event in completed} == {period, *across}
    tests = [event for event in events if event["type"] == "content.mark_tested"]
    assert [event["verdict"] for event in tests][:4] == ["marked"] * 4
    assert text[:20] not in json.dumps(events)
    assert (replayed.exit_code, json.loads(replayed.stdout)["equal"]) == (0, True), replayed.output
    assert (live.exit_code, json.loads(live.stdout)["verdict"]) == (0, "marked"), live.output
    assert json.loads(live.stdout)["warning"] == found["warning"] == said.stdout.splitlines()[1], said.output
    assert (local.exit_code, json.loads(local.stdout)["verdict"]) == (0, "marked"), local.output
    assert json.loads(listed.stdout) == [
        {"period": each, "models": ["writer"], "fingerprints": False} for each in (period, "2026-02", "2026-01")
    ]
    assert (gone.exit_code, json.loads(gone.stdout)["untested_models"]) == (2, ["writer"]), gone.output


async def test_a_server_that_does_not_mark_is_refused_where_policy_demands_it(tmp_path, files):  # noqa: F811
    async with Server(files) as server:
        set_up = registering(server.url, Trust(pin=pin_of(files)), policy=MARKED)
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            answer = await made.post(chat("hello"))
    assert answer.status == 403
    assert "transparency.marking" in answer.body.decode()
    assert server.received == []


@pytest.mark.parametrize(
    ("kind", "asked"),
    [("vllm", {"watermarking": True}), ("sglang", {"watermark": {"enabled": True}}), ("tensorrt-llm", {})],
)
async def test_other_servers_are_asked_in_their_words_and_a_caller_s_are_left_out(tmp_path, files, kind, asked):  # noqa: F811
    async with Server(files) as server:
        set_up = registering(server.url, Trust(pin=pin_of(files), watermark=kind), policy=MARKED)
        async with lab(tmp_path, set_up=set_up, backends={}) as made:
            declining = {"watermarking": False, "watermark": {"enabled": False}, "vllm_xargs": {"gamma": 0}}
            declining |= {"enable_watermark": False, "Watermark_Config": None, "custom_logit_processor": "none"}
            nested = {
                "extra_body": dict(declining),
                "nvext": {"deeper": [dict(declining)]},
                "metadata": dict(declining),
            }
            answer = await made.post(chat("hello", **declining, **nested))
            greedy = await made.post(chat("hello", temperature=0))
            events = made.events()
    (_, body), _ = server.received
    known = {"watermarking", "watermark", *declining}
    assert {name: value for name, value in body.items() if name in known} == asked
    assert all(name not in json.dumps({at: body.get(at) for at in nested}) for name in declining), body
    assert (answer.status, answer.headers["x-domicile-watermark"]) == (200, "requested")
    assert greedy.headers["x-domicile-watermark"] == "greedy"
    completed = [event["watermark"] for event in events if event["type"] == "inference.completed"]
    assert completed == ["requested", "greedy"]


async def test_without_a_demand_a_caller_s_own_words_reach_its_server(tmp_path, files):  # noqa: F811
    async with (
        Server(files) as server,
        lab(tmp_path, set_up=registering(server.url, Trust(pin=pin_of(files))), backends={}) as made,
    ):
        answer = await made.post(chat("hello", watermarking=True))
    assert server.received[0][1]["watermarking"] is True
    assert "x-domicile-watermark" not in answer.headers
