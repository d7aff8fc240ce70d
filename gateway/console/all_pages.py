"""List of all pages that require a session."""

from typing import Final

from gateway.console.page import Page
from gateway.console.pages import (
    calls,
    changes,
    curves,
    fleet,
    keys,
    oversight,
    overview,
    packs,
    people,
    playground,
    policies,
    record,
    tenants,
    usage,
)

PAGES: Final[tuple[Page, ...]] = (
    *overview.PAGES,
    *tenants.PAGES,
    *curves.PAGES,
    *calls.PAGES,
    *changes.PAGES,
    *keys.PAGES,
    *people.PAGES,
    *usage.PAGES,
    *policies.PAGES,
    *oversight.PAGES,
    *record.PAGES,
    *packs.PAGES,
    *fleet.PAGES,
    *playground.PAGES,
)
