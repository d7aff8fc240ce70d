"""All pages that need a session."""

from typing import Final

from gateway.console.page import Page
from gateway.console.pages import account, calls, keys, overview, people, policies, tenants, usage

PAGES: Final[tuple[Page, ...]] = (
    *overview.PAGES,
    *account.PAGES,
    *tenants.PAGES,
    *calls.PAGES,
    *keys.PAGES,
    *people.PAGES,
    *usage.PAGES,
    *policies.PAGES,
)
