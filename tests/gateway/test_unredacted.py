"""When redaction fails: refused, or as it is to a backend that policy names as sovereign, and to no other."""

import asyncio

import pytest

from policy.errors import RedactionError
from policy.redact import redactor
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import chat, lab

DENY = """
policy: guarded
version: 1
residency: {process_in: EEA, store_in: EEA}
redaction: {input: {email: mask, secret: block}, output: {email: mask}}
"""
SOVEREIGN = DENY.replace(
    "output: {email: mask}}",
    "output: {email: mask}, on_failure: sovereign, sovereign: {process_in: [FR], store_in: [FR],"
    " operator: {head_office: [FR], ultimate_parent: [FR]}}}",
)
MAIL = "anna.schmidt@example.org"
FRENCH, GERMAN = "acme/eu-fr-par/acme-1", "acme/eu-de-fra/acme-2"


@pytest.fixture
def broken(monkeypatch):
    """Prompts cannot be inspected; answers can."""

    def fails(*args):
        raise RedactionError("detector email failed with KeyError")

    monkeypatch.setattr(redactor, "find_spans", fails)


def open_lab(tmp_path, policy, *places):
    return lab(tmp_path, set_up=lambda made: made.tenant("acme", policy), backends={p: FakeBackend() for p in places})


def received(made):
    return {name: backend.bodies for name, backend in made.backends.items() if backend.bodies}


async def test_without_a_word_in_the_policy_the_call_is_refused_and_nothing_leaves(tmp_path, broken):
    async with open_lab(tmp_path, DENY, FRENCH, GERMAN) as made:
        answer = await made.post(chat(f"write to {MAIL}"))
        assert (answer.status, answer.error["code"]) == (422, "redaction_refused")
        assert received(made) == {} and MAIL not in answer.body.decode()
        assert made.types()[-1] == "inference.denied"


async def test_it_goes_as_it_is_to_a_sovereign_backend_and_the_record_says_so(tmp_path, broken):
    async with open_lab(tmp_path, SOVEREIGN, FRENCH, GERMAN) as made:
        for _ in range(6):
            answer = await made.post(chat(f"write to {MAIL}", user="u-1"))
            assert answer.status == 200 and answer.headers["x-domicile-region"] == "eu-fr-par"
        sent = received(made)
        assert set(sent) == {"acme-1"} and MAIL in sent["acme-1"][0]["messages"][0]["content"]
        assert "user" not in sent["acme-1"][0]
        accepted = next(event for event in made.events() if event["type"] == "inference.accepted")
        assert "redaction.on_failure" in [reason["rule"] for reason in accepted["decision"]["reasons"]]
        assert MAIL not in str(made.events())
        metrics = (await made.get("/metrics")).body.decode()
        assert (
            'domicile_policy_decisions_total{outcome="allow",rule="redaction.on_failure",tenant="acme"} 6.0' in metrics
        )


async def test_a_region_outside_the_bounds_never_gets_it_even_where_it_is_the_only_one(tmp_path, broken):
    async with open_lab(tmp_path, SOVEREIGN, GERMAN) as made:
        answer = await made.post(chat(f"write to {MAIL}"))
        assert answer.status == 422 and received(made) == {}


async def test_when_the_sovereign_backend_is_down_no_other_is_tried(tmp_path, broken):
    async with open_lab(tmp_path, SOVEREIGN, FRENCH, GERMAN) as made:
        made.control.revoke_backend("acme", "acme-1")
        async with asyncio.timeout(5):  # until every worker has heard of it
            while (answer := await made.post(chat(f"write to {MAIL}"))).status == 200:
                await asyncio.sleep(0.05)
        assert answer.status in (422, 503) and not made.backends["acme-2"].bodies


async def test_what_is_found_and_blocked_is_no_failure(tmp_path):
    async with open_lab(tmp_path, SOVEREIGN, FRENCH) as made:
        blocked = await made.post(chat("my key is AKIAIOSFODNN7EXAMPLE"))
        assert (blocked.status, blocked.error["code"]) == (422, "redaction_blocked")
        unread = await made.post({"model": "small", "prompt": [1, 2, 3]}, path="/v1/completions")
        assert unread.status == 422 and received(made) == {}
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        unseen = await made.post({"model": "small", "messages": [{"role": "user", "content": image}]})
        assert (unseen.status, unseen.error["code"], received(made)) == (422, "redaction_refused", {})


async def test_while_redaction_works_every_backend_gets_the_redacted_prompt(tmp_path):
    async with open_lab(tmp_path, SOVEREIGN, GERMAN) as made:
        assert (await made.post(chat(f"write to {MAIL}"))).status == 200
        assert MAIL not in str(received(made))


async def test_the_answer_of_an_uninspected_prompt_is_filtered_as_any_other(tmp_path, broken):
    async with open_lab(tmp_path, SOVEREIGN, FRENCH) as made:
        made.backends["acme-1"].say = lambda body: f"I know {MAIL}."
        assert (await made.post(chat("who?"))).text == "I know [EMAIL]."
