"""Every page and every form: who sees it, what it says of others, and whom it takes orders from."""

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from html import unescape

import pytest

from gateway.console.all_pages import PAGES
from gateway.console.app import HEADERS
from gateway.console.language import NAMES
from gateway.identity.login import FRESH
from gateway.identity.roles import ROLE_TABLE
from tests.gateway.console.browser import NO_PAGES, filled
from tests.gateway.console.scene import MARKUP, PROMPTS, session_of, token_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHOWN = [page for page in PAGES if page.method == "GET"]
FORMS = [page for page in PAGES if page.method == "POST"]
OF_TENANT = [page for page in PAGES if page.path.startswith("/t/{tenant}")]
FIELDS = {
    "reason": "resolved", "clock": "gdpr.authority", "authority": "An authority", "record": "0", "outcome": "withdrawn",
}  # fmt: skip
"""What a form may need so that it is understood."""
UNSIGNED = {
    "/t/{tenant}/record/consistency",
    "/t/{tenant}/calls/{number}/proof",
    "/t/{tenant}/calls/{number}/proof.json",
    "/t/{tenant}/changes/{change}/proof",
    "/t/{tenant}/changes/{change}/proof.json",
    "/operator/changes/{change}/proof",
    "/operator/changes/{change}/proof.json",
}
"""Pages that wait for the next checkpoint."""


async def test_an_operator_is_shown_every_page_with_the_headers_that_bind_a_browser(made, guest):
    operator = guest(None, "operator")
    for page in SHOWN:
        answer = await operator.get(filled(page, made))
        assert answer.status_code in ((200, 422) if page.path in UNSIGNED else (200, 303)), page.path
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS, page.path
        assert answer.headers["cache-control"] == "no-store"
        assert "unsafe" not in answer.headers["content-security-policy"]


async def test_a_tenant_that_has_nothing_yet_has_its_pages(guest):
    operator = guest(None, "operator")
    for page in OF_TENANT:
        if page.method == "GET" and page.path.count("{") == 1 and page.path not in UNSIGNED:
            answer = await operator.get(page.path.format(tenant="fresh"))
            assert answer.status_code == 200, (page.path, answer.text)


async def test_no_page_holds_a_key_a_prompt_or_markup_that_somebody_wrote(made, guest):
    operator, hidden = guest(None, "operator"), (*made.keys.values(), *PROMPTS, "DE89370400440532013000", MARKUP)
    for page in SHOWN:
        answer = await operator.get(filled(page, made))
        assert not [each for each in hidden if each in answer.text], page.path
        assert not re.search(r"dom_(live|admin|once)_\w{8}_", answer.text), page.path
    assert "&lt;img src=x" in (await operator.get("/t/acme/keys")).text


@pytest.mark.parametrize("code", NAMES)
async def test_every_page_is_there_in_every_language(made, guest, code):
    operator = guest(None, "operator", **{"accept-language": code})
    for page in SHOWN:
        if page.path.endswith(NO_PAGES):
            continue
        answer = await operator.get(filled(page, made))
        if answer.status_code != 303:
            assert f'<html lang="{code}">' in answer.text, page.path


async def test_without_a_session_every_page_and_form_leads_to_the_sign_in(made, guest):
    nobody = guest()
    for page in PAGES:
        url = f"/console{filled(page, made)}"
        answer = await nobody.http.request(page.method, url, headers={"origin": made.base})
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/sign-in"), page.path


@pytest.mark.parametrize("role", [role for role in ROLE_TABLE if role != "operator"])
async def test_of_another_tenants_pages_nobody_learns_that_they_are_there(made, guest, role):
    """Each role, each page and form, each object: the answer is that of a tenant that does not exist."""
    stranger = guest("globex", role)
    size = len(made.events("acme"))
    for page in OF_TENANT:
        theirs, nowhere = filled(page, made), filled(page, made, tenant="nowhere")
        if page.method == "GET":
            answers = [await stranger.get(path) for path in (theirs, nowhere)]
        else:
            answers = [await stranger.send(path, "/account", reason="x") for path in (theirs, nowhere)]
        assert [each.status_code for each in answers] == [404, 404], page.path
        assert answers[0].text.replace("acme", "nowhere") == answers[1].text, page.path
    assert made.events("acme")[size:] == []


