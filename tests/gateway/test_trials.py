"""All backends that may answer are left alone after failures: one of them is tried rather than the call refused.

A tenant's only backend is the usual case. Its faults stay its own; policy decides each attempt; a backend that comes
back is not met by all calls at once.
"""

import asyncio

import pytest

from regions.fleet.fleet import FAILURES, TRIALS
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import OPEN_POLICY, chat, lab

ONE = "acme/eu-fr-par/acme-1"
OTHER = "acme/eu-de-fra/acme-2"
US = "acme/us-east/acme-us"
FULL = {"status": 503, "error": {"message": "no", "type": "server_error"}}


def live(made):
    return made.gateway.app._pipeline.routes._fleet.live()


async def put_out(made, *names, how=FULL):
    """Let calls fail until the circuits of these backends are open."""
    for name in names:
        vars(made.backends[name]).update(how)
    number = 0
    while any(load.available for name, load in live(made).items() if name in names):
        number += 1
        assert number < 20
        assert (await made.post(chat(f"before {number}"))).status >= 500


def came_back(made, *names):
    for name in names:
        made.backends[name].status = 200
        made.backends[name].bodies.clear()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", [FULL, {**FULL, "status": 500}], ids=["503", "500"])
async def test_a_tenants_only_backend_is_in_use_again_as_soon_as_it_works(tmp_path, stream, how):
    async with lab(tmp_path, backends={ONE: FakeBackend()}) as made:
        await put_out(made, "acme-1", how=how)
        came_back(made, "acme-1")
        for number in range(4):
            answer = await made.post(chat(f"after {number}", stream=stream))
            assert (answer.status, answer.text) == (200, "The capital is Paris.")
        assert live(made)["acme-1"].available


async def test_the_only_backends_faults_stay_its_own_while_it_is_tried(tmp_path, caplog):
    async with lab(tmp_path, backends={ONE: FakeBackend()}) as made:
        await put_out(made, "acme-1", how={**FULL, "status": 500})
        before = len(made.backends["acme-1"].bodies)
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (502, "backend_error")
        assert len(made.backends["acme-1"].bodies) == before + 1
        assert not live(made)["acme-1"].available
        assert [made.acts()[-1][each] for each in ("type", "reason")] == ["inference.aborted", "backend_error"]
        assert "backend acme-1: The backend answered 500" in caplog.messages[-1]


async def test_one_that_is_gone_is_named_as_unavailable_and_not_as_the_gateways_fault(tmp_path):
    async with lab(tmp_path, backends={}, set_up=gone) as made:
        for _ in range(FAILURES + 2):
            answer = await made.post(chat("hi"))
            assert (answer.status, answer.error["code"]) == (503, "backend_unavailable")
            assert answer.error["message"] in {  # before and after the first probe
                "No connection to the backend; try again, and report it to the operator if it returns",
                "None of the backends that may answer this is up; try again",
            }


def gone(made):
    made.tenant("acme")
    made.control.register_backend(
        BackendIdentity("eu-1", "acme", "eu-fr-par", "acme-1"), url="http://127.0.0.1:9", models=["small"]
    )


async def test_of_two_that_are_out_the_one_least_recently_tried_comes_first_and_the_other_after_it(tmp_path):
    async with lab(tmp_path, backends={ONE: FakeBackend(), OTHER: FakeBackend()}) as made:
        await put_out(made, "acme-1", "acme-2")
        tried = {name: load.tried_at for name, load in live(made).items()}
        first, second = sorted(tried, key=tried.get)
        for name in tried:
            made.backends[name].bodies.clear()
        assert (await made.post(chat("hi"))).status == 503
        assert [len(made.backends[name].bodies) for name in (first, second)] == [1, 1]
        came_back(made, second)
        made.backends[first].bodies.clear()
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.headers["x-domicile-backend"]) == (200, second)
        assert len(made.backends[first].bodies) <= 1
        for number in range(4):  # the other is not tried while this one answers
            assert (await made.post(chat(f"more {number}"))).headers["x-domicile-backend"] == second
        assert len(made.backends[first].bodies) <= 1


async def test_one_that_policy_forbids_is_not_tried_however_long_the_others_are_out(tmp_path):
    forbidden = FakeBackend()
    async with lab(tmp_path, backends={ONE: FakeBackend(), OTHER: FakeBackend(), US: forbidden}) as made:
        await put_out(made, "acme-1", "acme-2")
        for number in range(5):
            assert (await made.post(chat(f"question {number}"))).status == 503
        assert forbidden.bodies == []


async def test_a_policy_that_narrows_while_one_is_tried_governs_the_next_trial(tmp_path):
    class Narrowing(FakeBackend):
        narrow = None

        async def generate(self, request):
            if self.narrow is not None:
                await self.narrow()
            return await super().generate(request)

    async with lab(
        tmp_path,
        backends={ONE: Narrowing(), OTHER: Narrowing()},
        set_up=lambda made: made.tenant("acme", OPEN_POLICY),
    ) as made:
        await put_out(made, "acme-1", "acme-2")
        country = {"acme-1": "FR", "acme-2": "DE"}
        tried = {name: load.tried_at for name, load in live(made).items()}
        first, second = sorted(tried, key=tried.get)

        async def narrow():
            text = OPEN_POLICY.replace("version: 1", "version: 2").replace(
                "process_in: EEA", f"process_in: [{country[first]}]"
            )
            await asyncio.to_thread(made.control.activate_policy, "acme", text)
            await made.taken_over()

        came_back(made, second)
        made.backends[first].narrow = narrow
        answer = await made.post(chat("hi"))
        assert answer.status == 503
        assert made.backends[second].bodies == []


async def test_calls_that_arrive_together_do_not_all_meet_one_that_may_be_back(tmp_path):
    class Counting(FakeBackend):
        now = most = 0

        async def generate(self, request):
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await asyncio.sleep(0.05)
                return await super().generate(request)
            finally:
                self.now -= 1

    async with lab(tmp_path, backends={ONE: Counting(), OTHER: Counting()}) as made:
        await put_out(made, "acme-1", "acme-2")
        for one in made.backends.values():
            one.most = 0
        answers = await asyncio.gather(*(made.post(chat(f"together {number}")) for number in range(40)))
        assert {answer.status for answer in answers} == {503}
        assert {answer.error["code"] for answer in answers} == {"backend_unavailable"}
        assert all(float(answer.headers["retry-after"]) >= 1 for answer in answers)
        assert [0 < one.most <= TRIALS for one in made.backends.values()] == [True, True]
        came_back(made, "acme-1", "acme-2")
        answers = await asyncio.gather(*(made.post(chat(f"again {number}")) for number in range(40)))
        assert sum(answer.status == 200 for answer in answers) >= 2 * TRIALS
        answers = await asyncio.gather(*(made.post(chat(f"and again {number}")) for number in range(40)))
        assert {answer.status for answer in answers} == {200}


async def test_a_backend_that_says_it_is_not_ready_is_not_tried_and_the_call_is_refused_with_a_time(tmp_path):
    async with lab(tmp_path, backends={ONE: FakeBackend(ready=False)}) as made:
        async with asyncio.timeout(20):
            while live(made)["acme-1"].available:
                await asyncio.sleep(0.05)
        answer = await made.post(chat("hi"))
        assert (answer.status, answer.error["code"]) == (503, "backend_unavailable")
        assert answer.headers["retry-after"] == "2"
        assert made.backends["acme-1"].bodies == []
