"""The console in a real browser: readable by everybody, with the keyboard alone, on a phone, and without a script."""

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.console.all_pages import PAGES
from gateway.console.language import language
from tests.fakes.needs import missing
from tests.gateway.console.browser import CHROMIUM, NO_PAGES, filled, sign_in
from tests.gateway.console.scene import STRICTER, session_of, token_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = Path("build/axe/node_modules/axe-core/axe.min.js")
RULES = "{runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}"
SHOWN = [page for page in PAGES if page.method == "GET" and not page.path.endswith(NO_PAGES)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    if CHROMIUM is None:
        missing("no Chromium: apt install chromium")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        missing("no Playwright: pip install playwright")
    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def open_page(made, browser):
    """Makes pages of a signed-in person; what the browser complains of is in their `complaints`."""
    contexts = []

    async def opened(tenant=None, role="operator", **how):
        context = await browser.new_context(base_url=made.base, **how)
        contexts.append(context)
        if role is not None:
            await sign_in(context, made, session_of(made, tenant, role))
        page = await context.new_page()
        page.complaints = []
        page.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: page.complaints.append(dialog.message))
        return page

    yield opened
    for context in contexts:
        await context.close()


def complaints(page):
    """Without those of answers that say what is wrong with a form."""
    return [each for each in page.complaints if "status of 4" not in each]


@pytest.mark.parametrize(
    ("theme", "rules", "least"), [("light", RULES, 11), ("dark", "{runOnly: ['color-contrast']}", 1)]
)
async def test_every_page_is_accessible_and_breaks_no_rule_of_its_own_policy(made, open_page, theme, rules, least):
    """The dark theme differs by its colours alone."""
    if not AXE.exists():
        missing("no axe-core: make axe")
    program, found = AXE.read_text(), {}
    page = await open_page(color_scheme=theme)
    for path in ["/sign-in", "/signed-out", "/nothing", *(filled(each, made) for each in SHOWN)]:
        await page.goto(f"/console{path}")
        await page.evaluate(program)
        said = await page.evaluate(f"axe.run(document, {rules})")
        for each in said["violations"]:
            found.setdefault(each["id"], []).append((path, each["nodes"][0]["html"][:120]))
        assert len(said["passes"]) >= least, path
    assert found == {}
    assert complaints(page) == []


@pytest.mark.parametrize(
    ("width", "height"), [(390, 844), (640, 400)], ids=["a phone", "1280 pixels wide at 200 per cent"]
)
async def test_no_page_is_wider_than_the_window(made, open_page, width, height):
    page, wide = await open_page(viewport={"width": width, "height": height}), []
    for path in ["/sign-in", *(filled(each, made) for each in SHOWN)]:
        await page.goto(f"/console{path}")
        if await page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            wide.append(path)
    assert wide == []


async def test_a_project_is_made_with_the_keyboard_alone(made, open_page):
    page = await open_page(role=None)
    await page.goto("/console/")
    token = token_of(made, "acme", "tenant-admin")
    for _ in range(5):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.id") == "token":
            break
    await page.keyboard.type(token)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/console/t/acme")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    await tab_to(page, "Projects")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/projects")
    await tab_to(page, "Create a project")
    await page.keyboard.press("Enter")
    for text in ("by-keyboard", "written with the keyboard"):
        await page.keyboard.press("Tab")
        await page.keyboard.type(text)
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/projects?done=project.created")
    assert await page.locator("th", has_text="by-keyboard").count() == 1
    assert complaints(page) == []


async def tab_to(page, text, tries=60):
    """Until what has the focus reads `text`; it has to show that it has it."""
    for _ in range(tries):
        await page.keyboard.press("Tab")
        said, outline = await page.evaluate(
            "[document.activeElement.innerText.trim(), getComputedStyle(document.activeElement).outlineStyle]"
        )
        if said == text:
            assert outline == "solid"
            return
    raise AssertionError(f"no way to {text} with the keyboard")


async def test_without_a_script_a_policy_is_checked_and_proposed(made, open_page):
    page = await open_page("acme", "developer", java_script_enabled=False)
    await page.goto("/console/t/acme/policies/draft")
    await page.fill("#document", "policy: x\nwrong: 1\n")
    await page.click("button:text-is('Check')")
    assert "Problems: 2" in await page.inner_text("#studied")
    await page.fill("#document", STRICTER.replace("version: 2", "version: 9"))
    await page.click("button:text-is('Propose')")
    await page.wait_for_url("**/policies/proposals/*")
    assert "Proposed." in await page.inner_text("main")


