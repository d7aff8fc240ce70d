"""Values by label: people, places and numbers of a locale, from Faker and python-stdnum."""

import random
import string
from functools import cache

from faker import Faker
from stdnum import iban as stdnum_iban
from stdnum import luhn
from stdnum.eu import vat as eu_vat

from policy.redact.payment.iban import LENGTHS
from tests.data.redaction.numbers import valid

LOCALES = {
    "bg": "bg_BG", "cs": "cs_CZ", "da": "da_DK", "de": "de_DE", "de-AT": "de_AT", "de-CH": "de_CH", "de-LI": "de_CH",
    "el": "el_GR", "el-CY": "el_GR", "en": "en_GB", "en-IE": "en_IE", "es": "es_ES", "et": "et_EE", "fi": "fi_FI",
    "fr": "fr_FR", "fr-LU": "fr_FR", "hr": "hr_HR", "hu": "hu_HU", "is": "is_IS", "it": "it_IT", "lt": "lt_LT",
    "lv": "lv_LV", "mt": "en_GB", "nl": "nl_NL", "nl-BE": "nl_BE", "no": "no_NO", "pl": "pl_PL", "pt": "pt_PT",
    "ro": "ro_RO", "sk": "sk_SK", "sl": "sl_SI", "sv": "sv_SE",
}  # fmt: skip
COUNTRY = {"cs": "CZ", "da": "DK", "el": "GR", "en": "IE", "et": "EE", "sl": "SI", "sv": "SE"}
_VAT = {"AT": "U99999999", "BE": "0999999999", "BG": "999999999", "CZ": "99999999", "DE": "999999999", "DK": "99999999",
        "EE": "999999999", "EL": "999999999", "ES": "A99999999", "FI": "99999999", "FR": "99999999999",
        "HR": "99999999999", "HU": "99999999", "IE": "9999999A", "IT": "99999999999", "LT": "999999919",
        "LU": "99999999", "LV": "49999999999", "MT": "99999999", "NL": "999999999B99", "PL": "9999999999",
        "PT": "599999999", "RO": "99999999", "SE": "999999999901", "SI": "99999999", "SK": "9999999999"}  # fmt: skip
_KEYS = ("sk-proj-{40}", "ghp_{36}", "AKIA{U16}", "xoxb-{n12}-{n12}-{24}", "glpat-{20}", "hf_{34}", "sk_live_{24}",
         "AIza{35}", "npm_{36}", "SG.{22}.{43}", "sk-ant-api03-{80}")  # fmt: skip


def unicast_ipv6(people: Faker) -> str:
    """Return an address of a host; ff00::/8 are groups (RFC 4291), which are nobody's."""
    return next(address for address in iter(people.ipv6, "") if not address.startswith("ff"))


def country_of(lang: str) -> str:
    return lang[3:] if "-" in lang else COUNTRY.get(lang, lang.upper())


@cache
def _faker(locale: str) -> Faker:
    return Faker(locale)


def people_of(lang: str, rng: random.Random) -> Faker:
    faker = _faker(LOCALES[lang])
    faker.seed_instance(rng.getrandbits(32))
    return faker


def value(label: str, lang: str, rng: random.Random) -> str:
    """A value for a place of `phrases` (all but ``id`` and ``called``)."""
    people = people_of(lang, rng)
    match label:
        case "name":
            return f"{people.first_name()} {people.last_name()}"
        case "address":
            return _address(lang, people, rng)
        case "phone":
            return _phone(lang, people, rng)
        case "email":
            return (
                people.ascii_email()
                if rng.random() < 0.8
                else f"{people.user_name()}+x@mail.example.{country_of(lang).lower()}"
            )
        case "iban":
            return _iban(country_of(lang), rng)
        case "card":
            return _card(rng)
        case "ip":
            return people.ipv4() if rng.random() < 0.7 else unicast_ipv6(people)
        case "mac":
            return people.mac_address()
        case "imei":
            body = f"35{rng.randrange(10**12):012}"
            return body + luhn.calc_check_digit(body)
        case "vat":
            return _vat(country_of(lang), rng)
        case "dob":
            return people.date_of_birth(minimum_age=18).strftime(rng.choice(["%d.%m.%Y", "%d/%m/%Y", "%Y-%m-%d"]))
        case "secret":
            return _secret(rng)
        case "password":
            signs = [
                rng.choice(group)
                for group in (string.ascii_lowercase, string.ascii_uppercase, string.digits)
                for _ in range(4)
            ]
            rng.shuffle(signs)
            return "".join(signs)
        case _:
            raise ValueError(f"nothing makes a {label}")