@pytest.mark.parametrize("role", [role for role in ROLE_TABLE if role != "operator"])
async def test_objects_of_another_tenant_are_not_there_below_ones_own_pages(made, guest, role):
    stranger = guest("globex", role)
    for page in OF_TENANT:
        if page.path.count("{") == 1:
            continue
        path = filled(page, made, tenant="globex", number=999, change=999)
        answer = await stranger.get(path) if page.method == "GET" else await stranger.send(path, "/account", **FIELDS)
        assert answer.status_code in (403, 404), (page.path, answer.status_code)


@pytest.mark.parametrize("role", ROLE_TABLE)
async def test_every_entry_of_the_menu_opens_and_no_other_page_does(made, guest, role):
    tenant = None if role == "operator" else "acme"
    somebody = guest(tenant, role)
    first = (await somebody.get("/t/acme")).text
    menu = set(re.findall(r'<li><a href="/console(/[^"]*)"', first))
    assert "/t/acme" in menu
    for path in menu:
        assert (await somebody.get(path)).status_code == 200, path
    below = {page.path.format(tenant="acme") for page in SHOWN if re.fullmatch(r"/t/\{tenant\}/[a-z]+", page.path)}
    for path in (
        below - menu - {"/t/acme/live", "/t/acme/days", "/t/acme/duties", "/t/acme/usage.csv", "/t/acme/revoke"}
    ):
        assert (await somebody.get(path)).status_code == 403, path


async def refused_forms(made, somebody, **sent):
    """The forms that are not refused as those of another site or session."""
    taken = []
    for page in FORMS:
        answer = await somebody.http.post(f"/console{filled(page, made)}", **sent)
        is_refused = "open the page again" in answer.text or "Nothing was sent yet" in answer.text
        if answer.status_code != 403 or not is_refused:
            taken.append(page.path)
    return taken


async def test_a_form_without_the_sessions_token_changes_nothing(made, guest):
    operator = guest(None, "operator")
    size = len(made.events("acme"))
    other = (await guest(None, "dpo").get("/account")).text
    stolen = re.search(r'name="csrf" value="([^"]+)"', other)[1]
    for token in ("", "0" * 64, stolen):
        assert await refused_forms(made, operator, data={"csrf": token}, headers={"origin": made.base}) == []
    assert made.events("acme")[size:] == []


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {},
        {"sec-fetch-site": "cross-site"},
        {"origin": "null", "sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-origin"},
    ],
)
async def test_a_form_of_another_site_changes_nothing_even_with_the_right_token(made, guest, headers):
    operator = guest(None, "operator")
    token = re.search(r'name="csrf" value="([^"]+)"', (await operator.get("/account")).text)[1]
    assert await refused_forms(made, operator, data={"csrf": token}, headers=headers) == []


async def test_a_form_that_the_browser_says_is_ours_is_taken_though_it_hides_the_origin(made, guest):
    hidden = {"origin": "null", "sec-fetch-site": "same-origin"}
    answer = await guest(None, "operator").send("/tenants/create", "/tenants", hidden, id="quiet")
    assert answer.headers["location"] == "/console/t/quiet/projects?done=tenant.created"


async def test_what_cannot_be_undone_takes_a_sign_in_of_the_last_minutes(made, guest):
    """The provider says that it was too long ago, or nothing: a new session of somebody who did not sign in is none."""
    for authenticated_at in (datetime.now(UTC) - FRESH - timedelta(seconds=1), None):
        opened = made.control.open_session(
            None, made.people[None, "operator"], life=timedelta(hours=1), authenticated_at=authenticated_at
        )
        operator = guest()
        operator.http.cookies.set("domicile-session", opened[1].token)
        for page in FORMS:
            if page.fresh:
                answer = await operator.send(filled(page, made), "/account")
                assert answer.status_code == 403 and 'href="/console/sign-in?again=1"' in answer.text, page.path
        assert (await operator.get("/tenants")).status_code == 200
    assert sum(page.fresh for page in FORMS) > 7


