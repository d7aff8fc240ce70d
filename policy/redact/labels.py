"""Mapping of foreign label names to ours.

`CREDIT_CARD`, `PL_PESEL`, `BSN` and `FR_VAT` are a card, a PESEL, a BSN and a VAT number.
"""

import re
import unicodedata

from policy.redact.ids.kinds import IDS, SAME_NUMBER
from policy.redact.payment.card_details import EXPIRY, VERIFICATION

PERSON = "person"
PASSPORT = "passport"  # any country's; some countries' passports are kinds of their own
_PLAIN = {
    "person": "person persons per name full_name given_name first_name middle_name surname last_name family_name "
              "person_name pers patient",
    "address": "address street_address street location postal_address home_address mailing_address residence addr",
    "email": "email email_address e_mail e_mail_address mail mail_address",
    "phone": "phone phone_number telephone telephone_number telephone_num mobile mobile_phone mobile_number tel fax "
             "fax_number landline cell_phone msisdn",
    "iban": "iban iban_code iban_number bank_account account bank_account_number account_number bank_iban",
    "card": "card credit_card credit_card_number card_number pan payment_card payment_card_number debit_card bank_card "
            "ccn credit_debit_card",
    "ip": "ip ip_address ip_addr ipv4 ipv6 ipv4_address ipv6_address ip_v4 ip_v6",
    "secret": "secret api_key token password passwd pwd passphrase credential credentials private_key access_key "
              "access_token aws_key secret_key jwt pem"
    " pem_key ssh_key rsa_key bearer_token auth_token url_credentials url_with_credentials credential_url url_password "
    "connection_string dsn key url",
    "vat": "vat vat_id vat_number vat_no vatin vat_code eu_vat uid ust_id ust_idnr tva iva btw moms partita_iva p_iva "
           "dph alv kmkr pvn pvm"
    " tax_vat intra_community_vat",
    "bic": "bic bic_code swift swift_code swift_bic bic_swift", "mac": "mac mac_address mac_addr",
    "imei": "imei imei_number",
    "plate": "plate license_plate licence_plate number_plate car_plate vehicle_plate plate_number license_plate_number "
             "vehicle_registration"
    " vehicle_registration_plate registration_plate kennzeichen vehicle",
    "date_of_birth": "date_of_birth dob birth_date birthday birth date_birth",
    "national_id": "national_id national_identifier national_identity_number id nid ssn social_security "
                   "social_security_number social_num tax_id tax_number"
    " national_number personal_id personal_number personal_code id_number id_num id_card id_card_number identity_card "
    "identity_number"
    " government_id gov_id citizen_id passport passport_number passport_no driver_license driving_licence health_card "
    "health_insurance health_insurance_number"
    " pension_number document_number fiscal_code tin taxpayer_id person_id",
}  # fmt: skip
_BY_NAME = {name.replace("_", ""): label for label, names in _PLAIN.items() for name in names.split()} | {
    name: f"card.{kind}"
    for kind, names in (
        (
            VERIFICATION,
            "cvv cvc cvv2 cvc2 cid csc creditcardcvv creditcardsecuritycode cardcvv cardverification cardsecuritycode",
        ),
        (EXPIRY, "creditcardexpiry cardexpiry cardexpirydate creditcardexpirationdate expirydate creditcardexpire"),
    )
    for name in names.split()
}
# Kinds by the names that other tools use, with or without the country code in front.
_KINDS = {
    "svnr vnr sv_nummer sozialversicherungsnummer": "at_svnr",
    "nn nrn rrn insz national_number rijksregister rijksregisternummer registre_national": "be_nn",
    "egn": "bg_egn", "pnf lnch lnc": "bg_lnch", "ahv avs oasi ahvn13 ahv_nr navs13 ahv_nummer": "ch_ahv",
    "rc birth_number rodne_cislo": "cz_rc",
    "idnr steuer_id steueridnr steueridentifikationsnummer steuerliche_identifikationsnummer": "de_idnr",
    "stnr": "de_stnr",
    "rvnr rv rentenversicherungsnummer rentenversicherung": "de_rvnr",
    "kvnr krankenversichertennummer krankenversicherungsnummer": "de_kvnr",
    "personalausweis personalausweisnummer ausweis perso": "de_id", "cpr": "dk_cpr", "ik isikukood": "ee_ik",
    "dni": "es_dni", "nie": "es_nie",
    "cif": "es_cif", "nss naf nuss": "es_nss", "hetu henkilotunnus": "fi_hetu",
    "nir insee secu securite_sociale numero_secu": "fr_nir", "spi": "fr_spi",
    "siren": "fr_siren", "siret": "fr_siret", "amka": "gr_amka", "afm": "gr_afm", "oib": "hr_oib",
    "taj taj_szam": "hu_taj",
    "adoazonosito adoazonosito_jel adojel ado": "hu_tax", "pps ppsn": "ie_pps", "kennitala kt": "is_kt",
    "cf codice_fiscale": "it_cf",
    "asmens ak asmens_kodas": "lt_ak", "matricule": "lu_nin", "pk personas_kods": "lv_pk",
    "bsn burgerservicenummer": "nl_bsn",
    "fnr fodselsnummer": "no_fnr", "pesel": "pl_pesel", "nip": "pl_nip", "dowod nr_dowodu dowod_osobisty": "pl_id",
    "regon": "pl_regon",
    "cartao_cidadao cartao_de_cidadao citizen_card": "pt_cc", "cnp": "ro_cnp",
    "personnummer pnr samordningsnummer": "se_pnr", "emso": "si_emso",
    "davcna davcna_stevilka": "si_tax", "nino": "gb_nino", "nhs": "gb_nhs", "utr": "gb_utr",
    "medical_record medical_record_number mrn nhc patient_id patient_number record_number": "medical_record",
    "medical_license medical_licence professional_licence professional_license license_number_medical":
        "professional_licence",
    "peid": "li_peid", "ehic": "ehic", "mrz": "mrz",
}  # fmt: skip
# Names that are only unambiguous after a country code.
_AT_HOME = {
    "at_tin tax": "at_tin", "be_niss ssn id": "be_nn", "bg_id": "bg_egn", "ch_ssn": "ch_ahv",
    "cz_personal_number": "cz_rc",
    "de_tin tax_id tax tax_number": "de_idnr", "de_pension ssn pension_number": "de_rvnr",
    "de_health health_insurance": "de_kvnr",
    "de_id_card passport": "de_id", "dk_personnummer id": "dk_cpr", "ee_personal_code id": "ee_ik",
    "fi_pic ssn personal_id": "fi_hetu",
    "fr_ssn": "fr_nir", "fr_nif tax_id tax": "fr_spi", "gr_tin tax_id": "gr_afm", "hu_tax_id tax tin": "hu_tax",
    "it_fiscal_code tax_code": "it_cf",
    "lt_personal_code": "lt_ak", "lu_nin tin": "lu_nin", "lv_personal_code": "lv_pk", "mt_id id_card": "mt_id",
    "no_personnummer nin": "no_fnr", "pl_id_card identity_card": "pl_id", "pt_niss ssn social_security": "pt_niss",
    "pt_nif tin tax_id": "pt_nif", "pt_cc": "pt_cc", "es_ssn social_security": "es_nss",
    "si_ddv tax tin tax_id": "si_tax", "cy_tic tin tax_id": "cy_tic", "se_pin": "se_pnr",
    "sk_rc birth_number rodne_cislo": "sk_rc", "li_ahv avs": "ch_ahv",
}  # fmt: skip
_ALONE = {name.replace("_", ""): kind for names, kind in _KINDS.items() for name in names.split()}
_KIND_OF = {f"{kind[:2]}{name.replace('_', '')}": kind for names, kind in _KINDS.items() for name in names.split()}
for _names, _kind in _AT_HOME.items():
    for _name in _names[3:].split():
        _KIND_OF[f"{_names[:2]}{_name.replace('_', '')}"] = _kind
