"""Calls for a model that sleeps: through a real gateway, whose launcher starts backends in its own process."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.request import parking
from gateway.server import fleet as fleet_room
from gateway.store.reports.fleet_inventory import deployment_at
from regions.errors import LaunchError
from regions.fleet.deployment import Deployment
from regions.fleet.reconciler import _why
from tests.fakes.lab import OPEN_POLICY, chat, lab, until
from tests.fakes.launcher import FakeLauncher

WISH = Deployment(tenant="acme", id="small", model="small", weights="small.gguf", regions=("eu-fr-par",), wait_s=20)


@pytest.fixture
def sleeping(tmp_path, monkeypatch):
    """Makes a lab whose deployment has no replica."""
    launchers = []

    def make(*, launcher=None, policy=OPEN_POLICY, wish=WISH, **fleet):
        def local(data, authority, *, on_change, **_):
            made = launcher or FakeLauncher()
            made.on_change = on_change
            launchers.append(made)
            return made

        monkeypatch.setattr(fleet_room, "LocalLauncher", local)

        def set_up(made):
            made.tenant("acme", policy)
            made.control.create_deployment(wish)

        made = lab(tmp_path, set_up=set_up, backends={}, fleet={"every_s": 0.1, **fleet})
        made.launchers = launchers
        return made

    return make


class HeldLauncher(FakeLauncher):
    """Starts nothing before `go_on` is set."""

    def __init__(self):
        super().__init__()
        self.go_on = asyncio.Event()

    async def start(self, spec, **more):
        await self.go_on.wait()
        return await super().start(spec, **more)


@pytest.fixture
def parked(monkeypatch):
    """Waits until so many calls of the tenant wait for a backend."""
    places = []
    made = parking.Parking.__init__

    def noted(self, *args):
        made(self, *args)
        places.append(self)

    monkeypatch.setattr(parking.Parking, "__init__", noted)
    return lambda calls: until(lambda: places[-1]._taken["acme"] == calls)


async def test_a_call_for_a_model_that_sleeps_wakes_it_and_is_answered(sleeping):
    async with sleeping() as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.text) == (200, "The capital is Paris.")
        assert answer.headers["x-domicile-backend"].startswith("small-")
        assert made.types()[-2:] == ["inference.accepted", "inference.completed"]
        assert "admin.replica.ready" in made.types()


async def test_all_that_wait_are_answered_by_the_one_that_comes_up(sleeping):
    launcher = FakeLauncher(takes_s=0.5)
    async with sleeping(launcher=launcher) as made:
        answers = await asyncio.gather(*(made.post(chat(f"hi {n}", stream=n % 2 == 0)) for n in range(12)))
        assert {answer.status for answer in answers} == {200}
        assert {answer.text for answer in answers} == {"The capital is Paris."}
        assert len(launcher.specs) == 1


async def test_the_model_is_offered_while_it_sleeps(sleeping):
    async with sleeping() as made:
        assert [each["id"] for each in (await made.get("/v1/models")).json["data"]] == ["small"]


async def test_a_stream_that_waits_is_kept_alive_and_then_says_where_it_ran(sleeping, monkeypatch):
    monkeypatch.setattr(parking, "COMMENT_S", 0.2)
    async with sleeping(launcher=FakeLauncher(takes_s=1.5)) as made:
        answer = await made.post(chat("hi", stream=True))
        assert answer.status == 200
        assert "x-domicile-backend" not in answer.headers
        said = answer.body.decode()
        assert said.startswith(": waiting for a backend\n\n")
        assert ": x-domicile-backend: small-" in said
        assert ": x-domicile-receipt: acme/" in said
        assert (answer.text, answer.events[-1]) == ("The capital is Paris.", "[DONE]")


async def test_what_is_not_ready_in_time_is_refused_and_nothing_is_on_the_bill(sleeping):
    wish = WISH.model_copy(update={"wait_s": 1})
    async with sleeping(launcher=FakeLauncher(takes_s=30), wish=wish) as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (503, "backend_starting")
        assert int(answer.headers["retry-after"]) >= 1
        assert "inference.accepted" not in made.types()


async def test_a_stream_that_is_kept_alive_is_refused_inside(sleeping, monkeypatch):
    monkeypatch.setattr(parking, "COMMENT_S", 0.2)
    wish = WISH.model_copy(update={"wait_s": 1})
    async with sleeping(launcher=FakeLauncher(takes_s=30), wish=wish) as made:
        answer = await made.post(chat("hi", stream=True))
        assert answer.status == 200
        assert [event["error"]["code"] for event in answer.events] == ["backend_starting"]


async def test_more_than_may_wait_are_refused_at_once(sleeping, parked):
    launcher = HeldLauncher()
    async with sleeping(launcher=launcher, waiting_per_tenant=2) as made:
        first = [asyncio.create_task(made.post(chat("hi"))) for _ in range(2)]
        await parked(2)
        answer = await made.post(chat("hi"))
        assert not any(task.done() for task in first), "it did not wait for them"
        assert (answer.status, answer.error["code"]) == (503, "too_many_waiting")
        assert "retry-after" in answer.headers
        launcher.go_on.set()
        assert [done.status for done in await asyncio.gather(*first)] == [200, 200]


async def test_what_policy_denies_wakes_nothing(sleeping):
    policy = "policy: us\nversion: 1\nresidency: {process_in: [US], store_in: [US]}\n"
    launcher = FakeLauncher()
    async with sleeping(launcher=launcher, policy=policy) as made:
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (403, "residency_denied")
        await asyncio.sleep(0.3)
        assert launcher.specs == []


async def test_what_redaction_blocks_wakes_nothing(sleeping):
    policy = OPEN_POLICY + "redaction: {input: {iban: block}}\n"
    launcher = FakeLauncher()
    async with sleeping(launcher=launcher, policy=policy) as made:
        answer = await made.post(chat("pay to DE89 3704 0044 0532 0130 00"))
        assert answer.status == 422
        await asyncio.sleep(0.3)
        assert launcher.specs == []


async def test_a_key_that_is_revoked_while_it_waits_gets_no_answer(sleeping, parked):
    launcher = HeldLauncher()
    async with sleeping(launcher=launcher) as made:
        waiting = asyncio.create_task(made.post(chat("hi")))
        await parked(1)
        made.control.revoke_project("acme", "main")
        launcher.go_on.set()
        assert (await waiting).status == 401
        assert "inference.accepted" not in made.types()


async def test_a_call_that_waited_is_on_record_under_what_was_in_force_after_the_wait(sleeping, parked):
    launcher = HeldLauncher()
    async with sleeping(launcher=launcher) as made:
        waiting = [asyncio.create_task(made.post(chat("hi"))) for _ in range(2)]
        await parked(2)
        made.control.activate_policy("acme", OPEN_POLICY.replace("version: 1", "version: 2"))
        await made.taken_over()
        launcher.go_on.set()
        assert {(await call).status for call in waiting} == {200}
        said = [event["policy_version"] for event in made.events() if event["type"] == "inference.accepted"]
        assert said == ["2", "2"]


async def test_content_that_a_policy_kept_before_the_wait_is_not_kept_where_the_one_after_it_keeps_none(
    sleeping, parked
):
    launcher = HeldLauncher()
    keeping = OPEN_POLICY + 'retention: {metadata: 12mo, content: "encrypted, 30d"}\n'
    async with sleeping(launcher=launcher, policy=keeping) as made:
        waiting = asyncio.create_task(made.post(chat("hi")))
        await parked(1)
        made.control.activate_policy("acme", OPEN_POLICY.replace("version: 1", "version: 2"))
        await made.taken_over()
        launcher.go_on.set()
        assert (await waiting).status == 200
        assert [event["type"] for event in made.events() if "commits" in event] == []


async def test_a_call_that_is_stopped_while_it_waits_is_not_said_to_be_decided_by_the_former_policy(sleeping, parked):
    launcher = HeldLauncher()
    async with sleeping(launcher=launcher) as made:
        waiting = asyncio.create_task(made.post(chat("hi")))
        await parked(1)
        made.control.stop("acme", project="main", reason="bias")
        await made.taken_over()
        launcher.go_on.set()
        assert (await waiting).status == 403
        (denied,) = [event for event in made.events() if event["type"] == "inference.denied"]
        assert "policy_hash" not in denied


async def test_who_leaves_while_waiting_leaves_no_trace_in_the_queue(sleeping, parked):
    launcher = HeldLauncher()
    async with sleeping(launcher=launcher, waiting_per_tenant=1) as made:
        waiting = asyncio.create_task(made.post(chat("hi")))
        await parked(1)
        waiting.cancel()
        await parked(0)
        launcher.go_on.set()
        assert (await made.post(chat("hi"))).status == 200


async def test_a_drained_deployment_keeps_nobody_waiting(sleeping):
    async with sleeping() as made:
        made.control.drain_deployment("acme", "small")
        await made.taken_over()
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("end", ["drain", "delete", "revoke"])
@pytest.mark.parametrize("stream", [False, True])
async def test_who_waits_for_what_will_not_come_is_told_soon(sleeping, parked, monkeypatch, end, stream):
    monkeypatch.setattr(parking, "COMMENT_S", 0)  # a stream has begun when it is parked
    async with sleeping(launcher=FakeLauncher(takes_s=3600)) as made:
        waiting = asyncio.create_task(made.post(chat("hi", stream=stream)))
        await parked(1)
        # by a thread, for the fleet may be writing, and waits for this loop
        if end == "revoke":
            await asyncio.to_thread(made.control.revoke_tenant, "acme")
        else:
            await asyncio.to_thread(getattr(made.control, f"{end}_deployment"), "acme", "small")
        async with asyncio.timeout(15):  # less than a call waits where nothing changes
            answer = await waiting
        error = answer.events[-1]["error"] if stream else answer.error
        assert error["code"] == ("revoked_api_key" if end == "revoke" else "model_not_found")
        assert "inference.accepted" not in made.types()


async def test_a_crashed_backend_s_successor_answers_who_came_meanwhile(sleeping):
    launcher = FakeLauncher()
    async with sleeping(launcher=launcher, wish=WISH.model_copy(update={"min_replicas": 1})) as made:
        assert (await made.post(chat("hi"))).status == 200
        (only,) = launcher.running
        await launcher.crash(only)
        await asyncio.sleep(0.5)
        answer = await made.post(chat("hi"))
        assert answer.status == 200
        assert answer.headers["x-domicile-backend"] != only


WHY = "backend did not start: no memory; read the log of the backend"


async def test_who_waits_for_what_keeps_failing_is_told_that_it_cannot_start_and_why(sleeping, monkeypatch):
    monkeypatch.setattr(parking, "PATIENCE_S", 0.2)
    monkeypatch.setattr("regions.fleet.back_off.FIRST_BACK_OFF_S", 0.05)
    launcher = FakeLauncher(fails=1000)
    async with sleeping(launcher=launcher) as made:
        answer = await made.post(chat("hi"))  # the code is another one where a call has waited out its time
        assert (answer.status, answer.error["code"]) == (503, "backend_cannot_start")
        assert "cannot start" in answer.error["message"] and WHY in answer.error["message"]
        assert (answer.headers["x-should-retry"], "retry-after" in answer.headers) == ("false", False)
        shown = deployment_at(made.gateway.directory._database, "acme", "small")
        assert shown.failures >= 2 and shown.failure == WHY and shown.failed_at is not None
        monkeypatch.setattr(parking, "PATIENCE_S", 15)
        launcher.fails = 0  # mended: the next call has it tried again, and is answered
        assert (await made.post(chat("hi"))).status == 200
        shown = deployment_at(made.gateway.directory._database, "acme", "small")
        assert (shown.failures, shown.failure) == (0, None)


async def test_a_stream_that_cannot_start_is_refused_by_its_status(sleeping, monkeypatch):
    monkeypatch.setattr(parking, "PATIENCE_S", 0.2)
    monkeypatch.setattr(parking, "COMMENT_S", 0.2)
    monkeypatch.setattr("regions.fleet.back_off.FIRST_BACK_OFF_S", 0.05)
    async with sleeping(launcher=FakeLauncher(fails=1000)) as made:
        await made.post(chat("hi"))
        answer = await made.post(chat("hi", stream=True))
        assert (answer.status, answer.error["code"]) == (503, "backend_cannot_start")
        assert (answer.headers["x-should-retry"], "retry-after" in answer.headers) == ("false", False)


async def test_one_failed_start_is_not_yet_a_reason_to_give_up(sleeping, monkeypatch):
    monkeypatch.setattr(parking, "PATIENCE_S", 0.0)
    monkeypatch.setattr("regions.fleet.back_off.FIRST_BACK_OFF_S", 0.05)
    async with sleeping(launcher=FakeLauncher(fails=1)) as made:
        assert (await made.post(chat("hi"))).status == 200


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no GPU of this machine is free for small-12ab34cd; it may use none",
         "no GPU of this machine is free; it may use none"),
        ("backend small-12ab34cd did not start: it ended with status 1\nFile \"/opt/domicile/backend/x.py\"",
         'it did not start: it ended with status 1 File "x.py"; read the log of the backend'),
        ("backend small-12ab34cd did not start: it ended with status 1\n  | INFO started\n  | error: no memory\n"
         "  | INFO bye\n  (log: /srv/d/backend.log)",
         "it did not start: it ended with status 1 | error: no memory (log: backend.log); read the log of the backend"),
        ("backend small-12ab34cd did not start: it ended with status 1\n  | " + "x" * 500 + "\n  | ValueError: last",
         "it did not start: it ended with status 1 | ValueError: last; read the log of the backend"),
        ("x" * 5000, "x" * 400),
    ],
)  # fmt: skip
def test_of_a_failure_callers_learn_neither_names_of_replicas_nor_folders(said, shown):
    replica = SimpleNamespace(id="small-12ab34cd")
    assert _why(LaunchError(said), replica) == shown