def _phone(lang: str, people: Faker, rng: random.Random) -> str:
    """As Faker writes it where it knows the country, else by the country's own example plan."""
    import phonenumbers

    country = country_of(lang)
    example = phonenumbers.example_number_for_type(country, phonenumbers.PhoneNumberType.MOBILE)
    if example is None or (
        LOCALES[lang].endswith(country) and lang not in ("en-IE", "et", "is", "mt") and rng.random() < 0.5
    ):
        return people.phone_number()
    for _ in range(50):
        digits = str(example.national_number)
        keep = 3 if len(digits) > 7 else 2
        national = digits[:keep] + "".join(rng.choice(string.digits) for _ in digits[keep:])
        made = phonenumbers.parse(national, country)
        if phonenumbers.is_valid_number(made):
            shape = rng.choice((phonenumbers.PhoneNumberFormat.INTERNATIONAL, phonenumbers.PhoneNumberFormat.E164,
                                phonenumbers.PhoneNumberFormat.NATIONAL))  # fmt: skip
            return phonenumbers.format_number(made, shape)
    return phonenumbers.format_number(example, phonenumbers.PhoneNumberFormat.INTERNATIONAL)


_STREETS = {
    "bg": "ул. „Иван Вазов“ {n}, {p4} София", "is": "Laugavegur {n}, 101 Reykjavík", "et": "Pikk tn {n}, {p5} Tallinn",
    "lt": "Gedimino pr. {n}, LT-{p5} Vilnius", "lv": "Brīvības iela {n}, Rīga, LV-{p4}",
    "mt": "{n}, Triq ir-Repubblika, Valletta VLT {p4}",
    "en-IE": "{n} Main Street, Dublin 8", "en": "{n} Church Road, Leeds LS{d} {d}AB",
    "el-CY": "Λεωφόρος Μακαρίου {n}, {p4} Λευκωσία",
}  # fmt: skip


def _address(lang: str, people: Faker, rng: random.Random) -> str:
    if lang in _STREETS:
        return _STREETS[lang].format(
            n=rng.randint(1, 180), p4=rng.randint(1000, 1899), p5=rng.randint(10000, 99999), d=rng.randint(1, 9)
        )
    return people.address().replace("\n", rng.choice([", ", "\n"])).replace(" , ", ", ")


def _iban(country: str, rng: random.Random) -> str:
    if country not in LENGTHS:
        country = "DE"
    head = {"NL": "ABNA", "IE": "AIBK", "GB": "NWBK", "MT": "VALL", "RO": "BTRL", "BG": "BNBG", "LV": "HABA"}.get(
        country, ""
    )
    if country == "IT":
        head = "X"
    body = head + "".join(rng.choice(string.digits) for _ in range(LENGTHS[country] - 4 - len(head)))
    compact = f"{country}{stdnum_iban.calc_check_digits(f'{country}00{body}')}{body}"
    return rng.choice([compact, " ".join(compact[at : at + 4] for at in range(0, len(compact), 4))])


def _card(rng: random.Random) -> str:
    issuer, length = rng.choice(
        [("4", 16), ("51", 16), ("5425", 16), ("37", 15), ("6011", 16), ("2221", 16), ("3530", 16)]
    )
    body = issuer + "".join(rng.choice(string.digits) for _ in range(length - len(issuer) - 1))
    compact = body + luhn.calc_check_digit(body)
    if length == 16 and rng.random() < 0.5:
        return rng.choice(" -").join(compact[at : at + 4] for at in range(0, 16, 4))
    return compact


def _vat(country: str, rng: random.Random) -> str:
    prefix = "EL" if country == "GR" else country
    if prefix not in _VAT:
        prefix = "DE"
    return prefix + valid(_VAT[prefix], lambda digits: bool(eu_vat.is_valid(prefix + digits)), rng)


def _secret(rng: random.Random) -> str:
    def piece(code: str) -> str:
        alphabet = (
            string.digits
            if code[0] == "n"
            else string.ascii_uppercase + string.digits
            if code[0] == "U"
            else string.ascii_letters + string.digits
        )
        length = int(code.lstrip("nU"))
        return "".join(rng.choice(alphabet) for _ in range(length - 1)) + rng.choice(string.digits)

    parts = rng.choice(_KEYS).replace("}", "{").split("{")
    return "".join(piece(part) if index % 2 else part for index, part in enumerate(parts))
