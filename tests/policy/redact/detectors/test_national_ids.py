import random

import pytest

from policy.redact.detectors.national_ids import find_national_ids
from policy.redact.evaluate import find_labelled
from policy.redact.ids.kinds import IDS, Needs
from policy.redact.text.reading import Reading
from tests.data.redaction.numbers import COUNTRIES, NUMBERS, number, with_a_slip
from tests.data.redaction.phrases import TUNED


def kinds(text: str) -> list[tuple[str, str]]:
    return [(kind, text[start:end]) for start, end, kind in find_national_ids(text, 0)]


def said(kind: str, name: str, value: str) -> str:
    frame = TUNED[NUMBERS[kind].lang[:2]][0].replace("{name}", "M.")
    return frame.replace("{called}", name).replace("{id}", value)


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_countrys_number_is_found_whole_under_its_own_kind(kind):
    rng = random.Random(kind)
    for name in (*NUMBERS[kind].names, *NUMBERS[kind].held_out):
        for _ in range(4):
            value = number(kind, rng)
            assert (kind, value) in kinds(said(kind, name, value)), name


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_with_a_slip_is_left_alone(kind):
    rng = random.Random(kind)
    for _ in range(4):
        if wrong := with_a_slip(number(kind, rng), IDS[kind].is_valid):
            assert kinds(said(kind, NUMBERS[kind].names[0], wrong)) == []


def test_all_of_the_eu_and_its_neighbours_have_a_number():
    eu = "at be bg cy cz de dk ee es fi fr gr hr hu ie it lt lu lv mt nl pl pt ro se si sk is li no ch"
    assert set(eu.split()) <= set(COUNTRIES) <= {kind[:2] for kind in IDS}


@pytest.mark.parametrize("kind", [kind for kind in NUMBERS if IDS[kind].needs >= Needs.COUNTRY])
def test_a_number_with_a_weak_check_is_left_alone_where_nothing_speaks_for_it(kind):
    value = number(kind, random.Random(kind))
    assert kind not in [found for found, _ in kinds(f"Row 7: {value} in stock")]


def test_a_weak_number_counts_in_a_text_of_its_country_unless_it_is_called_an_order():
    assert kinds("Klient Jan Nowak, 44051401359, prosi o kontakt.") == [("pl_pesel", "44051401359")]
    assert kinds("Zamówienie nr 44051401359 jest w drodze.") == []
    assert kinds("Der Kunde 44051401359 wartet auf Antwort.") == []


def test_a_name_decides_so_that_a_slip_is_not_taken_for_another_kind():
    assert kinds("OIB 44051401359") == [], "a PESEL by its digits, no OIB"
    assert kinds("PESEL 44051401359") == [("pl_pesel", "44051401359")]
    assert kinds("PESEL 44051401358") == []


def test_a_name_may_stand_behind_its_number_or_at_the_head_of_its_column():
    assert kinds("44051401359 is my PESEL.") == [("pl_pesel", "44051401359")]
    assert kinds("name,PESEL,city\nJan,44051401359,Gdynia\nEwa,02070803628,Sopot\n") == [
        ("pl_pesel", "44051401359"),
        ("pl_pesel", "02070803628"),
    ]
    assert kinds("| PESEL | x |\n|---|---|\n| 44051401359 | 1 |") == [("pl_pesel", "44051401359")]


@pytest.mark.parametrize("key", ["numero_de_securite_sociale", "numeroSecuriteSociale", "NIR", "nir"])
def test_names_are_read_in_the_spellings_of_programs_too(key):
    assert kinds(f'{{"{key}": "1 85 05 78 006 084 91"}}')[0][0] == "fr_nir"


def test_czech_and_slovak_numbers_are_told_apart_by_the_language_around_them():
    assert kinds("Moje rodné číslo je 850101/1234, děkuji, prosím o odpověď.")[:1] != [("sk_rc", "850101/1234")]
    value = number("sk_rc", random.Random(1))
    assert kinds(f"Moje rodné číslo je {value}, ďakujem, volám sa Ján.") == [("sk_rc", value)]
    assert kinds(f"Mé rodné číslo je {value}, děkuji, jmenuji se Jan.") == [("cz_rc", value)]


