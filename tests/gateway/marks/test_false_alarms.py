"""Rates of false alarms over texts without marks: by numbers that are known, by a real tokenizer, by what is kept."""

import asyncio
import json
import random

import pytest
from typer.testing import CliRunner

from backend.wire import MarksFound, MarksRequest
from gateway.cli.app import app
from gateway.marks.false_alarms import ENOUGH, RANDOM_KEYS, as_many, measured, texts_of
from tests.backend.tiny import tiny_model, write_folder
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab

KEPT = POLICY.replace("content: none", 'content: "encrypted, 7d"')
KEYS = [bytes(32), b"k" * 32]
TEXTS = [f"text {number}" for number in range(ENOUGH)]


def detector(p_of, pairs=100, own=1.0):
    """A detector whose p-values of random keys `p_of` draws, and of the tenant's keys are `own`."""

    def test(body):
        asked = MarksRequest.model_validate_json(body)
        p_values = [own] * len(KEYS) + [p_of() for _ in asked.keys[len(KEYS) :]]
        return MarksFound(scheme="x", tokens=pairs, pairs=pairs, p_values=p_values).model_dump_json().encode()

    return test


def test_uniform_p_values_are_as_stated_and_smaller_ones_are_too_many():
    rng = random.Random(1)
    right = measured(TEXTS, KEYS, detector(rng.random))
    assert (right.verdict, right.texts, right.marked, right.keys) == ("holds", ENOUGH, 0, 2)
    assert [level.tests for level in right.levels] == [ENOUGH * RANDOM_KEYS] * 3
    wrong = measured(TEXTS, KEYS, detector(lambda: rng.random() ** 2))
    assert wrong.verdict == "too_many" and wrong.levels[-1].alarms > 10 * wrong.levels[-1].expected


def test_too_few_or_too_short_texts_say_nothing_but_too_many_alarms_do():
    rng = random.Random(2)
    few = measured(TEXTS[:50], KEYS, detector(rng.random))
    assert (few.verdict, few.texts) == ("too_few_texts", 50)
    assert measured(TEXTS[:50], KEYS, detector(lambda: 0.0)).verdict == "too_many"
    short = measured(TEXTS, KEYS, detector(rng.random, pairs=39))
    assert (short.verdict, short.texts, short.short) == ("too_few_texts", 0, ENOUGH)
    assert measured([], KEYS, detector(rng.random)).verdict == "too_few_texts"


def test_what_the_tenants_own_keys_would_have_decided_is_counted_as_a_decision_counts_it():
    for own, marked in ((0.0005, 50), (0.0006, 0)):  # two keys: half of one in a thousand each
        assert measured(TEXTS[:50], KEYS, detector(lambda: 0.5, own=own)).marked == marked


@pytest.mark.parametrize(
    ("tests", "rate", "count", "wanted"), [(10, 0.5, 0, 1.0), (10, 0.5, 10, 2**-10), (2, 0.5, 1, 0.75)]
)
def test_the_tail_of_the_binomial_is_exact(tests, rate, count, wanted):
    assert as_many(tests, rate, count) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("field", "value", "texts"),
    [
        ("input", json.dumps(chat("a b")), ["a b"]),
        ("input", json.dumps({"prompt": ["a", "b", [1]]}), ["a", "b"]),
        ("input", json.dumps({"messages": [{"role": "assistant", "content": "ours"}, {"role": "system"}]}), []),
        ("input", json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {}]}]}), ["a"]),
        ("input", "no json", []),
        ("input", "[]", []),
        ("input", None, []),
        (
            "output",
            [{"index": 0, "content": "said"}, {"index": 1, "text": "more"}, {"tool_calls": []}],
            ["said", "more"],
        ),
        ("output", "said", []),
        ("subject", "anna", []),
    ],
)
def test_what_people_wrote_and_models_answered_is_read_and_nothing_else(field, value, texts):
    assert list(texts_of(field, value)) == texts


def prose(seed, words=400):
    rng = random.Random(seed)
    return " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(words))


async def test_it_is_measured_over_what_the_tenant_keeps_and_each_reading_is_on_record(tmp_path):
    write_folder(tmp_path / "writer", tiny_model())
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(say=prose(99)), "globex/eu-fr-par/globex-1": FakeBackend()}

    def set_up(made):
        for tenant in ("acme", "globex"):
            made.tenant(tenant, KEPT)

    def run(*words, weights="writer"):
        line = ["mark", "measure", *words, "--weights", str(tmp_path / weights), "--data", str(tmp_path / "data")]
        return CliRunner().invoke(app, line)

    async with lab(tmp_path, set_up=set_up, backends=backends) as made:
        for seed in range(4):
            assert (await made.post(chat(prose(seed)))).status == 200
        assert (await made.post(chat(prose(50)), key="globex/main")).status == 200
        live = await asyncio.to_thread(run, "acme", "--json")
        assert live.exit_code == 2, live.output
        found = json.loads(live.stdout)
        assert (found["verdict"], found["texts"], found["marked"]) == ("too_few_texts", 5, 0), "four asked, one answer"
        reads = [event for event in made.events() if event["type"] == "content.accessed"]
        assert len(reads) == 8 and {event["reason"] for event in reads} == {"marks_measured"}
        assert prose(0)[:30] not in live.output
        assert not [event for event in made.events("globex") if event["type"] == "content.accessed"]
        assert json.loads((await asyncio.to_thread(run, "acme", "--json", "--records", "2")).stdout)["texts"] == 2
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text(prose(7))
    given = run("acme", "--texts", str(tmp_path / "texts"))
    assert (given.exit_code, "1 are long enough" in given.stdout) == (2, True), given.output
    assert run("nobody").exit_code == 2
    missing = run("acme", weights="nowhere")
    assert missing.exit_code == 2 and "; " in missing.stderr, missing.output
