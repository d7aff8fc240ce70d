"""The fresh set: ``python -m tests.data.redaction.fresh FILE.jsonl [--seed N] [--rounds N]``.

Made to see whether the detectors know more than the set they were made with: words, sentences, machines' shapes,
spellings and clean texts of its own (`fresh_words`), other centuries and separators of each number, other formats of
phones, VAT numbers, addresses of hosts and secrets.
"""

import random
import re
import string
import unicodedata
from collections.abc import Iterator
from urllib.parse import quote_plus

import phonenumbers
from stdnum import luhn
from stdnum.exceptions import ValidationError

from policy.redact.ids.kinds import IDS
from tests.data.redaction import fresh_words as words
from tests.data.redaction.filling import Case, Spans, filled, options, write
from tests.data.redaction.fresh_secrets import secret
from tests.data.redaction.make import LABELS
from tests.data.redaction.numbers import NUMBERS, valid, with_a_slip
from tests.data.redaction.values import COUNTRY, LOCALES, people_of, unicast_ipv6, value

VARIANTS = ("plain", "plain", "nbsp", "zero-width", "full-width", "look-alike", "regrouped", "decomposed",
            "mathematical", "lower-case", "json-escaped")  # fmt: skip
_BLANKS = "\u00a0\u202f\u2009\u2007\u3000"
_NOTHINGS = ("\u200b", "\u200d", "\u2060", "\u00ad", "\ufeff", "\u200e")
_CODE = re.compile(r"\{([a-zA-Z]+)([0-9]*)\}")
_SEPARATED = frozenset({"id", "id_url", "iban", "card"})
_DIGITAL = frozenset({"id", "id_url", "iban", "card", "phone", "imei_named"})


def cases(seed: int, rounds: int) -> Iterator[Case]:
    """Every kind in a sentence of its language, in an English one and in a machine's shape, `rounds` times; other
    values of its language; numbers with a slip; clean texts."""
    rng = random.Random(f"fresh-{seed}")
    for turn in range(rounds):
        for kind, called in words.CALLED.items():
            lang = words.LANGUAGE.get(kind) or NUMBERS[kind].lang
            own = words.SENTENCES[lang[:2]]
            english = [name for name in called if name.isascii()] or list(called)
            shapes = (
                (rng.choice(own[:2]), rng.choice(called)),
                (rng.choice(own[2:]), rng.choice(called)),
                (rng.choice(words.SENTENCES["en"]), rng.choice(english)),
                (rng.choice(words.MACHINE), rng.choice(called)),
            )
            for number, (shape, name) in enumerate(shapes):
                variant = rng.choice(VARIANTS)
                text, spans = _filled(shape, kind, lang, name, variant, rng)
                yield Case(f"{kind}-{turn}-{number}-{variant}", "en" if number == 2 else lang, variant, text, spans)
        for index in range(50):
            yield Case(f"clean-{turn}-{index}", "mul", "clean", clean_text(rng), ())
        for index in range(15):
            kind = rng.choice(sorted(words.CALLED))
            if (wrong := with_a_slip(_id(kind, rng), IDS[kind].is_valid)) is not None:
                lang = words.LANGUAGE.get(kind) or NUMBERS[kind].lang
                frame = words.SENTENCES[lang[:2]][1]
                text = frame.format(called=words.CALLED[kind][0], id=wrong, name="M.")
                yield Case(f"slip-{kind}-{turn}-{index}", lang, "wrong check digit", text, ())


def clean_text(rng: random.Random) -> str:
    """A text that names nobody: numbers of its own, perhaps inside the prose of a language."""
    text = _CODE.sub(lambda code: _code(code[1], int(code[2] or 0), rng), rng.choice(words.CLEAN))
    prose = words.PROSE[rng.choice(sorted(words.PROSE))]
    return rng.choice([text, f"{prose} {text}", f"{text}\n{prose}", f"{prose} {prose}"])


def _code(kind: str, length: int, rng: random.Random) -> str:
    match kind:
        case "n":
            return str(rng.randrange(10 ** (length - 1), 10**length))
        case "U":
            return "".join(rng.choice(string.ascii_uppercase) for _ in range(length))
        case "hex":
            return f"{rng.getrandbits(4 * length):0{length}x}"
        case "sha":
            return f"{rng.getrandbits(160):040x}"
        case "ean" | "isbn":
            body = ("978" if kind == "isbn" else "40") + "".join(rng.choice(string.digits) for _ in range(9))
            body = body[:12].ljust(12, "7")
            return body + str(-sum(int(d) * (1, 3)[i % 2] for i, d in enumerate(body)) % 10)
        case "uuid":
            raw = f"{rng.getrandbits(128):032x}"
            return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-a{raw[17:20]}-{raw[20:]}"
        case _:
            raise ValueError(f"nothing makes a {kind}")


