"""Long prompts are redacted in processes: with the same result, in turn, within a budget, and never passed unread."""

import asyncio
import gc
import json
import os
import signal
import threading
import weakref
from contextlib import suppress

import pytest

from gateway.configuration.settings import Inspection as Settings
from gateway.content import inspection as module
from gateway.content.inspection import INLINE_BYTES, INLINE_PARSE_BYTES, Inspection, counted
from gateway.content.prompt import OutputFilters, prepare
from gateway.content.whole_answer import Handling, whole_answer
from gateway.errors import BackendFailed, BodyTooComplex, RedactionRefused, TooManyConcurrent
from gateway.openai.answer_formats import Vectors
from gateway.openai.bounds import SLICE
from gateway.openai.endpoints import CHAT
from policy.errors import RedactionBlocked, RedactionError
from tests.fakes.lab import OPEN_POLICY, POLICY, chat, lab
from tests.gateway.parts import call, principal

LONG = "Write to anna.schmidt@example.org or DE89 3704 0044 0532 0130 00. " * 400
CONVERSATION = {"metadata": {"conversation_id": "c-1"}}  # the same placeholders in each call
OWN = "  dictionaries: {codename: [bluebird]}\n  patterns: {ticket: 'T-[0-9]{6}'}\n"
ACTIONS = "  input: {custom.codename: mask, custom.ticket: mask, "
HASHING = POLICY.replace("email: pseudonymise", "email: hash").replace("  input: {", OWN + ACTIONS)
KEPT = Handling(keeps=True)
SLOW = "+49 30 1234567 " * 40_000


def redactor(policy=POLICY):
    return principal(policy).in_force.redactor


@pytest.mark.parametrize("policy", [POLICY, HASHING])
async def test_a_process_redacts_as_the_gateway_itself_does(policy):
    asked = call(chat(LONG + "bluebird T-123456", **CONVERSATION))
    assert len(asked.raw) > INLINE_BYTES
    here = prepare(asked, redactor(policy), "main")
    async with Inspection(Settings(processes=1)) as inspection:
        there = await inspection.prepare(asked, redactor(policy), "acme", "main")
    assert there.body == here.body and there.counts == here.counts and there.counts["email"] == 400
    assert b"anna.schmidt" not in there.body
    assert there.output.counts == {}


async def test_a_short_prompt_that_is_dense_with_digits_goes_to_a_process():
    dense = call(chat("+49 30 1234567 " * 200))
    assert len(dense.raw) < INLINE_BYTES
    async with Inspection(Settings(processes=1)) as inspection:
        there = await inspection.prepare(dense, redactor(), "acme", "main")
        assert len(inspection._all) == 1
    assert there.counts == prepare(dense, redactor(), "main").counts


ANSWERED = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "small jan@example.org",
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}  # fmt: skip


def answered(text, **more):
    """A whole answer of two choices and a tool call, with odd names."""
    call = {"id": "c 1 <", "type": "function", "function": {"name": "f", "arguments": json.dumps({"to": text})}}
    choices = [
        {"index": 0, "message": {"role": "assistant", "content": text, "tool_calls": [call]}, "finish_reason": "stop"},
        {"index": 1, "message": {"content": [{"type": "text", "text": text}]}, "finish_reason": "a@example.org!"},
    ]
    return json.dumps({**ANSWERED, "choices": choices, **more}).encode()


async def test_a_process_filters_a_long_answer_as_the_gateway_itself_does():
    prompt = prepare(call(chat(LONG)), redactor(), "main")
    back = prompt.fields["messages"][0]["content"][:400]  # with placeholders, to be restored
    raw = answered(back + LONG)
    output = OutputFilters(redactor(), prompt.output._pseudonyms)
    here = whole_answer(raw, KEPT, output.make)
    async with Inspection(Settings(processes=1)) as inspection:
        there = await inspection.whole_answer(raw, KEPT, prompt.output, "acme")
        assert len(inspection._all) == 1
    assert there == here and dict(prompt.output.counts) == dict(output.counts)
    body = json.loads(there.raw)
    assert body["usage"] == ANSWERED["usage"]
    assert "Write to anna.schmidt@example.org" in body["choices"][0]["message"]["content"]
    assert there.texts[0]["content"] == body["choices"][0]["message"]["content"]


@pytest.mark.parametrize("more", [{}, {"usage": {"prompt_tokens": -1}}])
async def test_a_large_answer_without_a_filter_is_read_in_a_process_and_passes_as_it_came(more):
    raw = answered("x" * INLINE_PARSE_BYTES, **more)
    async with Inspection(Settings(processes=1)) as inspection:
        there = await inspection.whole_answer(raw, KEPT, None, "acme")
        assert len(inspection._all) == 1
    assert there == whole_answer(raw, KEPT, None)
    assert (there.raw is raw) == (not more) and there.summary.tool_calls == 1
    assert there.summary.finish_reasons == ("stop", "other")


