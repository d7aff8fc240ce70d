"""What the detectors do to texts of machines: logs, dumps, columns, tables of figures, scores, formulas."""

import random

import pytest

from policy.redact.actions.plan import RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.evaluate import evaluate, find_labelled
from policy.redact.redactor import Redactor
from tests.data.redaction.machine_shapes import CLASSES, cases, text_of

MASKED = Redactor(RedactionPlan({}, dict.fromkeys(("phone", "card", "national_id", "iban", "ip", "secret"), "mask")))


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


@pytest.mark.parametrize("kind", CLASSES)
def test_an_answer_of_machines_passes_in_pieces_as_it_does_whole(kind):
    written = text_of(CLASSES[kind], random.Random(11))[:800]
    whole = MASKED.restore_text(written, Pseudonyms("k7f3"))
    stream = MASKED.stream_filter(Pseudonyms("k7f3"))
    assert "".join(map(stream.feed, written)) + stream.flush() == whole
