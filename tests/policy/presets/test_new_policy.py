import pytest

from policy.analysis.policy_tests import run_tests
from policy.decision.compile import compile_policy
from policy.document.countries import builtin_countries
from policy.document.document import PolicyDocument, load_document
from policy.presets import PRESETS, preset_document
from policy.presets.new_policy import COMMENTS, new_document


@pytest.mark.parametrize("preset", PRESETS)
def test_a_new_document_says_what_its_preset_says_under_its_own_name(preset):
    made, known = load_document(new_document("acme", preset)), preset_document(preset)
    assert made.policy == "acme"
    assert made.model_dump(exclude={"policy"}) == known.model_dump(exclude={"policy"})


@pytest.mark.parametrize("preset", PRESETS)
def test_a_new_document_compiles_and_passes_its_tests(preset):
    countries = builtin_countries()
    outcomes = run_tests(compile_policy(load_document(new_document("acme", preset)), None, countries), countries)
    assert outcomes and all(outcome.passed for outcome in outcomes)


def test_every_key_of_a_document_has_a_comment():
    assert set(COMMENTS) == set(PolicyDocument.model_fields)


@pytest.mark.parametrize("preset", PRESETS)
def test_each_key_is_explained_once_where_it_stands_or_at_the_end(preset):
    text = new_document("acme", preset)
    assert all(text.count(words) == 1 for words in COMMENTS.values())


def test_there_is_no_preset_of_another_name():
    with pytest.raises(KeyError):
        new_document("acme", "nope")
