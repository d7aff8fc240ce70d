import phonenumbers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stdnum import iban as stdnum_iban

from policy.errors import RedactionError
from policy.redact.contacts.phone import REGIONS
from policy.redact.detectors.detectors import DETECTORS, Detector, find_spans
from policy.redact.payment.iban import LENGTHS, has_valid_check_digits
from policy.redact.payment.payment_cards import passes_luhn
from policy.redact.text.json_text import as_read
from tests.fakes.work import calls

PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ\n-----END PRIVATE KEY-----"


def found(text: str) -> list[tuple[str, str]]:
    return [(span.label.partition(".")[0], text[span.start : span.end]) for span in find_spans(text, 0, DETECTORS)]


POSITIVE = [
    ("email", "alice@example.org"),
    ("email", "o'brien+news@mail.example.co.uk"),
    ("email", "müller@bücher.de"),
    ("email", "info@xn--bcher-kva.example"),
    ("email", "νίκος@παράδειγμα.ελ"),
    ("iban", "DE89370400440532013000"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "de89-3704-0044-0532-0130-00"),
    ("iban", "GB29 NWBK 6016 1331 9268 19"),
    ("iban", "NO9386011117947"),
    ("iban", "MT84MALT011000012345MTLCAST001S"),
    ("card", "4111111111111111"),
    ("card", "4111 1111 1111 1111"),
    ("card", "4111-1111-1111-1111"),
    ("card", "3782 822463 10005"),
    ("card", "5555555555554444"),
    ("card", "2223003122003222"),
    ("phone", "+49 30 901820"),
    ("phone", "+49 (0)30 901820"),
    ("phone", "+33 1 42 68 53 00"),
    ("phone", "0049 30 901820"),
    ("phone", "+351 213 456 789"),
    ("phone", "(030) 901820"),
    ("phone", "01 42 68 53 00"),
    ("ip", "85.214.132.17"),
    ("ip", "2a01:4f8::8a2e:370:7334"),
    ("ip", "::ffff:85.214.132.1"),
    ("secret", "sk-abcdEFGH1234567890abcd"),
    ("secret", "ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
    ("secret", "AKIAIOSFODNN7EXAMPLE"),
    ("secret", "dom_live_a1b2c3d4_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG012345"),
    ("secret", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N"),
    ("secret", PEM),
    ("national_id", "RSSMRA85T10A562S"),
    ("national_id", "1 85 05 78 006 084 91"),
    ("national_id", "12345678-Z"),
    ("national_id", "X1234567L"),
    ("national_id", "131052-308T"),
    ("national_id", "756.9217.0769.85"),
]


@pytest.mark.parametrize(("label", "value"), POSITIVE)
@pytest.mark.parametrize("frame", ["{}", "It is {} now.", '"{}",', "({})", "a;{};b", "<{}>", "\n{}\n", "日本{}語"])
def test_a_value_is_found_whole_in_whatever_stands_around_it(label, value, frame):
    assert found(frame.format(value)) == [(label, value)]


@pytest.mark.parametrize(
    "text",
    [
        "DE88 3704 0044 0532 0130 00",  # wrong check digits
        "DE8937040044053201300",  # one digit short
        "DE893704004405320130000",  # one digit more
        "XX89 3704 0044 0532 0130 00",  # no such country
        "4111 1111 1111 1112",  # fails Luhn
        "1111 1111 1111 1117",  # passes Luhn, no issuer
        "order 4111-1111",
        "3.14159265358979",
        "2024-05-12 10:20:30",
        "12.05.2024 and 20240512",
        "1 234 567 or 1.234.567,89",
        "made 12345678 steps",
        "room 030 on floor 3",
        "+1 2 3",
        "1.2.3.4.5 and v1.2.3.4",
        "VERSION: '0.12.0.0' and version 10.0.19.45",
        "999.1.1.1",
        "12:30:45",
        "std::vector<int>::iterator",
        "a :: b",
        "alice@localhost",
        "@alice and alice@",
        "x = w@v.T",
        "alice@@example.org.",
        "sk-learn-is-a-python-package-for-machine-learning",
        "sk-short1",
        "-----BEGIN CERTIFICATE-----",
        "RSSMRA85T10A562T",  # wrong check letter
        "12345678A",
        "the number 123456782 stands here without a name",
        "ISBN 978-3-16-148410-0",
        "UUID 123e4567-e89b-12d3-a456-426614174000",
        "commit 4111111111111111abcdef",
        "The quick brown fox jumps over 13 lazy dogs.",
    ],
)
def test_what_only_looks_like_personal_data_is_left_alone(text):
    assert found(text) == []


def test_a_weak_number_counts_only_behind_its_name():
    assert found("BSN 111222333") == [("national_id", "111222333")]
    assert found("BSN 111222334") == []
    assert found("burgerservicenummer: 111222333") == [("national_id", "111222333")]
    assert found("order 111222333") == []


def test_a_number_without_prefix_is_a_phone_only_when_it_is_called_one():
    assert found("Tel. 612345678") == [("phone", "612345678")]
    assert found("Article 612345678") == []


@pytest.mark.parametrize("neighbour", ["please", "B", "00", "DE", "3000 X", "EUR 40"])
def test_a_word_behind_an_iban_changes_nothing(neighbour):
    assert found(f"IBAN DE89 3704 0044 0532 0130 00 {neighbour}")[0] == ("iban", "DE89 3704 0044 0532 0130 00")


def test_a_card_among_other_numbers_is_found():
    assert ("card", "4111 1111 1111 1111") in found("2024 4111 1111 1111 1111 123")
    assert ("card", "4111111111111111") in found("1,4111111111111111,2")


def test_where_findings_overlap_the_first_detector_names_the_whole_of_both():
    detectors = [Detector("a", lambda text, start: [(2, 5)]), Detector("b", lambda text, start: [(0, 3), (4, 9)])]
    assert find_spans("0123456789", 0, detectors) == [(0, 9, "a")]


def test_a_detector_that_fails_is_reported_without_the_text():
    def fails(text, start):
        raise KeyError(text)

    with pytest.raises(
        RedactionError, match=r"^detector x failed with KeyError; report it to the operator$"
    ) as failure:
        find_spans("alice@example.org", 0, [Detector("x", fails)])
    assert failure.value.__cause__ is None and failure.value.__suppress_context__


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(LENGTHS)), st.text("0123456789ABCDEFGHIJ", min_size=30, max_size=30))
def test_our_iban_check_is_that_of_iso_7064(country, digits):
    body = digits[: LENGTHS[country] - 4]
    check = stdnum_iban.calc_check_digits(f"{country}00{body}")
    assert has_valid_check_digits(f"{country}{check}{body}")
    wrong = f"{(int(check) + 1) % 100:02}"
    assert not has_valid_check_digits(f"{country}{wrong}{body}")


