"""Readiness is a round trip through what an answer needs; being alive is not."""

import asyncio

import pytest

from gateway.server.health import Health
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import lab

PLACES = ("acme/eu-fr-par/acme-1", "acme/eu-de-fra/acme-2")


def passing():
    async def check():
        pass

    return check


def failing(sentence="it is broken"):
    async def check():
        raise RuntimeError(sentence)

    return check


async def test_all_parts_and_one_backend_make_it_ready():
    report = await Health({"audit": passing()}, lambda: {"a": failing(), "b": passing()}).report()
    assert report.ready
    assert report.backends["a"].because == "it is broken"


@pytest.mark.parametrize(
    ("parts", "backends"),
    [
        ({"audit": failing(), "directory": passing()}, {"a": passing()}),
        ({"audit": passing()}, {"a": failing(), "b": failing()}),
        ({"audit": failing()}, {}),
    ],
    ids=["a part of its own", "every backend", "a part, without backends"],
)
async def test_what_an_answer_would_miss_makes_it_not_ready(parts, backends):
    assert not (await Health(parts, lambda: backends).report()).ready


async def test_without_a_backend_yet_it_may_be_ready():
    assert (await Health({"audit": passing()}, dict).report()).ready


async def test_an_error_without_words_is_named_by_its_type():
    async def check():
        raise TimeoutError

    assert (await Health({"audit": check}, dict).report()).parts["audit"].because == "TimeoutError"


async def test_probes_at_one_time_ask_once_and_an_old_report_is_made_again(monkeypatch):
    asked = 0

    async def check():
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)

    health = Health({"audit": check}, dict)
    await asyncio.gather(*(health.report() for _ in range(20)))
    assert asked == 1
    monkeypatch.setattr("gateway.server.health.CACHE_S", 0.0)
    await health.report()
    assert asked == 2


async def test_readiness_names_every_part_and_every_backend(tmp_path):
    async with lab(tmp_path, backends={place: FakeBackend() for place in PLACES}) as made:
        answer = await made.get("/readyz", key="nobody")
        assert answer.status == 200
        assert answer.json == {
            "ready": True,
            "parts": {name: {"status": "ready", "because": None} for name in ("audit", "databases", "directory")},
            "backends": {name: {"status": "ready", "because": None} for name in ("acme-1", "acme-2")},
        }
        assert "system.selftest" in made.types("_system"), "the record was really written to"


async def test_without_a_living_backend_it_is_alive_and_not_ready(tmp_path):
    async with lab(tmp_path, backends={place: FakeBackend(ready=False) for place in PLACES}) as made:
        answer = await made.get("/readyz")
        assert (answer.status, answer.json["ready"]) == (503, False)
        assert answer.json["backends"]["acme-1"] == {
            "status": "failed",
            "because": "its engine did not answer; see the log of the backend",
        }
        assert (await made.get("/healthz")).json == {"status": "alive"}


async def test_a_log_that_takes_nothing_makes_it_not_ready(tmp_path):
    async with lab(tmp_path) as made:
        await made.gateway.log.close()
        answer = await made.get("/readyz")
        assert (answer.status, answer.json["parts"]["audit"]["status"]) == (503, "failed")
        assert answer.json["parts"]["audit"]["because"] == "the audit log is closed; restart the gateway"
        assert answer.json["parts"]["directory"]["status"] == "ready"
