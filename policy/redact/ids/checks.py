"""Check digits of national numbers that `python-stdnum` does not support.

Every function takes letters and digits without separators and returns whether the number is valid. None raises.
"""

import re
from datetime import date
from operator import mul

from stdnum import luhn, verhoeff
from stdnum.be import ssn
from stdnum.de import idnr, stnr
from stdnum.exceptions import ValidationError
from stdnum.fi import hetu
from stdnum.no import fodselsnummer
from stdnum.pt import cc, nif
from stdnum.ro import cnp
from stdnum.si import emso

_CASES = re.compile("[0-9][A-Z]+[0-9]|[A-Z][0-9]+[A-Z]")  # letters and digits alternate, unlike a word next to a year
_VOWELS = frozenset("AEIOU")  # not used in German document numbers, so that they never form a word
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def is_german_health_insurance_number(number: str) -> bool:
    """Krankenversichertennummer: a letter, eight digits, check digit (SGB V 290; weights 1 and 2, digit sums)."""
    if len(number) != 10 or number[0].upper() not in _LETTERS or not _digits(number[1:]):
        return False
    digits = f"{_LETTERS.index(number[0].upper()) + 1:02}{number[1:9]}"
    return _cross_sums(digits, (1, 2) * 5) % 10 == int(number[9])


def is_german_pension_number(number: str) -> bool:
    """Rentenversicherungsnummer: area, date of birth, letter, serial, check digit (VKVV 2; weights, digit sums)."""
    if len(number) != 12 or number[8].upper() not in _LETTERS or not _digits(number[:8] + number[9:]):
        return False
    if not (1 <= int(number[4:6]) <= 12 and 1 <= int(number[2:4]) % 50 <= 31):
        return False
    digits = f"{number[:8]}{_LETTERS.index(number[8].upper()) + 1:02}{number[9:11]}"
    return _cross_sums(digits, (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1)) % 10 == int(number[11])


def is_document_number(number: str) -> bool:
    """Identity card or passport number: nine characters, with or without check digit.

    ICAO 9303 part 3, weights 7, 3, 1.
    """
    if not (number.isascii() and number.isalnum()):
        return False
    if len(number) == 9:
        return _is_mixed(number)
    if len(number) != 10 or not number[9].isdigit():
        return False
    total = sum(int(sign, 36) * (7, 3, 1)[at % 3] for at, sign in enumerate(number[:9]))
    has_sign = any(sign.isdigit() for sign in number[:9]) or _VOWELS.isdisjoint(number[:9].upper())
    return has_sign and total % 10 == int(number[9])


def is_travel_document(number: str) -> bool:
    """Passports, identity cards and driving licences of any country.

    Six to twelve characters with at least five digits and at most three letters, or eight to eleven characters with
    digits and upper-case letters mixed. In the second form, ten characters that end in a digit are excluded: that is a
    German number, which must pass `is_document_number`.
    """
    digits, length = sum(map(str.isdigit, number)), len(number)
    if not (number.isascii() and number.isalnum()):
        return False
    if 6 <= length <= 12 and digits >= 5 and length - digits <= 3:
        return True
    is_german = length == 10 and number[9].isdigit()
    is_mixed = 8 <= length <= 11 and digits >= 2 and number.isupper() and _CASES.search(number) is not None
    return is_mixed and not is_german


def is_hungarian_health_number(number: str) -> bool:
    """TAJ: eight digits with weights 3 and 7, check digit modulo 10."""
    return _digits(number, 9) and _weighted(number[:8], (3, 7) * 4) % 10 == int(number[8])


def is_hungarian_tax_number(number: str) -> bool:
    """Adóazonosító jel: first digit 8, weights 1 to 9 by position, check digit modulo 11."""
    return _digits(number, 10) and number[0] == "8" and _weighted(number[:9], range(1, 10)) % 11 == int(number[9])


def is_hungarian_personal_number(number: str) -> bool:
    """Személyi szám: sex and century, date of birth, serial, check digit modulo 11.

    Weights increase for births before 1997 and decrease after.
    """
    if not _digits(number, 11) or not _is_date(2000 + int(number[1:3]), number[3:5], number[5:7]):
        return False
    weights = range(1, 11) if number[0] in "1256" else range(10, 0, -1)
    return any(_weighted(number[:10], each) % 11 == int(number[10]) for each in (weights, range(10, 0, -1)))