def test_a_general_name_lets_any_kind_count():
    assert kinds("national id: 44051401359")[0][1] == "44051401359"
    assert kinds("The Polish customer's national id: 44051401359") == [("pl_pesel", "44051401359")]


def test_a_name_far_away_names_nothing():
    assert kinds("BSN " + "and so on " * 8 + "111222333") == []


def test_letters_that_grow_in_small_shift_no_place():
    assert kinds("İİİ PESEL 44051401359") == [("pl_pesel", "44051401359")]


def test_what_stands_before_the_start_is_context_only():
    text = "PESEL 44051401359 and 44051401359"
    assert list(find_national_ids(text, 6)) == [(6, 17, "pl_pesel")]
    assert list(find_national_ids(text, 18)) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [("44051401359 is my PESEL", "pl_pesel"), ("gave 44051401359 as the nr ewidencyjny PESEL", "pl_pesel"),
     ("{\"customerPesel\": \"44051401359\"}", "pl_pesel"), ("PESEL 44O5l4O1359", "pl_pesel"), ("hetu 131O52-3O8T",
     "fi_hetu"), ("tax identification number 57 243 441 804", "de_idnr"),
     ("his SSN was 039-14-4111", "us_ssn"), ("L01X00T471 is the Personalausweisnummer", "de_id"),
     ("pers.nr 811218-9876", "se_pnr")],
)  # fmt: skip
def test_a_name_before_or_behind_or_inside_another_word_names_its_number(text, kind):
    assert kind in [found for found, _ in kinds(text)]


@pytest.mark.parametrize("text", ["order 44051401358 (PESEL missing)", "5 people know what a PESEL is",
"44051401358 is my PESEL",
                                  "PESEL: 44051401358, BSN: 111222334",
                                  "loss 0.69536181 after 12345.67890"])  # fmt: skip
def test_a_name_beside_a_number_that_is_none_finds_nothing(text):
    assert kinds(text) == []


def test_a_name_between_two_numbers_belongs_to_the_one_behind_it():
    assert kinds("111222333 BSN 123456782") == [("nl_bsn", "123456782")]


def test_english_words_speak_for_no_other_country():
    assert Reading("Could you check the number 57243441804 for me, is it on the list?").countries == frozenset()


@pytest.mark.parametrize("name", [
    "PEID", "PEID-Nr.", "peid_nr", "PEID_NO", "Personenidentifikationsnummer", "Personen-ID", "Personenident.-Nr.",
    "Personennummer",
    "Liechtenstein personal number", "personal_no", "numéro d'identification personnelle",
])  # fmt: skip
@pytest.mark.parametrize("value", ["40321", "403212", "403 212", "403.212", "1234567"])
def test_a_number_without_a_check_is_found_under_every_name_of_it(name, value):
    assert kinds(f"{name}: {value}") == [("li_peid", value)]


@pytest.mark.parametrize("text", [
    "The order number is 403212.", "Version 403212 of 2026", "PEID bekannt. Geboren am 12.05.1980 in Vaduz",
    "Personal 403212 units moved",
    "Die Personen 403212 und 403213 fehlen",
])  # fmt: skip
def test_a_number_without_a_check_is_nothing_without_its_name(text):
    assert kinds(text) == []


def test_a_checked_number_wins_over_one_without_a_check_where_a_name_may_mean_both():
    assert kinds("Danish personal number: 131052-3080")[:1] == [("dk_cpr", "131052-3080")]
    assert kinds("Liechtenstein personal number: 403212") == [("li_peid", "403212")]


