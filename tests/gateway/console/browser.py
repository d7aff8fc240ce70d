"""A browser at the console: Debian's Chromium, driven by Playwright."""

import shutil

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

NO_PAGES = (".json", ".csv", ".zip", "/live", "/days", "/outside")
"""How paths end at which there are files, and parts that a page fetches."""


def filled(page, made, **more):
    """The path of a page, with something of tenant acme in place of its parameters; of the staff where it has none."""
    values = made.values | more
    if page.path.startswith("/staff"):
        values = values | {"person": made.people[None, "billing"]}
    if page.path.startswith("/operator"):
        values = values | {"change": made.values["installation_change"]}
    return page.path.format(**values)


async def sign_in(context, made, session):
    """Give the browser a session as signing in does."""
    await context.add_cookies(
        [{"name": "domicile-session", "value": session, "url": made.base, "httpOnly": True, "sameSite": "Strict"}]
    )