async def test_a_large_answer_of_vectors_is_read_in_a_process():
    data = [{"index": at, "embedding": [0.25] * 1000, "text": "not asked for"} for at in range(40)]
    raw = json.dumps({"data": data, "model": "m", "usage": {"prompt_tokens": 3, "total_tokens": 3}}).encode()
    vectors = Handling(Vectors())
    async with Inspection(Settings(processes=1)) as inspection:
        there = await inspection.whole_answer(raw, vectors, None, "acme")
        assert len(inspection._all) == 1
    assert there == whole_answer(raw, vectors, None) and there.summary.usage.prompt_tokens == 3
    assert b"not asked for" not in there.raw and there.raw.count(b"0.25") == 40_000


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"{}" + b" " * 100_000, b'{"choices":[5]}' + b" " * 100_000])
async def test_a_large_answer_that_is_none_is_the_backends_fault(raw):
    with pytest.raises(BackendFailed) as here:
        whole_answer(raw, KEPT, None)
    async with Inspection(Settings(processes=1)) as inspection:
        with pytest.raises(BackendFailed) as there:
            await inspection.whole_answer(raw, KEPT, None, "acme")
    assert there.value.message == here.value.message


@pytest.mark.parametrize("budget_s", [30, 0.2])
async def test_a_long_answer_that_may_not_be_sent_is_refused_and_paid_for(budget_s):
    blocking = redactor(POLICY.replace("email: mask", "email: block"))
    prompt = prepare(call(chat("hi")), blocking, "main")
    raw = answered(SLOW[: 10_000 if budget_s > 1 else None] + LONG)
    async with Inspection(Settings(processes=1, budget_s=budget_s)) as inspection:
        whole = await inspection.whole_answer(raw, KEPT, prompt.output, "acme")
    with pytest.raises(RedactionError if budget_s < 1 else RedactionBlocked):
        whole.passed()
    assert whole.summary.characters >= 10_000 and not whole.texts


async def test_a_short_prompt_and_a_policy_without_redaction_start_no_process():
    async with Inspection(Settings(processes=1)) as inspection:
        await inspection.prepare(call(chat("hi")), redactor(), "acme", "main")
        await inspection.prepare(call(chat(LONG)), redactor(OPEN_POLICY), "acme", "main")
        assert inspection._all == set()


async def test_what_policy_blocks_is_refused_with_its_place_from_a_process_too():
    asked = call(chat(LONG + " key sk-proj-" + "aB3" * 16))
    async with Inspection(Settings(processes=1)) as inspection:
        with pytest.raises(RedactionRefused) as there:
            await inspection.prepare(asked, redactor(), "acme", "main")
    with pytest.raises(RedactionRefused) as here:
        prepare(asked, redactor(), "main")
    assert (there.value.code, there.value.details, there.value.message) == (
        here.value.code, here.value.details, here.value.message,
    )  # fmt: skip
    assert there.value.code == "redaction_blocked"


async def test_what_takes_longer_than_the_budget_is_refused_and_its_process_ended():
    async with Inspection(Settings(processes=1, budget_s=0.2)) as inspection:
        with pytest.raises(RedactionRefused) as refused:
            await inspection.prepare(call(chat(SLOW)), redactor(), "acme", "main")
        assert refused.value.code == "redaction_timeout"
        assert inspection._all == set()


async def test_a_process_that_dies_refuses_its_prompt_and_the_next_one_is_inspected():
    async with Inspection(Settings(processes=1)) as inspection:
        await inspection.warm()
        (process,) = inspection._all
        dying = asyncio.create_task(inspection.prepare(call(chat(SLOW)), redactor(), "acme", "main"))
        await asyncio.sleep(0.3)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RedactionRefused, match="could not be inspected"):
            await dying
        assert b"anna" not in (await inspection.prepare(call(chat(LONG)), redactor(), "acme", "main")).body


