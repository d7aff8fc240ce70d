"""Numbers of tables, logs, code and law, which are neither phones nor cards nor identity numbers."""

import pytest

from policy.redact.detectors.detectors import DETECTORS, find_spans
from policy.redact.evaluate import find_labelled
from policy.redact.text.reading import Reading


def found(text: str) -> list[tuple[str, str]]:
    return [(span.label, text[span.start : span.end]) for span in find_spans(Reading(text), 0, DETECTORS)]


@pytest.mark.parametrize("text", [
    "x,y\n1,0.246783997558\n", "0.422187974039385,155.9,114.31304768\n", "MAE,Madera,CA,USA,36.9857175,-120.1119844",
    "0,246783997558;1,93746554\n", "iata,lat\nMBG,Mobridge Municipal,SD,USA,45.54650361,-100.40791\n",
    "932.1\t295.5\t1549.890",
])  # fmt: skip
def test_decimals_of_any_table_are_left_alone(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "label", ["PHONE_NUMBER", "DRIVERS_LICENSE", "LICENSE_PLATE", "PASSPORT", "steuernummer", "CVV"]
)
@pytest.mark.parametrize("figure", ["0.733463", "0.0234", "1.0", "0.19710618840486", "73.3463"])
def test_a_score_of_a_label_is_nothing_of_that_label(label, figure):
    for text in (f'{{"{label}": {figure}, "x": 1}}', f"| {label} | {figure} |", f"{label.lower()}_f1={figure}"):
        assert found(text) == []


@pytest.mark.parametrize("text", [
    "Wolfgang Amadeus Mozart (1756 - 1791) was a composer.", "the reign (1308 – 1312) ended", "(1719-1780)",
    "from 1990-2020",
    "so-called Sun King (1638 - 1715)", "der Verordnung (EU) 2019/1021 des Rates", "0.14.0 / 2010-06-15",
    "ratio 0.30 / 0.60 / 0.20",
    "release 0.27.17.20210829", "Unionsmarke Nr. 017131139 eingetragen", "postal code 12227-000 or 94043-1351",
])  # fmt: skip
def test_years_acts_versions_and_files_are_no_phones(text):
    assert found(text) == []


@pytest.mark.parametrize("text", [
    "081109 203615 148 INFO dfs.DataNode: done", "081109 203615", "03-17 16:15:06.200  1702  3137 D PowerManager: on",
    "id=4980916519894289629", "blk_-4980916519894289629 stored", "620280697361025975",
    "Bad activity token: android.os.BinderProxy@2bd79ce",
    "I0317 16:15:06.200145   1702 main.cc:12] up", "seq 2022655477:8007951962, ack 2242049445",
])  # fmt: skip
def test_stamps_processes_and_drawn_ids_of_logs_are_left_alone(text):
    assert found(text) == []


@pytest.mark.parametrize("text", [
    "<D_2380>20130510</D_2380>", "<cbc:CompanyID>57151520</cbc:CompanyID><cbc:Telephone>+4598989898</cbc:Telephone>",
    "RFF+GN:17131139'", "5, 'Blues', 973857, 55440403, 0.99), (",
])  # fmt: skip
def test_dates_registers_and_cells_of_dumps_are_no_phones(text):
    assert [value for label, value in found(text) if value != "+4598989898"] == []


def test_a_phone_that_a_message_calls_so_behind_it_is_found():
    assert found("<D_3148>46211230</D_3148>\n<D_3155>TE</D_3155>") == [("phone", "46211230")]


@pytest.mark.parametrize("text", ["12345678Z", "case 12345678-Z", "build 12345678Z", "commit 1234567T"])
def test_a_check_letter_alone_makes_no_number(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "text", ["DNI 12345678Z", "12345678-Z", "12.345.678-Z", "El cliente vive en la calle del Sol y es 12345678Z"]
)
def test_a_name_a_group_or_its_language_speaks_for_a_check_letter(text):
    assert [label for label, _ in found(text)] == ["national_id.es_dni"]


def test_a_long_card_counts_where_it_is_named_or_grouped():
    number = "4980916519894289629"
    assert found(f"card {number}") == [("card", number)]
    assert found(f"pay with {number}") == [("card", number)]
    assert found("4980 9165 1989 4289 629") == [("card", "4980 9165 1989 4289 629")]


def test_a_card_in_a_column_whose_other_numbers_fail_the_check_is_none():
    column = ["4111111111111111", "4111111111111112", "5105105105105101", "4222222222222223"]
    assert found("\n".join(column)) == []
    assert found("\n".join(["4111111111111111", "5105105105105100"])) != []


@pytest.mark.parametrize(
    "row",
    [
        "name;mail;phone;id\nNatasza Testowa;n.t@mail.example.eu;512 218 761;53070237720",
        "Natasza Testowa;n.t@mail.example.eu;512 218 761;53070237720\n",
    ],
)
def test_an_id_behind_a_phone_in_a_row_keeps_its_own_label(row):
    assert ("national_id.pl_pesel", "53070237720") in found(row)
    assert ("phone", "512 218 761") in found(row)


def test_an_order_behind_a_phone_in_a_row_is_no_id():
    assert "national_id" not in str(found("A. Test;a.t@mail.example.eu;512 218 761;53070237721"))


@pytest.mark.parametrize("text", [
    "Der Zähler steht auf 92459841 und die Datei hat 602944069 Bytes.", "00000010  f0 cc fd 89 2f 09 20 72 26 f5 6e",
    "e 504708 707953 210289\ne 196803 22287 854511",
    '{"ts": 1460122329175, "v": 0.7777}', "kernel: [12345.064422] usb 3-7: new",
    "7360916\t34434048915\t63028049987\t2178616",
])  # fmt: skip
def test_counts_bytes_coordinates_and_times_are_left_alone(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "décret n° 2019-536 du 29 mai 2019; Cass. 1re civ., 12 janv. 2011, n° 09-71.991",
        "DIN EN 61439-1 (VDE 0660-600-1):2012-06",
        "call 12345678 times before it ends",
        "The secret to 2024-style growth, and the key to db2-prod1",
        "a base64 of YXNk+EZAKGqQRiRyqAFRQshGPWOIAwNWGORfKHSBnVNFtVmWYoW6PH23lkqbbDWep95C/3VmWq",
        "rows[::2, ::-1] and cols[..., ::3]",
        '{"EMAIL": {"recall": 0.812345, "support": 12345678}, "PHONE": {"recall": 0.73345, "support": 87654321}}',
        "chr1:123456789-123456999 rs123456789 NM_001234567.2",
        "EUTM No 018123456; Nr. 30 2013 045 678; WO 2019/123456 A1; EP 1 234 567 B1; US 10,123,456 B2",
        "Jan 12 06:25:43 host CRON[12345]: (root) CMD (run 1710238953)",
    ],
)
def test_citations_standards_counts_and_metrics_are_nothing(text):
    assert find_labelled(text) == []