_COUNTRIES = {kind[:2]: kind[:2] for kind in IDS if len(kind.partition("_")[0]) == 2} | {"el": "gr", "uk": "gb"}
_ADJECTIVES = {
    "austrian": "at", "belgian": "be", "bulgarian": "bg", "croatian": "hr", "cypriot": "cy", "czech": "cz",
    "danish": "dk",
    "dutch": "nl", "estonian": "ee", "finnish": "fi", "french": "fr", "german": "de", "greek": "gr", "hungarian": "hu",
    "icelandic": "is", "irish": "ie", "italian": "it", "latvian": "lv", "lithuanian": "lt", "maltese": "mt",
    "norwegian": "no",
    "polish": "pl", "portuguese": "pt", "romanian": "ro", "slovak": "sk", "slovenian": "si", "spanish": "es",
    "swedish": "se",
    "swiss": "ch", "british": "gb",
}  # fmt: skip
_VAT = frozenset(
    [
        "vat",
        "tva",
        "iva",
        "uid",
        "btw",
        "dph",
        "pvn",
        "pvm",
        "km",
        "kmkr",
        "alv",
        "moms",
        "mva",
        "dds",
        "ustid",
        "ustidnr",
        "vatid",
        "vatnumber",
        "vatno",
        "vatcode",
        "vatin",
        "dic",
        "anum",
        "piva",
        "partitaiva",
        "orgnr",
    ]
)
_SUFFIX = re.compile(r"_(?:number|no|nr|num|code|value|id|nummer)\Z")
_PREFIX = re.compile(r"\A(?:pii|b|i|national_id|nationalid|id|nid)_")
# `WORK_EMAIL`, `CLIENT_IP`: the owner in front is ignored.
_WHOSEVER = frozenset({"address", "email", "phone", "iban", "vat", "bic", "plate", "ip", "imei", "dob", "birthdate"})
_SECRET = re.compile(r".*_(?:token|secret|password|credentials?|key)")
_UNMARKED = str.maketrans("øłđðþı", "oldtti".replace("tt", "dt"))