def hidden(page):
    """What a page of a kept form would send."""
    return {name: unescape(value) for name, value in re.findall(r'name="([^"]+)" value="([^"]*)"', page.text)}


async def renewed(guest, tenant, role):
    """A guest whose session ends, and their next session."""
    old, new = guest(tenant, role), guest(tenant, role)
    return old, new.http.cookies["domicile-session"]


async def test_a_form_of_a_session_that_ended_meanwhile_is_kept_and_sent_in_the_next(made, guest):
    somebody, later = await renewed(guest, "acme", "tenant-admin")
    page = await somebody.get("/t/acme/projects")
    typed = {"id": "kept-form", "purpose": 'kept "quoted" & <b>', "legal_basis": "contract", "risk_class": "minimal"}
    sent = hidden(page) | typed
    post = partial(somebody.http.post, headers={"origin": made.base})
    somebody.http.cookies.set("domicile-session", "dom_admin_aaaaaaaa_none")
    ended = await post("/console/t/acme/projects/create", data=sent)
    assert ended.status_code == 401 and "<b>" not in ended.text and typed.items() <= hidden(ended).items()
    somebody.http.cookies.clear()
    somebody.http.cookies.set("domicile-session", later)
    other = await post("/console/t/acme/projects/create", data=hidden(ended))
    assert other.status_code == 403 and typed.items() <= hidden(other).items()
    assert "kept-form" not in (await somebody.get("/t/acme/projects")).text, "not before the person sent it"
    done = await post("/console/t/acme/projects/create", data=hidden(other))
    assert done.status_code == 303 and "done=project.created" in done.headers["location"]
    assert "kept &#34;quoted&#34; &amp; &lt;b&gt;" in (await somebody.get("/t/acme/projects")).text


async def test_a_sign_in_that_a_form_takes_keeps_what_was_typed(made, guest):
    opened = made.control.open_session(
        "acme", made.people["acme", "dpo"], life=timedelta(hours=1), authenticated_at=datetime.now(UTC) - 2 * FRESH
    )
    dpo, later = await renewed(guest, "acme", "dpo")
    dpo.http.cookies.set("domicile-session", opened[1].token)
    size = len(made.events("acme"))
    typed = {"first": "0", "last": "0", "reason": "kept_reason"}
    asked = await dpo.send("/t/acme/rights/erase", "/t/acme/rights", **typed)
    assert asked.status_code == 403 and typed.items() <= hidden(asked).items()
    assert [event for event in made.events("acme")[size:] if event["type"].startswith("erasure")] == []
    dpo.http.cookies.clear()
    dpo.http.cookies.set("domicile-session", later)
    post = partial(dpo.http.post, headers={"origin": made.base})
    once_more = await post("/console/t/acme/rights/erase", data=hidden(asked))
    assert once_more.status_code == 403 and "Send what you typed" in once_more.text
    done = await post("/console/t/acme/rights/erase", data=hidden(once_more))
    assert done.status_code == 422 and 'role="alert"' in done.text, "taken: there is nothing of a person in it"


async def test_a_form_of_another_site_is_not_shown_again(made, guest):
    for somebody in (guest(), guest("acme", "dpo")):
        answer = await somebody.http.post(
            "/console/t/acme/rights/erase", data={"reason": "planted"}, headers={"origin": "https://evil.example"}
        )
        assert answer.status_code == 403 and "planted" not in answer.text


async def test_a_part_that_a_page_fetches_after_the_session_tells_the_page_and_leaves_it(guest):
    for path in ("/t/acme/live", "/t/acme/duties", "/t/acme/deployments/live"):
        answer = await guest(**{"hx-request": "true"}).get(path)
        assert answer.status_code == 200 and answer.headers["hx-retarget"] == "#session"
        assert "<html" not in answer.text and "/console/sign-in" in answer.text


