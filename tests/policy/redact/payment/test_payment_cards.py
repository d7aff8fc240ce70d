import pytest

from policy.redact.evaluate import find_labelled
from policy.redact.payment.payment_cards import find_cards, passes_luhn


def cards(text: str) -> list[str]:
    return [text[start:end] for start, end in find_cards(text, 0)]


@pytest.mark.parametrize(
    "card", ["6715026848055461", "6705 3296 8096 6049", "6788-7395-9637-8875", "4904.7329.9730.2861"]
)
def test_a_card_of_maestro_or_in_groups_with_dots_is_found(card):
    assert cards(f"My card {card} was charged twice.") == [card]


@pytest.mark.parametrize("sign", [" ", "-"])
@pytest.mark.parametrize("groups", ["4242 4242 4242 4242", "4100 4101 4102 4119", "4321 4333 4440 4451"])
def test_a_card_whose_groups_are_alike_or_rise_is_found(groups, sign):
    card = groups.replace(" ", sign)
    assert passes_luhn(groups.replace(" ", ""))
    for text in (f"paid with {card} today", card, f"IDs: 12, {card}"):
        assert cards(text) == [card]


def test_a_row_of_a_table_whose_numbers_rise_is_no_card():
    assert cards(" 2238 2244 2250 2256 2263 2268 2274 2280\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "6715026848055462",  # a slip
        "4904.7329.9730.2862",
        "4904.7329.9730.2861.1",
        "671502684805546",  # too short for one of its issuer
        "ISBN 978-0-585-65945-9 1122036891243",
    ],
)
def test_a_slip_a_part_or_a_neighbour_of_another_number_is_no_card(text):
    assert cards(text) == []


def test_a_bar_between_two_cells_is_read_as_no_digit_of_a_card():
    assert cards("4111 1111 |111 1111".replace("|", "1"))  # as a lone bar would be
    for row in ("Eva|4111111|11111111", "| Eva | 4111111|11111111 |"):
        labels = [label for _, _, label in find_labelled(f"name|first|second\n{row}\n")]
        assert "card" not in labels
    assert [label for _, _, label in find_labelled("my card: 4111 1111 |111 1111")] == ["card"]


@pytest.mark.parametrize(
    "text", ["978-1-68674-987-2 4372053902010", "2022 38829 2023 23646", "20 0 6457330 956723 36274"]
)
def test_articles_and_rows_of_figures_are_no_card(text):
    assert [*find_cards(text, 0)] == []


@pytest.mark.parametrize("text", ["Karte 4372053902010", "name,card_number,x\nA,676222952068,73.78\n"])
def test_an_old_or_short_card_is_found_where_it_is_called_one(text):
    assert len([*find_cards(text, 0)]) == 1
