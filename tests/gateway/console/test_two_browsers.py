"""Two people, or one in two tabs, change the same thing: the second is told, and keeps what was typed."""

import re
from html import unescape

import pytest

from tests.gateway.console.scene import STRICTER

pytestmark = pytest.mark.asyncio(loop_scope="module")


def hidden(page, names="csrf|once|state|base|project"):
    return {name: unescape(value) for name, value in re.findall(rf'name="({names})" value="([^"]*)"', page.text)}


def form_of(page, action):
    """The hidden fields of the form that is sent to `action`."""
    return dict(re.findall(r'name="(csrf|once|state)" value="([^"]*)"', page.text.split(f'action="{action}"')[1]))


async def post(guest, path, **sent):
    return await guest.http.post(f"/console{path}", data=sent, headers={"origin": guest.base})


def checked(page):
    return set(re.findall(r'name="role-([a-z-]+)" value="1" checked', page.text))


async def test_roles_of_a_person_that_another_changed_are_told_and_what_was_chosen_stays(made, guest):
    person = made.people["acme", "billing"]
    path = f"/t/acme/people/{person}"
    one, two = (guest("acme", "tenant-admin") for _ in range(2))
    shown = [await each.get(path) for each in (one, two)]
    assert checked(shown[0]) == {"billing"}
    first = await post(one, f"{path}/roles", **hidden(shown[0]) | {"role-auditor": "1"})
    assert first.status_code == 303
    second = await post(two, f"{path}/roles", **hidden(shown[1]) | {"role-developer": "1"})
    assert second.status_code == 412 and 'role="alert"' in second.text
    assert checked(second) == {"developer"}
    assert checked(await one.get(path)) == {"auditor"}, "nothing of it was written"
    again = await post(two, f"{path}/roles", **hidden(second) | {"role-developer": "1"})
    assert again.status_code == 303 and checked(await one.get(path)) == {"developer"}


async def test_limits_that_another_changed_are_told_and_what_was_typed_stays(guest):
    one, two = (guest("acme", "tenant-admin") for _ in range(2))
    path = "/t/acme/limits?project=research"
    shown = [await each.get(path) for each in (one, two)]
    kinds = re.findall(r'<input id="f-([a-z_]+)" name="\1"', shown[0].text)
    typed = dict.fromkeys(kinds, "")
    send = "/t/acme/limits/set?project=research"
    first = await post(one, send, **hidden(shown[0]) | typed | {"place": "research", kinds[0]: "11"})
    assert first.status_code == 303, first.text
    second = await post(two, send, **hidden(shown[1]) | typed | {"place": "research", kinds[0]: "12"})
    assert second.status_code == 412 and 'role="alert"' in second.text and 'value="12"' in second.text
    assert '<td class="num">11</td>' in second.text, "what it is now stands in the table"


async def test_a_draft_that_another_version_overtook_is_told_once_and_kept(made, guest):
    author, other, second = guest("acme", "developer"), guest("acme", "tenant-admin"), guest("acme", "dpo")
    begun = await author.get("/t/acme/policies/draft")
    theirs = STRICTER.replace("version: 2", "version: 31")
    sent = await other.send("/t/acme/policies/propose", "/t/acme/policies/draft", document=theirs, project="")
    number = re.search(r"/proposals/(\d+)", sent.headers["location"])[1]
    for act in ("approve", "activate"):
        answer = await second.send(f"/t/acme/policies/proposals/{number}/{act}", f"/t/acme/policies/proposals/{number}")
        assert answer.status_code == 303
    mine = STRICTER.replace("version: 2", "version: 32").replace("[FR]", "[FR, DE]")
    told = await post(
        author, "/t/acme/policies/propose", **hidden(begun, "csrf|once|base") | {"document": mine, "project": ""}
    )
    assert told.status_code == 409 and "another version came into force" in told.text
    assert "[FR, DE]" in told.text and "residency.process_in" in told.text, "the draft, and what it would change now"
    again = await post(
        author, "/t/acme/policies/propose", **hidden(told, "csrf|once|base") | {"document": mine, "project": ""}
    )
    assert again.status_code == 303 and "done=policy.proposed" in again.headers["location"]


async def test_a_roll_back_that_another_did_already_is_not_done_twice(made, guest):
    one, two = (guest("acme", "dpo") for _ in range(2))
    asked = [await each.get("/t/acme/policies/roll-back") for each in (one, two)]
    first = await post(one, "/t/acme/policies/roll-back", **hidden(asked[0]))
    assert first.status_code == 303
    second = await post(two, "/t/acme/policies/roll-back", **hidden(asked[1]))
    assert second.status_code == 412 and 'role="alert"' in second.text
    active = [event for event in made.events("acme") if event["type"] == "admin.policy.activated"]
    assert sum("rolled_back_to" in event["detail"] for event in active) == 1


async def test_a_deployment_that_another_scaled_is_told_and_what_was_typed_stays(guest):
    one, two = (guest("acme", "tenant-admin") for _ in range(2))
    path = "/t/acme/deployments/large/scale"
    shown = [form_of(await each.get("/t/acme/deployments"), f"/console{path}") for each in (one, two)]
    first = await post(one, path, **shown[0] | {"min_replicas": "0", "max_replicas": "1"})
    assert first.status_code == 303
    second = await post(two, path, **shown[1] | {"min_replicas": "1", "max_replicas": "1"})
    assert second.status_code == 412 and 'role="alert"' in second.text
    assert re.search(r'id="min-large"[^>]* value="1"', second.text)
    assert re.search(r'id="min-large"[^>]* value="0"', (await one.get("/t/acme/deployments")).text)


async def test_a_project_that_another_made_meanwhile_is_told_and_what_was_typed_stays(guest):
    one, two = (guest("acme", "tenant-admin") for _ in range(2))
    typed = {"id": "both-make-it", "legal_basis": "contract", "risk_class": "minimal"}
    assert (await one.send("/t/acme/projects/create", "/t/acme/projects", purpose="first", **typed)).status_code == 303
    second = await two.send("/t/acme/projects/create", "/t/acme/projects", purpose="of the second", **typed)
    assert second.status_code in (409, 422) and 'role="alert"' in second.text and "of the second" in second.text


async def test_a_secret_is_not_shown_again_by_going_back_or_reloading_another_page(guest):
    """The page with it is no page of the history that can be fetched: only the form of it can be sent again, which the
    browser asks about, and which shows what was made then and makes nothing more."""
    admin = guest("acme", "tenant-admin")
    page = await admin.send("/t/acme/keys/create", "/t/acme/keys", project="main", label="shown once")
    secret = re.search(r"dom_live_\w+", page.text)[0]
    assert page.headers["cache-control"] == "no-store"
    assert secret not in str(page.url) and secret not in (await admin.get("/t/acme/keys")).text
