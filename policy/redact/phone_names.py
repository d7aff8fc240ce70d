# ruff: noqa: E501  # tables read better in one line a row
"""What people call a phone number, in the languages of the EU, before it or at the head of its column."""

import re

from policy.redact.reading import Reading, Spans

# In small letters without marks; up to 28 signs without digits may stand between such a word and its number.
_CONTEXT = re.compile(
    r"(?:(?<![^\W_])(?:tel(?:[ef]\w*|nr|no|s)?(?![^\W\d_])|mob|gsm|fax|faks|cell(?:phone\w*|ular\w*|s)?(?![^\W\d_])(?! ?(?:tower|line|count|id|type|[a-z]?[0-9]))"
    r"|call(?:ing|ed|s|back)?(?![^\W\d_])|sms|ring(?:e|er|t|es|a|id)?(?![^\W\d_])|dial|reach|talr|tlf|soi(?:t|ta|ttakaa|tan)?"
    r"(?![^\W\d_])|hp(?![^\W\d_])|fon|sim(?:i|a|an\w*|ar\w*|num\w*)(?![^\W\d_])|bel(?:len)?(?![^\W\d_])|sun(?:a|ati|at|at-ne)"
    r"(?![^\W\d_])|kontakt|contact|contatt|kuntatt|recapit|treff|tref|nas (?:pa|via)|bereikba|disponi|elerhet|kapcsolat|yhtey"
    r"|sazi[nņ]|joign|επικοιν|връзк"
    r"|(?:an|ruck)?ruf|puh|zadzwon|zvan|skambin|apel|hringdu|volajte|volat|nazov|pokli|hivj|llam|r?appel|ligue|ligar|chiam"
    r"|τηλ|κιν|φαξ|καλε|тел|моб|факс|обад|helista|cempel|erreich)"
    r"|fono?|phone|handy|whatsapp|signal:|telegram:|portable|movil|cellular|komork|(?:far|heima|vinnu)sim|kannykka|puhelin|mobil|rufen|[☎☏✆📞📱])"
    r"(?:[^0-9\n]{0,28}|[^0-9\n]{0,12}\n[^0-9\n]{0,16})\Z"
)
_REACH = 44
_HEADING = re.compile(
    r"tel|phone|fon|mob|gsm|handy|cell|fax|faks|puh|sim[ia]|talr|contact|kontakt|τηλ|κιν|тел|моб|movil|portable"
)


def is_called_phone(reading: Reading, begin: int) -> bool:
    """Whether the number that begins at `begin` is called a phone."""
    if _CONTEXT.search(reading.folded, max(0, begin - _REACH), begin):
        return True
    if not reading.columns:
        return False
    known: Spans | None = reading.__dict__.get("phone_cells")
    if known is None:
        known = reading.__dict__["phone_cells"] = Spans(
            cell
            for column in reading.columns
            if _HEADING.search(reading.folded, column.start, column.end)
            for cell in column.cells
            if cell[0] < cell[1]
        )
    return known.covers(begin, begin + 1)
