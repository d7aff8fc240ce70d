# ruff: noqa: E501  # tables read better in one line a row
"""What labelled texts call what we look for: `CREDIT_CARD`, `PL_PESEL`, `FR_VAT` are a card, a PESEL, a VAT number."""

import re

from policy.redact.id_kinds import IDS, SAME_NUMBER

PERSON = "person"
_PLAIN = {
    "person": "person name per full_name fullname given_name first_name surname last_name person_name",
    "address": "address street_address location postal_address street addr",
    "email": "email email_address e_mail mail", "phone": "phone phone_number telephone mobile tel telephone_number fax",
    "iban": "iban iban_code bank_account account", "card": "card credit_card credit_card_number card_number pan payment_card",
    "ip": "ip ip_address ipv4 ipv6", "secret": "secret api_key apikey token password credential credentials private_key jwt"
    " access_key aws_key secret_key url_credentials connection_string",
    "vat": "vat vat_id vat_number uid ust_id ustid tva iva btw moms", "bic": "bic swift bic_swift swift_bic",
    "mac": "mac mac_address", "imei": "imei", "plate": "plate license_plate licence_plate number_plate car_plate",
    "date_of_birth": "date_of_birth dob birth_date birthdate birthday", "national_id": "national_id id ssn tax_id"
    " national_number personal_id id_number identity_number government_id passport tax_number",
}  # fmt: skip
_BY_NAME = {name: label for label, names in _PLAIN.items() for name in names.split()}
# Kinds by the names that other tools give them, behind the country's letters.
_KINDS = {
    "svnr vnr": "at_svnr", "nn nrn rrn ssn niss insz national_number": "be_nn", "egn": "bg_egn", "pnf lnch lnc": "bg_lnch",
    "ahv ssn avs oasi": "ch_ahv", "rc birth_number rodne_cislo": "cz_rc", "idnr tin steuer_id steuerid tax_id": "de_idnr",
    "rvnr pension ssn": "de_rvnr", "kvnr health": "de_kvnr", "personalausweis id_card passport": "de_id", "cpr": "dk_cpr",
    "ik isikukood": "ee_ik", "dni nif": "es_dni", "nie": "es_nie", "cif": "es_cif", "hetu": "fi_hetu", "nir insee ssn": "fr_nir",
    "spi nif": "fr_spi", "siren": "fr_siren", "siret": "fr_siret", "amka": "gr_amka", "afm": "gr_afm", "oib": "hr_oib",
    "taj": "hu_taj", "adoazonosito tax_id adojel": "hu_tax", "pps ppsn": "ie_pps", "kennitala kt": "is_kt",
    "cf codicefiscale codice_fiscale fiscal_code": "it_cf", "asmens ak asmens_kodas": "lt_ak", "nin matricule": "lu_nin",
    "pk personas_kods": "lv_pk", "id id_card": "mt_id", "bsn": "nl_bsn", "fnr fodselsnummer": "no_fnr", "pesel": "pl_pesel",
    "nip": "pl_nip", "dowod id_card nr_dowodu": "pl_id", "nss naf": "es_nss", "niss": "pt_niss", "regon": "pl_regon", "nif": "pt_nif", "cc": "pt_cc", "cnp": "ro_cnp",
    "personnummer pnr": "se_pnr", "emso": "si_emso", "ddv tax": "si_tax", "tic tin tax_id": "cy_tic", "nino": "gb_nino", "nhs": "gb_nhs",
}  # fmt: skip
_KIND_OF = {f"{kind[:2]}_{name}": kind for names, kind in _KINDS.items() for name in names.split()}
_COUNTRY = re.compile(r"[a-z]{2}")
_VAT = re.compile(
    r"[a-z]{2,3}_(?:vat|tva|iva|uid|btw|dph|pvn|pvm|km|kmkr|alv|moms|mva|dds|ddv_vat|ust_id|ustid|vat_id|dic|anum)"
)


def canonical(label: str) -> str:
    """Our label for `label`, with the kind behind a dot where it names one; unknown ones come back in small letters."""
    name = re.sub(r"[^a-z0-9]+", "_", label.lower()).strip("_")
    name = name.removeprefix("national_id_") or name
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name in IDS:
        return f"national_id.{name}"
    if name.startswith("sk_") and name[3:] in ("rc", "birth_number", "rodne_cislo"):
        return "national_id.sk_rc"
    if _VAT.fullmatch(name):
        return "vat"
    if name in _KIND_OF:
        return f"national_id.{_KIND_OF[name]}"
    if name.startswith("li_"):
        return "national_id.ch_ahv" if name != "li_peid" else "national_id.li_peid"
    if name[2:3] == "_" and _COUNTRY.match(name) and any(kind[:2] == name[:2] for kind in IDS):
        return f"national_id.{name[:2]}"
    return _BY_NAME.get(name.rpartition("_")[2], name)


def is_right(found: str, gold: str) -> bool:
    """Whether our label `found` is what `gold` (see `canonical`) asks for.

    A general national id is any kind; a country's unknown id any of that country's or a passport; Czech and Slovak birth numbers are
    one number.
    """
    if found == gold:
        return True
    if not gold.startswith("national_id") or not found.startswith("national_id"):
        return False
    kind, asked = found.partition(".")[2], gold.partition(".")[2]
    if not asked or (len(asked) == 2 and (kind[:2] == asked or kind == "passport")):
        return True
    return SAME_NUMBER.get(kind, kind) == SAME_NUMBER.get(asked, asked)
