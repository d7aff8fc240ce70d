import pytest

from policy.redact.evaluate import find_labelled

# The specimens of ICAO 9303.
PASSPORT = "P<UTOERIKSSON<<ANNA<MARIA<<<<<<<<<<<<<<<<<<<\nL898902C36UTO7408122F1204159ZE184226B<<<<<10"
CARD = "I<UTOD231458907<<<<<<<<<<<<<<<\n7408122F1204159UTO<<<<<<<<<<<6\nERIKSSON<<ANNA<MARIA<<<<<<<<<<"
VISA = "I<UTOERIKSSON<<ANNA<MARIA<<<<<<<<<<<\nD231458907UTO7408122F1204159<<<<<<<6"


@pytest.mark.parametrize("zone", [PASSPORT, CARD, VISA, PASSPORT.replace("\n", "\\n")])
@pytest.mark.parametrize("frame", ["{}", "Scan:\n{}\nend", '{{"mrz": "{}"}}'])
def test_a_zone_is_found_whole(zone, frame):
    text = frame.format(zone)
    start = text.index(zone)
    assert (start, start + len(zone), "national_id.mrz") in find_labelled(text)


@pytest.mark.parametrize("zone", [PASSPORT.replace("C36", "C37"), CARD.replace("7408122F", "7408123F"), "<<<<" * 22])
def test_a_zone_with_a_slip_is_none(zone):
    assert not any(label == "national_id.mrz" for _, _, label in find_labelled(zone))


def test_a_european_health_card_is_found_by_its_check_digit():
    assert find_labelled("EHIC 80276000010123456780") == [(5, 25, "national_id.ehic")]
    assert find_labelled("EHIC 80276000010123456781") == []
