"""Charts as shapes: what is drawn is what was given, and a text is never markup."""

import re
from xml.etree import ElementTree

import pytest

from gateway.console.drawing.charts import LINE_BASE, LINE_LEFT, LINE_TOP, LINE_WIDTH, Line, Mark, lines, round_up


@pytest.mark.parametrize(
    ("value", "top"),
    [(1, 1), (1.01, 2), (2.4, 2.5), (3, 5), (7, 10), (10, 10), (0.03, 0.05), (1999, 2000), (26e6, 5e7)],
)
def test_an_axis_ends_at_a_round_number_that_is_not_below_its_greatest_value(value, top):
    assert round_up(value) == pytest.approx(top)


def drawn(*series, marks=(), said="said"):
    found = ElementTree.fromstring(lines([Line("a", each) for each in series], marks, said, str))
    return found, [path.get("d") for path in found.iter("path")]


def points(path):
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]


def test_a_line_goes_from_edge_to_edge_between_nothing_and_the_greatest_value():
    _, (path,) = drawn([0, 5, 10])
    assert points(path) == [(LINE_LEFT, LINE_BASE), ((LINE_LEFT + LINE_WIDTH) / 2, 78), (LINE_WIDTH, LINE_TOP)]


def test_where_nothing_is_known_there_is_a_gap_and_a_value_alone_is_a_dot():
    _, (path,) = drawn([1, 1, None, 4, None, 2, 2])
    assert path.count("M") == 3 and path.count("h0") == 1 and path.count("L") == 2


def test_without_any_value_no_line_is_drawn():
    found, paths = drawn([None, None], [0, 0])
    assert len(paths) == 1 and {y for _, y in points(paths[0])} == {LINE_BASE}
    assert [each.text for each in found.iter("text")] == ["0.0", "0.5", "1.0"]


def test_texts_are_escaped_and_the_chart_says_what_it_shows():
    found, _ = drawn([1, 2], marks=[Mark(0, "<b>&")], said='"quoted" <i>')
    assert found.get("aria-label") == '"quoted" <i>' and found.get("role") == "img"
    assert [each.text for each in found.iter("text")][-1] == "<b>&"
    assert "style" not in ElementTree.tostring(found, encoding="unicode")


def test_labels_at_the_edges_stay_within_the_chart():
    found, _ = drawn([1] * 100, marks=[Mark(0, "first"), Mark(50, "mid"), Mark(99, "last")])
    assert [each.get("text-anchor") for each in found.iter("text")][3:] == ["start", "middle", "end"]