@pytest.mark.parametrize(("value", "kind"), [
    ("44051401359", "pl_pesel"), ("13060558072", "gr_amka"), ("1585130605", "at_svnr"), ("14015347555", "no_fnr"),
    ("512-34-5678", "us_ssn"),
])  # fmt: skip
def test_ssn_is_what_english_calls_any_countrys_number(value, kind):
    assert kind in [found for found, _ in kinds(f"SSN: {value}")]


@pytest.mark.parametrize("text", [
    "INSERT INTO client (name, pesel) VALUES ('Jan Nowak', '44051401359');",
    "COPY client (name, pesel) FROM stdin;\nJan\t44051401359\n\\.\n",
    "<tr><th>Name</th><th>PESEL</th></tr><tr><td>Jan</td><td>44051401359</td></tr>",
    'name,pesel\n"Nowak, Jan",44051401359\n',
    "peselNumber=44051401359",
    "Name          PESEL\nJan Nowak     44051401359\n",
])  # fmt: skip
def test_a_column_names_its_numbers_in_dumps_and_documents_too(text):
    assert kinds(text) == [("pl_pesel", "44051401359")]


def test_a_name_in_brackets_with_a_small_number_names_the_one_behind():
    assert kinds("fødselsnummer (11 siffer): 131052 30850") == kinds("fødselsnummer: 131052 30850")


def test_letters_that_begin_a_number_are_part_of_it_even_where_they_name_another():
    assert kinds("National Insurance number: KT 08 69 22 C.") == [("gb_nino", "KT 08 69 22 C")]
    assert kinds("číslo OP 123456789") == [("passport", "123456789")]


def test_a_closing_tag_names_nothing_behind_it():
    assert kinds("<peid>40321</peid><row>7654321</row>") == [("li_peid", "40321")]


@pytest.mark.parametrize(("text", "value"), [
    ("Passport number: 904486283", "904486283"), ("Numer paszportu: ZS0000177", "ZS0000177"),
    ("passaporto n. YA1234567", "YA1234567"),
    ("číslo OP 123456789", "123456789"),
])  # fmt: skip
def test_a_passport_is_found_under_its_name(text, value):
    assert kinds(text) == [("passport", value)]


@pytest.mark.parametrize(
    "text", ["Your passport expires 12.05.2030.", "passport control opens at 06:30", "The passport fee is 60 EUR."]
)
def test_a_date_or_a_price_beside_a_passport_is_no_passport(text):
    assert kinds(text) == []


@pytest.mark.parametrize("text", [
    "Chrome/131.0.8127.672 Safari/537.36", "Číslo jednací 72896/2026, číslo smlouvy 145621996.",
    "Mon numéro fiscal est 2507134743110, merci.", "numéro de sécurité sociale: 1 67 03 75 324 880 90",
])  # fmt: skip
def test_browsers_files_and_slips_are_left_alone(text):
    assert kinds(text) == []


@pytest.mark.parametrize(("kind", "text", "value"), [
    ("es_nss", "Mi número de la Seguridad Social es 36/99962372/95, gracias.", "36/99962372/95"), ("es_nss",
    "nss: 341348546376", "341348546376"),
    ("pt_niss", "O meu NISS é 11837456884.", "11837456884"), ("pt_niss", "número de Segurança Social: 118 374 568 84",
    "118 374 568 84"),
    ("pl_id", "nr dowodu CDB 600336", "CDB 600336"), ("pl_id", '{"nr_dowodu": "CDB600336"}', "CDB600336"),
    ("lv_pk", "personas kods: 327052-12345", "327052-12345"), ("cy_tic", "Ο ΑΦΜ μου είναι 01324940M.", "01324940M"),
    ("mt_id", "I.D. No. 2644089M", "2644089M"), ("bg_egn", "пратих ли ти ЕГН? ето: 8901289770", "8901289770"),
    ("gb_nino", "gave br 54 19 13 c", "br 54 19 13 c"),
])  # fmt: skip
def test_a_number_of_insurance_or_identity_is_found_under_its_name(kind, text, value):
    assert kinds(text) == [(kind, value)]


