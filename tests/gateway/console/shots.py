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


async def main(only):
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with scene(Path(folder), calls=40) as made, async_playwright() as play:
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
                    ):
                        if not only or path.replace("/", "-") in only:
                            await page.goto(f"/console/{path}")
                            await page.screenshot(path=OUT / f"{path.replace('/', '-')}-phone.png", full_page=True)
                await context.close()
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
