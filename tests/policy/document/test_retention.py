import pytest

from policy.document.retention import RetentionClass, parse_content_days, parse_days, with_high_risk_floor


@pytest.mark.parametrize(
    ("text", "days"), [("184d", 184), ("12mo", 365), ("6mo", 182), ("1mo", 30), ("2y", 730), ("none", 0), ("30 d", 30)]
)
def test_a_period_is_read(text, days):
    assert parse_days(text) == days


@pytest.mark.parametrize(
    "text", ["", "0d", "-1d", "1.5y", "12", "12 months", "d", "1w", "encrypted, 30d", "11y", "99999d", "１d"]
)
def test_what_is_no_period_is_refused(text):
    with pytest.raises(ValueError):
        parse_days(text)


def test_content_is_kept_encrypted_or_not_at_all():
    assert parse_content_days("encrypted, 30d") == 30 and parse_content_days("none") == 0
    for text in ("30d", "encrypted", "encrypted,", "encrypted, none", "plain, 30d", ""):
        with pytest.raises(ValueError):
            parse_content_days(text)


@pytest.mark.parametrize(("days", "kept"), [(0, 184), (182, 184), (183, 184), (184, 184), (365, 365)])
def test_the_floor_for_high_risk_binds_metadata_and_says_so_when_it_does(days, kept):
    retention = with_high_risk_floor(RetentionClass(days, 0))
    assert retention.metadata_days == kept and retention.content_days == 0
    assert bool(retention.because) == (days != kept)