@pytest.mark.parametrize("text", [
    "nr dowodu CDB 500336", "NISS: 11837456885", "Mi NSS es 369996237296.", "la factura 369996237295",
    "dowód wpłaty 1234567",
    "kods 327052-12345", "Een paspoort kost € 77,85; aanvraag 4662317472, 5 werkdagen.",
    "Pașaportul costă 258 lei; cerere 100984049.",
    "form 7879 is due on 31 May 2025. Passport renewals take 21 days.",
    "aliquid excepturi. 2018-09-20 500579.7 pour nous", "2025-03-12 a 12 490", "EAN-13 4050857444676, net weight",
    "ricevuta 4575110. La partita IVA",
])  # fmt: skip
def test_a_slip_a_clause_of_its_own_and_a_date_are_no_number(text):
    assert kinds(text) == []


@pytest.mark.parametrize("number", ["LTVWKY75K7", "RPJ30VFHL2", "V0FFVWP535"])
def test_a_document_of_few_digits_is_found_under_its_name(number):
    assert [text for label, text in _labelled(f"Meine Ausweisnummer lautet {number}.") if label.endswith("de_id")] == [
        number
    ]
    assert _labelled(f"Artikel {number} ist lieferbar.") == []


def _labelled(text: str) -> list[tuple[str, str]]:
    return [(label, text[start:end]) for start, end, label in find_labelled(text)]


@pytest.mark.parametrize(
    ("text", "number", "kind"),
    [("Meine Steuernummer lautet 181/815/08155.", "181/815/08155", "de_stnr"), ("Compruebe el NUSS: 28 63488749 55",
    "28 63488749 55", "es_nss"),
     ("Prosim preverite: EMŠA 2801646508266.", "2801646508266", "si_emso"), ("n° national demandé : 72112478980",
     "72112478980", "be_nn"),
     ("197909304193 (personnummer (12 siffror))", "197909304193", "se_pnr"), ("id|customer_rc|n\n6|8158239617|1\n",
     "8158239617", "cz_rc"),
     ("| Personalausweisnummer |x|\n|---|---|\n| THXGHGHHC8 |1|\n", "THXGHGHHC8", "de_id"),
     ("seria i numer dowodu to sbl 340751", "sbl 340751", "pl_id"),
     ("pl_id_card: BBN 211760", "BBN 211760", "pl_id"), ("9704159749 (EGN), 0171 2345678", "9704159749", "bg_egn"),
     ("Ο αριθμός δελτίου ταυτότητας είναι ΑΒ 123456.", "ΑΒ 123456", "passport"),
     ("Carte nationale d'identité n° X4RTBPFW4", "X4RTBPFW4", "passport"),
     ("Paspoortnummer NW4HX8P21", "NW4HX8P21", "passport"), ("Führerscheinnummer B072RRE2I55", "B072RRE2I55",
     "passport"), ("My passport is P1234567 now", "P1234567", "passport"),
     ("αδτ: 142769", "142769", "cy_id"), ("die Ausweisnummer (TCLHFTRJK9) von", "TCLHFTRJK9", "de_id"),
     ("<NumeroDeIdentificacaoDeSegurancaSocial>12142927435</N>", "12142927435", "pt_niss")],
)  # fmt: skip
def test_more_names_and_places_of_names_are_known(text, number, kind):
    found = [(text[start:end], each) for start, end, each in find_national_ids(text, 0)]
    assert (number, kind) in found


@pytest.mark.parametrize(
    "text",
    [
        "die Reisepassnummer LW08W316X0 stimmt",
        "The national ID has eleven digits; the case number is 8653236460.",
        "le passeport TOURISME a coûté",
        "Steuernummer 86095742718",
        "meine IdNr.: 59 785 140 230 lautet so",
        "Η αξία ήταν 641.268.873 και 370.116.938",
        "Broj stanovnika bio je 1.992.359 2023. godine",
    ],
)
def test_slips_and_sums_are_no_number(text):
    assert [*find_national_ids(text, 0)] == []


