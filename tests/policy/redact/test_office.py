"""What the detectors find in texts written as an examiner would: files, chats, notes, dumps, tables, code."""

import pytest

from policy.redact.evaluate import Evaluation, evaluate
from tests.data.redaction.office import VARIANTS, cases
from tests.data.redaction.office_words import CALLED, CLEAN


@pytest.fixture(scope="module")
def result() -> Evaluation:
    return evaluate(cases(61, 2))


def test_the_set_speaks_of_every_number_and_variant_and_of_enough_clean_texts(result):
    assert set(result.structured_by_variant) >= set(VARIANTS)
    assert len(result.by_label) >= len(CALLED) and result.clean >= 2 * len(CLEAN)


@pytest.mark.parametrize("variant", sorted(set(VARIANTS)))
def test_structured_data_is_found_in_every_variant(result, variant):
    assert result.structured_by_variant[variant].recall >= 0.98


def test_structured_data_is_found_over_all_variants_under_its_own_label(result):
    scores = result.structured_by_variant.values()
    assert sum(score.found for score in scores) / sum(score.gold for score in scores) >= 0.99
    ids = [score for label, score in result.by_label.items() if label.startswith("national_id")]
    assert sum(score.named for score in ids) / sum(score.gold for score in ids) >= 0.98


def test_clean_texts_are_left_alone(result):
    assert result.touched / result.clean <= 0.02