def _filled(shape: str, kind: str, lang: str, called: str, variant: str, rng: random.Random) -> tuple[str, Spans]:
    def fill(place: str) -> tuple[str, str | None]:
        match place:
            case "called":
                return called, None
            case "called_key":
                plain = "".join(c for c in unicodedata.normalize("NFD", called) if not unicodedata.combining(c))
                return re.sub(r"[\W_]+", rng.choice("_-"), plain.lower()).strip("_-"), None
            case "imei":
                return value("imei", "en", rng), "IMEI"
            case _:
                name = "id" if place == "id_url" else place
                written = written_as(_value(name, kind, lang, rng), place, variant, rng)
                label = LABELS.get(name, name.upper()) if name != "id" else kind.upper()
                return quote_plus(written) if place == "id_url" else written, label

    return filled(shape.replace("{imei_named}", "IMEI {imei}"), fill)


def written_as(raw: str, label: str, variant: str, rng: random.Random) -> str:
    """`raw` as `variant` spells it; as it is where that makes no sense for a `label`."""
    match variant:
        case "nbsp":
            return raw.replace(" ", rng.choice(_BLANKS))
        case "zero-width" if label not in ("address", "name"):
            sign = rng.choice(_NOTHINGS)
            return sign.join(raw) if rng.random() < 0.5 else raw[:3] + sign + raw[3:]
        case "full-width" if label in _DIGITAL or label in ("email", "ip", "vat"):
            return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" and (c.isalnum() or c == "@") else c for c in raw)
        case "mathematical" if label in _DIGITAL:
            first = rng.choice((0x1D7CE, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6))
            return "".join(chr(first + int(c)) if c in string.digits else c for c in raw)
        case "look-alike" if label in ("id", "id_url", "iban", "card"):
            return _look_alike(raw, rng)
        case "regrouped" if label in _SEPARATED:
            return _regrouped(raw, label, rng)
        case "lower-case" if label in ("id", "iban", "email"):
            return raw.lower()
        case "decomposed":
            return unicodedata.normalize("NFD", raw)
        case "json-escaped" if label in ("id", "iban", "email", "name", "phone"):
            at = rng.randrange(len(raw))
            return f"{raw[:at]}\\u{ord(raw[at]):04x}{raw[at + 1 :]}"
        case _:
            return raw


def _look_alike(raw: str, rng: random.Random) -> str:
    """Up to three signs replaced: a 0 or 1 by a letter of the same look, a letter by a Cyrillic or Greek one."""
    swap = {"0": "Oo", "1": "lI|", "A": "АΑ", "B": "ВΒ", "C": "С", "E": "ЕΕ", "H": "НΗ", "K": "КΚ", "M": "МΜ",
            "P": "РΡ", "T": "ТΤ", "X": "ХΧ", "O": "О"}  # fmt: skip
    at = [index for index, sign in enumerate(raw) if sign in swap]
    chosen = set(rng.sample(at, min(len(at), rng.randint(1, 3))))
    return "".join(rng.choice(swap[sign]) if index in chosen else sign for index, sign in enumerate(raw))


def _regrouped(raw: str, label: str, rng: random.Random) -> str:
    compact = "".join(filter(str.isalnum, raw))
    sign = rng.choice(" -" if label[:2] != "id" else " .-/")
    size = rng.choice((3, 4) if label[:2] == "id" else (4, 4, 5))
    return sign.join(compact[at : at + size] for at in range(0, len(compact), size))


def _id(kind: str, rng: random.Random) -> str:
    shapes = [*words.SHAPES.get(kind, ()), *((NUMBERS[kind].shape,) if kind in NUMBERS else ())]
    return valid(rng.choice(shapes), IDS[kind].is_valid, rng)


