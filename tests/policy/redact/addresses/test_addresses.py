import pytest

from policy.redact.addresses.addresses import find_addresses


@pytest.mark.parametrize(
    "address",
    ["Hauptstraße 12, 10115 Berlin", "Hoher Weg 3a, 20459 Hamburg", "12 rue de la Paix, 75002 Paris",
     "Calle Mayor 5, 28013 Madrid", "Via Roma 12, 00184 Roma", "ul. Marszałkowska 12/3, 00-001 Warszawa",
     "Rua Augusta, 12, 1100-053 Lisboa", "Storgatan 12, 111 22 Stockholm", "Dlouhá 12, 110 00 Praha",
     "Mariahilfer Straße 12/3/15, 1060 Wien", "Mannerheimintie 10 A 5, 00100 Helsinki",
     "Hämeenkatu 12 B 34, 33100 Tampere",
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


@pytest.mark.parametrize("address", [
    "ул. „Иван Вазов“ 157, 1382 София", "174 Main Street, Dublin 8", "91, Triq ir-Repubblika, Valletta VLT 1440",
    "József attila utca 160.\nH-2834 Veszprém", "Avenida Francisco Reis, S/N, 5593-927 Tavira",
    "Strada Stan, Moreni, 572227",
    "Grafenauerjeva ulica 324, 4956 Celje", "Ulica svornosti 489, 845 61 Čižatice", "Roosstrasse 9, 3134 Biel/Bienne",
    "Δουλάμη 60,, ΤΚ 57744 Ιωάννινα", "Kraljevečki odvojak 6b, 15971 Zabok",
])  # fmt: skip
@pytest.mark.parametrize("frame", ["{}", "I live at {}.", "Send it to {}, please."])
def test_an_address_is_found_whole_as_each_country_writes_it(address, frame):
    text = frame.format(address)
    start = text.index(address)
    covered = {at for first, last in find_addresses(text, 0) for at in range(first, last)}
    assert {at for at in range(start, start + len(address)) if text[at].isalnum()} <= covered


@pytest.mark.parametrize("address", [
    "5464 Kasemets Walks Apt. 553\nUrmashaven, MT 30829", "8721 Valter Causeway\nSouth Side, LA 53121",
    "Unit 0802 Box 3002, DPO AP 48642", "USS Kohv\nFPO AP 65379", "Pod bregom 987\n2991 Tržič",
    "Ob potoku 6c\n4763 Ljubljana",    "Pri starom letisku 11\n860 80 Kesovce", "Isaksenløkka 2A, 2074 Helgeodden",
    "R. Sofia Brito, S/N, 9351-492 Lixa",
    "Cañada Ángela Vidal 83 Piso 7 , Lleida, 38007",
])  # fmt: skip
def test_an_address_is_found_whole_as_other_countries_write_it(address):
    assert (9, 9 + len(address)) in list(find_addresses(f"sent to: {address}\nThanks", 0))


@pytest.mark.parametrize("text", [
    "R. Nadal 6, 4 and 7", "Gate 4, shelf 12", "under number 12 in the list", "USS Enterprise sails",
    "Na stranke 12, odsek 4", "5464 people in MT 30829",
])  # fmt: skip
def test_names_and_numbers_that_are_no_address_are_left_alone(text):
    assert list(find_addresses(text, 0)) == []


@pytest.mark.parametrize("address", [
    "Bjørnstjerne Bjørnsons plass 26b, 0184 Oslo", "Șos. Kiseleff nr. 75, 400001 Cluj-Napoca",
    "4, Republic Street, Birkirkara BKR 1011",
    "6720 Szeged, Rákóczi út 88", "1061 Budapest, Petőfi u. 149", "Masarykovo náměstí 120/38, 779 00 Olomouc",
    "Dlouhá 175, 120 00 Praha 2",
    "Mlynské nivy 55, 040 01 Košice", "Av. Diagonal 640, 6a planta, 08017 Barcelona",
    "ul. Mickiewicza 12 m. 5, 01-517 Warszawa",
    "Via Roma 12/A, 10121 Torino", "Unter den Linden 77, D-10117 Berlin", "Postfach 10 12 34, 20095 Hamburg",
    "Postboks 123 Sentrum, 0102 Oslo",
    "9 Harbour View Road, Dublin 2, D02 X285", "Meir 69, 2000 Antwerpen", "Raiņa bulvāris 79, Rīga, LV-1010",
    "Laisvės al. 93, 44240 Kaunas",
    "Kaiserring 12, 68161 Mannheim", "Kirkegata 5, 0153 Oslo", "Mannerheimintie 12, 00100 Helsinki",
    "Karl Johans gate 5",
])  # fmt: skip
def test_units_boxes_and_towns_in_front_belong_to_an_address(address):
    text = f"Bitte an {address} senden"
    covered = {at for first, last in find_addresses(text, 0) for at in range(first, last)}
    assert {at for at in range(9, 9 + len(address)) if text[at].isalnum()} <= covered


@pytest.mark.parametrize("text", [
    "BGH, Urteil vom 23. März 2024, NJW 2010, 2817 Rn. 67", "EAN 4090435325157; Lagerplatz 88-53-557",
    "Saldo pr. 31.12.2024: 36267,27 kr",
    "Sitzplatz 12, Wagen 7", "Smith et al. 12, page 4", "box 12 of the form",
    "Output 12 of 14", "Monitoring 24/7", "Data Mining. 2009", "Engineering 23(12)", "ThinkPad 14", "Navigate 2 pages",
    "Am Bahnhof 3 Uhr", "Spring 2024",
])  # fmt: skip
def test_citations_places_and_dates_are_no_address(text):
    assert list(find_addresses(text, 0)) == []


@pytest.mark.parametrize("address", [
    "Straße des 17. Juni 135\n10623 Berlin", "ж.к. Младост 1, бл. 25, вх. А, 1784 София",
    "1132 Budapest, Váci út 20. II. em. 5.", "ul. 3 Maja 7/12, 40-097 Katowice",
    "Stiege 2 Tür 15, Favoritenstraße 10, 1040 Wien", "Apt 12, 5 The Quays, Dublin 2, D02 F583",
    "Résidence Les Pins, 14 chemin du Moulin\n06130 Grasse",
    "Platz der Republik 1, 11011 Berlin", "Jimmyboulevard 113\n5264\nReet", "Rua 25 de Abril 10, 1200-001 Lisboa",
    "Rožna dolina, cesta IV 1c, 5186 Jesenice",
    "Ulica 7. septembra 930\n1004 Dravograd", "Křimická 51, 156 72 Jesenice (okres Rakovník)",
])  # fmt: skip
def test_streets_named_after_days_flats_in_front_and_estates_are_found_whole(address):
    text = f"{address}\n"
    assert address.rstrip(".") in {text[start:end].rstrip(".") for start, end in find_addresses(text, 0)}


@pytest.mark.parametrize("text", [
    "Frequenz 145,650 MHz, Kanal 16", "Op. 27 Nr. 2, BWV 1007, KV 525, D 944", "Zug ICE 123, IC 4567, RE 12345",
    "EUR/USD 1,0853, Gold 2345",
    "Monitoring 24/7, ThinkPad 14, Spring 2024", "auf Platz der Tabelle 12 und 3 Punkte",
    "die Allee des Jahres 2024 steht",
])  # fmt: skip
def test_decimals_opus_numbers_and_trains_are_no_address(text):
    assert list(find_addresses(text, 0)) == []


@pytest.mark.parametrize("person", ["Lena Dircken woont op", "Anna Berg wohnt in"])
def test_who_lives_there_is_no_part_of_the_street(person):
    text = f"{person} Lindenring 64, 10115 Berlin"
    assert [text[start:end] for start, end in find_addresses(text, 0)] == ["Lindenring 64, 10115 Berlin"]


@pytest.mark.parametrize("text", [
    "Av. Luis Montoto, 129, 6 A", "Calle Mayor 12, 3º B", "C/ Alcalá, 45, 4º izq.", "Calle Mayor, 6, 2, A",
    "Paseo del Prado 8, bajo dcha.",
    "Calle Mayor 12, esc. 2, 1º 2ª", "C/ Mayor 17 - 3º D", "Via Roma 12, scala B, interno 5",
    "Via Roma 12, piano terra", "12 rue de la Paix, bât. B, 3e étage, porte 4",
    "5 avenue Foch, appt 12", "Rue Haute 12 bte 4",
])  # fmt: skip
def test_floor_and_door_belong_to_the_house(text):
    assert text in [text[start:end] for start, end in find_addresses(text, 0)]


@pytest.mark.parametrize("text", [
    "§§ 100 Abs. 1 Satz 1, 121 FGO", "BVerfGE 128, 282 Rn. 52", "Slg. 1993, I-4023, ECLI:EU:C:1993:586",
    "Art. 17, 1234 Bruxelles",
    "1, 3, 'O. Osbourne, R. Daisley, R. Rhoads', 283088, 9207869",
])  # fmt: skip
def test_citations_and_values_of_a_list_are_no_addresses(text):
    assert list(find_addresses(text, 0)) == []


@pytest.mark.parametrize(("text", "value"), [
    ("Domicilio: Calle la bañeza 38, 9A.\n", "Calle la bañeza 38, 9A"), ('{"address": "Los Alisos 10"}',
    "Los Alisos 10"),
    ("Anschrift: Im alten Hof 3\n", "Im alten Hof 3"),
])  # fmt: skip
def test_a_field_called_an_address_holds_one(text, value):
    assert value in [text[start:end] for start, end in find_addresses(text, 0)]


@pytest.mark.parametrize(
    "text",
    [
        "IP address: host 12",
        "MAC address: port 7",
        "e-mail address: see page 3",
        "address: 0x7fff1234",
        "memory address is at 12",
    ],
)
def test_other_addresses_are_none(text):
    assert list(find_addresses(text, 0)) == []
