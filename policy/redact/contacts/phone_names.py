"""Names of phone numbers in the languages of the EU, before the number or in its column heading."""

import re

from policy.redact.text.reading import Reading

# In lower case without diacritics. Up to 28 characters other than digits may stand between such a word and its number.
_CONTEXT = re.compile(
    r"(?<!</)(?:(?<![^\W_])(?:tel(?:[ef]\w*|nr|no|s)?(?![^\W\d_])|mob(?!ili[tsz])(?:i[let]\w*|t\w*)?(?![^\W\d_])|gsm"
    r"|port\.|tlm|tfn|tfno|fax|faks|cell(?:phone\w*|ular\w*|s)?(?![^\W\d_])(?! ?(?:tower|line|count|id|type"
    r"|[a-z]?[0-9]))"
    r"|call(?:ing|ed|s|back)?(?![^\W\d_])|sms|ring(?:e|er|t|es|a|id)?(?![^\W\d_])|dial(?!og|ect|ys)|reach|talr|tlf"
    r"|guthan|soi(?:ta|tan|ttakaa|ttaa)"
    r"(?![^\W\d_])|hp(?=[.:])|fon(?![tdc])|sim(?:i|a|an\w*|ar\w*|num\w*)(?![^\W\d_])|bel(?:len)?(?![^\W\d_])|sun(?:a"
    r"|ati|at|at-ne)"
    r"(?![^\W\d_])|kontakt|contact|contatt|kuntatt|recapit|treff|tref|nas (?:pa|via)|bereikba|disponi|elerhet|kapcsolat"
    r"|yhtey"
    r"|sazi[nņ]|join(?:gn|dre)|επικοιν|връзк"
    r"|(?:an|ruck)?ruf|puh(?:el\w*)?(?![^\W\d_])|zadzwon|zvan|skambin|apel|hringdu"
    r"|vol[ae]jte|volat|volej|(?:my|our) (?:new )?number|nazov"
    r"|pokli|hivj|llam|r?appel|ligue|ligar|chiam"
    r"|τηλ|κιν|φαξ|καλε|тел|моб|факс|обад|helista|cempl|erreich)"
    r"|(?<=[\n|])[mtfp]:|(?<=[\n|] )[mtfp]:|fono?n?(?![^\W\d_])|phone|handy|whatsapp|signal:|telegram:|portable|movil"
    r"|cellular|komork|(?:far|heima|vinnu)sim|kannykka|puhelin|(?<!im)(?<!auto)mobil(?!i[tsz]|iar)|(?:zuruck|anzu|durch)rufen|[☎☏✆📞📱])"
    r"(?:[^0-9\n]{0,28}|[^0-9\n]{0,12}\n[^0-9\n]{0,16})\Z"
)
# Phrases that begin like one of these words but do not mean a phone. Text up to the end of one is ignored.
_OTHER_THINGS = re.compile(
    r"(?:(?<![^\W_])|(?=\(\) ))(?:dial(?:ing|ling)? ?plan|ring (?:buffer|size|width|diameter|ratio|main|road)\w*"
    r"|contact (?:angle|lens|area|surface|force|resistance|pressure)\w*|\(\) calls?|(?:function|system|method|procedure"
    r"|virtual) calls?|calling (?:convention|sequence|(?:an? |the )?(?:partial|function|method|macro|script|routine"
    r"|constructor|procedure|endpoint|lambda|callback))|call (?:stack|graph|site|depth|volume|duration|rate)\w*"
    r"|(?:mobile?|phone|fax|handy|cell)s?[ _-]?(?:first|apps?|traffic|share|viewports?|screens?|sales|sold|models?"
    r"|modell\w*|version\w*"
    r"|counts?|sdk|api|costs?|kosten|users?|machine|gerate?)|(?:tele(?:ph|f)on|phone|mobile?)[_-](?:api|sdk|js|ts|py"
    r"|app|service|lib)\w*)"
    r"(?![^\W_])"
)
# Words that begin like one that means a phone. Those of the last line are counts where the number stands right behind.
_OTHER_WORDS = re.compile(
    r"(?<![^\W_])(?:treffer|trefwoord|immobil|automobil|mobili[tsz]|mobiliar|(?:be|ab|auf|ein|wider|ver|aus)+ruf|(?:uber|nach|ge|ab)*pruf"
    r"|(?:mi[ck]ro|mega|saxo|sakso|gramo)[fp]h?on|(?:trans|in|sup|com|rap|im|ex|de)+portable|contactless|kontaktlos"
    r"|apela[cct]|apelatie|tele(?:metr|vis|gra[fp]|text|arbeit|trav|work|scop|skop|port|mat[ik])|volatil|puhd|puht)\w*"
    r"|(?<![^\W_])(?:nazov(?:u|om|y|ov)?|appels? (?:n|no|d['’]?|en|a|de|interjete|forme)|cour d['’]appel|ligue [0-9]"
    r"|llama(?=[-_.0-9]| [0-9])|contacts? (?:imported|exported|created|synced|deleted))(?![^\W\d_])"
    r"|(?<![^\W_])(?:disponi\w*|chiamate|llamadas|appels|anrufe|erreichten?|erreicht|reached)[ :=]{0,2}\Z"
)
_OTHERS = (_OTHER_THINGS, _OTHER_WORDS)
# No digit may stand between a word and its number. Most numbers of a table have no text before them to examine.
_LAST_WITH_A_DIGIT = re.compile(r".*(?<![^\W_])(?P<word>\w*?[0-9])(?<=[0-9])", re.DOTALL)
_SAYS = re.compile("[^\\W\\d_]|[☎☏✆📞📱]")
_IS = "is|was|ist|war|est|es|e|er|ar|on|to|je|jest|este|yra|ir|van|е|ειναι"
# Names that also have other meanings, and therefore count only directly before the number.
_CLOSE = re.compile(
    r"(?<![^\W_])(?:my (?:[^\W\d_]{2,10} )?number|(?:meine|unsere) (?:[^\W\d_]{2,10} )?nummer|mon numero|mi numero"
    r"|il mio numero|mijn nummer"
    r"|moj[ae]? (?:numer|cislo|broj|stevilka)|mitt? (?:nummer|numer)|numeroni|szamom|o meu numero|numarul meu"
    r"|моят номер|αριθμος μου"
    r"|mano numeris|mans numurs|minu number|text|msisdn|ph|(?<![0-9] )[tmf](?=[:.])|(?:get|reach"
    r"|catch)(?: [^\W\d_]{1,16}){1,3} (?:at|on|under))"
    rf"[^\w\n]{{0,4}}(?:(?:{_IS})[^\w\n]{{1,3}})?\Z"
)
_BEHIND = re.compile(
    rf"[\"')`*]{{0,2}}(?:,? ?(?:{_IS}) | ?\()(?:[^\W\d_]{{1,12}} ){{0,3}}(?:tel|phone|mob|handy|cell|fax|gsm|puhel|κιν"
    rf"|τηλ|тел|моб|movil|portable)"
    r"|</\w{1,12}>\s{0,12}<\w{1,12}>(?:te|fx|al|tel|phone)</"  # UN/EDIFACT 3155: means of communication
)
_SIGN_OFF = re.compile(
    r"regards|sincerely|cheers|gru(?:ss|ß)|cordialement|salutations|salud|salut|distinti|groet|hilsen|halsning|pozdr"
    r"|lep pozdrav"
    r"|udvozlet|terveis|cumprimentos|cu stima|поздрав|με εκτιμηση|pagarbiai|ar cienu|lugupid|kvedja|mvh|mfg|tislijiet"
)
_LINES_ABOVE = 90  # characters
_REACH = 52
_HEADING = re.compile(
    r"tel|phone|fon|mob|gsm|handy|cell|fax|faks|puh|(?:far|heima|vinnu|(?<![^\W_]))sim(?:i|a\w*)(?<!simao)(?![^\W\d_])"
    r"|talr|contact|kontakt|τηλ|κιν|тел|моб|movil|portable"
)