async def test_a_draft_is_checked_as_one_types_and_the_figures_come_by_themselves(made, open_page):
    page = await open_page("acme", "tenant-admin")
    await page.goto("/console/t/acme/policies/draft")
    await page.locator("#document").press_sequentially("nonsense")
    await page.wait_for_selector("#studied .note.bad")
    await page.goto("/console/t/acme")
    before = await page.inner_text(".figures")
    await made.post({"model": "small", "messages": [{"role": "user", "content": "my mail is bob@example.org"}]})
    async with asyncio.timeout(30):
        while await page.inner_text(".figures") == before:
            await asyncio.sleep(0.2)
    assert complaints(page) == []


async def test_a_draft_outlives_a_session_that_ends_in_another_tab(made, open_page):
    page = await open_page("acme", "developer")
    await page.goto("/console/t/acme/policies/draft")
    other = await page.context.new_page()
    await other.goto("/console/account")
    await other.get_by_role("button", name="Sign out").click()
    await other.wait_for_url("**/signed-out")
    draft = STRICTER.replace("version: 2", "version: 77")
    await page.fill("#document", draft)
    await page.locator("#session .note").wait_for()
    assert await page.input_value("#document") == draft and await page.locator("#studied").count() == 1
    await page.click("button:text-is('Propose')")
    await page.get_by_role("heading", name="Nothing was sent yet").wait_for()
    await accessible(page)
    async with page.context.expect_page() as opened:
        await page.get_by_role("link", name="Sign in").click()
    tab = await opened.value
    await tab.fill("#token", token_of(made, "acme", "developer"))
    await tab.keyboard.press("Enter")
    await tab.wait_for_url("**/console/t/acme")
    await page.get_by_role("button", name="Send what you typed").click()
    await page.get_by_text("version: 77").wait_for()
    await accessible(page)
    await page.get_by_role("button", name="Send what you typed").click()
    await page.get_by_text("Proposed.").wait_for()
    assert complaints(page) == []


async def test_going_back_to_a_secret_that_was_shown_shows_none(open_page):
    page = await open_page("acme", "tenant-admin")
    await page.goto("/console/t/acme/keys")
    await page.locator("details.add > summary").first.click()
    await page.select_option("#f-project", "main")
    await page.click("button:text-is('Create a key')")
    secret = await page.locator(".secret").inner_text()
    await page.get_by_role("link", name="People").first.click()
    await page.wait_for_url("**/people")
    said = ""
    try:
        await page.go_back()
    except Exception as error:  # Playwright's own, which is not imported where it is missing
        said = str(error)
    assert "ERR_CACHE_MISS" in said, "nothing was kept: the browser asks whether to send the form again"
    again = await page.context.new_page()
    await again.goto("/console/t/acme/keys")
    assert secret not in await again.content()


async def test_what_the_model_saw_stands_beside_what_was_typed(open_page):
    page = await open_page("acme", "tenant-admin")
    await page.goto("/console/t/acme/playground")
    await page.fill("#prompt", "Write to ada@example.org, IBAN DE89370400440532013000.")
    await page.click("button:text-is('Send')")
    await page.wait_for_selector("#seen")
    assert await page.locator("#seen mark").count() == 2
    assert "ada@example.org" not in await page.locator("#seen pre").nth(1).inner_text()
    await accessible(page)
    await page.get_by_role("link", name="Verify now").click()
    await page.get_by_text("The proof holds.").wait_for()
    assert complaints(page) == []


async def test_a_pack_is_made_and_verified_while_one_looks(open_page):
    page = await open_page("acme", "auditor")
    await page.goto("/console/t/acme/packs")
    await page.fill("#f-reason", "in_browser")
    await page.keyboard.press("Enter")
    await page.locator("li", has_text="in_browser").get_by_role("button", name="Verify").click()
    await page.locator("li", has_text="in_browser").get_by_text("The pack holds.").wait_for()
    async with page.expect_download() as begun:
        await page.locator("li", has_text="in_browser").get_by_role("link", name="Download").click()
    assert (await (await begun.value).path()).read_bytes()[:2] == b"PK"
    assert complaints(page) == []


@pytest.mark.parametrize("code", ["de", "fr"])
async def test_the_ten_tasks_are_done_by_hand_in_each_language(made, open_page, code):
    page, t = await open_page(role=None, locale=code), language(code).text
    for task in TASKS:
        await task(made, page, t)
        assert await page.get_attribute("html", "lang") == code, task.__name__
    assert complaints(page) == []


