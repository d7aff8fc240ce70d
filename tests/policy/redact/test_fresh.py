"""What the detectors know beyond the set they were made with: words, spellings and machines' shapes of another one."""

import pytest

from policy.redact.evaluate import Evaluation, evaluate
from tests.data.redaction.fresh import VARIANTS, cases


@pytest.fixture(scope="module")
def result() -> Evaluation:
    return evaluate(cases(31, 4))


def test_the_set_speaks_of_every_variant_and_of_enough_clean_texts(result):
    assert set(result.structured_by_variant) >= set(VARIANTS)
    assert result.clean >= 200 and result.texts >= 1000


@pytest.mark.parametrize("variant", sorted(set(VARIANTS)))
def test_structured_data_is_found_in_every_variant(result, variant):
    assert result.structured_by_variant[variant].recall >= 0.97  # a few hundred spans each; .99 over all of them


def test_structured_data_is_found_over_all_variants(result):
    scores = result.structured_by_variant.values()
    assert sum(score.found for score in scores) / sum(score.gold for score in scores) >= 0.99


def test_national_numbers_come_under_their_own_label(result):
    ids = [score for label, score in result.by_label.items() if label.startswith("national_id")]
    assert sum(score.named for score in ids) / sum(score.gold for score in ids) >= 0.98


def test_clean_texts_are_left_alone(result):
    assert result.touched / result.clean <= 0.03