def is_called_phone(reading: Reading, begin: int) -> bool:
    """Return whether the text calls the number that begins at `begin` a phone."""
    folded, first = reading.folded, max(0, begin - _REACH)
    # The word with the digit may itself be the name: `phone2: `
    if word := _LAST_WITH_A_DIGIT.match(folded, first, begin):
        first = word.start("word")
        says = _SAYS.search(folded, word.end(), begin)
    else:
        says = _SAYS.search(folded, first, begin)
    if says and _names_a_phone(folded, first, begin):
        last = max((other.end() for each in _OTHERS for other in each.finditer(folded, first, begin)), default=first)
        if last == first or _names_a_phone(folded, last, begin):
            return True
    return heads_phones(reading, begin)


def _names_a_phone(folded: str, first: int, begin: int) -> bool:
    return _CONTEXT.search(folded, first, begin) is not None or _CLOSE.search(folded, first, begin) is not None


def heads_phones(reading: Reading, begin: int) -> bool:
    """Return whether the number is in a column whose heading means phones."""
    return reading.is_below(
        begin, "phones", lambda column: _HEADING.search(reading.folded, column.start, column.end) is not None
    )


def is_called_phone_behind(reading: Reading, end: int) -> bool:
    """Return whether the text after the number that ends at `end` calls it a phone: `… is my mobile`."""
    return _BEHIND.match(reading.folded, end) is not None


def stands_in_a_signature(reading: Reading, begin: int, end: int) -> bool:
    """Return whether the number is alone on its line of a signature.

    The line is adjacent to one with an e-mail address, or follows a closing phrase, with at most one line between.
    """
    first = reading.rfind("\n", max(0, begin - 3), begin) + 1
    last = reading.find("\n", end, end + 3)
    last = len(reading) if last < 0 else last
    if not first or reading[first:begin].strip(" \r") or last - end > 2 or reading[end:last].strip(" \r"):
        return False
    above = reading.folded[max(0, first - _LINES_ABOVE) : first - 1].split("\n")[-2:]
    below = reading[last + 1 : last + 1 + _LINES_ABOVE].partition("\n")[0]
    return "@" in below or "@" in above[-1] or _SIGN_OFF.search(" ".join(above)) is not None
