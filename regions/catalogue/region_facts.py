"""A region of the catalogue as it is shown: the four facts on a day, and where each was found."""

from collections.abc import Iterable, Iterator
from datetime import date

from policy.facts import Subprocessor
from regions.catalogue.catalogue import Catalogue
from regions.catalogue.rows import Operator, Region, Row


def place_facts(catalogue: Catalogue, region: Region, day: date) -> dict[str, str | None]:
    """By name; None where a fact is not known on `day`, which policy refuses."""
    known = catalogue.backend_facts(backend_id="", tenant="", region=region.id, models=(), day=day)
    operator = next((o for o in catalogue.operators if o.id == region.operator and o.valid_on(day)), None)
    return {
        "region": region.id,
        "name": region.name,
        "compute_country": known.compute_country,
        "storage_country": known.storage_country,
        "operator": known.operator,
        "operator_hq": known.operator_hq,
        "ultimate_parent": known.ultimate_parent,
        "parent_country": known.parent_country,
        "subprocessors": _joined(map(_subprocessor, known.subprocessors)),
        "subprocessors_version": known.subprocessors_version or "none",
        "certifications": _joined(known.certifications),
        "claimed": _joined(catalogue.claimed({region.id, region.operator}, day)),
        "valid_from": region.valid_from.isoformat(),
        "valid_to": region.valid_to.isoformat() if region.valid_to else "open",
        **_where_read(region, operator),
    }


def _where_read(region: Region, operator: Operator | None) -> dict[str, str | None]:
    rows: list[Row] = [region, operator] if operator else [region]
    return {
        "subprocessor_list": operator.subprocessor_list if operator else None,
        "source": region.source,
        "read_on": _read_on(region),
        "operator_source": operator.source if operator else None,
        "operator_read_on": _read_on(operator),
        "other_sources": _joined((source for row in rows for source in _other_sources(row)), "; "),
        "second_hand": _joined(fact for row in rows for fact in row.second_hand_facts()),
    }


def _joined(texts: Iterable[str], between: str = ", ") -> str:
    return between.join(texts) or "none"


def _subprocessor(one: Subprocessor) -> str:
    return f"{one.name} ({one.country})" if one.country else one.name


def _other_sources(row: Row) -> Iterator[str]:
    for one in row.sources:
        how = "second-hand, read" if one.second_hand else "read"
        yield f"{', '.join(one.facts)}: {one.source} ({how} on {one.read_on})"


def _read_on(row: Row | None) -> str | None:
    return row.read_on.isoformat() if row and row.read_on else None
