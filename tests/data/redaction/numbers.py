"""National numbers with valid check digits, and what letters and forms call them in the language of their country."""

import random
from collections.abc import Callable
from typing import NamedTuple

from policy.redact.ids.kinds import IDS


class Number(NamedTuple):
    """``shape``: YY, MM, DD are a date's digits, 9 any digit, A any letter; ``lang``: that of its country's letters.

    ``names``: for work on the detectors; ``held_out``: for the figures.
    """

    lang: str
    shape: str
    names: tuple[str, ...]
    held_out: tuple[str, ...]


NUMBERS: dict[str, Number] = {
    "at_svnr": Number("de-AT", "9999 DDMMYY", ("SVNR", "Sozialversicherungsnummer"), ("SV-Nummer",
    "Versicherungsnummer")),
    "be_nn": Number("nl-BE", "YY.MM.DD-999.99", ("rijksregisternummer", "INSZ"), ("nationaal nummer",
    "numéro de registre national")),
    "bg_egn": Number("bg", "YYMMDD9999", ("ЕГН",), ("единен граждански номер", "EGN")),
    "ch_ahv": Number("de-CH", "756.9999.9999.99", ("AHV-Nummer", "numéro AVS"), ("AHV-Nr.",
    "Sozialversicherungsnummer")),
    "cy_tic": Number("el-CY", "99999999A", ("TIC",), ("Α.Φ.Τ.", "tax identification code")),
    "cz_rc": Number("cs", "YYMMDD/9999", ("rodné číslo", "r. č."), ("RČ", "rod. č.")),
    "de_idnr": Number("de", "99 999 999 999", ("Steuer-ID", "IdNr."), ("steuerliche Identifikationsnummer",
    "Steuer-Identifikationsnummer")),
    "de_rvnr": Number("de", "99DDMMYYA999", ("Rentenversicherungsnummer", "RVNR"), ("Sozialversicherungsnummer",
    "Versicherungsnummer")),
    "de_kvnr": Number("de", "A999999999", ("Krankenversichertennummer", "KVNR"), ("Krankenversicherungsnummer",
    "Versichertennummer")),
    "de_id": Number("de", "LA99A999A9", ("Personalausweisnummer",), ("Ausweisnummer",)),
    "dk_cpr": Number("da", "DDMMYY-9999", ("CPR-nummer", "CPR"), ("personnummer", "CPR-nr.")),
    "ee_ik": Number("et", "3YYMMDD9999", ("isikukood",), ("isikukoodiga", "ID-kood")),
    "es_dni": Number("es", "99999999A", ("DNI", "NIF"), ("documento nacional de identidad", "D.N.I.")),
    "es_nie": Number("es", "X9999999A", ("NIE",), ("número de identidad de extranjero", "N.I.E.")),
    "fi_hetu": Number("fi", "DDMMYY-999A", ("henkilötunnus", "hetu"), ("henkilötunnukseni", "HETU-tunnus")),
    "fr_nir": Number("fr", "1 YY MM 75 999 999 99", ("numéro de sécurité sociale", "NIR"), ("n° de sécu",
    "numéro INSEE")),
    "fr_spi": Number("fr", "2999999999999", ("numéro fiscal",), ("référence fiscale",)),
    "fr_siren": Number("fr", "999 999 999", ("SIREN",), ("numéro SIREN",)),
    "gr_amka": Number("el", "DDMMYY99999", ("ΑΜΚΑ",), ("Α.Μ.Κ.Α.", "AMKA")),
    "gr_afm": Number("el", "999999999", ("ΑΦΜ",), ("Α.Φ.Μ.", "αριθμός φορολογικού μητρώου")),
    "hr_oib": Number("hr", "99999999999", ("OIB",), ("osobni identifikacijski broj",)),
    "hu_taj": Number("hu", "999 999 999", ("TAJ szám", "TAJ"), ("TAJ-szám", "társadalombiztosítási azonosító")),
    "hu_tax": Number("hu", "8999999999", ("adóazonosító jel",), ("adóazonosító", "adójel")),
    "ie_pps": Number("en-IE", "9999999A", ("PPS number", "PPSN"), ("PPS No.", "Personal Public Service number")),
    "is_kt": Number("is", "DDMMYY-9999", ("kennitala", "kt."), ("kennitölu", "Kt")),
    "it_cf": Number("it", "AAAAAAYYADDA999A", ("codice fiscale", "C.F."), ("cod. fiscale", "CF")),
    "li_peid": Number("de-LI", "999999", ("PEID",), ("Personenidentifikationsnummer",)),
    "lt_ak": Number("lt", "3YYMMDD9999", ("asmens kodas",), ("asmens kodo", "a. k.")),
    "lu_nin": Number("fr-LU", "19YYMMDD99999", ("matricule",), ("numéro d'identification national",
    "matricule nationale")),
    "lv_pk": Number("lv", "DDMMYY-19999", ("personas kods",), ("personas kodu", "p. k.")),
    "mt_id": Number("mt", "9999999M", ("ID card",), ("karta tal-identità", "numru tal-karta tal-identità")),
    "nl_bsn": Number("nl", "999999999", ("BSN", "burgerservicenummer"), ("BSN-nummer", "sofinummer")),
    "no_fnr": Number("no", "DDMMYY 99999", ("fødselsnummer",), ("fnr.", "personnummer")),
    "pl_pesel": Number("pl", "YYMMDD99999", ("PESEL", "numer PESEL"), ("nr PESEL", "numerem PESEL")),
    "pl_nip": Number("pl", "999-999-99-99", ("NIP",), ("numer identyfikacji podatkowej",)),
    "pt_nif": Number("pt", "999 999 999", ("NIF", "número de contribuinte"), ("n.º de contribuinte",
    "número de identificação fiscal")),
    "pt_cc": Number("pt", "99999999 9 ZA9", ("cartão de cidadão",), ("Cartão de Cidadão n.º",)),
    "pt_niss": Number("pt", "19999999999", ("NISS",), ("número de Segurança Social",
    "número de identificação da Segurança Social")),
    "pl_id": Number("pl", "ABA 999999", ("nr dowodu", "numer dowodu osobistego"), ("dowód osobisty",
    "seria i numer dowodu")),
    "es_nss": Number("es", "28 99999999 99", ("número de la Seguridad Social", "NSS"), ("número de afiliación", "NAF")),
    "ro_cnp": Number("ro", "1YYMMDD129999", ("CNP",), ("cod numeric personal", "codul numeric personal")),
    "se_pnr": Number("sv", "YYMMDD-9999", ("personnummer",), ("personnr", "pnr")),
    "si_emso": Number("sl", "DDMM9995009999"[:13], ("EMŠO",), ("enotna matična številka občana",)),
    "si_tax": Number("sl", "99999999", ("davčna številka",), ("davčno številko",)),
    "sk_rc": Number("sk", "YYMMDD/9999", ("rodné číslo",), ("rod. číslo", "r. č.")),
}  # fmt: skip
COUNTRIES = tuple(sorted({kind[:2] for kind in NUMBERS}))