@given(st.text("0123456789", min_size=12, max_size=18))
def test_exactly_one_last_digit_passes_luhn(digits):
    assert sum(passes_luhn(digits + last) for last in "0123456789") == 1


@pytest.mark.parametrize("region", REGIONS)
def test_every_regions_example_numbers_are_found_in_both_forms(region):
    for kind in (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE):
        number = phonenumbers.example_number_for_type(region, kind)
        for form in (phonenumbers.PhoneNumberFormat.INTERNATIONAL, phonenumbers.PhoneNumberFormat.E164):
            shown = phonenumbers.format_number(number, form)
            assert found(f"call {shown} today") == [("phone", shown)]
        national = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.NATIONAL)
        assert ("phone", national) in found(f"Tel: {national}") or found(f"Tel: {national}")[0][0] == "national_id"


HOSTILE = [
    "@", "a@", "a@b.", "a", "1 ", "12 ", "eyJ", "sk-", "<", "-----BEGIN ", PEM[:60], "DE89 ", "a.b.", "1.1.", "a:1:",
    "x@ofﬁce.",
    "+49 ", "0 ", "4111 ", "000 000 000 ", "tel 030 ", "1234567 ", "PESEL ", "PESEL 4", "password: ", "password:a1",
    "token abc12", "Straße 1, ", "Rue De ", "Aa ", "DE1", "a://b:", "https://a:b", "IMEI 1", "born ", "born 1 ",
    "Via Aa 1, 1000 Bb ",
    "00:", "r. č. 9", "%41", "&#64;", "\\u0041", "sig=", ":AA", "Q~", "2/1", "AccountKey=", "a1b2", "O0", "l|1 ",
    "IT60X", "x;y\n",
    "1;2\n", "½", "\u200b", "ID 1 is ID ", "123456782 BSN ", "aB", "12 Main ", "M.G", "s.a", "access_token$", "1234.56",
    "FR76 3",
    "A<<", "-us1", "12345678;a@b.cc;", "99 99 99 99 99 ", "Dr. Aa Bb Cc ", "((+1", "_a ", "bic;", "&a=+b", "-p'a",
    "| a | BIC |\n|---|---|\n| x | y |\n", "INSERT INTO t (bic) VALUES\n('a'),", "1 (EGN) ",
]  # fmt: skip


def growth(unit: str, length: int) -> float:
    """How many more functions are called for twice the text. What a regular expression costs inside is measured by
    `bench.suite.growth`."""
    text = (unit * length)[: 2 * length]
    once, twice = (
        calls(lambda part=part: find_spans(as_read(part).text, 0, DETECTORS)) for part in (text[:length], text)
    )
    return twice / once


