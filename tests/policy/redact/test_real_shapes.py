"""What the detectors do to whole files as people paste them: logs, tables, dumps, invoices, statutes, code."""

import pytest

from policy.redact.evaluate import Evaluation, evaluate
from tests.data.redaction.real_shapes import CLEAN, cases


@pytest.fixture(scope="module")
def result() -> Evaluation:
    return evaluate(cases(71, 4))


def test_every_class_is_there(result):
    assert set(result.by_variant) >= {"log+", "csv+", "law+"} and result.clean == 16 * len(CLEAN)


def test_hardly_a_file_of_figures_is_touched(result):
    assert result.touched / result.clean <= 0.01


def test_what_stands_among_figures_is_found_under_its_own_label(result):
    assert result.total.gold >= 60
    assert result.total.recall >= 0.99 and result.total.right_label >= 0.97
