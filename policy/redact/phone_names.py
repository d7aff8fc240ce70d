# tables read better in one line a row
"""What people call a phone number, in the languages of the EU, before it or at the head of its column."""

import re

from policy.redact.reading import Reading, Spans

# In small letters without marks; up to 28 signs without digits may stand between such a word and its number.
_CONTEXT = re.compile(
    r"(?:(?<![^\W_])(?:tel|mob|gsm|fax|cell|call|sms|ring|dial|reach|talr|tlf|soi|hp|fon|sim|bel |sun)"
    r"|fono?|phone|handy|whatsapp|signal:|telegram:|(?<![^\W_])(?:an)?ruf|portable|movil|cellular|telemovel|puh|komork|zadzwon|"
    r"telefax|τηλ|κιν|φαξ|καλε|тел|моб|факс|обад|gsm|kannykka|puhelin|helista|zvan|skambin|apel|hringdu|simi|sima|volajte|volat"
    r"|nazov|pokli|hivja|hivj|llam|appel|ligue|ligar|chiam|rufen|erreich|mobil|cempel|contact|kontakt|joign)"
    r"[^0-9\n]{0,28}\Z"
)
_REACH = 44
_HEADING = re.compile(r"tel|phone|fon|mob|gsm|handy|cell|fax|puh|sim[ia]|τηλ|κιν|тел|моб|movil|portable")


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
