"""The page of an evidence pack: whatever registers and records hold is text on it, and long tables and charts end."""

from collections import Counter
from html.parser import HTMLParser

import pytest

from audit.incidents.pack_inputs import Party
from audit.pack.report import LAYOUT, MAX_DAYS, html_report
from audit.registers.gaps import Gap
from audit.registers.pack_tables import Tables

ABOUT = {
    "tenant": "acme",
    "first": 0,
    "end": 9,
    "origin": "cell.example/log/acme",
    "made_at": "2026-11-29T10:00:00.123Z",
    "key": "cell.example+abcd+AAAA",
}
HOSTILE = "<script>alert('x')</script> & \"Söhne\" <img src=x onerror=y>"


class Read(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags[tag] += 1

    def handle_data(self, data: str) -> None:
        self.text += data


def filled(word: str) -> Tables:
    tables = Tables()
    tables.types[word] = 3
    tables.days[word, "allowed"] = 2
    tables.denials[word, word, word] = 1
    tables.transfers[(word,) * 9] = 4
    tables.redacted[word] = 5
    tables.deciders[word, word, word] = 6
    tables.first = tables.last = word
    tables.months = {word}
    return tables


def page(word: str, tables: Tables | None = None) -> str:
    party = Party(name=word, address=word, contact=word)
    return html_report(
        ABOUT | {"tenant": word, "origin": word, "key": word},
        filled(word) if tables is None else tables,
        {word: 7},
        outside=[(word, word, word, 8)],
        missing=[Gap(word, word, word)],
        parties=[party, party],
    )


def test_markup_in_names_is_shown_and_not_obeyed() -> None:
    plain, hostile = Read(page("acme")), Read(page(HOSTILE))
    assert hostile.tags == plain.tags, "no tag more"
    assert "script" not in hostile.tags
    assert hostile.text.count(HOSTILE) > 20, "as it is written"


def test_a_period_without_records_says_so() -> None:
    shown = Read(html_report(ABOUT | {"end": 0}, Tables(), {})).text
    assert "There are no records in this period." in shown
    assert "0 calls were allowed and 0 were refused." in shown
    assert "Records 0 to" not in shown


def test_a_moment_is_written_to_the_second() -> None:
    assert "This pack was made on 2026-11-29 10:00:00 UTC." in Read(page("acme")).text


def test_a_long_table_ends_with_how_many_rows_more_there_are() -> None:
    tables = Tables()
    for number in range(LAYOUT["max_rows"] + 3):
        tables.denials[f"rule {number}", "", ""] = 1
    assert "And 3 more, in the CSV file." in Read(page("acme", tables)).text


@pytest.mark.parametrize("days", [1, 2, MAX_DAYS, MAX_DAYS + 5])
def test_the_chart_has_a_column_for_each_of_the_last_days(days: int) -> None:
    tables = Tables()
    for number in range(days):
        tables.days[f"2026-{number // 28 + 1:02}-{number % 28 + 1:02}", "denied"] = number + 1
    shown = page("acme", tables)
    assert shown.count(" refused</title>") == min(days, MAX_DAYS)
    assert f"{days} refused</title>" in shown, "the last day is shown"


def test_a_value_that_the_page_needs_and_lacks_is_an_error() -> None:
    with pytest.raises(Exception, match="origin"):
        html_report({name: value for name, value in ABOUT.items() if name != "origin"}, Tables(), {})