@pytest.mark.parametrize(
    ("text", "label", "value"),
    [
        ("Swiss social security number: 756.4279.5759.57", "national_id.ch_ahv", "756.4279.5759.57"),
        ("Hungarian social security number 046 415 301", "national_id.hu_taj", "046 415 301"),
        ("os.environ['A']\nget(url, params={'tax_id': '13 265 847 704'})", "national_id.de_idnr", "13 265 847 704"),
        ("WHERE tax_number = '317 501 054'", "national_id.pt_nif", "317 501 054"),
        ("the identity card number should be 265994M not the old", "national_id.mt_id", "265994M"),
        ("| bsn | 7||932O49 |\n| IBAN | x |", "national_id.nl_bsn", "7||932O49"),
        ("ЕГН на пациента: 90O|l24722. Оплаква се", "national_id.bg_egn", "90O|l24722"),
        ("N° INSEE : | 55 o6 75 3O7 194 84. Se plaint", "national_id.fr_nir", "| 55 o6 75 3O7 194 84"),
        ("γεννήθηκε 11-08-1953, tax identification code (TIC): 5670110", "date_of_birth", "11-08-1953"),
        ("tere, siin on Estonian ID code: 3491219323| nagu", "national_id.ee_ik", "3491219323|"),
    ],
)
def test_a_named_number_keeps_its_own_label_in_any_spelling(text, label, value):
    assert (label, value) in [(found, text[start:end]) for start, end, found in find_labelled(text)]


def test_the_end_of_a_longer_number_with_a_slip_is_no_number_of_its_own():
    assert find_labelled("numéro fiscal: 30 35 671 211 080") == []


@pytest.mark.parametrize("text", ["| A | 5 |\n| B | 77|12345678 |", "606|Step_LSC|30002312|onStandStepChanged 3579"])
def test_a_bar_between_cells_is_no_digit(text):
    assert find_labelled(text) == []


@pytest.mark.parametrize(("text", "kind"), [
    ("patientjournal nr. 552817", "medical_record"), ("Betegazonosító: 552817", "medical_record"),
    ("număr fișă: 552817", "medical_record"),
    ("číslo pacienta 552817", "medical_record"), ("αριθμός ασθενούς: 552817", "medical_record"),
    ("numéro de patient : 552817", "medical_record"),
    ("broj pacijenta: 552817", "medical_record"), ("potilasnumero 552817", "medical_record"),
    ("номер на пациента: 552817", "medical_record"),
    ("paciento numeris: 552817", "medical_record"), ("codice paziente 552817", "medical_record"), ("HPR-nummer 552817",
    "professional_licence"),
    ("orvosi pecsétszám: 552817", "professional_licence"), ("numer prawa wykonywania zawodu 552817",
    "professional_licence"),
    ("legitimationsnummer: 552817", "professional_licence"), ("autorisations-ID: 552817", "professional_licence"),
])  # fmt: skip
def test_patients_files_and_licences_are_named_in_every_language(text, kind):
    from policy.redact.evaluate import find_labelled

    assert [(text[start:end], label) for start, end, label in find_labelled(text)] == [
        ("552817", f"national_id.{kind}")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Sagsnummer 39910362, journalnummer 6418846.",
        "numéro d'ordre 552817",
        "broj licence: 552817",
        "törzsszám: 552817",
    ],
)
def test_numbers_of_cases_and_of_licences_to_software_are_no_patients(text):
    from policy.redact.evaluate import find_labelled

    assert find_labelled(text) == []


def test_a_british_insurance_number_is_found_behind_its_name_with_points():
    from policy.redact.evaluate import find_labelled

    text = "N.I. number should be RE14/8864/C not"
    assert [(text[start:end], label) for start, end, label in find_labelled(text)] == [
        ("RE14/8864/C", "national_id.gb_nino")
    ]
