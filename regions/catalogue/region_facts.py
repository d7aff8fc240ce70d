"""A region of the catalogue as it is shown: the four facts on a day, and where each was found."""

from collections.abc import Iterator
from datetime import date

from regions.catalogue.catalogue import Catalogue
from regions.catalogue.rows import Region, Row


def place_facts(catalogue: Catalogue, region: Region, day: date) -> dict[str, str | None]:
    """By name; None where a fact is not known on `day`, which policy refuses."""
    known = catalogue.backend_facts(backend_id="", tenant="", region=region.id, models=(), day=day)
    operator = next((o for o in catalogue.operators if o.id == region.operator and o.valid_on(day)), None)
    rows: list[Row] = [region, operator] if operator else [region]
    claimed = catalogue.claimed({row.id for row in rows}, day)
    return {
        "region": region.id,
        "name": region.name,
        "compute_country": known.compute_country,
        "storage_country": known.storage_country,
        "operator": known.operator,
        "operator_hq": known.operator_hq,
        "ultimate_parent": known.ultimate_parent,
        "parent_country": known.parent_country,
        "subprocessors": ", ".join(_subprocessor(s.name, s.country) for s in known.subprocessors) or "none",
        "subprocessors_version": known.subprocessors_version or "none",
        "subprocessor_list": operator.subprocessor_list if operator else None,
        "certifications": ", ".join(known.certifications) or "none",
        "claimed": ", ".join(claimed) or "none",
        "valid_from": region.valid_from.isoformat(),
        "valid_to": region.valid_to.isoformat() if region.valid_to else "open",
        "source": region.source,
        "operator_source": operator.source if operator else None,
        "other_sources": "; ".join(_other_sources(rows)) or "none",
        "read_on": _read_on(region),
        "operator_read_on": _read_on(operator),
        "second_hand": ", ".join(fact for row in rows for fact in row.second_hand_facts()) or "none",
    }


def _subprocessor(name: str, country: str | None) -> str:
    return f"{name} ({country})" if country else name


def _other_sources(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        for one in row.sources:
            how = "second-hand, read" if one.second_hand else "read"
            yield f"{', '.join(one.facts)}: {one.source} ({how} on {one.read_on})"


def _read_on(row: Row | None) -> str | None:
    return row.read_on.isoformat() if row and row.read_on else None
