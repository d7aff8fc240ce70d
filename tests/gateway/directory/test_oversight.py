"""A stop holds in every gateway at once: nothing begins, what runs is cut, and all of it is on record."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from audit.storage.sqlite import SqliteReader
from gateway.cli.app import app
from gateway.directory.oversight import Stops
from gateway.errors import PolicyDenied
from gateway.installation.admin_record import recorded_admin
from gateway.installation.installation import Installation
from gateway.store.oversight import StopRecord
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import Lab, chat, lab, open_control
from tests.gateway.parts import principal

SYSTEM = "cv-screening"


def set_up(made):
    made.tenant("acme", ai_system_id=SYSTEM)
    made.project("acme", "other", ai_system_id="chat")


async def until(holds):
    async with asyncio.timeout(10):
        while not await holds():
            await asyncio.sleep(0.02)


async def test_calls_of_a_stopped_system_are_refused_and_others_are_not(tmp_path):
    async with lab(tmp_path, set_up=set_up) as made:
        assert (await made.post(chat("hi"))).status == 200

        async def refuses():
            return (await made.post(chat("hi"))).status == 403

        made.control.stop("acme", ai_system_id=SYSTEM, reason="wrong_answers")
        await until(refuses)
        asked = len(made.backends["acme-1"].bodies)
        refused = await made.post(chat("hi"))
        assert (refused.status, refused.error["code"]) == (403, "oversight.stopped")
        (reason,) = refused.error["reasons"]
        assert "AI system cv-screening was stopped by a person at" in reason["because"]
        assert reason["article"].startswith("AI Act 14(4)(e)")
        assert len(made.backends["acme-1"].bodies) == asked
        assert made.types()[-1] == "inference.denied"
        assert made.acts()[-1]["decision"]["reasons"][0]["rule"] == "oversight.stopped"
        assert (await made.post(chat("hi"), key="acme/other")).status == 200
        made.control.resume("acme", ai_system_id=SYSTEM, reason="corrected")

        async def answers():
            return (await made.post(chat("hi"))).status == 200

        await until(answers)


async def test_a_stream_that_runs_is_cut_and_on_record_as_such(tmp_path):
    backend = FakeBackend(say="word " * 1000, pieces=1000, delay_s=0.01)
    async with lab(tmp_path, set_up=set_up, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        running = asyncio.create_task(made.post(chat("hi", stream=True)))

        async def accepted():
            return "inference.accepted" in made.types()

        await until(accepted)
        made.control.stop("acme", project="main", reason="bias")
        answer = await running
        assert answer.events[-1]["error"]["code"] == "oversight.stopped"
        assert "[DONE]" not in answer.events
        last = made.acts()[-1]
        assert (last["type"], last["reason"], last["status"]) == ("inference.aborted", "oversight.stopped", 403)
        assert made.verify().ok


async def test_a_whole_answer_that_comes_after_the_stop_is_not_handed_over(tmp_path):
    backend = FakeBackend(delay_s=3)
    async with lab(tmp_path, set_up=set_up, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        running = asyncio.create_task(made.post(chat("hi")))

        async def asked():
            return bool(backend.bodies)

        await until(asked)
        made.control.stop("acme", ai_system_id=SYSTEM, reason="bias")
        answer = await running
        assert (answer.status, answer.error["code"]) == (403, "oversight.stopped")
        assert "Paris" not in answer.body.decode()
        assert made.acts()[-1]["reason"] == "oversight.stopped"


def stop_of(**more):
    at = datetime(2026, 11, 28, tzinfo=UTC)
    fields = {"cell": "eu-1", "created_at": at, "tenant": "acme", "project": None, "ai_system_id": None}
    fields |= {"reason": "bias", "stopped_at": at, "stopped_by": "cli", "resumed_at": None, "resumed_by": None}
    return StopRecord.model_validate(fields | more)


def test_a_stop_is_of_one_tenant_and_of_what_it_names():
    stops = Stops()
    stops.check(principal())
    stops.replace([stop_of(ai_system_id=SYSTEM), stop_of(project="web")])
    with pytest.raises(PolicyDenied, match="AI system cv-screening"):
        stops.check(replace(principal(), ai_system_id=SYSTEM))
    with pytest.raises(PolicyDenied, match="project web"):
        stops.check(principal(project="web"))
    stops.check(principal())  # of no system
    stops.check(replace(principal(), ai_system_id="chat"))
    stops.check(replace(principal(tenant="globex", project="web"), ai_system_id=SYSTEM))
    stops.replace([stop_of(ai_system_id=SYSTEM, resumed_at=datetime.now(UTC), resumed_by="cli")])
    stops.check(replace(principal(project="web"), ai_system_id=SYSTEM))


# --- on record, and from a shell -------------------------------------------------------------------------------------


def events(installation, tenant):
    reader = SqliteReader.open(installation.audit_log)
    try:
        return [json.loads(leaf.payload) for leaf in reader.leaves(tenant)]
    finally:
        reader.close()


def test_a_shell_stops_lists_and_resumes_and_the_record_says_who(tmp_path):
    data = tmp_path / "data"
    made = Lab(data, open_control(data))
    set_up(made)
    installation = Installation.open(data)

    def run(*words):
        return CliRunner().invoke(app, ["oversight", *words, "--data", str(data)], obj=recorded_admin)

    done = run("stop", "acme", "--system", SYSTEM, "--reason", "wrong_answers", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["stopped_by"] == "cli", done.output
    last = events(installation, "acme")[-1]
    assert (last["type"], last["actor"], last["ai_system_id"]) == ("oversight.stopped", "cli", SYSTEM)
    assert last["reason"] == "wrong_answers" and last["epoch"] > 0
    (listed,) = json.loads(run("list", "acme", "--json").stdout)
    assert listed["ai_system_id"] == SYSTEM and listed["resumed_at"] is None
    assert run("resume", "acme", "--system", SYSTEM).exit_code == 0
    assert events(installation, "acme")[-1]["type"] == "oversight.resumed"
    wrong = run("stop", "acme", "--system", "no-such")
    assert wrong.exit_code == 1 and "is part of an AI system" in wrong.output


def test_what_a_backend_serves_or_serves_no_more_is_on_record_by_model(tmp_path):
    data = tmp_path / "data"
    open_control(data).create_tenant("acme")
    installation = Installation.open(data)
    identity = BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1")
    with recorded_admin(installation) as on_event:
        control = installation.control(installation.database(), actor="cli", on_event=on_event)
        control.register_backend(identity, url="https://127.0.0.1:9000", models=["small", "old"])
        control.register_backend(identity, url="https://127.0.0.1:9000", models=["small", "old"])
        control.register_backend(identity, url="https://127.0.0.1:9001", models=["small", "new"])
        control.revoke_backend("acme", "acme-1")
        control.revoke_backend("acme", "acme-1")
    told = [event for event in events(installation, "acme") if event["type"] == "model.changed"]
    assert [(event["what"], event["model"]) for event in told] == [
        ("deployed", "old"), ("deployed", "small"),
        ("deployed", "new"), ("withdrawn", "old"), ("moved", "small"),
        ("withdrawn", "new"), ("withdrawn", "small"),
    ]  # fmt: skip
    assert {event["backend_id"] for event in told} == {"acme-1"}
    assert "before" not in told[0] and told[3]["before"] == told[0]["after"]
