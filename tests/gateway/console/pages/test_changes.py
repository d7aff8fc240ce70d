"""Who changed what: by person, kind and time, with its proof, and nobody else's."""

import asyncio
import csv
import json
import re

import pytest

from tests.gateway.console.scene import token_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


def rows(page):
    return re.findall(r"<tr><th scope=.row.*?</tr>", page.text, re.DOTALL)


async def test_what_a_person_changes_is_listed_with_name_object_and_link(made, guest):
    admin, auditor = guest("acme", "tenant-admin"), guest("acme", "auditor")
    answer = await admin.send("/t/acme/keys/create", "/t/acme/keys", project="main", label="listed")
    key = re.search(r"dom_live_(\w{8})_", answer.text)[1]
    await admin.send("/t/acme/oversight/stop", "/t/acme/oversight", what="project:research", reason="operator_decision")
    await admin.send(
        "/t/acme/oversight/resume", "/t/acme/oversight", what="project:research", reason="operator_decision"
    )
    newest, stop, create = rows(page := await auditor.get("/t/acme/changes"))[:3]
    assert "resumed" in newest and "stopped" in stop and "operator_decision" in stop
    assert key in create and 'href="/console/t/acme/keys?project=main"' in create
    who = made.people["acme", "tenant-admin"]
    assert all("tenant-admin &lt;img" in row and who in row for row in (newest, stop, create))
    assert answer.text not in page.text and "dom_live_" not in page.text


async def test_the_list_is_filtered_by_person_kind_and_time(made, guest):
    auditor, dpo = guest("acme", "auditor"), made.people["acme", "dpo"]
    await guest("acme", "dpo").send("/t/acme/rights/holds", "/t/acme/rights", first="0", last="1", reason="filtered")
    mine = rows(await auditor.get(f"/t/acme/changes?who={dpo}"))
    assert len(mine) == 1 and "filtered" in mine[0] and "placed" in mine[0]
    assert rows(await auditor.get(f"/t/acme/changes?who={dpo}&kind=keys")) == []
    assert len(rows(await auditor.get(f"/t/acme/changes?who={dpo}&kind=rights&within=1h"))) == 1
    assert rows(await auditor.get(f"/t/acme/changes?who={dpo}&until=2020-01-01T00:00")) == []
    assert rows(await auditor.get(f"/t/acme/changes?who={dpo}&since=2999-01-01T00:00")) == []
    assert 'value="2999-01-01T00:00"' in (await auditor.get("/t/acme/changes?since=2999-01-01T00:00")).text
    nobody = await auditor.get("/t/acme/changes?who=nobodyxx")
    assert rows(nobody) == [] and "Reset" in nobody.text
    wrong = await auditor.get("/t/acme/changes?since=yesterday")
    assert wrong.status_code == 422 and 'role="alert"' in wrong.text
    assert (await auditor.get("/t/acme/changes?kind=nonsense")).status_code == 422


async def test_that_somebody_looked_is_on_record(made, guest):
    size = len(made.events("acme"))
    await guest("acme", "auditor").get("/t/acme/changes")
    read = made.events("acme")[size:]
    assert [event["type"] for event in read] == ["log.read"] and read[0]["end"] == size


async def test_a_change_is_proven_in_the_page_and_downloaded(made, guest):
    auditor = guest("acme", "auditor")
    path = f"/t/acme/changes/{made.values['change']}"
    assert "admin.person.created" in (await auditor.get(path)).text
    for _ in range(100):
        proven = await auditor.get(f"{path}/proof")
        if proven.status_code == 200:
            break
        assert proven.status_code == 422 and 'role="alert"' in proven.text
        await asyncio.sleep(0.1)
    assert "The proof holds." in proven.text
    proof = json.loads((await auditor.get(f"{path}/proof.json")).text)
    assert proof["receipt"].startswith(f"acme/{made.values['change']}/")


async def test_a_record_that_is_no_change_has_no_page(guest):
    auditor = guest("acme", "auditor")
    for number in ("0", "99999", "x", "-1"):
        assert (await auditor.get(f"/t/acme/changes/{number}")).status_code == 404, number
        assert (await auditor.get(f"/t/acme/changes/{number}/proof")).status_code == 404, number


async def test_the_file_has_what_the_list_has_and_no_formula(made, guest):
    admin, auditor = guest("acme", "tenant-admin"), guest("acme", "auditor")
    await admin.send("/t/acme/people/create", "/t/acme/people", display_name="=1+1", **{"role-dpo": "1"})
    found = await auditor.get("/t/acme/changes.csv?kind=people")
    assert found.headers["content-type"].startswith("text/csv")
    lines = list(csv.DictReader(found.text.splitlines()))
    assert {line["type"].split(".")[1] for line in lines} <= {"person", "token"}
    assert lines[0]["person"] == made.people["acme", "tenant-admin"]
    assert not [value for line in lines for value in line.values() if value.startswith(("=", "+", "@"))]


async def test_changes_of_the_installation_are_its_staffs(made, guest):
    operator = guest(None, "operator")
    staff = rows(await operator.get("/operator/changes?kind=people"))
    assert staff and "Staff operator" in staff[0]
    assert (await guest(None, "dpo").get("/operator/changes")).status_code == 403
    assert (await guest("acme", "auditor").get("/operator/changes")).status_code in (403, 404)


async def test_a_tenant_is_not_told_the_names_of_the_operators_staff(made, guest):
    shown = (await guest("acme", "auditor").get(f"/t/acme/changes/{made.values['change']}")).text
    assert "Operator’s staff" in shown and "Staff operator" not in shown
    assert "Staff operator" in (await guest(None, "auditor").get(f"/t/acme/changes/{made.values['change']}")).text


async def test_sign_ins_are_listed_only_where_they_are_asked_for(made, guest):
    somebody = guest()
    await somebody.http.post(
        "/console/sign-in", data={"token": token_of(made, "acme", "billing")}, headers={"origin": made.base}
    )
    auditor = guest("acme", "auditor")
    signed = [row for row in rows(await auditor.get("/t/acme/changes?kind=sessions")) if "opened" in row]
    assert signed and made.people["acme", "billing"] in signed[0]
    assert not [row for row in rows(await auditor.get("/t/acme/changes")) if "Session" in row]