def is_finnish_identity_code(number: str) -> bool:
    """Henkilötunnus: date of birth, century sign, serial, check character (modulo 31).

    The century sign may be missing in a regrouped number: the check does not need it, and a final letter distinguishes
    the number from a phone.
    """
    if len(number) == 11:
        return not number[6].isdigit() and bool(hetu.is_valid(number))
    return (
        len(number) == 10
        and number[9].isalpha()
        and _digits(number[:9])
        and bool(hetu.is_valid(f"{number[:6]}-{number[6:]}"))
    )


# The following functions call the library only if a sum that takes a tenth of its time agrees, because most candidates
# are not valid numbers.


def is_belgian_national_number(number: str) -> bool:
    """Rijksregisternummer, including BIS numbers: 97 minus the remainder of the first nine digits modulo 97."""
    if not _digits(number, 11):
        return False
    rests = (97 - int(century + number[:9]) % 97 for century in ("", "2"))
    return int(number[9:]) in rests and bool(ssn.is_valid(number))


def is_german_tax_number(number: str) -> bool:
    """Steuerliche Identifikationsnummer: check digit by ISO 7064 mod 11,10, digits repeated as required by law."""
    if not _digits(number, 11):
        return False
    check = 5
    for digit in number[:10]:
        check = ((check or 10) * 2 % 11 + int(digit)) % 10
    return ((check or 10) * 2 % 11 + int(number[10])) % 10 == 1 and bool(idnr.is_valid(number))


def is_german_tax_office_number(number: str) -> bool:
    """Steuernummer: ten digits, eleven with the separators of a state, or thirteen for all of Germany.

    The states have no common check, so eleven digits without separators are rejected: they may as well be an
    Identifikationsnummer with a typing error.
    """
    return (not _digits(number, 11)) and bool(stnr.is_valid(number))