async def test_one_tenant_has_one_process_at_work_and_the_other_tenants_are_served(monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    async with Inspection(Settings(processes=2)) as inspection:
        slow = [asyncio.create_task(inspection.prepare(call(chat(SLOW)), redactor(), "acme", "main")) for _ in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(TooManyConcurrent):
            await inspection.prepare(call(chat(SLOW)), redactor(), "acme", "main")
        await inspection.prepare(call(chat(LONG)), redactor(), "globex", "main")
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert inspection._queues["acme"].turn.locked(), "a caller that left does not free the process"


async def test_a_large_body_is_parsed_as_a_small_one():
    raw = json.dumps(chat(LONG * 4)).encode()
    async with Inspection() as inspection:
        assert (await inspection.parsed(CHAT, raw, "acme")).body == json.loads(raw)


async def test_while_a_large_body_is_counted_the_event_loop_has_its_turn_after_each_slice():
    raw = json.dumps(chat("[" * 2_000_000)).encode()
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await counted(raw)
    task.cancel()
    assert turns >= len(raw) // SLICE


async def test_a_large_body_with_too_much_in_it_never_reaches_a_parser(monkeypatch):
    monkeypatch.setattr(module, "read_body", None)
    async with Inspection() as inspection:
        with pytest.raises(BodyTooComplex):
            await inspection.parsed(CHAT, b'{"x":[' + b"{}," * 100_000, "acme")


async def test_large_bodies_are_parsed_one_at_a_time_and_each_tenant_has_its_turn():
    lane, running, order = module.Lane(), [], []

    def work(name):
        running.append(name)
        order.append((name, len(running)))
        running.remove(name)

    async with asyncio.TaskGroup() as group:
        for name in ("acme", "acme", "acme", "globex"):
            group.create_task(lane.run(name, work, name))
    lane.close()
    assert [name for name, _ in order].index("globex") <= 1, "one large body of another tenant may be before it"
    assert {count for _, count in order} == {1} and len(order) == 4
    assert lane._queues == {}


async def test_after_each_step_the_thread_lets_the_others_run_for_as_long_as_that_took(monkeypatch):
    class Clock:
        now, slept = 100.0, ()

        def monotonic(self):
            return self.now

        thread_time = monotonic

        def sleep(self, seconds):
            self.slept += (seconds,)
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    lane = module.Lane()

    def work(seconds, fails=False):
        clock.now += seconds
        if fails:
            raise ValueError

    await lane.run("acme", work, 2)
    assert clock.slept == (), "the first has nothing to wait for"
    await lane.run("globex", work, 3)
    assert clock.slept == (2,)
    with pytest.raises(ValueError):
        await lane.run("acme", work, 4, True)
    assert clock.slept == (2, 3)
    await lane.run("acme", work, 1)
    assert clock.slept == (2, 3, 4), "also after a step that failed"
    clock.now += 0.25
    await lane.run("acme", work, 1)
    assert clock.slept[3:] == (0.75,)
    clock.now += 10
    await lane.run("acme", work, 1)
    assert clock.slept[4:] == ()
    lane.close()


async def test_a_refused_body_is_let_go_of_without_a_collection_of_garbage(monkeypatch):
    class Body:
        """Something that can be watched going."""

    async def refuse(self, tenant, queue, job):
        raise RedactionRefused("no")

    monkeypatch.setattr(Inspection, "_in_turn", refuse)

    async def refused():
        body = Body()
        async with Inspection() as inspection:
            with suppress(RedactionRefused):
                await inspection._result("acme", module._Queue(), body)
            await asyncio.sleep(0)  # the task's own callbacks
        return weakref.ref(body)

    gc.disable()
    try:
        assert (await refused())() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("policy", [POLICY, OPEN_POLICY])
async def test_no_step_over_a_large_body_runs_in_the_event_loop(policy, monkeypatch):
    there = threading.get_ident()

    def elsewhere(work):
        def run(*arguments):
            assert threading.get_ident() != there
            return work(*arguments)

        return run

    for step in ("read_body", "checked_call", "prepare", "leaving", "unredacted"):
        monkeypatch.setattr(module, step, elsewhere(getattr(module, step)))
    async with Inspection(Settings(processes=1)) as inspection:
        asked = await inspection.parsed(CHAT, json.dumps(chat(LONG * 4)).encode(), "acme")
        await inspection.prepare(asked, redactor(policy), "acme", "main")
        await inspection.unredacted(asked, redactor(policy), "acme", "main")


async def test_through_the_whole_gateway_nothing_personal_leaves_and_the_answer_is_restored(tmp_path):
    async with lab(tmp_path) as made:
        made.backends["acme-1"].say = lambda body: body["messages"][-1]["content"][:60]
        answer = await made.post(chat(LONG))
        assert answer.status == 200 and answer.text.startswith("Write to anna.schmidt@example.org")
        assert "anna" not in made.backends["acme-1"].received
        of_calls = [kind for kind in made.types() if kind.startswith("inference")]  # retention runs beside them
        assert of_calls == ["inference.accepted", "inference.completed"]
