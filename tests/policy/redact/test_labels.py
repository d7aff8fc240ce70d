# ruff: noqa: E501  # tables read better in one line a row
import pytest

from policy.redact.labels import canonical, is_right


@pytest.mark.parametrize(("written", "ours"), [
    ("CREDIT_CARD", "card"), ("Credit Card", "card"), ("PL_PESEL", "national_id.pl_pesel"), ("ES_DNI", "national_id.es_dni"),
    ("national_id.de_idnr", "national_id.de_idnr"), ("SE_PERSONNUMMER", "national_id.se_pnr"), ("FR_VAT", "vat"),
    ("NATIONAL_ID", "national_id"), ("IS_KENNITALA", "national_id.is_kt"), ("LI_AHV", "national_id.ch_ahv"),
    ("CY_TIN", "national_id.cy_tic"), ("PL_DOWOD", "national_id.pl_id"), ("ES_NSS", "national_id.es_nss"), ("PT_NISS", "national_id.pt_niss"),
    ("DE_STEUER_ID", "national_id.de_idnr"), ("SK_RC", "national_id.sk_rc"), ("PHONE_NUMBER", "phone"), ("DOB", "date_of_birth"),
])  # fmt: skip
def test_the_names_of_others_are_understood(written, ours):
    assert canonical(written) == ours


def test_a_general_gold_label_takes_any_kind_and_a_countrys_any_of_its():
    assert is_right("national_id.pl_pesel", "national_id")
    assert is_right("national_id.pl_pesel", canonical("PL_SOMETHING"))
    assert is_right("national_id.cz_rc", canonical("SK_RC")) and is_right("national_id.sk_rc", canonical("CZ_RC"))
    assert not is_right("national_id.hr_oib", canonical("PL_PESEL"))
    assert not is_right("phone", "national_id") and not is_right("card", "iban")