@pytest.mark.parametrize("unit", HOSTILE)
def test_detection_is_linear_in_the_length_of_hostile_text(unit):
    assert growth(unit, 3_000) < 2.8  # quadratic is 4


@pytest.mark.parametrize("unit", ["The committee met on Tuesday in room 12. ", "a1b2-", "Tel. 030 "])
def test_detection_is_linear_in_the_length_of_long_text(unit):
    assert growth(unit, 60_000) < 2.8


def test_a_secret_whose_name_is_glued_to_the_one_before_is_found_too():
    text = "password: hunter2Xyz9password: swordfish7Q"
    found = "".join(text[span.start : span.end] for span in find_spans(text, 0, DETECTORS))
    assert "hunter2Xyz9" in found
    assert "swordfish7Q" in found


@pytest.mark.parametrize(
    ("text", "value"),
    [("IBAN IEO6 AIВК 9311 5212 3456 78", None), ("DE89 37O4 OO44 O532 O13O OO", "DE89 37O4 OO44 O532 O13O OO"),
     ("GB29 NWBK 6O16 l331 9268 l9", "GB29 NWBK 6O16 l331 9268 l9"), ("NO93 86O1 1117 947", "NO93 86O1 1117 947"),
     ("FR14.2004.1010.0505.0001.3M02.606", "FR14.2004.1010.0505.0001.3M02.606"), ("DE88 37O4 OO44 O532 O13O OO", None)],
)  # fmt: skip
def test_signs_that_look_like_digits_are_read_where_the_countrys_account_has_digits(text, value):
    assert found(text) == ([("iban", value)] if value else [])


def test_the_longest_card_is_taken_and_none_behind_a_plus():
    assert found("4328 2561 1780 8183 648") == [("card", "4328 2561 1780 8183 648")]
    assert "card" not in [label for label, _ in found("+4915189045904")]


@pytest.mark.parametrize("text", ["GPS 48.421130, 2.922440", "loss 0.13561942 at step 12", "Tellimus 280595604",
"Zásilka 32331187", "Poukaz 605123456",
                                  "A 19726688 számú számla",
                                  "Поръчка 476216589, товарителница 1639476701"])  # fmt: skip
def test_a_number_that_a_noun_or_a_point_explains_is_no_phone(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "☎ 32-11-29-27",
        "Phone:\n030 901820",
        "Treffes på 41 23 45 67",
        "Rückruf unter 030-169756",
        "(+49) 30 901820",
        "O meu telemóvel é (351) 914501690",
        "Farsíminn minn er 612 2484",
    ],
)
def test_a_sign_a_line_or_a_verb_calls_a_phone(text):
    assert [label for label, _ in found(text)] == ["phone"]


@pytest.mark.parametrize("number", ["4580 7302", "54 06 13 58", "0154990951", "612345678"])
@pytest.mark.parametrize(
    "row", ["Anna Aas;{};anna@example.org", "Anna Aas | {} | anna@example.org", '"Anna","{}","anna@example.org"\n']
)
def test_a_number_in_a_row_with_an_address_is_a_phone(number, row):
    assert [text for _, text in found(row.format(number)) if "@" not in text] == [number]


@pytest.mark.parametrize(
    "text",
    [
        "17;45807302;open",
        "45807302\nanna@example.org",
        "anna@example.org ordered 45807302 things",
        "a;12 345,00 EUR;anna@example.org",
    ],
)
def test_a_number_in_another_row_or_a_sentence_is_none(text):
    assert [label for label, _ in found(text) if label != "email"] == []


@pytest.mark.parametrize("text", [
    "zlib 1.3.1.2 and nginx 1.27.7.3", "Section 12.3.4.5 of the manual", "Chrome/120.0.0.0 Safari/537.36",
    "firmware 10.20.30.40",
])  # fmt: skip
def test_four_small_numbers_that_nothing_calls_a_host_are_a_version(text):
    assert found(text) == []


@pytest.mark.parametrize("ip", ["10.1.2.3", "192.168.1.7", "85.214.132.117"])
def test_an_address_is_found_without_a_name(ip):
    assert found(f"GET / by {ip} at noon") == [("ip", ip)]


def test_four_small_numbers_are_an_address_where_something_says_so():
    assert found("client 1.2.3.4 closed") == [("ip", "1.2.3.4")]


@pytest.mark.parametrize(
    "card",
    ["675995422051", "6759 9542 2051", "060462762232", "180035790798779", "3527055971832672", "5019717010103742"],
)
def test_cards_of_other_issuers_and_lengths_are_found(card):
    assert found(f"please use {card} for it") == [("card", card)]


