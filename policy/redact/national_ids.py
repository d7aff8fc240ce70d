"""National identification numbers, by the validators of `python-stdnum` and our own, and what people call them.

A number whose shape and check digits are rare enough stands alone. One with a weak check (one in ten or eleven random
numbers passes) counts only behind a word that names it. Such a word also decides: the first number behind it is that
kind of number or none, so that a PESEL with a slip is not taken for somebody's OIB.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stdnum.at import tin, vnr
from stdnum.be import ssn as be_ssn
from stdnum.bg import egn, pnf
from stdnum.ch import ssn
from stdnum.cy import vat as cy_vat
from stdnum.cz import rc
from stdnum.de import idnr
from stdnum.dk import cpr
from stdnum.ee import ik
from stdnum.es import cif, dni, nie
from stdnum.fi import hetu
from stdnum.fr import nif as fr_nif
from stdnum.fr import nir, siren, siret
from stdnum.gr import amka
from stdnum.gr import vat as gr_vat
from stdnum.hr import oib
from stdnum.ie import pps
from stdnum.is_ import kennitala
from stdnum.it import codicefiscale
from stdnum.lt import asmens
from stdnum.nl import bsn
from stdnum.no import fodselsnummer
from stdnum.pl import nip, pesel
from stdnum.pt import cc as pt_cc
from stdnum.pt import nif
from stdnum.ro import cnp
from stdnum.se import personnummer
from stdnum.si import ddv, emso

from policy.redact import id_checks
from policy.redact.normalise import lowered
from policy.redact.shapes import BEGIN, END, flexible

Check = Callable[[str], bool]


class _Id(NamedTuple):
    """``sample``: see `shapes.flexible`; for a number that is named. ``names``: what it is called, an expression whose
    alternatives begin with a letter. ``alone``: how it is written where nothing names it; None: its check is too weak.
    """

    sample: str
    is_valid: Check
    names: str
    alone: str | None = None


_DATE = "[0-9]{2}[01][0-9][0-3][0-9]"
IDS: dict[str, _Id] = {
    "it_cf": _Id("AAAAAA**A**A***A", codicefiscale.is_valid, r"codice fiscale|cod\. ?fisc\w*|c\.?f\.?(?=\W)",
                 r"[A-Za-z]{6}[0-9A-Za-z]{2}[A-Za-z][0-9A-Za-z]{2}[A-Za-z][0-9A-Za-z]{3}[A-Za-z]"),
    "fr_nir": _Id("99999*999999999", nir.is_valid, r"s[ée]cu\w*(?: sociale)?|nir\b|insee\b|carte vitale",
                  r"[12] ?[0-9]{2} ?[0-9]{2} ?(?:2[ABab]|[0-9]{2}) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}"),
    "es_dni": _Id("99999999A", dni.is_valid, r"dni\b|d\.n\.i\.?|documento nacional", r"[0-9]{8}-?[A-Za-z]"),
    "es_nie": _Id("A9999999A", nie.is_valid, r"nie\b|extranjero", r"[XYZxyz]-?[0-9]{7}-?[A-Za-z]"),
    "es_cif": _Id("A9999999*", cif.is_valid, r"cif\b"),
    "de_idnr": _Id("99999999999", idnr.is_valid,
                   r"steuer-?(?:liche )?(?:id\w*|identifikations?\w*)|idnr\b|steuernummer|tin\b",
                   r"[1-9][0-9] ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}"),
    "de_rvnr": _Id("99999999A999", id_checks.is_german_pension_number,
                   r"renten\w*|rvnr\b|sozialversicherungs\w*|sv-nummer|versicherungsnummer",
                   r"[0-9]{2} ?[0-9]{6} ?[A-Za-z] ?[0-9]{3}"),
    "de_kvnr": _Id("A999999999", id_checks.is_german_health_insurance_number,
                   r"kranken\w*|kvnr\b|versichertennummer|gesundheitskarte|egk"),
    "de_id": _Id("**********", id_checks.is_document_number, r"personalausweis\w*|reisepass\w*|ausweis\w*"
                r"|pass(?:port|nummer)"),
    "be_nn": _Id("99999999999", be_ssn.is_valid, r"rijksregister\w*|registre national|niss\b|insz\b"
                                                 r"|nationalregister\w*|rrn\b",
                 r"[0-9]{2}\.?[0-9]{2}\.?[0-9]{2}[ -]?[0-9]{3}[.-]?[0-9]{2}"),
    "ch_ahv": _Id("9999999999999", ssn.is_valid, r"ahv\w*|avs\b|ssn\b|navs13",
                  r"756[. ]?[0-9]{4}[. ]?[0-9]{4}[. ]?[0-9]{2}"),
    "fi_hetu": _Id("", hetu.is_valid, r"hetu|henkil[öo]tunnus|personbeteckning",
                   r"[0-3][0-9][01][0-9]{3}[-+A-FU-Ya-fu-y][0-9]{3}[0-9A-Za-z]"),
    "se_pnr": _Id("?9?99999999999", personnummer.is_valid, r"person(?:nummer|nr)|samordningsnummer|pnr\b",
                  rf"(?:19|20)?{_DATE}[-+][0-9]{{4}}"),
    "cz_rc": _Id("999999999?9", rc.is_valid, r"rodn[ée](?:ho)? [čc][íi]sl\w*|r\.? ?[čc]\.|rč\b",
                 r"[0-9]{2}[0-35-8][0-9][0-3][0-9]/[0-9]{3,4}"),
    "sk_rc": _Id("999999999?9", rc.is_valid, r"rodn[ée]ho? [čc][íi]slo slov\w*"),
    "dk_cpr": _Id("9999999999", cpr.is_valid, r"cpr\w*(?:-n\w+)?|personnummer", r"[0-3][0-9][01][0-9]{3}-[0-9]{4}"),
    "ie_pps": _Id("9999999A?A", pps.is_valid, r"pps\w*|ppsn\b", r"[0-9]{7}[A-Wa-w][A-IWa-iw]?"),
    "no_fnr": _Id("99999999999", fodselsnummer.is_valid, r"f[øo]dselsn\w*|fnr\b|personnummer|d-nummer",
                  r"[0-7][0-9][0-9]{4} ?[0-9]{5}"),
    "ro_cnp": _Id("9999999999999", cnp.is_valid, r"cnp\b|cod(?:ul)? numeric personal", r"[1-9][0-9]{12}"),
    "si_emso": _Id("9999999999999", emso.is_valid, r"em[šs]o\b|mati[čc]na [šs]tevilka", r"[0-3][0-9][01][0-9]{10}"),
    "hr_jmbg": _Id("9999999999999", emso.is_valid, r"jmbg\b"),
    "pl_pesel": _Id("99999999999", pesel.is_valid, r"pesel\w*"),
    "pl_nip": _Id("9999999999", nip.is_valid, r"nip\b"),
    "nl_bsn": _Id("999999999", bsn.is_valid, r"bsn\b|burgerservice\w*|sofi\w*"),
    "pt_nif": _Id("999999999", nif.is_valid, r"nif\b|contribuinte|n[úu]mero fiscal|identifica[çc][ãa]o fiscal"),
    "pt_cc": _Id("999999999AA9", pt_cc.is_valid, r"cart[ãa]o de cidad[ãa]o"
                                                 r"|cc\b", r"[0-9]{8}[ -]?[0-9][ -]?[A-Za-z]{2}[0-9]"),
    "ee_ik": _Id("99999999999", ik.is_valid, r"isikukood\w*"),
    "lt_ak": _Id("99999999999", asmens.is_valid, r"asmens kod\w*|a\.? ?k\.(?=\W)"),
    "lv_pk": _Id("99999999999", id_checks.is_latvian_personal_code, r"person(?:as|al[āa]) kod\w*|p\.? ?k\.(?=\W)",
                 r"[0-3][0-9][01][0-9]{3}-[0-2][0-9]{4}"),
    "hr_oib": _Id("99999999999", oib.is_valid, r"oib\w*|osobni identifikacijski"),
    "bg_egn": _Id("9999999999", egn.is_valid, r"егн\b|egn\b|единен граждански"),
    "bg_lnch": _Id("9999999999", pnf.is_valid, r"лнч\b|lnch\b"),
    "gr_amka": _Id("99999999999", amka.is_valid, r"α\.?μ\.?κ\.?α\b|amka"),
    "gr_afm": _Id("999999999", gr_vat.is_valid, r"α\.?φ\.?μ\b|afm\b"),
    "at_svnr": _Id("9999999999", vnr.is_valid, r"svnr\b|sozialversicherungs\w*|sv-n(?:umme)?r\w*"
                                               r"|versicherungsnummer|e-card"),
    "at_tin": _Id("999999999", tin.is_valid, r"abgabenkontonummer|steuernummer|st\.?-?nr\b"),
    "hu_taj": _Id("999999999", id_checks.is_hungarian_health_number, r"taj\b(?:[- ]?sz[áa]m\w*)?"
                r"|t[áa]rsadalombiztos[íi]t\w*"),
    "hu_tax": _Id("9999999999", id_checks.is_hungarian_tax_number, r"ad[óo]azonos[íi]t\w*(?: jel\w*)?"),
    "hu_szsz": _Id("99999999999", id_checks.is_hungarian_personal_number, r"szem[ée]lyi (?:sz[áa]m|azonos[íi]t)\w*"),
    "lu_nin": _Id("9999999999999", id_checks.is_luxembourg_number, r"matricule|cns\b"
                r"|identifica?tion(?: national\w*)?|nin\b",
                  r"(?:19|20)[0-9]{2}[01][0-9][0-3][0-9] ?[0-9]{3} ?[0-9]{2}"),
    "is_kt": _Id("9999999999", kennitala.is_valid, r"kennit[aö]l\w*|kt\.?(?=\W)", r"[0-3][0-9][01][0-9]{3}-[0-9]{4}"),
    "si_tax": _Id("99999999", ddv.is_valid, r"dav[čc]na [šs]tevilka"),
    "mt_id": _Id("?9?9?99999A", id_checks.is_maltese_identity_card, r"karta ta[’' ]l-identit\w*|maltese (?:id"
                r"|identity)\w*|id card"),
    "cy_tic": _Id("99999999A", cy_vat.is_valid, r"tic\b|ταυτότητ\w*|α\.?φ\.?τ\b"),
    "fr_siren": _Id("999999999", siren.is_valid, r"siren\b"),
    "fr_siret": _Id("99999999999999", siret.is_valid, r"siret\b"),
    "fr_spi": _Id("9999999999999", fr_nif.is_valid, r"spi\b|num[ée]ro fiscal\w*|r[ée]f[ée]rence fiscale"),
}  # fmt: skip

_GENERAL = (
    r"national (?:id|identity|identification|insurance)\w*|social security|personal (?:id|code|number|no)\w*"
    r"|identi(?:ty|fication) (?:id|code|number|no)\w*"
    r"|personal id\w*|tax(?:payer)? (?:id|number|no|identification)\w*|citizen (?:id|number)\w*|id[- ](?:no|nr"
    r"|number|nummer)\w*"
    r"|national[_ -]?id\w*|id[- ]?nummer|identit[ée]\w*|identidad|identit[àa]|identiteit\w*|tax[_ -]id"
)
_REACH = 40  # characters between a name and its number
_NAMED_BEFORE = 64
_TOKEN = re.compile(r"[A-Za-z0-9_]+")
_NUMBER_START = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z]{0,6}[0-9]")
_NAMED_SHAPES = {
    kind: re.compile("(?:" + "|".join(filter(None, (flexible(each.sample), each.alone))) + ")" + END)
    for kind, each in IDS.items()
}
_ALONE: dict[str, tuple[re.Pattern[str], list[str]]] = {}
for _kind, _each in IDS.items():
    if _each.alone:
        _ALONE.setdefault(_each.alone, (re.compile(_each.alone + END), []))[1].append(_kind)
_ANY_ALONE = re.compile(BEGIN + "(?=[A-Za-z]{0,6}[0-9])(?:" + "|".join(_ALONE) + ")" + END)


def _alternatives(names: str) -> Iterator[str]:
    """The expressions between the outermost bars of `names`."""
    depth = begin = 0
    for at, sign in enumerate(names):
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and depth == 0:
            yield names[begin:at]
            begin = at + 1
    yield names[begin:]


def _by_initial() -> dict[str, tuple[re.Pattern[str], list[tuple[re.Pattern[str], str]]]]:
    """Names by their first letter, all of them and one by one, so that ordinary words cost one look-up."""
    table: dict[str, list[tuple[str, str]]] = {}
    for kind, names in (*((kind, each.names) for kind, each in IDS.items()), ("", _GENERAL)):
        for name in _alternatives(names):
            table.setdefault(name[0], []).append((name, kind))
    return {
        initial: (re.compile("|".join(name for name, _ in names)), [(re.compile(name), kind) for name, kind in names])
        for initial, names in table.items()
    }


_WORD = re.compile(r"[^\W\d_]+")
_NAMES = _by_initial()
_NO_NAMES: tuple[None, list[tuple[re.Pattern[str], str]]] = (None, [])


def find_national_ids(text: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Spans of valid numbers from `start` on, with their kind (a key of `IDS`); the likeliest kind of a span first."""
    named: set[int] = set()
    for begin, kinds in _named_numbers(text, start):
        if kinds:
            named.add(begin)
        for kind in kinds or IDS:
            match = _NAMED_SHAPES[kind].match(text, begin)
            if match and _holds(IDS[kind], match[0]):
                yield begin, match.end(), kind
                break
    for token in _TOKEN.finditer(text, start):
        begin = token.start()
        if begin in named or not _ANY_ALONE.match(text, begin):
            continue
        for shape, kinds in _ALONE.values():
            if match := shape.match(text, begin):
                for kind in kinds:
                    if _holds(IDS[kind], match[0]):
                        yield begin, match.end(), kind


def _named_numbers(text: str, start: int) -> Iterator[tuple[int, list[str]]]:
    """Where the first number behind a name begins, and the kinds it may be; none where the name is a general one."""
    small = lowered(text)
    for word in _WORD.finditer(small, max(0, start - _NAMED_BEFORE)):
        any_name, names = _NAMES.get(word[0][0], _NO_NAMES)
        if any_name is None or not any_name.match(small, word.start()):
            continue
        found = [(match.end(), kind) for name, kind in names if (match := name.match(small, word.start()))]
        end = max(found)[0]
        number = _NUMBER_START.search(text, end, end + _REACH + 8)
        if number and number.start() >= start:
            yield number.start(), [kind for _, kind in found if kind]


def _holds(kind: _Id, written: str) -> bool:
    return kind.is_valid("".join(filter(str.isalnum, written))) or kind.is_valid(written)