async def test_a_one_time_token_opens_one_session_and_nothing_else(made, guest):
    token = token_of(made, "acme", "auditor")
    somebody = guest()
    api = await somebody.http.get("/admin/v1/me", headers={"authorization": f"Bearer {token}"})
    assert api.status_code == 401
    ours = {"origin": made.base}
    first = await somebody.http.post("/console/sign-in", data={"token": token}, headers=ours)
    assert (first.status_code, first.headers["location"]) == (303, "/console/")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and token not in cookie
    again = await guest().http.post("/console/sign-in", data={"token": token}, headers=ours)
    assert again.status_code == 403 and "domicile-session" not in again.headers.get("set-cookie", "")
    kinds = [event["type"] for event in made.events("acme")]
    assert kinds[-2:] == ["admin.token.revoked", "admin.session.opened"]


@pytest.mark.parametrize("token", ["", "x", "dom_once_abcdefgh_" + "0" * 49])
async def test_what_is_no_sign_in_token_opens_nothing_and_is_not_shown_again(made, guest, token):
    answer = await guest().http.post("/console/sign-in", data={"token": token}, headers={"origin": made.base})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert not token or f'value="{token}"' not in answer.text


async def test_an_access_token_or_a_projects_key_is_no_sign_in_token(made, guest):
    for token in (session_of(made, None, "operator"), made.key()):
        answer = await guest().http.post("/console/sign-in", data={"token": token}, headers={"origin": made.base})
        assert answer.status_code == 403 and token not in answer.text


async def test_a_sign_in_by_the_form_of_another_site_is_refused(made, guest):
    token = token_of(made, "acme", "auditor")
    evil = {"origin": "https://evil.example"}
    answer = await guest().http.post("/console/sign-in", data={"token": token}, headers=evil)
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


async def test_a_session_that_was_signed_out_of_is_over_also_for_who_copied_the_cookie(made, guest):
    somebody, thief = guest("acme", "dpo"), guest()
    thief.http.cookies.set("domicile-session", somebody.http.cookies["domicile-session"])
    answer = await somebody.send("/sign-out", "/account")
    assert answer.headers["location"] == "/console/signed-out"
    assert (await thief.get("/account")).headers["location"] == "/console/sign-in"


async def test_ones_own_sessions_are_listed_and_another_persons_cannot_be_ended(made, guest):
    one, other = guest("acme", "dpo"), guest("acme", "auditor")
    token = other.http.cookies["domicile-session"].split("_")[2]
    assert token in (await other.get("/account")).text
    assert token not in (await one.get("/account")).text
    assert (await one.send(f"/account/sessions/{token}/end", "/account")).status_code == 404
    assert (await other.send(f"/account/sessions/{token}/end", "/account")).status_code == 303
    assert (await other.get("/account")).headers["location"] == "/console/sign-in"


async def test_a_page_that_is_not_there_and_a_file_of_another_version_are_404(made, guest):
    operator = guest(None, "operator")
    assert (await operator.get("/nothing/here")).status_code == 404
    assert (await operator.get("/static/0000000000000000/console.css")).status_code == 404
    assert (await operator.http.get("/console")).headers["location"] == "/console/"


async def weight(guest, page):
    """Of a page with style, script and icon, as a browser fetches them."""
    files = set(re.findall(r'(?:href|src)="/console(/static/[^"]+)"', page.text))
    assert len(files) == 3
    size = len(page.content)
    for path in files:
        async with guest.http.stream("GET", f"/console{path}", headers={"accept-encoding": "gzip"}) as answer:
            assert "immutable" in answer.headers["cache-control"]
            size += sum([len(piece) async for piece in answer.aiter_raw()])
    return size


async def test_the_first_page_is_small(made, guest):
    operator = guest(None, "operator")
    assert await weight(operator, await operator.get("/t/acme")) <= 60_000


async def test_a_full_page_of_calls_leaves_room_under_the_limit_of_a_page(made, guest):
    """As if each of its 50 rows were as long as the longest here."""
    operator = guest(None, "operator")
    page = await operator.get("/t/acme/calls")
    rows = re.findall(r"<tr><th scope=.row.*?</tr>", page.text, re.DOTALL)
    assert rows
    whole = await weight(operator, page) + (50 - len(rows)) * max(len(row.encode()) for row in rows)
    assert whole <= 50_000