@pytest.mark.parametrize(
    "text", ["card 675995422052", "EAN 675995422051", "tracking 675995422051", "RO09 BTRL 5871 5627 1757 3010"]
)
def test_a_short_number_with_a_slip_or_another_name_or_inside_an_account_is_no_card(text):
    assert "card" not in [label for label, _ in found(text)]


def test_a_number_that_is_named_and_valid_is_that_and_no_card():
    assert found("SIRET 588 853 994 43014") == [("national_id", "588 853 994 43014")]


@pytest.mark.parametrize(
    "text", ["Vaša narudžba 755243789 je poslana", "Mój IBAN to PL61 0750 1417 2565 0742 4485 6140"]
)
def test_words_and_slips_are_no_account_and_no_vat_number(text):
    assert not {"iban", "vat"} & {label for label, _ in found(text)}


@pytest.mark.parametrize(
    "plate",
    [
        "B-MW 1234",
        "AA22 GYG",
        "622 JAL",
        "1-JPW-527",
        "GJ-38-VUG",
        "LU 8775 VF",
        "ET 97 220",
        "KLE-T-325",
        "SO-132 364",
    ],
)
def test_a_plate_is_found_whole_behind_its_name(plate):
    assert found(f"licence plate: {plate}, blue") == [("plate", plate)]


@pytest.mark.parametrize(
    "text", ["licence plate missing", "the plate is blue", "car plates cost 20 EUR", "license plate: see below"]
)
def test_a_plate_without_letters_and_digits_is_none(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "text", ["Dobrý den, 12.05.2024 jsme zavřeli.", "On Sunday, 12.05.2024, we close.", "Gimnazija 12.05.2020"]
)
def test_words_that_only_begin_like_birth_name_no_date(text):
    assert found(text) == []


@pytest.mark.parametrize("text", ["os.environ['DB_PASS'] = 'McoYr500Zt1L'", 'os.environ["API_TOKEN"] = "McoYr500Zt1L"'])
def test_a_secret_in_brackets_is_found(text):
    assert ("secret", "McoYr500Zt1L") in found(text)


@pytest.mark.parametrize(
    "text", ["Cell tower 94900-46813, LAC 11754.", "Número de expediente 3717/2026", "Gate 4, shelf 12, bin 63067"]
)
def test_towers_files_and_gates_are_neither_phones_nor_streets(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "unit", ['"a,', "(a, b) VALUES ('", "COPY t (pesel) FROM stdin;\n", "<tr><td>", "a;b\na;b;c\n", "pesel ", "a  b\n"]
)
def test_tables_and_codes_are_read_in_time_linear_in_hostile_text(unit):
    assert growth(unit, 6_000) < 2.8


@pytest.mark.parametrize("text", [
    "my number is 4580 7302", "text 7757 4476 if late", "61 54 61 11 is my phone number",
    "22766155 ist meine Handynummer",
    "Elias Christensen\n25465809\nelias@example.dk", "Best regards,\nGunhild Overgaard\n9511 3717",
    "Med venlig hilsen\nGunhild\n9511 3717\n",
    "Kirsten Steffensen (2276 6155)", "T: 74228754", "ph: 22370 80 427", "msisdn=69045265",
    "You can get Anna Berg at 66299447 after five.",
])  # fmt: skip
def test_a_phone_is_known_by_what_stands_around_it(text):
    assert "phone" in [label for label, _ in found(text)]


@pytest.mark.parametrize("text", [
    "2014-03-07T07:06:01.491989 INFO", "The total\n25465809\nwas counted", "Total Units (22766155)", "T = 74228754 K",
    "my order is 45807302",
    "35.88.3494 04:52:32", "61546111 is my order", "Best regards,\nthe team\n\nPage 95113717 of it",
])  # fmt: skip
def test_a_number_with_nothing_of_a_phone_around_it_is_none(text):
    assert "phone" not in [label for label, _ in found(text)]


def test_a_date_beside_a_named_number_is_no_number_and_no_phone():
    labels = [label for label, _ in found("Utente Mauro Fonseca, nascido a 17.04.88, contribuinte: 118 135 287.")]
    assert "date_of_birth" in labels and "phone" not in labels
    assert ("date_of_birth", "10.01.1991") in found("nato il 10.01.1991, Steuernummer folgt")


def test_indentation_makes_no_table_of_an_object():
    text = '{\n    "reisepassnummer": "LT76E814G8",\n    "accounts": [],\n    "phones": ["+4930178891"]\n  }'
    assert found(text) == [("national_id", "LT76E814G8"), ("phone", "+4930178891")]
