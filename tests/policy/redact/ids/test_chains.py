import pytest

from policy.redact.detectors.national_ids import find_national_ids
from policy.redact.ids.chains import chains_at


def kinds(text: str) -> list[tuple[str, str]]:
    return [(kind, text[start:end]) for start, end, kind in find_national_ids(text, 0)]


@pytest.mark.parametrize(
    ("kind", "number"),
    [("fr_nir", "156042B03433981"), ("fi_hetu", "260354V820K"), ("ch_ahv", "7568799474875"), ("hr_oib", "03809916023")],
)
def test_a_bar_between_two_cells_ends_a_number(kind, number):
    assert kinds(f"nr|name|{kind[3:]}|born\n1|Eva|{number}|12.03.1980\n") == [(kind, number)]


@pytest.mark.parametrize("text", ["från 2025-03-12 på 12 490 kr", "Helistage 5123 9187 või kirjutage"])
def test_the_first_letters_of_a_word_behind_a_number_are_no_part_of_it(text):
    assert kinds(text) == []
    begin = next(at for at, sign in enumerate(text) if sign.isdigit())
    assert all(not chain.compact[-1].isalpha() for chain in chains_at(text, begin))