def canonical(label: str) -> str:
    """Return our label for `label`, with the kind after a dot if it names one.

    Unknown labels are returned in lower case. Case, diacritics and separators are ignored (`Fødselsnummer`,
    `creditCardNumber`, `fr.nir`), and a country may stand on either side (`DE_STEUERID`, `STEUERID_DE`,
    `German_tax_ID`). A country with an unknown name means any number of that country; a name shared by several kinds
    (`NIF`) means any national number.
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", label.strip())
    marked = unicodedata.normalize("NFD", words.lower().translate(_UNMARKED))
    name = re.sub(r"[^a-z0-9]+", "_", "".join(sign for sign in marked if not unicodedata.combining(sign))).strip("_")
    for _ in range(3):
        if found := _known(name):
            return found
        shorter = _SUFFIX.sub("", name) if _SUFFIX.search(name) else _PREFIX.sub("", name, count=1)
        if shorter == name or not shorter:
            break
        name = shorter
    if name.rpartition("_")[2] in _WHOSEVER:
        return _BY_NAME[name.rpartition("_")[2]]
    return "secret" if _SECRET.fullmatch(name) else name


def is_known(label: str) -> bool:
    """Return whether `label`, a result of `canonical`, is one that redaction can find."""
    return label.partition(".")[0] in _PLAIN


def _known(name: str) -> str | None:
    if name in IDS and name != PASSPORT:
        return f"national_id.{name}"
    compact = name.replace("_", "")
    if label := _BY_NAME.get(compact):
        return label
    if kind := _ALONE.get(compact):
        return f"national_id.{kind}"
    if compact in ("nif", "niss"):  # used in several countries
        return "national_id"
    first, _, rest = name.partition("_")
    front, _, last = name.rpartition("_")
    if code := _COUNTRIES.get(first) or _ADJECTIVES.get(first):
        return _of_country(code, rest)
    if code := _COUNTRIES.get(last):
        return _of_country(code, front)
    return None


def _of_country(code: str, name: str) -> str | None:
    compact = name.replace("_", "")
    if compact in _VAT:
        return "vat"
    if kind := _KIND_OF.get(f"{code}{compact}") or _KIND_OF.get(f"{code}{_SUFFIX.sub('', name).replace('_', '')}"):
        return f"national_id.{kind}"
    if f"{code}_{name}" in IDS:
        return f"national_id.{code}_{name}"
    plain = _BY_NAME.get(compact)
    return plain if plain and plain != "national_id" else f"national_id.{code}"


# Tax numbers that are also the VAT number of their country, with or without its prefix.
_ALSO_VAT = frozenset(
    {"gr_afm", "pl_nip", "pt_nif", "hr_oib", "si_tax", "cy_tic", "es_cif", "es_dni", "es_nie", "bg_egn", "lv_pk"}
)
_DOCUMENTS = frozenset({PASSPORT, "de_id"})  # the number does not identify its country


def is_right(found: str, gold: str) -> bool:
    """Return whether our label `found` satisfies the labelled `gold` (a result of `canonical`).

    A general national id matches any kind. An unknown id of a country matches any id of that country, or a document.
    Czech and Slovak birth numbers are the same number. A tax number that is also a VAT number matches both labels.
    """
    if found == gold or (found.startswith("card.") and gold == "card"):
        return True
    kind, asked = found.partition(".")[2], gold.partition(".")[2]
    if gold == "vat" or found == "vat":
        return (kind or asked) in _ALSO_VAT
    if not gold.startswith("national_id") or not found.startswith("national_id"):
        return False
    if not asked or (len(asked) == 2 and (kind[:2] == asked or kind in _DOCUMENTS)):
        return True
    if kind in _DOCUMENTS and asked in _DOCUMENTS:
        return True
    return SAME_NUMBER.get(kind, kind) == SAME_NUMBER.get(asked, asked)
