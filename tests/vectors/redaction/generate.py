"""The evaluation set of redaction: texts with known spans, made from templates and a seed.

Values are random with valid check digits (no person's), names of numbers are those of everyday letters and forms,
written here by hand and not taken from the detectors. `cases(seed, rounds)` gives the same set for the same arguments.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stdnum import iban as stdnum_iban
from stdnum import luhn
from stdnum.eu import vat as eu_vat

from policy.redact.national_ids import IDS


class Case(NamedTuple):
    """``spans``: (start, end, label) in characters of `text`, end exclusive; empty where nothing is to be found."""

    id: str
    lang: str
    variant: str
    text: str
    spans: tuple[tuple[int, int, str], ...]


# kind -> (language, what it is called, how it is written): YMD are a date's digits, 9 any digit, A any letter.
NUMBERS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "at_svnr": ("de", ("SVNR", "Sozialversicherungsnummer"), "9999 DDMMYY"),
    "be_nn": ("nl", ("Rijksregisternummer", "INSZ"), "YY.MM.DD-999.99"),
    "bg_egn": ("bg", ("ЕГН",), "YYMMDD9999"),
    "ch_ahv": ("de", ("AHV-Nummer",), "756.9999.9999.99"),
    "cy_tic": ("el", ("TIC",), "99999999A"),
    "cz_rc": ("cs", ("rodné číslo", "r. č."), "YYMMDD/9999"),
    "de_idnr": ("de", ("Steuer-ID", "Steuerliche Identifikationsnummer", "IdNr"), "99 999 999 999"),
    "de_rvnr": ("de", ("Rentenversicherungsnummer",), "99DDMMYYA999"),
    "de_kvnr": ("de", ("Krankenversichertennummer", "KVNR"), "A999999999"),
    "dk_cpr": ("da", ("CPR-nummer", "CPR"), "DDMMYY-9999"),
    "ee_ik": ("et", ("isikukood",), "3YYMMDD9999"),
    "es_dni": ("es", ("DNI",), "99999999A"),
    "es_nie": ("es", ("NIE",), "X9999999A"),
    "fi_hetu": ("fi", ("henkilötunnus", "hetu"), "DDMMYY-999A"),
    "fr_nir": ("fr", ("numéro de sécurité sociale", "NIR"), "1 YY MM 75 999 999 99"),
    "gr_amka": ("el", ("ΑΜΚΑ",), "DDMMYY99999"),
    "gr_afm": ("el", ("ΑΦΜ",), "999999999"),
    "hr_oib": ("hr", ("OIB",), "99999999999"),
    "hu_taj": ("hu", ("TAJ szám", "TAJ"), "999 999 999"),
    "hu_tax": ("hu", ("adóazonosító jel",), "8999999999"),
    "ie_pps": ("en", ("PPS number", "PPSN"), "9999999A"),
    "is_kt": ("is", ("kennitala", "kt."), "DDMMYY-9999"),
    "it_cf": ("it", ("codice fiscale", "C.F."), "AAAAAAYYADDA999A"),
    "lt_ak": ("lt", ("asmens kodas",), "3YYMMDD9999"),
    "lu_nin": ("fr", ("matricule",), "19YYMMDD99999"),
    "lv_pk": ("lv", ("personas kods",), "DDMMYY-19999"),
    "mt_id": ("mt", ("ID card",), "9999999M"),
    "nl_bsn": ("nl", ("BSN", "burgerservicenummer"), "999999999"),
    "no_fnr": ("no", ("fødselsnummer",), "DDMMYY 99999"),
    "pl_pesel": ("pl", ("PESEL", "numer PESEL"), "YYMMDD99999"),
    "pl_nip": ("pl", ("NIP",), "999-999-99-99"),
    "pt_nif": ("pt", ("NIF", "número de contribuinte"), "999 999 999"),
    "ro_cnp": ("ro", ("CNP",), "1YYMMDD129999"),
    "se_pnr": ("sv", ("personnummer",), "YYMMDD-9999"),
    "si_emso": ("sl", ("EMŠO",), "DDMM9995009999"[:13]),
    "sk_rc": ("sk", ("rodné číslo",), "YYMMDD/9999"),
}
SAME_NUMBER = {"sk_rc": "cz_rc"}  # both states issue one format under one name
FRAMES = {
    "bg": "Моят {} е {} от вчера.", "cs": "Moje {}: {}, děkuji.", "da": "Mit {} er {}, tak.",
    "de": "Guten Tag, {}: {}. Viele Grüße", "el": "Ο {} μου είναι {}, ευχαριστώ.", "en": "My {} is {}, thanks.",
    "es": "Mi {} es {}, gracias.", "et": "Minu {} on {}, aitäh.", "fi": "Minun {}: {}, kiitos.",
    "fr": "Mon {} est {}, merci.", "hr": "Moj {} je {}, hvala.", "hu": "A {}: {}, köszönöm.",
    "is": "Mín {} er {}, takk.",
    "it": "Il mio {} è {}, grazie.", "lt": "Mano {}: {}, ačiū.", "lv": "Mans {}: {}, paldies.",
    "mt": "My {} is {}, grazzi.", "nl": "Mijn {} is {}, dank u.", "no": "Mitt {} er {}, takk.",
    "pl": "Mój {} to {}, dziękuję.", "pt": "O meu {} é {}, obrigado.", "ro": "{} este {}, mulțumesc.",
    "sk": "Moje {}: {}, ďakujem.", "sl": "Moj {}: {}, hvala.", "sv": "Mitt {} är {}, tack.",
}  # fmt: skip
PROSE = (
    "The committee met on 12 May 2024 in room 030 and moved 1 234 567 units in 48 hours.",
    "Die Bestellung 2024-000123 umfasst 12 Positionen zu je 1.299,00 Euro.",
    "Le rapport 2023/1114 compte 312 pages et 14 annexes publiées à 10:30:45.",
    "El pedido 100200300 se entregó el 03-05-2023 en 2 cajas de 40 x 30 cm.",
    "Wersja 3.14.159 wymaga 16 GB pamięci i procesora 2,5 GHz.",
    "L'articolo 13, comma 2, della legge 190 del 2012 resta in vigore.",
    "Artikelnummer 4006381333931 kostar 249 kr och väger 1,25 kg.",
    "def total(rows): return sum(r['net'] * 1.19 for r in rows if r['id'] > 10_000)",
    "ISBN 978-3-16-148410-0, DOI 10.1000/182, commit 3f2a9c1b7d, UUID 123e4567-e89b-12d3-a456-426614174000",
    "The password policy asks for twelve signs; a token is counted once and the key idea is simple.",
    "Temperatures of 21.5 and 19.25 degrees were read at 52.5200, 13.4050 on day 118 of 365.",
    "Το έγγραφο 45/2024 έχει 120 σελίδες και 3 παραρτήματα.",
)


def number(kind: str, rng: random.Random) -> str:
    """A valid number of a kind, as people write it."""
    return _valid(NUMBERS[kind][2], IDS[kind].is_valid, rng)


def _valid(template: str, is_valid: Callable[[str], bool], rng: random.Random) -> str:
    for _ in range(200_000):
        year, month, day = rng.randint(45, 99), rng.randint(1, 12), rng.randint(1, 28)
        dated = template.replace("YY", f"{year:02}").replace("MM", f"{month:02}").replace("DD", f"{day:02}")
        filled = "".join(
            rng.choice("0123456789") if c == "9" and template[at] == "9" else rng.choice("ABCDEFGHJKLMNPQRSTVWXYZ")
            if c == "A" and template[at] == "A" else c
            for at, c in enumerate(dated)
        )  # fmt: skip
        if is_valid(filled) or is_valid("".join(filter(str.isalnum, filled))):
            return filled
    raise ValueError(f"no valid number like {template} was found")


def _others(rng: random.Random) -> Iterator[tuple[str, str, str, str]]:
    """(label, language, frame, value) of what is no national number."""
    country, length = rng.choice([("DE", 18), ("NL", 0), ("FR", 23), ("ES", 20), ("PL", 24), ("AT", 16)])
    body = "".join(rng.choice("0123456789") for _ in range(length)) or "ABNA" + f"{rng.randrange(10**10):010}"
    compact = f"{country}{stdnum_iban.calc_check_digits(f'{country}00{body}')}{body}"
    grouped = " ".join(compact[at : at + 4] for at in range(0, len(compact), 4))
    yield "iban", "de", "Bitte auf {} überweisen.", rng.choice([compact, grouped])
    card = "4" + f"{rng.randrange(10**14):014}"
    card += luhn.calc_check_digit(card)
    yield "card", "en", "Charge {} today.", rng.choice([card, " ".join(card[at : at + 4] for at in range(0, 16, 4))])
    name = rng.choice(["anna", "j.kowalski", "o'brien", "maria-lopez", "müller"])
    yield "email", "en", "Write to {} soon.", f"{name}{rng.randrange(100)}@example.{rng.choice(['org', 'eu', 'co.uk'])}"
    yield "phone", "fr", "Appelez le {} demain.", f"+33 6 {' '.join(f'{rng.randrange(100):02}' for _ in range(4))}"
    yield "ip", "en", "The host {} is down.", ".".join(str(rng.randint(1, 254)) for _ in range(4))
    yield "mac", "en", "Device {} joined.", "a4:" + ":".join(f"{rng.randrange(256):02x}" for _ in range(5))
    prefix, template = rng.choice([("DE", "999999999"), ("ATU", "99999999"), ("BE0", "999999999"), ("DK", "99999999"),
                                   ("PL", "9999999999"), ("IT", "99999999999"), ("FI", "99999999")])  # fmt: skip
    vat = _valid(template, lambda digits: bool(eu_vat.is_valid(prefix + digits)), rng)
    yield "vat", "en", "VAT number {} on the invoice.", prefix + vat
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    token = "".join(rng.choice(alphabet) for _ in range(35)) + "7"
    yield "secret", "en", "Use {} for it.", rng.choice(["ghp_", "sk-", "hf_"]) + token
    yield "secret", "en", "password: {} please", f"{token[:6]}7x{token[6:10]}Q4"
    imei = f"35{rng.randrange(10**12):012}"
    yield "imei", "en", "IMEI {} was stolen.", imei + luhn.calc_check_digit(imei)
    born = f"{rng.randint(1, 28):02}.{rng.randint(1, 12):02}.19{rng.randint(45, 99)}"
    yield "date_of_birth", "de", "geboren am {} in Bonn", born
    towns = (
        ("Lindenstraße", "10969", "Berlin"),
        ("rue de Rivoli", "75001", "Paris"),
        ("Calle Mayor", "28013", "Madrid"),
    )
    street, code, town = rng.choice(towns)
    house = rng.randint(1, 180)
    line = f"{house} {street}" if code.startswith("75") else f"{street} {house}"
    yield "address", "en", "Send it to {}.", f"{line}, {code} {town}"


def _variants(text: str, start: int, end: int) -> Iterator[tuple[str, str, int, int]]:
    before, value, after = text[:start], text[start:end], text[end:]
    yield "plain", text, start, end
    quoted = json.dumps({"note": text}, ensure_ascii=False)
    at = quoted.index(value)
    yield "json", quoted, at, at + len(value)
    row = f"17;{text};open"
    yield "csv", row, start + 3, end + 3
    for name, changed in (
        ("nbsp", value.replace(" ", "\u00a0")),
        ("zero-width", "\u200b".join(value)),
        ("full-width", "".join(chr(ord(c) + 0xFEE0) if "0" <= c <= "9" else c for c in value)),
    ):
        if changed != value:
            yield name, before + changed + after, start, start + len(changed)


def cases(seed: int, rounds: int) -> Iterator[Case]:
    """Every number of `NUMBERS` and every other kind, each in every variant, `rounds` times; then texts without any."""
    rng = random.Random(seed)
    for turn in range(rounds):
        values = [
            (
                f"national_id.{SAME_NUMBER.get(kind, kind)}",
                lang,
                FRAMES[lang].replace("{}", rng.choice(names), 1),
                number(kind, rng),
            )
            for kind, (lang, names, _) in NUMBERS.items()
        ]
        for label, lang, frame, value in (*values, *_others(rng)):
            start = frame.index("{}")
            text = frame.replace("{}", value)
            for variant, written, first, last in _variants(text, start, start + len(value)):
                yield Case(f"{label}-{turn}-{variant}", lang, variant, written, ((first, last, label),))
        for kind, (lang, names, _) in NUMBERS.items():
            if wrong := _wrong(number(kind, rng), IDS[kind].is_valid):
                text = FRAMES[lang].replace("{}", rng.choice(names), 1).replace("{}", wrong)
                yield Case(f"wrong-{kind}-{turn}", lang, "wrong check digit", text, ())
        for index, prose in enumerate(PROSE):
            yield Case(f"prose-{index}-{turn}", "mul", "prose", prose.replace("12", str(rng.randint(11, 99))), ())


def _wrong(value: str, is_valid: Callable[[str], bool]) -> str | None:
    """`value` with another last digit that its check refuses, if there is one."""
    at = max(index for index, sign in enumerate(value) if sign.isdigit())
    for digit in "0123456789":
        changed = value[:at] + digit + value[at + 1 :]
        if not is_valid(changed) and not is_valid("".join(filter(str.isalnum, changed))):
            return changed
    return None