async def signs_in(made, page, t):
    await page.goto("/console/sign-in")
    await page.fill("#token", token_of(made, None, "operator"))
    await page.click(f"button:text-is('{t('sign_in.button')}')")
    await page.wait_for_url("**/console/tenants")


async def sees_what_waits(made, page, t):
    await page.goto("/console/t/acme")
    await page.get_by_role("heading", name=t("overview.duties")).wait_for()
    assert await page.locator(".figure").count() >= 4


async def verifies_the_receipt_of_a_call(made, page, t):
    await page.goto("/console/t/acme/calls?outcome=completed")
    await page.locator("table.calls tbody th a").last.click()
    await page.get_by_role("link", name=t("proof.verify")).click()
    await page.get_by_text(t("proof.holds")).wait_for()


async def looks_where_calls_ran(made, page, t):
    await page.get_by_role("link", name=t("nav.places")).first.click()
    await page.locator("svg.tiles").first.wait_for()
    assert await page.get_by_text(t("country.FR")).count()


async def proposes_a_policy(made, page, t):
    await page.goto("/console/t/acme/policies/draft")
    await page.fill("#document", STRICTER.replace("version: 2", "version: 9"))
    await page.click(f"button:text-is('{t('policies.propose')}')")
    await page.wait_for_url("**/policies/proposals/*")


async def makes_a_key(made, page, t):
    await page.goto("/console/t/acme/keys")
    await page.locator("details.add > summary").first.click()
    await page.select_option("#f-project", "main")
    await page.click(f"button:text-is('{t('keys.create')}')")
    assert (await page.locator(".secret").inner_text()).startswith("dom_")


async def asks_the_planner(made, page, t):
    await page.goto("/console/t/acme/deployments")
    await page.fill("#f-weights", "none.gguf")
    await page.click(f"button:text-is('{t('deployments.ask')}')")
    await page.get_by_text(t("deployments.not_feasible")).wait_for()


async def records_and_closes_a_request(made, page, t):
    await page.goto("/console/t/acme/rights")
    await page.locator("details.add > summary").first.click()
    await page.select_option("#f-right", "objection")
    await page.fill("#s-request", "grace@example.org")
    await page.click(f"button:text-is('{t('requests.record')}')")
    await page.get_by_text(t("done.rights.received")).wait_for()
    await page.goto("/console/t/acme/duties")
    await page.get_by_role("link", name=t("right.objection")).click()
    await page.get_by_text(t("requests.answer")).first.click()
    await accessible(page)
    await page.locator("select[name=outcome]").first.select_option("withdrawn")
    await page.click(f"button:text-is('{t('requests.close')}')")
    await page.get_by_text(t("done.rights.closed")).wait_for()


async def asks_a_model(made, page, t):
    await page.goto("/console/t/acme/playground")
    await page.fill("#prompt", "Write to ada@example.org.")
    await page.click(f"button:text-is('{t('playground.send')}')")
    await page.wait_for_selector("#seen mark")


async def verifies_the_log(made, page, t):
    await page.goto("/console/t/acme/record")
    await page.click(f"button:text-is('{t('record.verify')}')")
    await page.get_by_text(t("record.holds")).wait_for()


TASKS = (
    signs_in, sees_what_waits, verifies_the_receipt_of_a_call, looks_where_calls_ran, proposes_a_policy, makes_a_key,
    asks_the_planner, records_and_closes_a_request, asks_a_model, verifies_the_log,
)  # fmt: skip
"""The ten named tasks, one of each part of the console."""


async def accessible(page):
    """As it is now, with what was unfolded."""
    if not AXE.exists():
        missing("no axe-core: make axe")
    await page.evaluate(AXE.read_text())
    assert (await page.evaluate(f"axe.run(document, {RULES})"))["violations"] == []


async def test_another_site_cannot_show_the_console_in_a_frame(made, open_page):
    page = await open_page()
    await page.route(
        "**/trap",
        lambda route: route.fulfill(body=f'<iframe src="{made.base}/console/"></iframe>', content_type="text/html"),
    )
    await page.goto("/trap")
    await page.wait_for_timeout(500)
    assert any("frame-ancestors" in each or "X-Frame-Options" in each for each in page.complaints)
    assert "Tenants" not in await page.frames[1].evaluate("document.documentElement.innerText")
