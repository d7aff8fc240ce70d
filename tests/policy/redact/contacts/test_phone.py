import pytest

from policy.redact.contacts.phone import find_phones
from policy.redact.detectors.detectors import warm

warm()


def phones(text: str) -> list[str]:
    return [text[start:end] for start, end in find_phones(text, 0)]


@pytest.mark.parametrize(
    ("text", "phone"),
    [
        ("Responsable achats\nPort. 012 85 31 16", "012 85 31 16"),
        ("Volejte 601 429 498 nebo pište.", "601 429 498"),
        ("Vous pouvez me joindre au 8278471187.", "8278471187"),
        ("Tfno.: 612.34.24.33", "612.34.24.33"),
        ("Tlm. 912 345 678", "912 345 678"),
        ("my new number is 9696-6084", "9696-6084"),
        ("Account Manager\nM: 01184960320", "01184960320"),
        ("numéro: 06.12.34.56.78", "06.12.34.56.78"),
        ("07.81.22.33.44", "07.81.22.33.44"),  # begins as an IPv4 address does
        ("<clientEgn>8006118295</clientEgn><phone>0035943035616</phone>", "0035943035616"),
    ],
)
def test_a_phone_is_found_behind_what_people_call_it(text, phone):
    assert phones(text) == [phone]


@pytest.mark.parametrize(
    "text",
    [
        "Omzet 2023: 11.779.921 euro; 2024: 15.120.447 euro.",
        "then x^2 + 5.00032159 is small",
        "Gecko/8940-03-07 15:15:04.527893 Firefox",
        "Montag bis Freitag, Zählerstand 05082645.",
        "born on 16. 10. 1967 in Brno",
    ],
)
def test_money_sums_seconds_and_dates_are_no_phones(text):
    assert phones(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "name;email;order_no\nEva;eva@example.org;2828745537\n",
        "| name | phone | order |\n|---|---|---|\n| Eva | +49 30 90182 | 2865475552 |\n",
        "<Phone>+32450688134</Phone><Order_No>6770821479</Order_No>",
        "From: eva@example.at\nSubject: Re: 4500424339\nGuten Tag",
    ],
)
def test_a_number_under_the_heading_or_subject_of_an_order_is_no_phone(text):
    assert all(not phone.startswith(("28", "67", "45")) for phone in phones(text))


def test_a_number_beside_an_address_under_another_heading_is_a_phone():
    assert phones("name;email;contact\nEva;eva@example.org;2828745537\n") == ["2828745537"]


@pytest.mark.parametrize("text", [
    "Omzet: 1,234,567 (2022)", "zn. 11 C 061/2023-12", "По телефона от 9 до 17 ч.; номер 76625911.",
    "контакт: IP 223.206.152.28", "contacto: IP 10.70.18.32",
    "kapital 23.661.390 και 12", "<tr><th>Simão</th></tr><tr><td>3000-150</td></tr>",
    "c = 299792458 m/s, donc le temps",
])  # fmt: skip
def test_figures_files_and_hosts_are_no_phone(text):
    assert phones(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "0171 2345678 (Telefon), x",
        "Sofie\nInnkjøp\nMobil: 21 23 88 70\n",
        "Kontakt: 690 1987",
        "<dt>Telefon</dt><dd>024 689 99 32</dd><dt>Versichertennummer</dt><dd>x</dd>",
        "phoneNumber, cpr_nummer) VALUES\n('0045 32 18 92 48', '1')",
    ],
)
def test_a_name_behind_in_brackets_or_a_first_name_above_hides_no_phone(text):
    assert len(phones(text)) == 1
