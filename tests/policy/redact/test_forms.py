"""What the detectors find in records of every layout, under the names that people, programs and other tools give."""

import pytest

from policy.redact.evaluate import Evaluation, evaluate
from tests.data.redaction.forms import VARIANTS, cases


@pytest.fixture(scope="module")
def result() -> Evaluation:
    return evaluate(cases(71, 3))


def test_the_set_speaks_of_every_layout_in_labels_that_are_understood(result):
    assert set(result.structured_by_variant) >= set(VARIANTS)
    assert result.clean >= 600 and not result.unknown


@pytest.mark.parametrize("variant", VARIANTS)
def test_structured_data_is_found_in_every_layout(result, variant):
    assert result.structured_by_variant[variant].recall >= 0.97  # a hundred spans each; .99 over all of them


def test_structured_data_is_found_over_all_layouts_under_its_own_label(result):
    scores = result.structured_by_variant.values()
    assert sum(score.found for score in scores) / sum(score.gold for score in scores) >= 0.99
    ids = [score for label, score in result.by_label.items() if label.startswith("national_id")]
    assert sum(score.named for score in ids) / sum(score.gold for score in ids) >= 0.98


def test_figures_that_name_nobody_are_left_alone(result):
    assert result.touched / result.clean <= 0.01
