# ruff: noqa: E501  # tables read better in one line a row
"""Postal addresses as Europe writes them: a street of a known kind with its number, then postal code and town.

Pattern level only: the words for streets in the languages of the EU, number before or behind, and, without any such
word, name, number, comma, postal code and town together. An address is several words, so it is looked for in prompts
and not in streams, which would have to hold them back.
"""

import re
from collections.abc import Iterator

from policy.redact.alphabet import LETTER
from policy.redact.reading import Reading

_UPPER = rf"(?![a-z])[{LETTER}]"
_NAME = rf"{_UPPER}[{LETTER}.'’-]{{0,30}}"
_NUMBER = (
    r"[0-9]{1,4}(?:-?[A-Za-z](?![A-Za-z])| [A-Za-z](?![A-Za-z.]))?"
    r"(?:[/-](?:[0-9]{1,4}[A-Za-z]?|[A-Z]|[IVX]{1,4})(?![A-Za-z0-9]))?(?: bis\b)?"
)
_CODE = (
    r"(?:[A-Z]{1,2}[0-9][0-9A-Z]? [0-9][A-Z]{2}|[A-Z][0-9][0-9W] ?[0-9A-Z]{4}|[0-9]{2}-[0-9]{3}|(?:ΤΚ|TK|T\.K\.) ?[0-9]{3} ?[0-9]{2}"
    r"|(?:[A-Z]{1,3}[- ]?)?[0-9]{3,6}(?:[ -][0-9]{2,3})?(?: ?[A-Z]{2}\b)?)(?![0-9A-Z])"
)
_TOWN = (
    rf"(?:'[ts][ -])?{_NAME}(?: (?:mesto|vas|gora|polje|sobota|gradec|mesta)(?![{LETTER}]))?(?:[ -](?:(?:am|an|an der|im|in|bei|vor|vorm|ob|der|den|van|sur|sous|de|la|le|en|lès|près|di|del|do|da|dos|pri|nad|na|pod"
    rf"|u|i|aan|op|cu|lui)[ -](?:der |la |el |sub )?)?{_NAME}){{0,3}}(?:/{_NAME})?(?: \((?:[A-Z]{{2}}|(?:okres )?{_NAME}(?: {_NAME}){{0,2}})\))?(?:(?<=Praha)(?: [0-9]{{1,2}}(?![0-9]))|(?<=Bratislava)-[{LETTER} ]{{3,24}})?"
)
# Floor, door, staircase and block, as they stand behind the house's number.
_INSIDE = (
    r"(?:[, ]{1,2}(?:Piso|Puerta|Piano|Bl\.|Sc\.|Ap\.|Et\.|Apt\.|Suite|Appt|Apartment|Flat|Unit|Wohnung|Top|Stiege|St\.|Bte|bus|lok\.|m\.|kv\."
    r"|[Ii]nt\.|[Bb]l\.|[Ss]c\.|[Ee]t\.|[Aa]p\.|lgh|Lgh|Bât\.|Tür|em\.|[IVX]{1,4}\. (?:em\.|emelet)|ajtó|as\."
    r"|th|tv|[0-9]{1,2}(?:\.|\.?[oaºª](?![A-Za-z]))) ?(?:planta|esq\.?|Esq\.?|dto\.?|Dto\.?|dcha\.?|izda?\.?|[0-9A-Za-zºª]{0,5})){0,4}"
)
_INSIDE_ALONE = re.compile(rf"\.?{_INSIDE}\.?")
_TAIL = re.compile(
    rf"{_INSIDE}\.?(?:,{{0,2}} ?(?:\n ?|(?<=[ ,])){_CODE},? ?\n?{_TOWN}(?![{LETTER}])|,? {_CODE},? {_TOWN}(?![{LETTER}])"
    rf"|\.?, ?{_TOWN}(?:,? {_CODE}| [0-9]{{1,2}}(?![0-9]|[.,:][0-9])(?:,? {_CODE})?)?(?![{LETTER}])|[ ,]{{0,2}}\n ?{_TOWN}, (?:[A-Z]{{2}} )?[0-9]{{5,6}}(?![0-9])"
    rf"|[ ,]{{1,3}}{_TOWN}, (?:[A-Z]{{2}} )?(?:LV-)?[0-9]{{4,6}}(?![0-9]))"
)

