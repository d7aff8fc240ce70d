import pytest

from policy.redact.detectors.plates import find_plates


def plates(text: str) -> list[str]:
    return [text[start:end] for start, end in find_plates(text, 0)]


@pytest.mark.parametrize(
    ("text", "plate"),
    [
        ("Le véhicule immatriculé CA-020-QR gênait la sortie.", "CA-020-QR"),
        ("The car, registration number 12-C-31110, was parked badly.", "12-C-31110"),
        ("Il veicolo targato RH 416 SI era in divieto di sosta.", "RH 416 SI"),
        ("Vozilo z registrsko številko KR VT-798 je bilo napačno parkirano.", "KR VT-798"),
        ("Vozidlo s evidenčným číslom BA-123XY stálo v zákaze.", "BA-123XY"),
        ("Automobilis, valstybinis numeris ZBD 502, stovėjo netinkamai.", "ZBD 502"),
        ("Sõiduk registreerimismärgiga 557 PXP oli valesti pargitud.", "557 PXP"),
        ("Bíllinn með skráningarnúmer BK F58 var ólöglega lagt.", "BK F58"),
        ("Bhí an carr, uimhir chláraithe 191-D-793, páirceáilte.", "191-D-793"),
        ("Mașina cu numărul de înmatriculare GJ-06-HWO era parcată greșit.", "GJ-06-HWO"),
        ("Το όχημα με αριθμό κυκλοφορίας LNM 112 ήταν εδώ.", "LNM 112"),
    ],
)
def test_a_plate_is_found_behind_its_name_in_each_language(text, plate):
    assert plates(text) == [plate]


@pytest.mark.parametrize(
    ("text", "plate"),
    [("A NEG-476 rendszámú autó tilosban állt.", "NEG-476"), ("B-MW 1234 (Kennzeichen)", "B-MW 1234")],
)
def test_a_plate_may_stand_right_before_its_name(text, plate):
    assert plates(text) == [plate]


@pytest.mark.parametrize(
    "text",
    [
        "The registration number is on the next page.",
        "The registration is open until 31 May.",
        "A valstybinis prekybos centras 2024 metais",
        "Le taux d'immatriculation a baissé de 12 %.",
    ],
)
def test_prose_about_registration_holds_no_plate(text):
    assert plates(text) == []
