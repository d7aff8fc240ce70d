"""Answers of a form, beside everything else the engine does: guesses, thoughts before them, others in the batch,
chunks, preemption, and steps that run ahead."""

import json
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from llguidance import LLMatcher

from backend.engine.core.progress import Finish
from backend.engine.core.sampling import SamplingParams
from backend.engine.core.speculation import Drafter
from backend.engine.core.token_masks import MaskedGrammars
from backend.engine.engine import Engine
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.checkpoints.tokenizer import TextModel
from backend.models.decoders.decoder import Decoder
from tests.backend.engine.drafters import Oracle
from tests.backend.engine.gpu.test_graph_runner import ahead
from tests.backend.tiny import tiny_engine, tiny_model

SCHEMA = {
    "type": "array", "minItems": 2, "maxItems": 4,
    "items": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
              "required": ["n"], "additionalProperties": False},
}  # fmt: skip
JSON = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), overrides={"whitespace_flexible": False})
DATE = LLMatcher.grammar_from_regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")
PROMPTS = [[(7 * i + 3 * j) % 300 for j in range(length)] for i, length in enumerate((1, 5, 16, 33, 21, 9))]
ENDS = frozenset({2})

Answers = dict[int, tuple[list[int], Finish | None]]


@pytest.fixture(scope="session")
def model() -> Decoder:
    return tiny_model(1, head_dim=16)  # the kernels' smallest


@pytest.fixture(scope="module")
def text(folder: Path) -> TextModel:
    return Checkpoint(folder).text


@pytest.fixture(scope="module")
def grammars(text: TextModel) -> MaskedGrammars:
    return MaskedGrammars(text, 320, pinned=torch.cuda.is_available(), threads=2)


def asked(seeded: bool, thinks_to: int | None = None) -> list[SamplingParams]:
    """Of each prompt: by turns of a form and of none. The longest are plain, so that in the end there are guesses."""
    forms: list[dict[str, Any]] = [
        {"grammar": JSON}, {}, {"grammar": DATE, "logprobs": 1}, {"presence_penalty": 0.4}, {"grammar": JSON}, {},
    ]  # fmt: skip
    drawn = {"temperature": 1.3, "top_p": 0.9} if seeded else {"temperature": 0.0}
    return [
        SamplingParams(
            max_tokens={0: 90, 1: 14}[len(form)] if "grammar" not in form else 70,
            seed=i,
            ignore_eos=True,
            grammar_after=thinks_to if "grammar" in form else None,
            **drawn,
            **form,
        )
        for i, form in enumerate(forms)
    ]


def answers(
    engine: Engine, grammars: MaskedGrammars, params: list[SamplingParams], preempt: random.Random | None = None
) -> Answers:
    engine._grammars = grammars
    said: dict[int, list[int]] = {}
    finish: dict[int, Finish | None] = {}
    for id, p in enumerate(params):
        engine.add(id, PROMPTS[id], p)
    while engine.has_work:
        for item in engine.step():
            assert item.token is not None
            said.setdefault(item.id, []).append(item.token)
            finish[item.id] = item.finish
        if preempt and engine.scheduler.running and preempt.random() < 0.1:
            engine.scheduler.preempt(preempt.choice(engine.scheduler.running))
    assert engine.blocks.num_used == 0
    return {id: (tokens, finish[id]) for id, tokens in said.items()}


def alone(model: Decoder, grammars: MaskedGrammars, params: list[SamplingParams]) -> Answers:
    """One after the other, without anything."""
    found: Answers = {}
    for id, p in enumerate(params):
        engine = tiny_engine(model, ENDS, prefix_cache=False)
        engine._grammars = grammars
        engine.add(id, PROMPTS[id], p)
        items = [item for _ in iter(lambda: engine.has_work, False) for item in engine.step()]  # noqa: B023
        found[id] = [i.token or 0 for i in items], items[-1].finish
    return found


