import pytest

from policy.redact.labels import canonical, is_known, is_right


@pytest.mark.parametrize(("written", "ours"), [
    ("CREDIT_CARD", "card"), ("Credit Card", "card"), ("PL_PESEL", "national_id.pl_pesel"), ("ES_DNI",
    "national_id.es_dni"),
    ("national_id.de_idnr", "national_id.de_idnr"), ("SE_PERSONNUMMER", "national_id.se_pnr"), ("FR_VAT", "vat"),
    ("NATIONAL_ID", "national_id"), ("IS_KENNITALA", "national_id.is_kt"), ("LI_AHV", "national_id.ch_ahv"),
    ("CY_TIN", "national_id.cy_tic"), ("PL_DOWOD", "national_id.pl_id"), ("ES_NSS", "national_id.es_nss"), ("PT_NISS",
    "national_id.pt_niss"),
    ("DE_STEUER_ID", "national_id.de_idnr"), ("SK_RC", "national_id.sk_rc"), ("PHONE_NUMBER", "phone"), ("DOB",
    "date_of_birth"),
    ("NIR", "national_id.fr_nir"), ("PESEL", "national_id.pl_pesel"), ("BSN", "national_id.nl_bsn"), ("fr.nir",
    "national_id.fr_nir"),
    ("DNI", "national_id.es_dni"), ("NIF", "national_id"), ("ES_NIF", "national_id.es"), ("EMŠO",
    "national_id.si_emso"),
    ("FØDSELSNUMMER", "national_id.no_fnr"), ("STEUERID_DE", "national_id.de_idnr"), ("German_tax_ID",
    "national_id.de_idnr"),
    ("DE_STNR", "national_id.de_stnr"), ("EL_AFM", "national_id.gr_afm"), ("UK_NINO", "national_id.gb_nino"),
    ("NATIONAL_ID_PL", "national_id.pl"),
    ("ID_CARD", "national_id"), ("HEALTH_CARD", "national_id"), ("PASSPORT", "national_id"), ("FR_PASSPORT",
    "national_id.fr"),
    ("creditCardNumber", "card"), ("CREDITCARD", "card"), ("B-EMAIL", "email"), ("IBAN_CODE", "iban"), ("SWIFT_CODE",
    "bic"), ("DE_IBAN", "iban"),
    ("GITHUB_TOKEN", "secret"), ("PRIVATE_KEY", "secret"), ("GIVENNAME", "person"), ("PL_PHONE", "phone"),
])  # fmt: skip
def test_the_names_of_others_are_understood(written, ours):
    assert canonical(written) == ours


@pytest.mark.parametrize("label", ["USERNAME", "CRYPTO", "AGE", "ORG", ""])
def test_labels_of_what_is_not_looked_for_are_known_to_be_unknown(label):
    assert not is_known(canonical(label))


@pytest.mark.parametrize("label", ["EMAIL", "PL_PESEL", "XX_IBAN", "NATIONAL_ID", "NIF", "PT_SOMETHING"])
def test_labels_that_mean_something_here_are_known(label):
    assert is_known(canonical(label))


def test_a_tax_number_that_is_a_vat_number_too_counts_under_both_names():
    assert is_right("national_id.gr_afm", canonical("GR_VAT")) and is_right("vat", canonical("GR_AFM"))
    assert is_right("national_id.pl_nip", "vat") and is_right("vat", canonical("SI_DDV"))
    assert not is_right("national_id.pl_pesel", "vat") and not is_right("vat", canonical("PL_PESEL"))
    assert not is_right("vat", "national_id") and not is_right("vat", "iban")


def test_a_general_gold_label_takes_any_kind_and_a_countrys_any_of_its():
    assert is_right("national_id.pl_pesel", "national_id")
    assert is_right("national_id.pl_pesel", canonical("PL_SOMETHING"))
    assert is_right("national_id.cz_rc", canonical("SK_RC")) and is_right("national_id.sk_rc", canonical("CZ_RC"))
    assert not is_right("national_id.hr_oib", canonical("PL_PESEL"))
    assert not is_right("phone", "national_id") and not is_right("card", "iban")
