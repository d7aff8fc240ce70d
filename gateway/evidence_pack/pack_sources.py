"""Gives `audit` the registers and the content of persons that this package keeps. Imports the rest when first asked."""

from pathlib import Path
from typing import TYPE_CHECKING

from audit.incidents.pack_inputs import evidence_sources
from audit.privacy.kept_content import content_sources

if TYPE_CHECKING:
    from audit.incidents.pack_inputs import Evidence
    from audit.privacy.kept_content import Reader


def give_sources() -> None:
    """For commands, and for every process of a gateway: packs and answers to access requests are made from them."""
    if registers not in evidence_sources:
        evidence_sources.append(registers)
    if content_of_persons not in content_sources:
        content_sources.append(content_of_persons)


def registers(data: Path, tenant: str) -> "Evidence":
    from gateway.evidence_pack.pack_inputs import gather

    return gather(data, tenant)


def content_of_persons(data: Path) -> "Reader":
    from gateway.evidence_pack.person_content import reader

    return reader(data)
