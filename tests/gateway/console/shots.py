"""Screenshots of every page in both themes: `make console-shots` writes them to build/console-shots."""

import asyncio
import sys
import tempfile
from pathlib import Path

from playwright.async_api import async_playwright

from gateway.console.all_pages import PAGES
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


async def main(only):
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with scene(Path(folder), calls=40) as made, async_playwright() as play:
            await owed(made)
            await asyncio.sleep(1.5)
            browser = await play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for theme in ("light", "dark"):
                context = await browser.new_context(
                    color_scheme=theme, viewport={"width": 1360, "height": 850}, base_url=made.base
                )
                page = await context.new_page()
                if not only or "sign-in" in only:
                    await page.goto("/console/sign-in")
                    await page.screenshot(path=OUT / f"sign-in-{theme}.png")
                await sign_in(context, made, session_of(made, "acme" if "tenant" in only else None, "operator"))
                for declared in PAGES:
                    path = filled(declared, made)
                    if declared.method != "GET" or path.endswith(NO_PAGES):
                        continue
                    name = path.strip("/").replace("/", "-").partition("?")[0] or "home"
                    if only and name not in only:
                        continue
                    answer = await page.goto(f"/console{path}")
                    await page.wait_for_load_state("networkidle")
                    print(theme, answer.status, path)
                    await page.screenshot(path=OUT / f"{name}-{theme}.png", full_page=True)
                if theme == "light":
                    await page.set_viewport_size({"width": 390, "height": 844})
                    for path in (
                        "t/acme",
                        "t/acme/calls",
                        "t/acme/calls/0",
                        "t/acme/places",
                        "t/acme/record",
                        "t/acme/packs",
                        "t/acme/rights",
                        "t/acme/incidents",
                        "t/acme/duties",
                    ):
                        if not only or path.replace("/", "-") in only:
                            await page.goto(f"/console/{path}")
                            await page.screenshot(path=OUT / f"{path.replace('/', '-')}-phone.png", full_page=True)
                await context.close()
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
