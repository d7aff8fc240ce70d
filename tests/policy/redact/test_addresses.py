import pytest

from policy.redact.addresses import find_addresses


@pytest.mark.parametrize(
    "address",
    ["Hauptstraße 12, 10115 Berlin", "Hoher Weg 3a, 20459 Hamburg", "12 rue de la Paix, 75002 Paris",
     "Calle Mayor 5, 28013 Madrid", "Via Roma 12, 00184 Roma", "ul. Marszałkowska 12/3, 00-001 Warszawa",
     "Rua Augusta, 12, 1100-053 Lisboa", "Storgatan 12, 111 22 Stockholm", "Dlouhá 12, 110 00 Praha",
     "Keizersgracht 12, 1015 CN Amsterdam", "Mannerheimintie 12, 00100 Helsinki", "12 High Street, London"],
)  # fmt: skip
@pytest.mark.parametrize("frame", ["{}", "wohnt in {}.", "a;{};b"])
def test_an_address_is_found_with_its_town(address, frame):
    text = frame.format(address)
    found = {text[start:end] for start, end in find_addresses(text, 0)}
    assert any(address in each for each in found) and all(len(each) <= len(address) + 1 for each in found)


@pytest.mark.parametrize("text", ["by the way 12 people came", "the ring 12 times", "via e-mail", "Room 12, floor 3",
                                  "on 12 May 2024", "place an order", "step 4 of route planning"])  # fmt: skip
def test_prose_with_numbers_is_no_address(text):
    assert list(find_addresses(text, 0)) == []
