"""What the detectors do to texts of machines: logs, dumps, columns, tables of figures, scores, formulas."""

import random

import pytest

from policy.redact.evaluate import evaluate, find_labelled
from tests.data.redaction.machine_shapes import CLASSES, cases, text_of


def test_hardly_a_text_of_machines_is_touched():
    result = evaluate(cases(81, 6))
    assert result.clean == 6 * len(CLASSES)
    assert result.touched / result.clean <= 0.01


@pytest.mark.parametrize("kind", ["access log", "columns", "dump of bytes", "history", "tax table"])
def test_a_person_among_them_is_still_found(kind):
    written = text_of(CLASSES[kind], random.Random(7))
    found = {
        written_at[start:end]
        for written_at in (f"{written}Ruf an: 0171 2345678, IBAN DE89 3704 0044 0532 0130 00, PESEL 02070803628.\n",)
        for start, end, *_ in find_labelled(written_at)
    }
    assert {"0171 2345678", "DE89 3704 0044 0532 0130 00", "02070803628"} <= found