def assert_in_form(text: TextModel, params: list[SamplingParams], found: Answers, behind: int | None = None) -> None:
    for id, p in enumerate(params):
        if not p.grammar:
            continue
        tokens, finish = found[id]
        assert finish is Finish.STOP and tokens[-1] in ENDS
        written = text.decode(tokens[tokens.index(behind) + 1 if behind is not None else 0 : -1])
        if p.grammar == DATE:
            assert re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", written)
        else:
            values = json.loads(written)
            assert 2 <= len(values) <= 4 and all(set(v) == {"n"} and 0 <= v["n"] <= 99 for v in values)


CASES: list[tuple[float | None, dict[str, Any]]] = [  # share of wrong guesses, None for none at all; settings
    (None, {"max_num_seqs": 2}),
    (0.0, {}),
    (0.4, {"max_num_batched_tokens": 16}),
    (0.4, {"num_blocks": 24, "max_model_len": 120}),
]


@pytest.mark.parametrize("seeded", [False, True], ids=["greedy", "seeded"])
@pytest.mark.parametrize(("wrong", "changes"), CASES, ids=str)
@pytest.mark.parametrize("runs", ["step by step", "ahead"])
def test_forms_hold_and_no_token_differs_whatever_is_guessed_and_whoever_runs_beside(
    model: Decoder,
    text: TextModel,
    grammars: MaskedGrammars,
    seeded: bool,
    wrong: float | None,
    changes: dict[str, Any],
    runs: str,
) -> None:
    params = asked(seeded)
    if runs == "ahead":  # its seeded draws are another generator's
        expected = answers(ahead(model, eos_ids=ENDS), grammars, params)
    else:
        expected = alone(model, grammars, params)
    assert_in_form(text, params, expected)
    known = {id: tokens for id, (tokens, _) in expected.items()}
    drafter: Drafter | None = None if wrong is None else Oracle(known, wrong)
    if runs == "ahead":
        engine = ahead(model, eos_ids=ENDS, drafter=drafter, **changes)
    else:
        engine = tiny_engine(model, ENDS, drafter=drafter, **changes)
    assert answers(engine, grammars, params) == expected
    assert answers(engine, grammars, params, random.Random(3)) == expected
    if drafter is not None:
        assert engine.stats.draft_tokens_accepted > 0


@pytest.mark.parametrize("seeded", [False, True], ids=["greedy", "seeded"])
@pytest.mark.parametrize("wrong", [None, 0.3], ids=["no guesses", "guesses"])
@pytest.mark.parametrize("runs", [tiny_engine, ahead])
def test_a_form_begins_behind_the_thoughts_and_these_stay_as_they_are(
    model: Decoder, text: TextModel, grammars: MaskedGrammars, seeded: bool, wrong: float | None, runs: Any
) -> None:
    free = [msgspec.structs.replace(p, grammar="", max_tokens=12) for p in asked(seeded)]
    thoughts = answers(runs(model, eos_ids=ENDS), grammars, free)
    first = thoughts[0][0]
    behind = next(t for t in first[3:] if first.index(t) >= 3 and t not in ENDS)  # what ends the thoughts of the first
    params = asked(seeded, thinks_to=behind)[:1] + asked(seeded)[1:]
    expected = answers(runs(model, eos_ids=ENDS), grammars, params)
    count = first.index(behind) + 1
    assert expected[0][0][:count] == first[:count]
    assert_in_form(text, params[:1], expected, behind)
    assert_in_form(text, params[1:2] * 2 + params[2:], expected)
    known = {id: tokens for id, (tokens, _) in expected.items()}
    engine = runs(model, eos_ids=ENDS, drafter=None if wrong is None else Oracle(known, wrong))
    assert answers(engine, grammars, params, random.Random(5)) == expected


def test_with_the_drafter_of_the_configuration(model: Decoder, text: TextModel, grammars: MaskedGrammars) -> None:
    params = asked(seeded=False)
    expected = alone(model, grammars, params)
    engine = tiny_engine(model, ENDS, speculation="ngram")
    assert answers(engine, grammars, params) == expected
    assert_in_form(text, params, expected)


