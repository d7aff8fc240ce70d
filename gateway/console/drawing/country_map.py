"""Map of countries as tiles of equal size, an SVG image for each part of the world.

A tile shows how many calls ran in the country, on what basis of the transfer (GDPR 44-49), whether data is stored there
and whether the policy allows a region of it. Tiles instead of outlines: Luxembourg is as readable as France, and the
image stays below 10 kB. Everything it shows is in a table of the same page.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

from markupsafe import Markup, escape

TILE, GAP = 44, 4
"""The style sheet gives each tile its rectangle and its texts their places: said once, and not for ninety countries."""
EUROPE: Final = (
    "IS .. .. .. NO SE FI ..",
    ".. .. .. .. DK .. EE RU",
    "IE GB .. .. .. .. LV ..",
    ".. .. BE NL DE PL LT BY",
    ".. .. LU .. CZ SK UA ..",
    ".. FR CH LI AT HU RO MD",
    "PT ES MC IT SI HR RS BG",
    ".. AD .. .. BA ME MK TR",
    ".. .. .. MT AL GR CY ..",
)
AMERICAS: Final = ("CA ..", "US ..", "MX ..", "CO BR", "PE UY", "CL AR")
ELSEWHERE: Final = ("IL KZ CN JP", "EG AE IN KR", "MA SA TH TW", "NG QA VN HK", "KE .. SG ID", "ZA .. AU NZ")
PARTS: Final = (("europe", EUROPE), ("americas", AMERICAS), ("elsewhere", ELSEWHERE))
BASES: Final = ("intra_eea", "adequacy", "scc", "bcr", "derogation")
"""Kinds of transfer bases, the least need of safeguards first."""
DEEPEST: Final = 4


@dataclass(slots=True)
class Country:
    """What is known of a country. `ran`: calls answered there; `stored`: calls whose data was stored there; `bases`:
    calls by basis of the transfer; `allowed`: whether the policy allows a region there, None if it has none."""

    code: str
    ran: int = 0
    stored: int = 0
    operators: dict[str, int] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)
    allowed: bool | None = None

    @property
    def kinds(self) -> list[str]:
        """Kinds of the bases, in the order of BASES."""
        return kinds_of(self.bases)


def kinds_of(bases: Iterable[str]) -> list[str]:
    """Return the kinds of bases such as ``adequacy:2000/518/EC+scc:contract``, in the order of BASES."""
    named = {part.partition(":")[0] for basis in bases for part in basis.split("+")}
    return [*(kind for kind in BASES if kind in named), *sorted(named - set(BASES))]


def countries_of(
    places: Iterable[Mapping[str, Any]], verdicts: Iterable[Mapping[str, Any]], regions: Mapping[str, Mapping[str, Any]]
) -> list[Country]:
    """Return the countries with calls or regions, those with most calls first.

    `places`: of the summary of calls. `verdicts`: of the policy on each region. `regions`: facts by region.
    """
    found: dict[str, Country] = {}

    def at(code: str) -> Country:
        return found.setdefault(code, Country(code))

    for one in places:
        ran, calls = at(one["country"]), one["calls"]
        ran.ran += calls
        ran.operators[one["operator"]] = ran.operators.get(one["operator"], 0) + calls
        ran.bases[one["basis"]] = ran.bases.get(one["basis"], 0) + calls
        at(one["storage_country"]).stored += calls
    for verdict in verdicts:
        code = regions.get(verdict["region"], {}).get("compute_country")
        if code:
            at(code).allowed = bool(at(code).allowed) or verdict["allowed"]
    return sorted(found.values(), key=lambda each: (-each.ran, -each.stored, each.code))


def parts_of(countries: Sequence[Country]) -> list[tuple[str, Sequence[str]]]:
    """Return the parts of the world with their rows of tiles; the last one holds countries that have no fixed place."""
    placed = {code for _, rows in PARTS for row in rows for code in row.split()}
    rest = [each.code for each in countries if each.code not in placed and (each.ran or each.stored)]
    rows = [" ".join(rest[at : at + 4]) for at in range(0, len(rest), 4)]
    return [*PARTS, ("others", rows)] if rows else [*PARTS]


def draw(rows: Sequence[str], countries: Collection[Country], title: str, said: Callable[[Country], str]) -> Markup:
    """Return the SVG image of one part. `said`: text of a country's tile, its tooltip and for screen readers."""
    known = {each.code: each for each in countries}
    most = max((each.ran for each in countries), default=0)
    step = TILE + GAP
    width, height = max(len(row.split()) for row in rows) * step - GAP, len(rows) * step - GAP
    parts = [
        f'<svg class="tiles" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{escape(title)}">'
    ]
    for y, row in enumerate(rows):
        for x, code in enumerate(row.split()):
            if code != "..":
                parts.append(_tile(x * step, y * step, known.get(code) or Country(code), most, said))
    return Markup("".join(parts) + "</svg>")  # noqa: S704  # every value in it was escaped


def _tile(x: int, y: int, one: Country, most: int, said: Callable[[Country], str]) -> str:
    """`most`: calls of the country with most, which has the deepest shade."""
    shade = ceil(DEEPEST * one.ran / most) if one.ran else 0
    classes = f"tile shade{shade}" + (" may" if one.allowed else "")
    lit = ' class="code"' if one.ran or one.stored else ""
    parts = [
        f'<g transform="translate({x} {y})"><title>{escape(said(one))}</title>'
        f'<rect class="{classes}"/>'
        f"<text{lit}>{escape(one.code)}</text>"
    ]
    if one.ran:
        parts.append(f'<text class="ran">{_short(one.ran)}</text>')
        kind = next((kind for kind in reversed(one.kinds) if kind in BASES), "other")
        parts.append(f'<line class="basis {kind}" x1="7" y1="38" x2="{TILE - 7}" y2="38"/>')
    if one.stored:
        parts.append(f'<path class="stored" d="M{TILE - 15} 8h9v3h-9zM{TILE - 15} 13h9v3h-9z"/>')
    return "".join(parts) + "</g>"


def _short(count: int) -> str:
    """At most four characters: 999, 12k, 3M."""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if count >= size:
            return f"{count // size}{letter}"
    return str(count)
