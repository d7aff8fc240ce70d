"""Details of a payment card: the verification code and the expiry date, after their names.

Neither has a check digit. Three or four digits are a code only directly after its name. A month and a year are an
expiry date only if a card or its code is mentioned near them.
"""

import re
from collections.abc import Iterator

from policy.redact.text.reading import Reading

VERIFICATION, EXPIRY = "verification", "expiry"
INITIALS = frozenset(
    {
        "cvv",
        "cvc",
        "csc",
        "cvn",
        "cid",
        "kar",
        "pru",
        "car",
        "cod",
        "ver",
        "sec",
        "exp",
        "val",
        "gul",
        "cry",
        "sca",
        "cad",
        "ven",
        "wa\u017c",
        "waz",
        "pla",
    }
)
_CODE_NAME = re.compile(
    r"(?:c(?:vv|vc|sc|vn|id)[12]?|kart(?:en)?(?:pruf|pruef)(?:nummer|ziffer|zahl|code)|pruf(?:nummer|ziffer|zahl)"
    r"|(?:card )?(?<!social[ _-])(?:security|verification) (?:code|number|value)"
    r"|card[ _-]?(?:cvv|cvc|code)|cryptogramme(?: visuel)?|codigo (?:de )?(?:seguridad|seguranca)|codice di sicurezza"
    r"|cod(?:e)? de securite)(?![^\W\d_])"
)
_CODE = re.compile(
    r"[\"'`*)\]]{0,2}(?: ?(?:code|nr\.?|no\.?|number|nummer))?\s{0,2}(?:[:=#-]|\bis\b|\bist\b|\best\b|\bes\b|e'"
    r"|\|)?\s{0,3}[\"'`]?(?P<code>[0-9]{3,4})(?![0-9A-Za-z_/:]|[.,-][0-9]| [0-9]{3}(?:[ -]?[0-9]){3})"
)
# Names that also mean other things and therefore need a separator after them
_OTHERS_TOO = frozenset({"cid", "csc", "cvn"})
_EXPIRY_NAME = re.compile(
    r"(?:exp(?:ir(?:y|es|ation|ed)?)?(?:[ _-]?date)?|valid (?:thru|through|until|to)|val(?:id)?[ _]?thru|gultig bis"
    r"|verfall(?:s)?(?:datum)?|expire le|date d'?expiration|caducidad|vence|vencimento|scadenza|waznosc|plati do"
    r"|validade)\.?(?![^\W\d_])"
)
_EXPIRY = re.compile(
    r"[\"'`*]{0,2}\s{0,2}(?:[:=-]|\bis\b|\bist\b|\|)?\s{0,3}[\"'`]?(?P<date>(?:0[1-9]"
    r"|1[0-2]) ?[/.-] ?(?:20)?[2-4][0-9])(?![0-9A-Za-z_/]|[.-][0-9])"
)
_OF_A_CARD = re.compile(
    r"card|kart|carte|tarjeta|carta|cartao|kaart|kort|visa|master|amex|cvv|cvc|\[card"
    r"|[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{2,4}"
)
_REACH = 64


def find_card_details(text: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield the spans of verification codes and expiry dates from `start` on, with their kind."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for at in reading.words_from(INITIALS):
        found = _verification(reading, at) or _expiry(reading, at)
        if found and found[0] >= start:
            yield found


def _verification(reading: Reading, at: int) -> tuple[int, int, str] | None:
    name = _CODE_NAME.match(reading.folded, at)
    code = _CODE.match(reading, name.end()) if name else None
    if name is None or code is None:
        return None
    is_clear = name[0][:3] not in _OTHERS_TOO or ":" in code[0] or "=" in code[0]
    return (*code.span("code"), VERIFICATION) if is_clear else None


def _expiry(reading: Reading, at: int) -> tuple[int, int, str] | None:
    name = _EXPIRY_NAME.match(reading.folded, at)
    date = _EXPIRY.match(reading, name.end()) if name else None
    if date is None or not _OF_A_CARD.search(reading.folded, max(0, at - _REACH), at):
        return None
    return (*date.span("date"), EXPIRY)