# Kinds of street behind the name, as its ending or as a word of their own; the number follows.
_BEHIND = (
    "straße", "strasse", "str.", "weg", "platz", "allee", "gasse", "ring", "damm", "ufer", "chaussee",  # de
    "straat", "laan", "plein", "boulevard", "baan", "singel", "markt", "gracht", "kade", "dreef", "steenweg",  # nl
    "gatan", "vägen", "gränd", "torget", "stigen", "bakken", "bulevardi", "kaari", "svej", "lei", "pad", "steeg", "hof", "sokak", "plass", "gade", "vej", "vejen", "allé", "stræde", "gata", "gate", "veien",
    "vei", "vegur", "stræti", "braut", "katu", "tie", "kuja", "polku",  # sv, da, no, is, fi
    "utca", "út", "útja", "tér", "tere", "körút", "iela", "prospekts", "bulvāris", "prospektas", "gatvė", "g.", "pr.", "tn", "tänav", "mnt",
    "maantee", "pst",  # hu, lv, lt, et
    "ulica", "cesta", "pot", "steza", "trg", "put", "odvojak", "vijenac", "prilaz", "naselje", "obala", "nábrežie", "třída", "náměstí", "nám.", "nábřeží", "sady", "nivy", "záhrady", "zvijezda", "perivoj",
    "stube", "šetalište", "poljana", "klanac", "prolaz", "breg", "brána", "dolina", "dol", "prečac", "løkka", "svingen", "tunet", "haugen", "jordet", "kroken", "feltet",  # sl, hr, cs, sk
)  # fmt: skip
# Kinds of street in front of the name; the number stands before them or behind the name.
_IN_FRONT = frozenset({
    "rue", "avenue", "av.", "boulevard", "bd", "bd.", "c.", "place", "chemin", "allée", "impasse", "quai", "route", "cours",
    "square", "calle", "c/", "cañada", "urbanización", "acceso", "pasaje", "vial", "rambla", "soseaua", "canale", "r.", "avenida", "avda.", "plaza", "paseo", "camino", "ronda", "via", "viale", "piazza", "corso",
    "vicolo", "borgo", "contrada", "incrocio", "stretto", "rotonda", "alameda", "callejón", "pasadizo", "glorieta", "cuesta", "av", "largo", "strada", "rua", "travessa", "praça", "estrada", "ul.", "ulica", "al.", "aleja", "os.", "plac",
    "pl.", "str.", "bulevardul", "calea", "aleea", "șoseaua", "șos.", "sos.", "bd-ul", "b-dul", "ulice", "nám.", "náměstí", "námestie", "třída", "tř.", "cesta", "trg",
    "straße", "strasse", "platz", "allee", "triq", "intrarea", "drumul", "splaiul", "piața", "bld.", "bul.", "osiedle", "οδός", "οδ.", "λεωφόρος", "λεωφ.", "ул.", "бул.",
})  # fmt: skip
_INITIALS = frozenset(initial for kind in _IN_FRONT for initial in Reading(kind).initials) | {"ж", "жк", "кв"}
# `3 Maja`, `17. Juni`, `25 de Abril`: the day of a street's name.
_DAY = (
    rf"[0-9]{{1,2}}(?:\.|[º°]|er)? (?:de |di )?(?i:jan|feb|fév|mar|mär|apr|avr|abr|ma[ijy]|máj|jun|juin|júna|jul|juil|júl|lug|ago?|aoû|aug|sep|set"
    rf"|szept|o[ckt]t|out|nov|dec|dez|déc|dic|gen|giu|led|úno|bře|dub|kvě|čer|srp|zář|říj|lis|pro|sty|lut|kwi|cze|lip|sie|wrz|paź|gru|юни|май|март|апр|сеп|окт|ное|дек)[{LETTER}]{{0,9}}"
    rf"(?: (?:18|19)[0-9]{{2}})?"
)
_OF = r"d[eu]s?|de[rmn]|aos?|às?|de la|del|della|delle|dei|da|do|dos|das|la|le|les|los|las|von|van|e|y"
_WORDS = re.compile(
    rf"(?: (?:(?:{_OF}) ){{0,2}}(?:(?:de )?[dl]['’]|[a-z]{{1,3}}-)?|(?<=[/.]))[„“\"»«]?(?:{_NAME}|{_DAY})"
    rf"(?:[ -](?:(?:{_OF}) ){{0,2}}(?:[dl]['’])?{_NAME}){{0,3}}[”“\"»«]?"
    rf"(?P<number>,? (?:(?:n[r.°º]{{1,2}} ?)?{_NUMBER}|[Ss]/[Nn])(?![{LETTER}0-9]))?"
)
_DAY_NAMED = re.compile(_DAY)
_KIND = re.compile(rf"[{LETTER}]+[./]?")
_NUMBER_BEFORE = re.compile(rf"(?<![{LETTER}0-9]){_NUMBER}(?: (?:bis|ter))?,? \Z")
_ENGLISH_KINDS = (
    "Street|St|Road|Rd|Avenue|Ave|Lane|Ln|Drive|Close|Square|Terrace|Gardens|Quay|Boulevard|Crescent|Court|Grove|Parade"
    "|Park|Way|Place|Row|Hill|Mews|Walk|Rise"
)
_ENGLISH_INITIALS = frozenset(kind[:3].lower() for kind in _ENGLISH_KINDS.split("|"))
_ENGLISH = re.compile(
    rf"[0-9]{{1,4}}[A-Za-z]?,? (?:{_NAME} ){{1,3}}(?:{_ENGLISH_KINDS})(?![{LETTER}])\.?"
    rf"(?: [A-Z][0-9][0-9W] ?[0-9A-Z]{{4}}(?: {_NAME}){{1,2}})?"
)
_HOUSE = re.compile(
    rf"[0-9](?<![{LETTER}0-9.,/][0-9])(?![0-9]{{4}}){_NUMBER.replace('{1,4}', '{0,3}', 1)}(?![{LETTER}0-9]|\.[0-9])"
)
_NAME_ENDS = re.compile(rf"(?:[{LETTER}.'’”\"»«°)],? ?|, ?)\Z")
_FIRST_DIGIT = re.compile(r"[0-9]{1,4}")
_NAMES_BEFORE = re.compile(
    rf"(?<![{LETTER}])(?:[{LETTER}]{{2,9}}\. )?(?:(?:Unter|Auf|An|In|Zum|Zur) (?:den|der|dem) )?"
    rf"(?:{_NAME},? (?:(?:{_OF}|in|am|an der|pri|III?|IV) )?){{1,5}}(?:(?:al|pr|g|ul|u|tn|pl)\. )?(?:Nr\.? |č\. |no\. )?\Z"
)
# `Pod bregom 987, 2991 Tržič`: in small letters behind a preposition or a way, where code and town follow.
_SMALL_NAMES_BEFORE = re.compile(
    rf"(?<![{LETTER}])(?:Na|Pri|Při|Ob|Pod|Nad|Za|Ke?|U|Ve?|Med|Pot|Cesta|Ulica|Perivoj|Do|Od|Mezi|Medzi|Kod|Iza|Ispod|Pred)"
    rf" (?:[{LETTER}]{{1,16}}\.? ){{1,4}}\Z"
)
_ROMAN, _ROMAN_ENDS = re.compile(r" [IVX]{1,5}\.?\Z"), frozenset("IVX.")
# Small words inside a street's name; others, as in `Anna Bergman woont op Lindering 5`, are none of it.
_PARTICLE = r"(?:d[eu]r?|de[mns]|het|'t|te[nr]?|v[ao]n|vom|a[mn]|im|zu[mr]|auf|unter|la|le|og|och|i|på|a[fv]|n[ao]|pri|p[oř]d?|u|v[e]?|ke?|ze?|od|do|the|of|el|y|e|en|al|sv|svet\w{1,4})"
# A capital somewhere: `by the way 12` is no street, `Hoher Weg 12` and `Unter den Eichen-Allee 3` are.
_STREET = re.compile(
    rf"(?<![{LETTER}]){_NAME}[ -](?:(?:{_UPPER}[{LETTER}.'’]{{0,24}}|{_PARTICLE})[ -]){{0,3}}[{LETTER}]{{1,12}}\.?\Z|(?<![{LETTER}]){_NAME}(?: [{LETTER}]{{1,16}} (?:utca|út|útja|tér|tere|körút))?\Z"
)
# Here no letters stand in front of a code but a country's, and no comma is a decimal's: `BWV 1007, KV 525`, `145,650 MHz`.
_PLAIN_CODE = (
    r"(?:(?:[A-Z]{1,2}-|[A-Z] (?=[0-9]{4,5} [A-Z]))?[0-9]{3,6}(?:[ -][0-9]{2,3})?(?: ?[A-Z]{2}\b)?|[A-Z]{1,2}[0-9][0-9A-Z]? [0-9][A-Z]{2}"
    r"|[A-Z][0-9][0-9W] ?[0-9A-Z]{4}|[0-9]{2}-[0-9]{3}|(?:ΤΚ|TK|T\.K\.) ?[0-9]{3} ?[0-9]{2})(?![0-9A-Z])(?!(?<![0-9]{5}),)"
)
_CODE_AND_TOWN = re.compile(
    rf"{_INSIDE}\.?(?:,{{1,2}} |,(?=[0-9]{{5}} )|,? ?\n ?)(?!(?:19[89][0-9]|200[1-9]|20[12][0-9]|203[0-5]) ){_PLAIN_CODE},? ?\n?{_TOWN}(?![{LETTER}])"
    rf"|{_INSIDE}(?:, ?| ?\n ?){_TOWN}, (?:[A-Z]{{2}} )?[0-9]{{5,6}}(?![0-9])"
)
_LINE_AND_TOWN = re.compile(rf"(?:,? ?\n|, )(?:{_CODE} {_TOWN}(?![{LETTER}])|{_TOWN}, [0-9]{{6}}(?![0-9]))")
# `Ulica svornosti 489, 845 61 Čižatice`: in small letters a street's name counts where postal code and town follow.
_SMALL_WORDS = re.compile(
    rf"(?: [0-9]{{1,2}}\.)?(?: [{LETTER}]{{2,16}}){{1,3}} {_NUMBER}(?:, ?|,? ?\n ?){_CODE} {_TOWN}(?![{LETTER}])"
)
# In front of a name only with an article: `Straße des 17. Juni 135`, `Platz der Republik 1, 11011 Berlin`.
_GERMAN = frozenset({"straße", "strasse", "platz", "allee"})
_ARTICLE = re.compile(r" (?:de[srm]|am|im) ")
# `Apt 12, `, `Résidence Les Pins, `, `Stiege 2 Tür 15, ` before the house.
_UNIT_BEFORE = re.compile(
    rf"(?<![{LETTER}])(?:(?:Apt|Apartment|Flat|Unit|Suite|Room|Floor|Appt|Appartement|Bâtiment|Bât|Escalier|Étage|Wohnung|Whg|Stiege|Tür|Top|Piso|Puerta|Interno|Scala"
    rf"|Lgh|Byt|Stan|Lakás)\.? ?(?:[0-9]{{1,4}}[A-Za-z]?|[A-Z])(?: ?[-/,]? |, ?| ?\n)|(?:Résidence|Immeuble|Lotissement|Urbanización|Edificio|Edifício|Palazzo|Villa)"
    rf"(?: (?:{_OF}))?(?: {_NAME}){{1,3}}(?:, ?| ?\n)){{1,3}}\Z"
)
_LONGEST_UNIT = 60
# `ж.к. Младост 1, бл. 25, вх. А, ет. 3, ап. 7, 1784 София`
_BULGARIAN = re.compile(
    rf"(?i:ж\.? ?к|кв|ул|бул)\.? ?[„“\"]?{_NAME}(?:[ -]{_NAME}){{0,3}}[”“\"]?(?: ?[0-9]{{1,3}}[{LETTER}]?)?"
    rf"(?:,? (?:№ ?|бл\.? ?|вх\.? ?|ет\.? ?|ап\.? ?)[0-9A-ZА-Я]{{1,4}}){{1,5}}(?:, ?(?:{_CODE} {_TOWN}|(?:гр\. ?)?{_NAME}))?"
)
# `Rožna dolina, cesta IV 1c`: such a road has only a number, and its quarter belongs to it.
_ROMAN_NAME = re.compile(" [IVX]{1,5} ")
_QUARTER_BEFORE = re.compile(rf"(?<![{LETTER}]){_NAME}(?: [{LETTER}]{{2,14}})?, \Z")
_BARE = frozenset({"r.", "c."})  # a street where a town follows, else anybody's first name
# `Ob potoku 6c\n4763 Ljubljana`, `Mlynské nivy 55, 040 01 Košice`: only on a line of its own or before a long postal code.
_SMALL_NAME_BEFORE = re.compile(rf"(?<![{LETTER}]){_NAME} (?:(?![A-Z])[{LETTER}]{{3,16}} ){{1,2}}(?:[IVX]{{1,4}} )?\Z")
_SHORT_CODE = 4  # digits
_YEAR = re.compile("(?:19|20)[0-9]{2}")
# `Output 12`, `Engineering 23`, `Bahnhof 3`: such an ending makes a street only where a town follows.
_MAYBE_A_WORD = re.compile(
    rf"[{LETTER}](?:ring|gate|pad|put|pot|tie|lei|hof|dol|breg|sady|nivy|g\.|pr\.|tn|pst)[ ,]{{0,2}}\Z", re.IGNORECASE
)
_POSTAL_CODE = re.compile(r"(?<![0-9])(?!(?:19|20)[0-9]{2}(?![0-9A-Z -]))[0-9]{2,3}[ -]?[0-9]{2,3}")
_NO_STREET = re.compile(
    r"(?:lager|lehr|spiel|bau|sitz|steh|stell|park|arbeits|liege|speicher|treff|markt ?stand|start|tabellen)(?:platz|ring)\Z|\b(?:um|aus|rück|hin)weg\Z"
)
_HUNGARIAN_KINDS = ("u", "krt", "köz", "sor", "fasor", "dűlő", "stny")
_HUNGARIAN = re.compile(
    rf"(?<![{LETTER}0-9])[1-9][0-9]{{3}} {_NAME}, ?(?:{_NAME} ){{1,4}}(?:{'|'.join(_HUNGARIAN_KINDS)})\.? \Z"
)
_HUNGARIAN_ENDS = tuple(f"{kind}{dot} " for kind in _HUNGARIAN_KINDS for dot in ("", "."))
_BOX = re.compile(
    r"(?:postfach|postbus|postboks|postbox|boite postale|bp|apartado|casella postale|box|pl|pf\.?|skr\.? poczt\.?)"
    r"(?: n[.°ro]{1,2})? [0-9][0-9 ]{0,9}"
)
_BOX_INITIALS = frozenset({"pos", "boi", "bp", "apa", "cas", "box", "pl", "pf", "skr"})
_BOX_TOWN = re.compile(rf"(?: {_NAME})?(?:,? ?\n|, ?){_CODE} {_TOWN}(?![{LETTER}])")
# `1061 Budapest, ` in front of the street.
_TOWN_BEFORE = re.compile(rf"(?<![{LETTER}0-9])[1-9][0-9]{{3}} {_NAME}, ?\Z")
_LONGEST_NAME = 96
# State and ZIP code lead back over one line or two; so do the posts of the armed forces.
_AMERICAN_CODE = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2} [0-9]{5}(?:-[0-9]{4})?(?![A-Za-z0-9])")
_AMERICAN = re.compile(
    rf"(?:[0-9]{{2,5}} {_NAME}(?: {_NAME}){{1,3}}(?: (?:Apt|Suite|Unit)\.? [0-9]{{1,4}})?(?:, ?| ?\n){_NAME}(?: {_NAME}){{0,2}},"
    rf"|(?:Unit [0-9]{{3,4}}|PSC [0-9]{{3,4}},) Box [0-9]{{3,4}}(?:, ?| ?\n)[ADF]PO|US(?:S|NS|NV|CGC) {_NAME}(?:, ?| ?\n)[ADF]PO)"
    r" [A-Z]{2} [0-9]{5}(?:-[0-9]{4})?"
)
_AMERICAN_END = re.compile(r" (?<=[A-Z]{2} )[0-9]{5}")
_AMERICAN_HEAD = re.compile(r"(?<![A-Za-z0-9])(?:[0-9]{2,5} |Unit |PSC |US[SNC])")
# The United Kingdom's codes are rare enough to lead back over the lines above them.
_BRITISH = re.compile(
    rf"(?:(?:Flat|Studio|Unit|Apartment) [0-9]{{1,4}}[A-Za-z]?(?:, ?| ?\n))?(?:[0-9]{{1,4}}[A-Za-z]? )?{_NAME}(?: {_NAME}){{0,4}}"
    rf"(?:(?:, ?| ?\n){_NAME}(?: {_NAME}){{0,3}}){{0,3}}(?: [0-9]{{1,2}}[A-Z]?)?"
    rf"(?:, ?| ?\n| )(?:[A-Z]{{1,2}}[0-9][0-9A-Z]{{0,2}} [0-9][A-Z]{{2}}|[ACDEFHKNPRTVWXY][0-9][0-9W] ?[0-9ACDEFHKNPRTVWXY]{{4}})(?![A-Za-z0-9])"
)
# Ireland's Eircodes too.
_BRITISH_CODE = re.compile(
    r"(?<![A-Za-z0-9])(?:[A-Z]{1,2}[0-9][0-9A-Z]{0,2} [0-9][A-Z]{2}|[ACDEFHKNPRTVWXY][0-9][0-9W] [0-9ACDEFHKNPRTVWXY]{4})(?![A-Za-z0-9])"
)
_BRITISH_END = re.compile(r" (?:[0-9][A-Z]{2}|[0-9ACDEFHKNPRTVWXY]{4}(?<=[A-Z][0-9][0-9W] [0-9A-Z]{4}))(?![A-Za-z0-9])")
_BRITISH_HEAD = re.compile(r"(?<![A-Za-z0-9])(?:(?:Flat|Studio|Unit|Apartment) )?[0-9]{1,4}[A-Za-z]?(?= |, ?| ?\n)")