def is_norwegian_birth_number(number: str) -> bool:
    """Fødselsnummer and D-number: two check digits modulo 11."""
    if not _digits(number, 11) or _weighted(number, (3, 7, 6, 1, 8, 9, 4, 5, 2, 1, 0)) % 11:
        return False
    return _weighted(number, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0 and bool(fodselsnummer.is_valid(number))


def is_portuguese_tax_number(number: str) -> bool:
    """NIF: check digit modulo 11, where 10 counts as 0."""
    if not _digits(number, 9):
        return False
    rest = _weighted(number[:8], (9, 8, 7, 6, 5, 4, 3, 2)) % 11
    return int(number[8]) == (11 - rest if rest > 1 else 0) and bool(nif.is_valid(number))


def is_portuguese_citizen_card(number: str) -> bool:
    """Cartão de Cidadão: every second character doubled, from the right, letters from A = 10 (modulo 10)."""
    if len(number) != 12 or not number.isascii() or not number.isalnum():
        return False
    values = [int(sign, 36) for sign in number]
    doubled = (value * 2 - 9 if value * 2 > 9 else value * 2 for value in values[::2])
    return (sum(values[1::2]) + sum(doubled)) % 10 == 0 and bool(cc.is_valid(number))


def is_romanian_personal_number(number: str) -> bool:
    """Cod numeric personal: check digit modulo 11, where 10 counts as 1."""
    if not _digits(number, 13):
        return False
    rest = _weighted(number[:12], (2, 7, 9, 1, 4, 6, 3, 5, 8, 2, 7, 9)) % 11
    return int(number[12]) == (rest if rest < 10 else 1) and bool(cnp.is_valid(number))


def is_yugoslav_personal_number(number: str) -> bool:
    """EMŠO and JMBG: check digit modulo 11."""
    if not _digits(number, 13) or _weighted(number, (7, 6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11 not in (0, 1):
        return False
    return bool(emso.is_valid(number))


def is_croatian_personal_number(number: str) -> bool:
    """JMBG: like EMŠO, without the numbers issued by Slovenia (regions 50 to 59)."""
    return is_yugoslav_personal_number(number) and number[7] != "5"


def is_latvian_personal_code(number: str) -> bool:
    """Personas kods: date of birth, century, serial, check digit (1101 minus the weighted sum, modulo 11).

    Codes issued since July 2017 are 32 and nine digits without information or check.
    """
    if _digits(number, 11) and number.startswith("32"):
        return True
    if not _digits(number, 11) or not _is_date(2000 + int(number[4:6]), number[2:4], number[:2]):
        return False
    return (1101 - _weighted(number[:10], (1, 6, 3, 7, 9, 10, 5, 8, 4, 2))) % 11 % 10 == int(number[10])


def is_luxembourg_number(number: str) -> bool:
    """Matricule: date of birth, serial, then a Luhn and a Verhoeff digit, both over the first eleven digits."""
    if not _digits(number, 13) or not _is_date(int(number[:4]), number[4:6], number[6:8]):
        return False
    try:
        luhn.validate(number[:12])
        verhoeff.validate(number[:11] + number[12])
    except ValidationError:
        return False
    return True


def is_maltese_identity_card(number: str) -> bool:
    """Maltese identity card: up to seven digits and the letter of the register; no check digit."""
    return 4 <= len(number) <= 8 and _digits(number[:-1]) and number[-1].upper() in "MGAPLHBZ"


def is_spanish_insurance_number(number: str) -> bool:
    """Número de la Seguridad Social: province, serial, check number (province and serial modulo 97).

    A serial below ten million may also be read with seven digits.
    """
    if not _digits(number, 12) or not 1 <= int(number[:2]) <= 66:
        return False
    serial = int(number[2:10])
    short = serial < 10_000_000 and (int(number[:2]) * 10_000_000 + serial) % 97 == int(number[10:])
    return short or int(number[:10]) % 97 == int(number[10:])


def is_portuguese_insurance_number(number: str) -> bool:
    """NISS: ten digits weighted with the primes from 29 down to 2, check digit 9 minus their sum modulo 10."""
    if not _digits(number, 11) or number[0] not in "12":
        return False
    return 9 - _weighted(number[:10], (29, 23, 19, 17, 13, 11, 7, 5, 3, 2)) % 10 == int(number[10])


def is_polish_identity_card(number: str) -> bool:
    """Dowód osobisty: three letters and six digits; the first digit makes the weighted sum a multiple of ten."""
    if len(number) != 9 or not number.isascii() or not number[:3].isalpha() or not _digits(number[3:]):
        return False
    values = (int(sign, 36) for sign in number)
    return sum(v * w for v, w in zip(values, (7, 3, 1, 9, 7, 3, 1, 7, 3), strict=True)) % 10 == 0


def is_number(number: str) -> bool:
    """Digits without a check: Cypriot identity cards, Liechtenstein's PEID."""
    return _digits(number)


def is_british_insurance_number(number: str) -> bool:
    """National Insurance number: two letters, six digits, a suffix from A to D. Samples begin with ZZ."""
    number = number.upper()
    if len(number) != 9 or not number[:2].isalpha() or not _digits(number[2:8]):
        return False
    return number[8] in "ABCDT" and number[0] not in "DFIQUV" and number[1] not in "DFIQUVO"


def is_american_insurance_number(number: str) -> bool:
    """Social Security number or taxpayer number of the United States.

    Area 000 and 666, group 00 and serial 0000 are invalid.
    """
    return _digits(number, 9) and number[:3] not in ("000", "666") and number[3:5] != "00" and number[5:] != "0000"


def is_european_health_card(number: str) -> bool:
    """European Health Insurance Card: 80, issuer, holder and a Luhn digit, twenty digits (ISO/IEC 7812)."""
    return number.startswith("80") and bool(luhn.is_valid(number))


def is_file_number(number: str) -> bool:
    """Patient file or professional licence: five to fourteen digits and at most three letters."""
    digits = sum(map(str.isdigit, number))
    return number.isascii() and number.isalnum() and 5 <= digits <= 14 and len(number) - digits <= 3


def is_found_elsewhere(number: str) -> bool:
    """Accept kinds with their own detector, which sees more than letters and digits: machine-readable zones."""
    return bool(number)


def _is_mixed(text: str) -> bool:
    return any(map(str.isdigit, text)) and any(map(str.isalpha, text))


def _digits(text: str, length: int = 0) -> bool:
    return text.isascii() and text.isdigit() and (not length or len(text) == length)


def _weighted(digits: str, weights: "tuple[int, ...] | range") -> int:
    return sum(map(mul, map(int, digits), weights))


def _cross_sums(digits: str, weights: tuple[int, ...]) -> int:
    products = (int(digit) * weight for digit, weight in zip(digits, weights, strict=True))
    return sum(product // 10 + product % 10 for product in products)


def _is_date(year: int, month: str, day: str) -> bool:
    try:
        date(year, int(month), int(day))
    except ValueError:
        return False
    return True
