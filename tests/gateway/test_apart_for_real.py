"""Prefill and decode apart with real processes: launched, paired, recorded, and one of them killed."""

import asyncio
import json

import psutil
import pytest

from gateway.store.reports.fleet_inventory import replicas_of
from regions.fleet.deployment import Deployment
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.lab import OPEN_POLICY, chat, lab
from tests.fakes.small_engines import small_engines
from tests.gateway.test_fleet_for_real import backends_of

WISH = {"tenant": "acme", "id": "pair", "model": "small", "weights": "tiny", "regions": ("eu-fr-par",), "wait_s": 200}


@pytest.fixture(autouse=True)
def _with_a_small_cache():
    with small_engines():
        yield


async def pair(made, but=()):
    """The replicas by role, once one of each is ready that is not in `but`."""
    async with asyncio.timeout(150):
        while True:
            found = replicas_of(made.control._database, "acme", "pair", ended=False).items
            ready = {each.role: each.id for each in found if each.state == "ready" and each.id not in but}
            if len(ready) == 2:
                return ready
            await asyncio.sleep(0.1)


def pid_of(data, name):
    log = (data / "backends" / name / "backend.log").read_text()
    return next(json.loads(line)["pid"] for line in log.splitlines() if line.startswith('{"event"'))


def last(made, kind):
    return [event for event in made.events() if event["type"] == kind][-1]


def said(answer):
    return answer.json()["choices"][0]["message"]["content"]


async def test_a_pair_answers_as_one_is_on_record_and_survives_its_prefill_backend(tmp_path):
    models = tmp_path / "models"
    write_folder(models / "tiny", tiny_model())
    wish = Deployment(**WISH, kind="disaggregated", prefill=1, min_replicas=1, max_replicas=1)

    def set_up(made):
        made.tenant("acme", OPEN_POLICY)
        made.control.create_deployment(wish)

    fleet = {"models": str(models), "every_s": 0.1}
    async with lab(tmp_path, set_up=set_up, backends={}, fleet=fleet) as made:
        ready = await pair(made)
        assert set(ready) == {"prefill", "decode"}
        question = "what is a bank for? " * 12
        async with asyncio.timeout(60):
            while True:  # until every gateway has learnt of both
                first = await made.post(chat(question, max_tokens=8, temperature=0))
                if first.status == 200 and last(made, "inference.completed").get("prefill_computed"):
                    break
        first = await made.post(chat(f"so, {question}", max_tokens=8, temperature=0))
        assert first.headers["x-domicile-backend"] == ready["decode"]
        accepted, completed = last(made, "inference.accepted"), last(made, "inference.completed")
        assert accepted["backend_id"] == completed["backend_id"] == ready["decode"]
        assert accepted["prefill"] == {
            name: ready["prefill"] if name == "backend_id" else accepted[name] for name in accepted["prefill"]
        }
        assert (completed["prefill_backend_id"], completed["prefill_computed"]) == (ready["prefill"], "elsewhere")
        psutil.Process(pid_of(made.data, ready["prefill"])).kill()
        second = await made.post(chat("another " + question, max_tokens=8, temperature=0))
        assert second.status == 200
        assert second.headers["x-domicile-backend"] == ready["decode"]
        completed = last(made, "inference.completed")
        assert completed.get("prefill_computed", "here") == "here"
        again = await pair(made, but=(ready["prefill"],))
        assert again["decode"] == ready["decode"]
    assert backends_of(made.data) == []
    ended = [event for event in made.events() if event["type"] == "admin.replica.stopped"]
    assert {event["target"] for event in ended} == set(again.values())
    assert all(event["detail"]["role"] in ("prefill", "decode") for event in ended)