def find_addresses(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of postal addresses from `start` on, town included where it follows."""
    if not _FIRST_DIGIT.search(text, start):
        return
    reading = text if isinstance(text, Reading) else Reading(text)
    for first, last in _find(reading, start):
        unit = _UNIT_BEFORE.search(text, max(start, first - _LONGEST_UNIT), first)
        yield (unit.start() if unit else first), last


def _find(reading: Reading, start: int) -> Iterator[tuple[int, int]]:
    text: str = reading
    may_be_english = not _ENGLISH_INITIALS.isdisjoint(reading.initials)
    for house in _HOUSE.finditer(text, start):
        if reading.taken and reading.is_taken(house.start()):
            continue
        if may_be_english and (english := _ENGLISH.match(text, house.start())):
            yield house.start(), _with_town(text, english.end())
        if not _NAME_ENDS.search(text, max(start, house.start() - 3), house.start()):
            continue
        before = text[max(start, house.start() - _LONGEST_NAME) : house.start()]
        if street := _street_before(before):
            begin, end = house.start() - street, _with_town(text, house.end())
            town_before = _TOWN_BEFORE.search(text, max(start, begin - 40), begin)
            if town_before and end == house.end() and (inside := _INSIDE_ALONE.match(text, end)):
                end = inside.end()
            if town_before or not _MAYBE_A_WORD.search(before) or _has_code(text, house.end(), end):
                yield town_before.start() if town_before else begin, end
        elif before.endswith(_HUNGARIAN_ENDS) and (hungarian := _HUNGARIAN.search(before)):
            yield house.start() - len(hungarian[0]), _with_town(text, house.end())
        elif not _YEAR.fullmatch(house[0]) and (town := _CODE_AND_TOWN.match(text, house.end())):
            is_plain = "\n" in town[0] or sum(map(str.isdigit, town[0])) > _SHORT_CODE
            names = _SMALL_NAMES_BEFORE.search(before) or _NAMES_BEFORE.search(before)
            if names := names or (_SMALL_NAME_BEFORE.search(before) if is_plain else None):
                yield house.start() - len(names[0]), town.end()
    for code in _BRITISH_CODE.finditer(text, start) if _BRITISH_END.search(text, start) else ():
        for head in _BRITISH_HEAD.finditer(text, max(start, code.start() - 90), code.start()):
            whole = _BRITISH.match(text, head.start())
            if whole and whole.end() == code.end():
                yield head.start(), code.end()
                break
    for code in _AMERICAN_CODE.finditer(text, start) if _AMERICAN_END.search(text, start) else ():
        for head in _AMERICAN_HEAD.finditer(text, max(start, code.start() - 100), code.start()):
            whole = _AMERICAN.match(text, head.start())
            if whole and whole.end() == code.end():
                yield head.start(), code.end()
                break
    for at in reading.words_from(_BOX_INITIALS):
        if (
            at >= start
            and (box := _BOX.match(reading.folded, at))
            and (line := _BOX_TOWN.match(text, at + len(box[0].rstrip())))
        ):
            yield at, line.end()
    for at in reading.words_from(_INITIALS):
        word = _KIND.match(text, at)
        if at >= start and text[at] in "жкубЖКУБ" and (block := _BULGARIAN.match(text, at)):
            yield block.span()
        if at < start or word is None or word[0].lower() not in _IN_FRONT:
            continue
        name = _WORDS.match(text, word.end())
        kind = word[0].lower()
        if kind in _GERMAN and not (name and name["number"] and _ARTICLE.match(text, word.end())):
            continue
        if (name is None or not name["number"] or name["number"].endswith(".")) and (
            line := _SMALL_WORDS.match(text, word.end())
        ):
            yield word.start(), line.end()
        if name is None:
            continue
        first = _NUMBER_BEFORE.search(text, max(start, word.start() - 16), word.start())
        if not first and not name["number"] and (line := _LINE_AND_TOWN.match(text, name.end())):
            yield word.start(), line.end()
        if (
            (kind in _BARE or kind in _GERMAN)
            and _with_town(text, name.end()) == name.end()
            and not _DAY_NAMED.search(name[0])
        ):
            continue
        if first or name["number"]:
            begin = first.start() if first else word.start()
            if kind == "cesta" and _ROMAN_NAME.match(text, word.end()):
                quarter = _QUARTER_BEFORE.search(text, max(start, begin - 40), begin)
                begin = quarter.start() if quarter else begin
            yield begin, _with_town(text, name.end())


def _street_before(before: str) -> int:
    """How far the name of a street reaches back from the end of `before`; 0 if there is none."""
    words = before.removesuffix(" ").removesuffix(",")
    for said in (" nr", " nr.", " Nr."):
        words = words.removesuffix(said)
    if words[-1:] in _ROMAN_ENDS:
        words = _ROMAN.sub("", words)
    small = words.lower()
    if not small.endswith(_BEHIND) or _NO_STREET.search(small):
        return 0
    name = _STREET.search(words)
    return len(before) - name.start() if name and name[0].lower() not in _BEHIND else 0


def _has_code(text: str, start: int, end: int) -> bool:
    """Whether a postal code, and no year, belongs to what follows a house."""
    return _POSTAL_CODE.search(text, start, end) is not None


def _with_town(text: str, end: int) -> int:
    tail = _TAIL.match(text, end)
    return tail.end() if tail else end