def number(kind: str, rng: random.Random) -> str:
    """A valid number of a kind, as people write it."""
    shape = NUMBERS[kind].shape
    return valid(shape, IDS[kind].is_valid, rng)


def valid(shape: str, is_valid: Callable[[str], bool], rng: random.Random) -> str:
    """A random filling of `shape` that `is_valid` accepts. Raises ValueError if none turns up."""
    for _ in range(200_000):
        filled = _fill(shape, rng)
        if is_valid(filled) or is_valid("".join(filter(str.isalnum, filled))):
            return filled
    raise ValueError(f"no valid number like {shape} was found")


def with_a_slip(value: str, is_valid: Callable[[str], bool]) -> str | None:
    """`value` with another last digit that its check refuses, if there is one."""
    at = max(index for index, sign in enumerate(value) if sign.isdigit())
    for digit in "0123456789":
        changed = value[:at] + digit + value[at + 1 :]
        if not is_valid(changed) and not is_valid("".join(filter(str.isalnum, changed))):
            return changed
    return None


def _fill(shape: str, rng: random.Random) -> str:
    year, month, day = rng.randint(45, 99), rng.randint(1, 12), rng.randint(1, 28)
    dated = shape.replace("YY", f"{year:02}").replace("MM", f"{month:02}").replace("DD", f"{day:02}")
    fixed = [was != now for was, now in zip(shape, dated, strict=True)]
    return "".join(
        sign
        if fixed[at]
        else rng.choice("0123456789")
        if sign == "9"
        else rng.choice("ABCDEFGHJKLMNPQRSTVWXYZ")
        if sign == "A"
        else sign
        for at, sign in enumerate(dated)
    )
