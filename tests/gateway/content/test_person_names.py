import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.configuration.settings import Names
from gateway.content import person_names as module
from gateway.content.person_names import NameFinder
from gateway.content.prompt import prepare
from gateway.errors import RedactionRefused
from policy.redact.actions.plan import RedactionPlan
from policy.redact.redactor import Redactor
from tests.fakes.lab import chat
from tests.gateway.parts import call

REDACTOR = Redactor(RedactionPlan({"person": "pseudonymise", "email": "mask"}))
BODY = chat("Please ask Maria Kowalska, maria@example.org.")


@pytest.fixture
def looked_at(monkeypatch):
    """Texts that the stand-in for the model was asked about; it knows one name."""
    asked = []

    def find(text):
        asked.append(text)
        at = text.find("Maria Kowalska")
        return ((at, at + 14),) if at >= 0 else ()

    monkeypatch.setattr(module, "_names", find)
    return asked


def finder(**settings):
    return NameFinder(Names(**settings), ThreadPoolExecutor(2))


async def redacted(names, tenant="acme", body=BODY, redactor=REDACTOR):
    asked = call(body)
    return prepare(asked, redactor, "main", await names.names_in(asked, redactor, tenant)).fields


async def test_a_name_leaves_as_a_placeholder(looked_at):
    async with finder() as names:
        content = (await redacted(names))["messages"][0]["content"]
    assert content.startswith("Please ask <PERSON_1_") and content.endswith(">, [EMAIL].")


async def test_a_text_is_looked_at_once_for_each_tenant(looked_at):
    async with finder() as names:
        for _ in range(3):
            await redacted(names)
        once = len(looked_at)
        await redacted(names, tenant="other")
    assert len(looked_at) == 2 * once and looked_at.count(BODY["messages"][0]["content"]) == 2


async def test_the_cache_keeps_no_text_and_no_more_than_it_may(looked_at):
    async with finder(cached_texts=3) as names:
        for index in range(9):
            await redacted(names, body=chat(f"number {index}: Maria Kowalska"))
        kept = names._known["acme"]
    assert len(kept) == 3 and all(len(key) == 32 for key in kept)


async def test_a_policy_that_asks_for_no_names_costs_nothing(looked_at):
    async with finder() as names:
        await redacted(names, redactor=Redactor(RedactionPlan({"email": "mask"})))
    assert looked_at == []


async def test_what_takes_too_long_refuses_the_call(monkeypatch):
    monkeypatch.setattr(module, "_names", lambda text: __import__("time").sleep(0.3))
    async with finder(budget_s=0.05) as names:
        with pytest.raises(RedactionRefused) as refused:
            await redacted(names)
    assert refused.value.code == "redaction_timeout" and "Kowalska" not in str(refused.value)


async def test_what_is_too_long_refuses_the_call(looked_at):
    async with finder(max_characters=10) as names:
        with pytest.raises(RedactionRefused) as refused:
            await redacted(names)
    assert refused.value.code == "redaction_too_long" and looked_at == []


async def test_a_model_that_fails_refuses_the_call_without_its_text(monkeypatch):
    def fail(text):
        raise ValueError(text)

    monkeypatch.setattr(module, "_names", fail)
    async with finder() as names:
        with pytest.raises(RedactionRefused) as refused:
            await redacted(names)
    assert "ValueError" in refused.value.message and "Kowalska" not in refused.value.message


async def test_without_anybody_who_looks_a_policy_that_asks_for_names_refuses():
    with pytest.raises(RedactionRefused, match="nothing looks for them"):
        prepare(call(BODY), REDACTOR, "main")


async def test_the_real_model_in_a_process_of_its_own():
    async with NameFinder(Names(budget_s=60)) as names:
        content = (await redacted(names))["messages"][0]["content"]
        assert "Maria" not in content and "<PERSON_1_" in content
        await asyncio.wait_for(redacted(names), 0.5)  # from the cache
