import pytest

from policy.redact.evaluate import evaluate, find_labelled
from tests.vectors.redaction.generate import cases

SET = list(cases(seed=11, rounds=2))


def test_the_generated_set_is_found_as_well_as_we_say():
    result = evaluate((case.id, case.variant, case.text, case.spans) for case in SET)
    for label, score in result.by_label.items():
        assert score.right_label >= 0.98, label
    for variant, score in result.by_variant.items():
        assert score.recall >= 0.99, variant
    assert result.clean > 50 and result.touched <= 0.03 * result.clean


def test_the_set_is_the_same_for_the_same_seed_and_its_spans_hold_the_values():
    assert list(cases(seed=11, rounds=2)) == SET
    assert list(cases(seed=12, rounds=2)) != SET
    for case in SET:
        for start, end, _ in case.spans:
            assert 0 <= start < end <= len(case.text) and case.text[start:end].strip() == case.text[start:end]


def test_a_missed_and_a_misnamed_span_lower_the_score():
    text = "alice@example.org"
    result = evaluate(
        [("a", "plain", text, [(0, 17, "iban")]), ("b", "plain", "x", [(0, 1, "iban")]), ("c", "plain", text, [])]
    )
    score = result.by_label["iban"]
    assert (score.gold, score.found, score.named) == (2, 1, 0) and (score.recall, score.right_label) == (0.5, 0.0)
    assert (result.clean, result.touched, list(result.missed)) == (1, 1, ["a", "b"])


@pytest.mark.parametrize("written", ["４４０５１４０１３５９", "4\u200b4051401359"])
def test_findings_are_given_in_the_text_as_written(written):
    assert find_labelled(f"PESEL {written}.") == [(6, 6 + len(written), "national_id.pl_pesel")]
