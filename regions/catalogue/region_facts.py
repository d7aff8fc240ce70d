"""A region of the catalogue as it is shown: the four facts on a day, and where each was found."""

from datetime import date

from regions.catalogue.catalogue import Catalogue, Region


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
        "subprocessors": ", ".join(f"{s.name} ({s.country})" for s in known.subprocessors) or "none",
        "subprocessors_version": known.subprocessors_version or "none",
        "certifications": ", ".join(known.certifications) or "none",
        "valid_from": region.valid_from.isoformat(),
        "valid_to": region.valid_to.isoformat() if region.valid_to else "open",
        "source": region.source,
        "operator_source": operator.source if operator else None,
    }