def _value(label: str, kind: str, lang: str, rng: random.Random) -> str:
    people = people_of(lang if lang in LOCALES else "en", rng)
    match label:
        case "id":
            return _id(kind, rng)
        case "phone":
            return _phone(lang, rng)
        case "email":
            name = rng.choice([people.user_name(), f"{people.user_name()}.{people.user_name()}", "o'neil", "Info",
                               f"{people.user_name()}+bills",
                               f"{people.user_name()}_{rng.randint(1, 99)}"])  # fmt: skip
            host = rng.choice([people.domain_name(), "post.example.museum", f"mail-{rng.randint(1, 9)}.example.com",
                               "bücher.example", "EXAMPLE.ORG"])  # fmt: skip
            return f"{name}@{host}"
        case "ip":
            return rng.choice([people.ipv4(), unicast_ipv6(people), "2001:db8::" + f"{rng.getrandbits(16):x}",
                               f"fe80::{rng.getrandbits(16):x}:{rng.getrandbits(16):x}",
                               people.ipv4_private()])  # fmt: skip
        case "mac":
            raw = people.mac_address()
            return rng.choice(
                [
                    raw,
                    raw.upper().replace(":", "-"),
                    raw.replace(":", "")[:4] + "." + raw.replace(":", "")[4:8] + "." + raw.replace(":", "")[8:],
                ]
            )
        case "vat":
            return _spaced_vat(value("vat", lang, rng), rng)
        case "dob":
            return people.date_of_birth(minimum_age=18).strftime(
                rng.choice(["%d.%m.%Y", "%d/%m/%Y", "%Y-%m-%d", "%d-%m-%Y", "%d.%m.%y", "%Y/%m/%d"])
            )
        case "card":
            return _card(rng)
        case "bic":
            country = COUNTRY.get(lang, lang[-2:].upper())
            bank, place = rng.choice(["DEUT", "BNPA", "INGB", "UNCR", "NDEA"]), rng.choice(["FF", "2A", "PP"])
            return f"{bank}{country}{place}{rng.choice(['', 'XXX', '500'])}"
        case "secret":
            return secret(rng)
        case _:
            return value(label, lang, rng)


def _card(rng: random.Random) -> str:
    issuer, length = rng.choice([("4", 16), ("55", 16), ("2720", 16), ("34", 15), ("6011", 16), ("36", 14), ("3566",
    16),
                                 ("4", 19), ("6759", 16), ("62", 16)])  # fmt: skip
    body = issuer + "".join(rng.choice(string.digits) for _ in range(length - len(issuer) - 1))
    compact = body + luhn.calc_check_digit(body)
    if length == 15:
        return rng.choice(
            [compact, f"{compact[:4]} {compact[4:10]} {compact[10:]}", f"{compact[:4]}-{compact[4:10]}-{compact[10:]}"]
        )
    if length == 14:
        return rng.choice([compact, f"{compact[:4]} {compact[4:10]} {compact[10:]}"])
    return rng.choice([compact, *(sign.join(compact[at : at + 4] for at in range(0, length, 4)) for sign in " -")])


def _spaced_vat(raw: str, rng: random.Random) -> str:
    head, body = raw[:2], raw[2:]
    return rng.choice([raw, f"{head} {body}", f"{head}-{body}", f"{head} {body[:3]} {body[3:6]} {body[6:]}".strip(),
                       f"{head}{body[:3]}.{body[3:6]}.{body[6:]}".strip(".")])  # fmt: skip


def _phone(lang: str, rng: random.Random) -> str:
    """A number that its country's plan assigns, in one of the ways that people write it there."""
    country = COUNTRY.get(lang, lang[-2:].upper())
    example = phonenumbers.example_number_for_type(
        country, rng.choice((phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE))
    )
    if example is None:
        raise ValidationError(f"no plan for {country}")
    made = example
    for _ in range(50):
        digits = str(example.national_number)
        keep = 3 if len(digits) > 7 else 2
        candidate = phonenumbers.parse(
            digits[:keep] + "".join(rng.choice(string.digits) for _ in digits[keep:]), country
        )
        if phonenumbers.is_valid_number(candidate):
            made = candidate
            break
    plain = phonenumbers.format_number(made, phonenumbers.PhoneNumberFormat.INTERNATIONAL)
    code, _, rest = plain.partition(" ")
    return rng.choice([
        plain, plain.replace(" ", ""), plain.replace(" ", "-"), plain.replace(" ", "."), f"00{plain[1:]}",
        f"00{plain[1:]}".replace(" ", ""), f"({code}) {rest}", f"{code} (0){rest}" if country in ("DE", "AT", "CH",
        "GB") else plain,
        phonenumbers.format_number(made, phonenumbers.PhoneNumberFormat.NATIONAL),
        phonenumbers.format_number(made, phonenumbers.PhoneNumberFormat.NATIONAL).replace(" ", "-"),
    ])  # fmt: skip


def main() -> None:
    asked = options(__doc__, seed=2027, rounds=10).parse_args()
    write(asked.file, cases(asked.seed, asked.rounds))


if __name__ == "__main__":
    main()
