"""Texts without personal data that look like it: order numbers, ISBN, versions, hashes, prices, citations, formulas."""

import random
import uuid

from stdnum import ean, isbn
from stdnum import iban as stdnum_iban

from policy.redact.ids.kinds import IDS
from tests.data.redaction.numbers import NUMBERS, number, with_a_slip
from tests.data.redaction.phrases import TUNED
from tests.data.redaction.values import value

TUNED_CLEAN = (
    "The committee met on 12 May 2024 in room 030 and moved 1 234 567 units in 48 hours.",
    "Die Bestellung {n10} umfasst 12 Positionen zu je 1.299,00 Euro.",
    "Le rapport 2023/1114 compte 312 pages et 14 annexes publiées à 10:30:45.",
    "El pedido {n9} se entregó el 03-05-2023 en 2 cajas de 40 x 30 cm.",
    "Wersja 3.14.159 wymaga 16 GB pamięci i procesora 2,5 GHz.",
    "L'articolo 13, comma 2, della legge 190 del 2012 resta in vigore.",
    "Artikelnummer {ean} kostar 249 kr och väger 1,25 kg.",
    "def total(rows): return sum(r['net'] * 1.19 for r in rows if r['id'] > 10_000)",
    "ISBN {isbn}, DOI 10.1000/182, commit {sha}, UUID {uuid}",
    "The password policy asks for twelve signs; a token is counted once and the key idea is simple.",
    "Temperatures of 21.5 and 19.25 degrees were read at 52.5200, 13.4050 on day 118 of 365.",
    "Το έγγραφο 45/2024 έχει 120 σελίδες και 3 παραρτήματα.",
    "Invoice INV-{n8} of 2024-03-11 over EUR 12,345.67 is due in 30 days.",
    "Ticket #{n7} was closed; build {n4}.{n2}.{n3} passed 1843 tests.",
    "Regulation (EU) 2016/679, Art. 17(3)(b), and Directive 95/46/EC apply.",
    "C6H12O6 + 6 O2 -> 6 CO2 + 6 H2O; CH3COOH has pKa 4.76.",
    "Tracking number {n12} left the hub at 14:05.",
    "timestamp={n13} level=debug span={hex16} trace={hex32}",
    "Population 83 149 300 in 2019, 84.4 million by 2023.",
    "SELECT id, total FROM orders WHERE id = {n9} AND total > 1000.00;",
    "Numer zamówienia {n11} zostanie wysłany jutro.",
    "Serial no. SN{n10}, part 4711-{n5}, firmware 2.0.13.",
)
HELD_OUT_CLEAN = (
    "The parcel with order number {n11} weighs 2.4 kg and costs 19,99 €.",
    "Rechnungsnummer {n9} vom 03.05.2024, Kundennummer 4711, Betrag 1.234,56 EUR.",
    "Facture n° {n10}, échéance le 30/06/2025, total 980,00 euros.",
    "Zamówienie nr {n9} obejmuje 3 pozycje po 49,90 zł.",
    "Bestelnummer {n9} wordt morgen bezorgd, 2 stuks.",
    "Order {n10} skickas i morgon; artikeln kostar 349 kr.",
    "O processo {n9} tem 15 páginas e foi arquivado em 2019.",
    "Upgrade from v10.4.2-rc.1 to 11.0.0 needs glibc 2.31 and 8192 MB.",
    "sha256:{hex64} was pushed to registry/app:1.{n2}.{n1}",
    "The GTIN {ean} and the ISSN 2049-3630 are printed on page 117.",
    "BGH, Urteil vom 12.03.2019 - VI ZR 123/18, Rn. 14; BVerfGE 65, 1.",
    "NaCl 58.44 g/mol, H2SO4 98.08 g/mol, 6.02214076e23 per mole.",
    "Flight LH 1234 departs 06:45 from gate B12 on 2025-07-19.",
    "The meeting id is {n3} {n3} {n4}, passcode on the invitation.",
    "Die Auflage betrug 1 250 000 Exemplare, davon 830 000 im Ausland.",
    "for i in range(0, 1_000_000, 4096): checksum ^= crc32(buf[i:i+4096])",
    "request_id={uuid} took 153 ms, 2048 bytes, retry 3/5",
    "La commande {n8} du 14.02.2023 contient 3 articles à 12,50 €.",
    "Az {n10} számú rendelés 3 napon belül megérkezik.",
    "Pi is 3.14159265358979323846 and e is 2.718281828459045.",
    "Bugs 1204567, 1204588 and 1205001 were fixed in 2024.12.1.",
    "Coordinates 59.3293 N, 18.0686 E; altitude 1 204 m; pressure 1013.25 hPa.",
)


def clean_text(held_out: bool, rng: random.Random) -> str:
    """A text with numbers of its own that name nobody."""
    text = rng.choice(HELD_OUT_CLEAN if held_out else TUNED_CLEAN)
    while "{" in text:
        before, _, rest = text.partition("{")
        code, _, after = rest.partition("}")
        if not code or not (code[0] in "nh" or code in ("ean", "isbn", "sha", "uuid")):
            break
        text = before + _filled(code, rng) + after
    return text


def slip(rng: random.Random) -> tuple[str, str, str]:
    """(language, kind, text) where a number has a wrong check digit."""
    kind = rng.choice(sorted(NUMBERS))
    spec = NUMBERS[kind]
    wrong = with_a_slip(number(kind, rng), IDS[kind].is_valid)
    if wrong is None or rng.random() < 0.3:
        wrong, called = _wrong_account(spec.lang, rng)
    else:
        called = rng.choice(spec.names)
    frame = TUNED[spec.lang[:2]][0].replace("{name}", "M.")
    return spec.lang, kind, frame.replace("{called}", called).replace("{id}", wrong)


def _wrong_account(lang: str, rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        iban = value("iban", lang, rng)
        last = next(
            d for d in "0123456789" if d != iban[-1] and not stdnum_iban.is_valid((iban[:-1] + d).replace(" ", ""))
        )
        return iban[:-1] + last, "IBAN"
    card = value("card", lang, rng)
    return card[:-1] + str((int(card[-1]) + rng.randint(1, 9)) % 10), "Visa"


def _filled(code: str, rng: random.Random) -> str:
    match code:
        case "ean":
            body = f"40{rng.randrange(10**10):010}"
            return body + ean.calc_check_digit(body)
        case "isbn":
            body = f"9783{rng.randrange(10**8):08}"
            return isbn.format(body + ean.calc_check_digit(body)) or body
        case "sha":
            return f"{rng.getrandbits(160):040x}"
        case "uuid":
            return str(uuid.UUID(int=rng.getrandbits(128), version=4))
        case _ if code.startswith("hex"):
            return f"{rng.getrandbits(4 * int(code[3:])):0{code[3:]}x}"
        case _:
            digits = int(code[1:])
            return str(rng.randrange(10 ** (digits - 1), 10**digits))
