"""Screenshots of every page, wide and on a phone, in both themes and three languages: `make console-shots` writes them
to build/console-shots."""

import asyncio
import sys
import tempfile
from math import sin
from pathlib import Path
from time import time
from unittest.mock import patch

from playwright.async_api import async_playwright

from gateway.console.all_pages import PAGES
from gateway.records.curves import PERIODS
from gateway.store.fleet.backend_curves import Look, note_looks
from gateway.store.log_followers.call_curves import add
from tests.gateway.console.browser import CHROMIUM, NO_PAGES, filled, sign_in
from tests.gateway.console.scene import scene, session_of

OUT = Path("build/console-shots")


async def owed(made):
    """An incident, a hold and two requests of persons, of which one is overdue and one closed."""
    headers = {"authorization": f"Bearer {session_of(made, None, 'operator')}"}

    async def sent(path, **body):
        url = f"{made.base}/admin/v1/tenants/acme/{path}"
        async with made.http.post(url, json=body, headers=headers) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    asked = {"subject": "ada@example.org", "received_at": "2026-01-10T09:00:00.000Z"}
    await sent("rights/requests", right="access", **asked)
    await sent("rights/requests", right="objection", subject="bob@example.org")
    closed = await sent("rights/requests", right="human_review", **asked)
    await sent(f"rights/requests/{closed['id']}/close", outcome="refused", reason="manifestly_unfounded")
    await sent("rights/holds", first=0, last=9)
    await sent("incidents", laws=["gdpr", "dora"], severity="major", freeze=False)


def past(made):
    """A week of calls and loads for the curves, which have a rhythm of days and a gap."""
    database, now = made.control._database, time()
    for period in PERIODS.values():
        sums = {}
        for at, begin in enumerate(period.begins(now)[:-1]):
            busy = 1.2 + sin(begin / 86_400 * 6.283) + 0.2 * sin(at)
            calls = int(busy * period.step_s / 6)
            figures = {
                "completed": calls,
                "denied": calls // 30,
                "refused": calls // 90,
                "aborted": calls // 200,
                "tokens_out": calls * 180,
                "first_tokens": calls,
                "first_token_ms": int(calls * 90 * busy),
            }
            sums["acme", period.step_s, begin, 28 + int(3 * busy)] = figures  # fmt: skip
            if at % 50 > 3 and begin < now - period.step_s:
                look = Look("acme", "acme-1", int(8 * busy), int(3 * busy), min(1, 0.3 * busy), 400 * busy, 420.0)
                with patch("gateway.store.fleet.backend_curves.steps_of", lambda *_, at=(period.step_s, begin): [at]):
                    note_looks(database, [look], now)
        with database.write() as session:
            add(session.connection(), sums)


LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1360, "height": 850}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1360, "height": 850}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    "phone-de": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}, "locale": "de-DE"},
    "fr": {"color_scheme": "light", "viewport": {"width": 1360, "height": 850}, "locale": "fr-FR"},
}
"""By what a picture's name ends with."""


async def main(only):
    """`only`: names of pages, and of looks; none of a kind: all of them. ``tenant``: as the tenant's own staff."""
    looks = [look for look in LOOKS if look in only] or list(LOOKS)
    names = [each for each in only if each not in LOOKS and each != "tenant"]
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with scene(Path(folder), calls=40) as made, async_playwright() as play:
            await owed(made)
            await asyncio.to_thread(past, made)
            await asyncio.sleep(6)  # backends are asked every two seconds, and speed takes two answers
            session = session_of(made, "acme" if "tenant" in only else None, "operator")
            browser = await play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for look in looks:
                context = await browser.new_context(base_url=made.base, **LOOKS[look])
                page = await context.new_page()
                if not names or "sign-in" in names:
                    await page.goto("/console/sign-in")
                    await page.screenshot(path=OUT / f"sign-in-{look}.png")
                await sign_in(context, made, session)
                for declared in PAGES:
                    path = filled(declared, made)
                    if declared.method != "GET" or path.endswith(NO_PAGES):
                        continue
                    name = path.strip("/").replace("/", "-").partition("?")[0] or "home"
                    if names and name not in names:
                        continue
                    answer = await page.goto(f"/console{path}")
                    await page.wait_for_load_state("networkidle")  # parts are loaded after the page
                    print(look, answer.status, path)
                    await page.screenshot(path=OUT / f"{name}-{look}.png", full_page=True)
                await context.close()
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