def forms(seeded: bool) -> list[SamplingParams]:
    """Each prompt has one, and nothing that guesses do not go with."""
    drawn = {"temperature": 1.3, "top_p": 0.9} if seeded else {"temperature": 0.0}
    return [
        SamplingParams(max_tokens=90, seed=i, ignore_eos=True, grammar=DATE if i % 3 == 2 else JSON, **drawn)
        for i in range(len(PROMPTS))
    ]


@pytest.mark.parametrize("seeded", [False, True], ids=["greedy", "seeded"])
@pytest.mark.parametrize(
    ("runs", "wrong"),
    [("step by step", 0.0), ("step by step", 1.0), ("ahead", 0.0), ("ahead", 0.4), ("deterministic", 0.4)],
)
def test_guesses_are_checked_under_forms_and_no_token_differs(
    model: Decoder, text: TextModel, grammars: MaskedGrammars, seeded: bool, wrong: float, runs: str
) -> None:
    def made(**more: Any) -> Engine:
        if runs == "ahead":
            return ahead(model, eos_ids=ENDS, **more)
        return tiny_engine(model, ENDS, batch_invariant=runs == "deterministic", **more)

    params = forms(seeded)
    expected = answers(made(), grammars, params)
    assert_in_form(text, params, expected)
    known = {id: tokens for id, (tokens, _) in expected.items()}
    engine = made(drafter=Oracle(known, wrong))
    assert answers(engine, grammars, params) == expected
    stats = engine.stats
    if wrong < 1.0:
        assert stats.draft_tokens_accepted > 50
    if wrong == 0.0:  # an end is never guessed: nothing follows it
        assert stats.draft_tokens_accepted == stats.draft_tokens
    if wrong == 0.4:
        assert answers(engine, grammars, params, random.Random(7)) == expected


def test_guesses_that_a_form_rules_out_are_never_computed(model: Decoder, grammars: MaskedGrammars) -> None:
    engine = tiny_engine(model, ENDS, drafter=Oracle({i: [5] * 90 for i in range(6)}))  # no JSON begins so
    params = forms(seeded=False)
    assert answers(engine, grammars, params) == answers(tiny_engine(model, ENDS), grammars, params)
    assert engine.stats.draft_tokens_accepted == 0


def test_a_form_that_cannot_be_followed_ends_its_own_sequence_alone(model: Decoder, grammars: MaskedGrammars) -> None:
    params = forms(seeded=False)
    expected = answers(tiny_engine(model, ENDS), grammars, params)
    known = {id: tokens for id, (tokens, _) in expected.items()}
    engine = tiny_engine(model, ENDS, drafter=Oracle(known))
    engine._grammars = grammars
    for id, p in enumerate(params):
        engine.add(id, PROMPTS[id], p)
    said: Answers = {}
    broken = False
    while engine.has_work:
        for item in engine.step():
            tokens = said.get(item.id, ([], None))[0]
            said[item.id] = [*tokens, *([] if item.token is None else [item.token])], item.finish
        if not broken and len(said.get(1, ([], None))[0]) > 4:
            matcher = engine._sequences[1].matcher
            assert matcher is not None
            matcher.own().consume_token(5)  # what no text of it has: from here on there is no saying
            broken = True
    assert said.pop(1)[1] is Finish.GRAMMAR
    assert said == {id: answer for id, answer in expected.items() if id != 1}


def test_the_end_of_thoughts_may_be_guessed_and_the_form_holds_behind_it(
    model: Decoder, text: TextModel, grammars: MaskedGrammars
) -> None:
    free = [msgspec.structs.replace(p, grammar="", max_tokens=12) for p in forms(seeded=True)]
    first = answers(tiny_engine(model, ENDS), grammars, free)[0][0]
    behind = next(t for t in first[3:] if first.index(t) >= 3 and t not in ENDS)
    params = [msgspec.structs.replace(p, grammar_after=behind) for p in forms(seeded=True)[:1]]
    expected = answers(tiny_engine(model, ENDS), grammars, params)
    engine = tiny_engine(model, ENDS, drafter=Oracle({0: expected[0][0]}))
    assert answers(engine, grammars, params) == expected
    assert engine.stats.draft_tokens_accepted > first.index(behind)
    assert_in_form(text, params, expected, behind)
