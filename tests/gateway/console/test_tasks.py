"""What people come for, each as the pages' own forms do it: with the record, the gateway and the database behind it."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from html import unescape
from time import time
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio

from gateway.store.fleet.backend_curves import Look, note_looks
from tests.fakes.lab import chat
from tests.gateway.console.conftest import Guest
from tests.gateway.console.scene import KEEPING, OPERATORS, STRICTER, scene

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def made(tmp_path_factory):
    """A gateway of its own, since these tests change what it holds."""
    async with scene(tmp_path_factory.mktemp("tasks"), calls=4) as made:
        yield made


def last(made, kind, tenant="acme"):
    return [event for event in made.events(tenant) if event["type"] == kind][-1]


async def signed(guest, path, tries=100):
    """The page, once the next checkpoint is signed."""
    for _ in range(tries):
        answer = await guest.get(path)
        if answer.status_code == 200:
            return answer
        await asyncio.sleep(0.1)
    raise AssertionError(answer.text)


async def test_a_key_is_shown_once_works_and_stops_when_it_is_revoked(made, guest):
    admin = guest("acme", "tenant-admin")
    await admin.send(
        "/t/acme/projects/create",
        "/t/acme/projects",
        id="shop",
        purpose="orders",
        legal_basis="contract",
        risk_class="minimal",
    )
    page = await admin.send("/t/acme/keys/create", "/t/acme/keys", project="shop", label="till")
    key = re.search(r"dom_live_(\w{8})_\w+", page.text)
    assert page.status_code == 200 and key[0] not in (await admin.get("/t/acme/keys")).text
    await made.taken_over()
    assert (await made.post(chat("hello"), key=key[0])).status == 200
    answer = await admin.send(f"/t/acme/keys/{key[1]}/revoke")
    assert answer.headers["location"].endswith("done=key.revoked")
    await made.taken_over()
    assert (await made.post(chat("hello"), key=key[0])).status == 401
    revoked = last(made, "admin.key.revoked")
    assert revoked["target"] == key[1] and revoked["actor"].startswith("key:")


async def test_a_form_that_is_sent_twice_makes_one_thing(made, guest):
    admin = guest("acme", "tenant-admin")
    shown = (await admin.get("/t/acme/keys")).text
    sent = dict(re.findall(r'name="(csrf|once)" value="([^"]+)"', shown)) | {"project": "main", "label": "twice"}
    for _ in range(2):
        answer = await admin.http.post("/console/t/acme/keys/create", data=sent, headers={"origin": made.base})
        assert answer.status_code == 200
    page = await made.http.get(
        f"{made.base}/admin/v1/tenants/acme/keys?limit=200",
        headers={"authorization": f"Bearer {admin.http.cookies['domicile-session']}"},
    )
    assert [each["label"] for each in (await page.json())["items"]].count("twice") == 1


async def test_a_key_that_is_rotated_has_a_successor_beside_it(made, guest):
    developer = guest("acme", "developer")
    page = await developer.send(f"/t/acme/keys/{made.values['key']}/rotate", "/t/acme/keys")
    assert page.status_code == 200 and "dom_live_" in page.text
    assert f"Replaced by {re.search(r'dom_live_(.{8})_', page.text)[1]}" in page.text


async def test_a_policy_takes_a_second_person_and_is_rolled_back(made, guest):
    first, second = guest("acme", "tenant-admin"), guest("acme", "dpo")
    stricter = STRICTER.replace("version: 2", "version: 3")
    answer = await first.send("/t/acme/policies/propose", "/t/acme/policies/draft", document=stricter, project="")
    proposal = urlsplit(answer.headers["location"]).path.removeprefix("/console")
    shown = (await first.get(proposal)).text
    assert "/approve" not in shown and "residency.process_in" in shown and "Tightened" in shown
    own = await first.send(f"{proposal}/approve", proposal)
    assert own.status_code == 409 and 'role="alert"' in own.text
    assert (await second.send(f"{proposal}/approve", proposal)).status_code == 303
    assert (await second.send(f"{proposal}/activate", proposal)).status_code == 303
    await made.taken_over()
    assert (await made.post(chat("hello"))).headers["x-domicile-region"] == "eu-fr-par"
    assert last(made, "admin.policy.activated")["target"]
    who = {role: made.people["acme", role] for role in ("tenant-admin", "dpo")}
    for path in (proposal, "/t/acme/policies"):
        named = (await guest("acme", "auditor").get(path)).text
        assert all(f"{role} &lt;img" in named and person in named for role, person in who.items()), path
        assert "<code>key:" not in named, "of who activated it"
        unnamed = (await guest("acme", "developer").get(path)).text
        assert who["dpo"] in unnamed and "dpo &lt;img" not in unnamed, "who may not see people sees no name"
    back = await second.send("/t/acme/policies/roll-back")
    assert parse_qs(urlsplit(back.headers["location"]).query)["done"] == ["policy.rolled_back"]
    await made.taken_over()


async def test_a_draft_is_judged_as_it_is_typed_and_changes_nothing(made, guest):
    developer = guest("acme", "developer")
    size = len(made.events())
    script = {"hx-request": "true"}
    bad = await developer.send(
        "/t/acme/policies/check", "/t/acme/policies/draft", script, document="policy: x\nwrong: 1\n", project=""
    )
    assert bad.status_code == 200 and "<html" not in bad.text and "wrong" in bad.text and "note bad" in bad.text
    looser = STRICTER.replace("[FR]", "[FR, US]")
    good = await developer.send("/t/acme/policies/check", "/t/acme/policies/draft", script, document=looser, project="")
    assert "Loosened" in good.text
    whole = await developer.send("/t/acme/policies/check", "/t/acme/policies/draft", document=looser, project="")
    assert "<html" in whole.text and "[FR, US]" in whole.text
    impact = await developer.send("/t/acme/policies/simulate", "/t/acme/policies/draft", document=STRICTER, project="")
    assert impact.status_code == 200 and "Recorded calls" in impact.text
    assert len(made.events()) == size


async def test_the_first_policy_of_a_tenant_has_nothing_to_be_compared_with_and_no_problem(guest):
    operator = guest(None, "operator")
    first = (await operator.get("/t/fresh/policies/draft")).text
    assert "The document compiles." in first and "No policy is in force here to compare it with" in first
    wrong = await operator.send("/t/fresh/policies/check", "/t/fresh/policies/draft", document="wrong: 1\n", project="")
    assert "Problems: " in wrong.text and "to compare it with" not in wrong.text


async def test_the_account_says_which_session_is_this_one(guest):
    here, there = guest("acme", "billing"), guest("acme", "billing")
    for each in (here, there):
        page = (await each.get("/account")).text
        (row,) = [part for part in page.split("<tr>") if "This one" in part]
        assert each.http.cookies["domicile-session"].split("_")[2] in row


async def test_a_decision_is_explained_with_the_line_that_decides(guest):
    page = await guest("acme", "auditor").get("/t/acme/policies/explain?project=main&model=none-such")
    assert page.status_code == 200 and "Denied" in page.text and "refused[" in page.text


async def test_calls_are_found_by_outcome_and_the_look_is_on_record(made, guest):
    auditor = guest("acme", "auditor")
    page = await auditor.get("/t/acme/calls?outcome=denied")
    assert "redaction.blocked" in page.text and "Completed</span></td>" not in page.text
    read = last(made, "log.read")
    assert read["reason"] == "console" and read["actor"].startswith("key:") and read["end"] > read["first"]
    wrong = await auditor.get("/t/acme/calls?since=yesterday")
    assert wrong.status_code == 422 and "write 2026-03" in wrong.text


def rows_in(page):
    return page.text.count('<tr><th scope="row">')


async def test_calls_of_a_span_that_ends_now_or_of_given_times_are_shown(made, guest):
    auditor = guest("acme", "auditor")
    now = datetime.now(UTC)
    recent = await auditor.get("/t/acme/calls?within=1h&outcome=completed")
    assert rows_in(recent) and 'aria-current="true">1 hour</a>' in recent.text and "Now 20" in recent.text
    assert re.search(r'<input type="hidden" name="within" value="1h">', recent.text)
    assert "within=24h" in recent.text and "outcome=completed" in recent.text
    soon = f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M}"
    assert rows_in(await auditor.get(f"/t/acme/calls?since={soon}&within=1h")) == 0
    between = await auditor.get(f"/t/acme/calls?since={now - timedelta(hours=1):%Y-%m-%dT%H:%M:%S}&until={soon}")
    assert rows_in(between) and f'type="datetime-local" value="{soon}"' in between.text
    assert rows_in(await auditor.get("/t/acme/calls?within=nonsense")) == rows_in(await auditor.get("/t/acme/calls"))
    packs = await auditor.get("/t/acme/packs?since=2026-01-01&until=2026-04-01")
    assert 'type="date" value="2026-01-01"' in packs.text and 'type="date" value="2026-04-01"' in packs.text


async def test_a_receipt_is_proven_in_the_page_and_downloaded(made, guest):
    auditor = guest("acme", "auditor")
    assert "The proof holds." in (await signed(auditor, "/t/acme/calls/0/proof")).text
    file = await auditor.get("/t/acme/calls/0/proof.json")
    assert file.headers["content-disposition"].startswith('attachment; filename="proof-acme-')
    assert file.json()["receipt"].startswith("acme/") and file.json()["note"].startswith(file.json()["origin"])


async def test_kept_content_is_read_by_who_may_with_a_reason_that_is_on_record_first(made, guest):
    made.control.activate_policy("globex", KEEPING)
    await made.taken_over()
    said = "the unmistakable text of globex"
    await made.post(chat(said), key="globex/main")
    seq = max(at for at, event in enumerate(made.events("globex")) if event["type"] == "inference.accepted")
    dpo, auditor = guest("globex", "dpo"), guest("globex", "auditor")
    page = f"/t/globex/calls/{seq}"
    assert said not in (await dpo.get(page)).text
    refused = await auditor.send(f"{page}/content", page, record=seq, reason="curious")
    assert refused.status_code == 403 and said not in refused.text
    wrong = await dpo.send(f"{page}/content", page, record=seq, reason="No Code")
    assert wrong.status_code == 422 and said not in wrong.text
    shown = await dpo.send(f"{page}/content", page, record=seq, reason="complaint_7")
    assert said in shown.text
    read = last(made, "content.accessed", "globex")
    assert (read["seq"], read["reason"]) == (seq, "complaint_7")


async def test_a_project_is_stopped_and_let_go_on(made, guest):
    dpo = guest("acme", "dpo")
    await dpo.send("/t/acme/oversight/stop", "/t/acme/oversight", what="project:main", reason="judgement")
    await made.taken_over()
    assert (await made.post(chat("hello"))).status == 403
    assert "main is stopped by human oversight" in (await dpo.get("/t/acme/duties")).text
    await dpo.send("/t/acme/oversight/resume", "/t/acme/oversight", what="project:main", reason="corrected")
    await made.taken_over()
    assert (await made.post(chat("hello"))).status == 200


async def test_a_person_is_answered_held_and_erased_with_a_certificate(made, guest):
    made.control.activate_policy("globex", KEEPING)
    await made.taken_over()
    subject = "ada-of-globex@example.org"
    await made.post(chat("remember me"), key="globex/main", headers={"x-domicile-subject": subject})
    dpo = guest("globex", "dpo")
    package = await dpo.send("/t/globex/rights/access", "/t/globex/rights", subject=subject)
    assert package.status_code == 200 and "remember me" in package.text
    unknown = await dpo.send("/t/globex/rights/access", "/t/globex/rights", subject="nobody@example.org")
    assert unknown.status_code == 422 and "nobody@example.org" not in unknown.text
    held = await dpo.send("/t/globex/rights/holds", "/t/globex/rights", subject=subject, reason="litigation")
    assert held.headers["location"].endswith("done=rights.held")
    stays = await dpo.send("/t/globex/rights/erase", "/t/globex/rights", subject=subject)
    assert stays.status_code == 409 and "legal hold" in stays.text
    hold = last(made, "legal_hold.placed", "globex")["hold_id"]
    await dpo.send(f"/t/globex/rights/holds/{hold}/release", "/t/globex/rights")
    erased = await dpo.send("/t/globex/rights/erase", "/t/globex/rights", subject=subject)
    assert erased.status_code == 200 and "Signed certificate" in erased.text
    assert last(made, "erasure.completed", "globex")["values"] > 0
    (certificate,) = set(re.findall(r'name="certificate" value="([^"]+)"', erased.text))
    file = await dpo.send("/t/globex/rights/certificate", "/t/globex/rights", certificate=certificate)
    assert file.headers["content-disposition"].startswith("attachment") and certificate in file.text
    assert "\n— domicile." in file.text  # the signature of a signed note
    theirs = await guest("acme", "dpo").send("/t/acme/rights/certificate", "/t/acme/rights", certificate=certificate)
    assert theirs.status_code == 404 and certificate not in theirs.text.replace(f'value="{certificate}"', "")
    again = await dpo.send("/t/globex/rights/access", "/t/globex/rights", subject=subject)
    assert again.status_code == 422
    assert not [each for each in made.events("globex") if subject in str(each)]


async def test_a_request_of_a_person_is_a_duty_until_an_act_on_record_answers_it(made, guest):
    made.control.activate_policy("globex", KEEPING)
    await made.taken_over()
    subject = "grace-of-globex@example.org"
    await made.post(chat("remember her"), key="globex/main", headers={"x-domicile-subject": subject})
    dpo, page = guest("globex", "dpo"), "/t/globex/rights"
    asked = {"right": "access", "subject": subject}
    early = await dpo.send(f"{page}/requests", page, received_at="2999-01-01T00:00", **asked)
    assert early.status_code == 422 and subject not in early.text
    received = await dpo.send(f"{page}/requests", page, received_at="", **asked)
    assert received.headers["location"].endswith("done=rights.received")
    matter = last(made, "dsar.received", "globex")["matter_id"]
    here = f"{page}/requests/{matter}"
    assert "to be answered: Access, GDPR 15" in (await dpo.get("/t/globex/duties")).text
    assert matter in (await dpo.get(page)).text
    assert (await dpo.send(f"{here}/extend", page, reason="complexity")).status_code == 303
    assert (await dpo.send(f"{here}/extend", page, reason="complexity")).status_code == 422
    bare = await dpo.send(f"{here}/close", page, outcome="answered", act_seq="")
    assert bare.status_code == 422 and matter in bare.text
    await dpo.send(f"{page}/access", page, subject=subject)
    (act,) = re.findall(r'<option value="(\d+)">\d+ · dsar.answered', (await dpo.get(page)).text)
    closed = await dpo.send(f"{here}/close", page, outcome="answered", act_seq=act)
    assert closed.headers["location"].endswith("done=rights.closed")
    assert last(made, "dsar.closed", "globex")["act_seq"] == int(act)
    assert "to be answered" not in (await dpo.get("/t/globex/duties")).text
    theirs = f"/t/acme/rights/requests/{matter}/close"
    other = await guest("acme", "dpo").send(theirs, "/t/acme/rights", outcome="withdrawn")
    assert other.status_code == 404
    assert not [each for each in made.events("globex") if subject in str(each)]


async def test_an_incident_has_its_clocks_and_is_closed(made, guest):
    dpo = guest("acme", "dpo")
    none = await dpo.send("/t/acme/incidents/open", "/t/acme/incidents")
    assert none.status_code == 422
    opened = await dpo.send("/t/acme/incidents/open", "/t/acme/incidents", **{"law-gdpr": "1", "severity": "risk"})
    assert opened.status_code == 303, opened.text
    incident = last(made, "incident.opened")["incident_id"]
    assert "gdpr.authority" in (await dpo.get("/t/acme/incidents")).text
    told = {"clock": "gdpr.authority", "authority": "CNIL"}
    await dpo.send(f"/t/acme/incidents/{incident}/notify", "/t/acme/incidents", **told)
    assert last(made, "incident.notified")["authority"] == "CNIL"
    await dpo.send(f"/t/acme/incidents/{incident}/close", "/t/acme/incidents", reason="resolved")
    assert last(made, "incident.closed")["incident_id"] == incident


async def test_of_an_incident_new_facts_start_its_clocks(made, guest):
    dpo = guest("acme", "dpo")
    await dpo.send("/t/acme/incidents/open", "/t/acme/incidents", **{"law-gdpr": "1", "law-dora": "1"})
    incident = last(made, "incident.opened")["incident_id"]
    update = f"/t/acme/incidents/{incident}/update"

    def state(page, clock):
        part = page[page.index(incident) :]
        return re.search(rf"<code>{re.escape(clock)}</code>.*?class=\"badge [a-z]*\">([^<]+)<", part, re.DOTALL)[1]

    page = await dpo.get("/t/acme/incidents")
    assert state(page.text, "gdpr.authority") == state(page.text, "dora.initial") == "Not running"
    bare = await dpo.send(update, "/t/acme/incidents")
    assert bare.status_code == 422 and "nothing is changed" in bare.text
    future = await dpo.send(update, "/t/acme/incidents", aware_at="2999-01-01T00:00")
    assert future.status_code == 422 and "in the future" in future.text
    other = await dpo.send(update, "/t/acme/incidents", severity="death")
    assert other.status_code == 422 and "use one of" in other.text
    facts = {"aware_at": "2026-01-10T09:00", "classified_at": "2026-01-10T10:00", "severity": "major"}
    done = await dpo.send(update, "/t/acme/incidents", **facts, **{"law-nis2": "1"})
    assert done.headers["location"].endswith("done=incident.updated")
    said = last(made, "incident.updated")
    assert (said["incident_id"], said["severity"], said["laws"]) == (incident, "major", ["nis2"])
    page = await dpo.get("/t/acme/incidents")
    assert state(page.text, "gdpr.authority") == state(page.text, "dora.initial") == "Overdue"
    wrong = await dpo.send(
        f"/t/acme/incidents/{incident}/notify", "/t/acme/incidents", clock="ai_act.serious", authority="A"
    )
    assert wrong.status_code == 422 and "is not a deadline of this incident" in wrong.text
    theirs = await guest("globex", "dpo").send(
        f"/t/globex/incidents/{incident}/update", "/t/globex/incidents", severity="major"
    )
    assert theirs.status_code == 404
    await dpo.send(f"/t/acme/incidents/{incident}/close", "/t/acme/incidents", reason="resolved", release="1")


async def test_the_record_verifies_and_is_proven_to_have_only_grown(made, guest):
    auditor = guest("acme", "auditor")
    verdict = await auditor.send("/t/acme/record/verify", "/t/acme/record")
    assert verdict.status_code == 200 and "The log holds." in verdict.text
    sizes = re.findall(r'<option value="(\d+)"', (await signed(auditor, "/t/acme/record")).text)
    old, new = min(sizes, key=int), max(sizes, key=int)
    page = await auditor.get(f"/t/acme/record/consistency?old={old}&new={new}")
    assert page.status_code == 200 and "The log only grew." in page.text
    assert (await auditor.get(f"/t/acme/record/consistency?old={int(new) + 1}&new={new}")).status_code == 422


async def test_the_record_is_proven_to_have_only_grown_between_two_dates(guest):
    auditor = guest("acme", "auditor")
    await signed(auditor, "/t/acme/record")
    proven = await signed(auditor, "/t/acme/record/consistency?since=2999&until=2999-01-01T00:00:00Z")
    assert "The log only grew." in proven.text
    for asked, said in (
        ("since=2000&until=2999", "no checkpoint was signed by then"),
        ("since=spring", "this is no moment"),
        ("since=2999&old=1", "both given"),
    ):
        page = await auditor.get(f"/t/acme/record/consistency?{asked}")
        assert page.status_code == 422 and said in page.text, asked


async def test_a_model_is_asked_under_the_projects_policy_and_the_key_does_not_stay(made, guest):
    developer = guest("acme", "developer")
    sent = {"project": "main", "model": "small", "prompt": "Is ada@example.org there?"}
    page = await developer.send("/t/acme/playground", **sent)
    assert page.status_code == 200 and "x-domicile" not in page.text and "eu-" in page.text, page.text
    assert "dom_live_" not in page.text
    assert re.search(r"<mark><span class=\"hidden\">Masked: email </span>&lt;EMAIL_1_\w+&gt;</mark> there\?", page.text)
    assert page.text.count("ada@example.org") >= 2  # in the form, and beside what the model saw
    assert last(made, "inference.accepted")["redaction"]["counts_by_type"] == {"email": 1}
    assert last(made, "admin.key.revoked")["target"] == last(made, "admin.key.created")["target"]
    sent["prompt"] = "use AKIAIOSFODNN7EXAMPLE"
    refused = await developer.send("/t/acme/playground", **sent)
    assert "data that its policy blocks" in refused.text and "Nothing left for the model" in refused.text
    sent["prompt"] = "what is [EMAIL]? <script>alert(1)</script>"
    typed = await developer.send("/t/acme/playground", **sent)
    assert "<mark>" not in typed.text and "<script>alert" not in typed.text and "Nothing was masked" in typed.text


async def test_a_conversation_goes_on_and_each_turn_has_its_receipt(made, guest):
    developer = guest("acme", "tenant-admin")
    sent = {"project": "main", "model": "small", "prompt": 'Ada\'s mail is ada@example.org & "<b>"'}
    first = await developer.send("/t/acme/playground", **sent)
    turns = unescape(re.search(r'name="turns" value="([^"]+)"', first.text)[1])
    (turn,) = json.loads(turns)
    assert turn["prompt"] == sent["prompt"] and turn["answer"] and turn["receipt"].startswith("acme/")
    second = await developer.send("/t/acme/playground", **sent | {"prompt": "and again?", "turns": turns})
    both = json.loads(unescape(re.search(r'name="turns" value="([^"]+)"', second.text)[1]))
    assert [each["prompt"] for each in both] == [sent["prompt"], "and again?"]
    assert both[0] == turn and both[1]["receipt"] != turn["receipt"] and both[1]["record"] != turn["record"]
    assert last(made, "inference.accepted")["redaction"]["counts_by_type"]["email"] >= 1, (
        "earlier turns are masked again"
    )
    assert second.text.count("<code>user</code>") == 2 and "<b>" not in second.text
    refused = await developer.send("/t/acme/playground", **sent | {"turns": json.dumps(both * 10)})
    assert refused.status_code == 422 and "at most 20 turns" in refused.text


async def test_limits_are_set_and_a_wrong_figure_is_named(made, guest):
    admin = guest("acme", "tenant-admin")
    page = "/t/acme/limits?project=research"
    wrong = await admin.send("/t/acme/limits/set?project=research", page, place="research", requests_per_minute="many")
    assert wrong.status_code == 422 and "requests_per_minute" in wrong.text
    answer = await admin.send("/t/acme/limits/set?project=research", page, place="research", requests_per_minute="60")
    assert answer.status_code == 303
    assert ">60<" in (await admin.get("/t/acme/limits")).text
    assert (await admin.send("/t/acme/limits/set", "/t/acme/limits", place="")).status_code == 403


async def test_people_are_added_and_their_roles_changed_only_from_the_state_that_was_shown(made, guest):
    admin = guest("acme", "tenant-admin")
    await admin.send("/t/acme/people/create", "/t/acme/people", display_name="Eve", **{"role-auditor": "1"})
    person = last(made, "admin.person.created")["target"]
    page = f"/t/acme/people/{person}"
    answer = await admin.send(f"{page}/roles", page, **{"role-dpo": "1", "state": "0" * 64})
    assert answer.status_code == 412
    state = re.search(r'name="state" value="([0-9a-f]{64})"', (await admin.get(page)).text)[1]
    assert (await admin.send(f"{page}/roles", page, **{"role-dpo": "1", "state": state})).status_code == 303
    none = await admin.send(f"{page}/roles", page, state="")
    assert none.status_code == 422
    await admin.send(f"{page}/revoke")
    assert last(made, "admin.person.revoked")["target"] == person


async def test_curves_of_a_tenant_have_its_calls_and_its_backends(made, guest):
    admin, auditor, theirs = guest("acme", "tenant-admin"), guest("acme", "billing"), guest("globex", "tenant-admin")
    await made.post(chat("hello"))
    note_looks(made.control._database, [Look("acme", "large-1", 3, 1, 0.62, 80.0, 420.0)], time())
    page = await shown(admin, "/t/acme/curves?period=1h", "kWh")
    charts = re.findall(r'<svg class="chart lines".*?</svg>', page, re.DOTALL)
    assert len(charts) == 8 and all("aria-label=" in each for each in charts)
    assert "Power of the cards, W, 1 hour. Drawn: last 420, highest 420." in page
    assert "last 420" not in (await theirs.get("/t/globex/curves")).text
    assert "<html" not in (await admin.http.get("/console/t/acme/curves", headers={"hx-request": "true"})).text
    lines = (await admin.get("/t/acme/curves.csv?period=24h")).text.splitlines()
    assert len(lines) == 145 and lines[0].startswith("begin,calls,completed,denied") and "backend_watts" in lines[0]
    assert sum(int(line.split(",")[1]) for line in lines[1:]) > 0
    assert "backend_watts" not in (await auditor.get("/t/acme/curves.csv")).text
    assert "Power of the cards" not in (await auditor.get("/t/acme/curves?period=nonsense")).text


async def test_usage_is_shown_and_downloaded(guest):
    billing = guest("acme", "billing")
    assert (await billing.get("/t/acme/usage?by=model&days=7")).status_code == 200
    file = await billing.get("/t/acme/usage.csv?by=project")
    assert file.headers["content-type"].startswith("text/csv") and file.text.startswith("tenant,project,")


async def in_pack_list(guest, wanted, tries=200):
    """The list of packs, once it reads `wanted`."""
    for _ in range(tries):
        page = await guest.get("/t/acme/packs/live")
        if wanted in page.text:
            return page.text
        await asyncio.sleep(0.05)
    raise AssertionError(page.text)


async def test_an_evidence_pack_is_made_verified_in_the_page_and_downloaded(made, guest):
    auditor = guest("acme", "auditor")
    asked = await auditor.send("/t/acme/packs/make", "/t/acme/packs", since="", until="", reason="yearly_audit")
    assert asked.headers["location"] == "/console/t/acme/packs?done=pack.asked"
    await in_pack_list(auditor, "yearly_audit")
    for _ in range(100):
        listed = (await auditor.get("/t/acme/packs")).text
        if "Being made" not in listed:
            break
        await asyncio.sleep(0.05)
    exported = last(made, "log.exported")
    assert exported["reason"] == "yearly_audit" and exported["actor"].startswith("key:")
    pack = re.search(r"/packs/([0-9a-f-]{36})/verify", listed)[1]
    verified = await auditor.send(f"/t/acme/packs/{pack}/verify", "/t/acme/packs")
    assert verified.status_code == 303
    assert "FAIL" not in await in_pack_list(auditor, "The pack holds.")
    file = await auditor.get(f"/t/acme/packs/{pack}/pack.zip")
    assert file.status_code == 200 and file.content[:4] == b"PK\x03\x04"
    assert sha256(file.content).hexdigest() in listed
    assert file.headers["content-disposition"] == f'attachment; filename="evidence-acme-{pack}.zip"'
    assert file.headers["content-security-policy"]
    read = last(made, "log.read")
    assert (read["reason"], read["first"]) == ("pack.downloaded", 0)


@pytest.mark.parametrize(
    ("sent", "said"),
    [({"reason": "No Code"}, "reason"), ({"reason": ""}, "reason"), ({"reason": "x", "since": "spring"}, "2026-03")],
)
async def test_a_pack_that_is_asked_for_wrongly_is_refused_with_the_reason(made, guest, sent, said):
    before = made.events("acme")
    page = await guest("acme", "dpo").send("/t/acme/packs/make", "/t/acme/packs", **sent)
    assert page.status_code == 422 and 'role="alert"' in page.text and said in page.text
    assert not [event for event in made.events("acme")[len(before) :] if event["type"] == "log.exported"]


@pytest.mark.parametrize("role", ["developer", "billing"])
async def test_who_may_not_read_the_record_gets_no_pack(made, guest, role):
    somebody = guest("acme", role)
    assert (await somebody.get("/t/acme/packs")).status_code == 403
    assert (await somebody.get(f"/t/acme/packs/{made.values['pack']}/pack.zip")).status_code == 403
    answer = await somebody.send("/t/acme/packs/make", "/account", reason="curious")
    assert answer.status_code == 403


async def test_open_duties_are_shown_to_who_may_act_and_go_when_they_are_done(made, guest):
    dpo, developer, operator = guest("acme", "dpo"), guest("acme", "developer"), guest(None, "operator")
    opened = {"law-gdpr": "1", "severity": "risk", "aware_at": "2026-01-05T08:00", "freeze": "1"}
    await dpo.send("/t/acme/incidents/open", "/t/acme/incidents", **opened)
    incident = last(made, "incident.opened")["incident_id"]
    seen = (await dpo.get("/t/acme/duties")).text
    assert "gdpr.authority" in seen and "Overdue" in seen and "A legal hold stands" in seen
    assert seen.index("Overdue") < seen.index("A legal hold stands")
    theirs = (await developer.get("/t/acme/duties")).text
    assert "gdpr.authority" not in theirs and "legal hold" not in theirs and "Weak settings" not in theirs
    assert "Weak settings in force" in (await operator.get("/t/acme/duties")).text
    assert (await operator.get("/weak")).text.count("<li><code>") >= 1
    assert (await dpo.get("/weak")).status_code == 403
    await dpo.send(
        f"/t/acme/incidents/{incident}/notify", "/t/acme/incidents", clock="gdpr.authority", authority="CNIL"
    )
    await dpo.send(f"/t/acme/incidents/{incident}/close", "/t/acme/incidents", reason="resolved", release="1")
    assert incident not in (await dpo.get("/t/acme/duties")).text
    assert "gdpr.authority" not in (await dpo.get("/t/acme/duties")).text


async def test_a_proposal_waits_for_another_person_and_then_for_its_activation(made, guest):
    maker, second = guest("acme", "tenant-admin"), guest("acme", "dpo")
    document = STRICTER.replace("version: 2", "version: 8")
    made_one = await maker.send("/t/acme/policies/propose", "/t/acme/policies/draft", document=document, project="")
    proposal = urlsplit(made_one.headers["location"]).path.removeprefix("/console")
    number = proposal.rpartition("/")[2]
    waits = f"Policy proposal {number} waits for"
    assert waits in (await second.get("/t/acme/duties")).text
    assert waits not in (await maker.get("/t/acme/duties")).text
    await second.send(f"{proposal}/approve", proposal)
    assert f"Policy proposal {number} is approved" in (await second.get("/t/acme/duties")).text
    await second.send(f"{proposal}/withdraw", proposal)
    assert f"Policy proposal {number} " not in (await second.get("/t/acme/duties")).text


async def test_calls_of_a_person_are_found_by_the_commitment_in_a_record_alone(made, guest):
    made.control.activate_policy("globex", KEEPING)
    await made.taken_over()
    person = {"user": "grace-of-globex@example.org"}
    await made.post(chat("hello") | person, key="globex/main")
    await made.post(chat("hello again"), key="globex/main")
    committed = last(made, "inference.completed", "globex")
    calls = [event for event in made.events("globex") if "subject" in event.get("commits", {})]
    commitment = calls[-1]["commits"]["subject"]
    auditor = guest("globex", "auditor")
    page = (await auditor.get(f"/t/globex/calls?subject={commitment}")).text
    assert page.count('<tr><th scope="row">') == 1 and committed
    assert (await auditor.get(f"/t/globex/calls?subject={'0' * 64}")).text.count('<tr><th scope="row">') == 0
    assert (await auditor.get("/t/globex/calls?subject=grace-of-globex@example.org")).status_code == 422


async def test_the_operators_policy_takes_a_second_person_too_and_no_tenants_people_see_it(made, guest):
    first, second, tenants = guest(None, "dpo"), guest(None, "operator"), guest("acme", "tenant-admin")
    answer = await first.send("/operator/policies/propose", "/operator/policies/draft", document=OPERATORS)
    proposal = urlsplit(answer.headers["location"]).path.removeprefix("/console")
    assert proposal.startswith("/operator/policies/proposals/")
    assert (await first.send(f"{proposal}/approve", proposal)).status_code == 409
    assert f"{proposal}" in (await second.get("/t/acme/duties")).text
    assert (await second.send(f"{proposal}/approve", proposal)).status_code == 303
    done = await second.send(f"{proposal}/activate", proposal)
    assert done.headers["location"].startswith(f"/console{proposal}") and "policy.activated" in done.headers["location"]
    assert "process_in: EEA" in (await second.get("/operator/policies")).text
    impact = await second.send("/operator/policies/simulate", "/operator/policies/draft", document=OPERATORS)
    assert impact.status_code == 200 and "acme" in impact.text
    for path in ("/operator/policies", proposal):
        assert (await tenants.get(path)).status_code == 403
    assert (await tenants.send(f"{proposal}/withdraw", "/account")).status_code == 403


async def test_cost_by_day_is_a_chart_a_table_and_csv(made, guest):
    billing = guest("acme", "billing")
    page = (await billing.get("/t/acme/usage/figures?days=7")).text
    assert "Cost on each of the last 7 days" in page and page.count("<title>20") >= 14
    operator = guest(None, "operator")
    assert "No cost in this period" in (await operator.get("/t/fresh/usage/figures?days=7")).text
    link = re.search(r'href="/console(/t/acme/usage\.csv\?by=day&amp;since=[0-9-]+)"', page)[1].replace("&amp;", "&")
    file = await billing.get(link)
    assert file.headers["content-type"].startswith("text/csv") and ",eur," in file.text.partition("\n")[0]


async def test_the_planner_says_what_could_run_and_the_page_how_busy_backends_are(made, guest):
    admin = guest("acme", "tenant-admin")
    page = await admin.send(
        "/t/acme/deployments/what-if", "/t/acme/deployments", weights="none.gguf", gpu="cpu", replicas="1"
    )
    assert page.status_code == 200 and "Could not run." in page.text and "none.gguf" in page.text
    wrong = await admin.send(
        "/t/acme/deployments/what-if", "/t/acme/deployments", weights="../x", gpu="cpu", replicas="many"
    )
    assert wrong.status_code == 422 and "replicas" in wrong.text
    missing = await admin.send("/t/acme/deployments/what-if", "/t/acme/deployments", weights="none", gpu="h100")
    assert missing.status_code == 422 and missing.text.count("there are no weights") == 2  # above, and where one looks
    await made.post(chat("hello"))
    assert re.search(r"[0-9.,]+ ms</td>", (await admin.get("/t/acme/deployments")).text)
    shown = guest("acme", "developer")
    assert "what-if" not in (await shown.get("/t/acme/deployments")).text
    answer = await shown.send(
        "/t/acme/deployments/what-if", "/t/acme/deployments", weights="m", gpu="cpu", replicas="1"
    )
    assert answer.status_code == 403


async def shown(guest, path, text, tries=100):
    """The page, once it reads `text`."""
    for _ in range(tries):
        page = (await guest.get(path)).text
        if text in page:
            return page
        await asyncio.sleep(0.1)
    raise AssertionError(page)


async def test_what_runs_is_shown_with_its_role_its_speed_and_its_card(made, guest):
    auditor = guest("acme", "tenant-admin")
    page = await shown(auditor, "/t/acme/deployments/live", "420 <small>W</small>")
    assert "<html" not in page and "Prompts" in page and "Answers" in page
    page = await shown(auditor, "/t/acme/deployments", "87 %")
    assert "ask for 4xh100" in page and "Why it did not start" in page
    (rate,) = set(
        re.findall(r"(\d+) <small>tokens/s</small>", await shown(auditor, "/t/acme/deployments/live", "tokens/s"))
    )
    assert int(rate) > 0


async def test_a_deployment_is_put_to_sleep_after_a_fresh_sign_in_and_woken_without(made, guest):
    admin, developer = guest("acme", "tenant-admin"), guest("acme", "developer")
    old = Guest(
        made,
        made.control.open_session(
            "acme",
            made.people["acme", "tenant-admin"],
            life=timedelta(hours=1),
            authenticated_at=datetime.now(UTC) - timedelta(hours=1),
        )[1].token,
    )
    await shown(admin, "/t/acme/deployments", "1 Ready")
    slept = await admin.send("/t/acme/deployments/large/sleep", "/t/acme/deployments")
    assert slept.headers["location"].endswith("done=deployment.put_to_sleep")
    assert last(made, "admin.deployment.put_to_sleep")["target"] == "large"
    page = await shown(admin, "/t/acme/deployments", "None of it runs.")
    assert "Put to sleep</span>" in page
    woken = await admin.send("/t/acme/deployments/large/wake", "/t/acme/deployments")
    assert woken.headers["location"].endswith("done=deployment.woken")
    assert last(made, "admin.deployment.woken")["target"] == "large"
    stale = await old.send("/t/acme/deployments/large/sleep", "/t/acme/deployments")
    await old.http.aclose()
    assert stale.status_code in (303, 403) and "put_to_sleep" not in stale.headers.get("location", "")
    refused = await developer.send("/t/acme/deployments/large/sleep", "/t/acme/deployments")
    assert refused.status_code == 403


async def test_the_planner_says_how_fast_a_card_would_be_and_what_a_million_tokens_cost(made, guest):
    folder = made.data / "models" / "seven"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    }))  # fmt: skip
    admin, page = guest("acme", "tenant-admin"), "/t/acme/deployments"
    asked = {"weights": "seven", "gpu": "h100", "count": "2", "replicas": "1", "quantization": "fp8",
             "context": "4096", "concurrency": "8", "eur_per_hour": "5,00"}  # fmt: skip
    planned = await admin.send(f"{page}/what-if", page, **asked)
    assert planned.status_code == 200 and "2 × NVIDIA H100" in planned.text
    assert "calls of 4,096 tokens" in planned.text and re.search(r"at this speed</dt><dd>[\d.]+ €", planned.text)
    assert "use no GPU" in planned.text  # this machine has none, whatever the planner predicts
    small = await admin.send(f"{page}/what-if", page, **asked | {"gpu": "l4", "count": "1", "quantization": "none"})
    assert small.status_code == 200
    long = await admin.send(f"{page}/what-if", page, **asked | {"context": "9999"})
    assert long.status_code == 422 and "is beyond the model" in long.text
