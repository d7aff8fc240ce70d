"""The operator's policy, backends and places over the API: the same as from a shell, and no more than the roles say."""

import json

import pytest

from gateway.database.errors import NotReady
from tests.gateway.admin.conftest import DOCUMENT

OPERATOR = "policy: house\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n"
GERMAN = "policy: house\nversion: 2\nresidency: {process_in: [DE], store_in: EEA}\n"
LOOSE = "policy: acme\nversion: 2\nresidency: {process_in: [DE, US], store_in: EEA}\n"
PINNED = {"id": "acme-tgi", "region": "eu-fr-par", "url": "https://10.0.0.9:8000", "models": ["small"], "pin": "2" * 64}


@pytest.fixture
def people(login, acme):
    acme.activate_policy("acme", DOCUMENT)
    return {"ada": login(None, "dpo"), "bob": login(None, "dpo")}


def post(client, path, headers, body=None):
    return client.post(path, headers=headers, json=body or {})


def test_the_operators_policy_is_proposed_approved_by_a_second_person_put_in_force_and_rolled_back(
    client, people, events, inventory
):
    ada, bob = people["ada"], people["bob"]
    for document in (OPERATOR, OPERATOR.replace("version: 1", "version: 2")):
        made = post(client, "/operator/policy-proposals", ada, {"document": document})
        assert (made.status_code, made.json()["tenant"]) == (201, None)
        path = f"/operator/policy-proposals/{made.json()['number']}"
        assert post(client, f"{path}/activate", ada).status_code == 409
        assert "second person" in post(client, f"{path}/approve", ada).json()["detail"]
        assert post(client, f"{path}/approve", bob).status_code == 200
        active = post(client, f"{path}/activate", ada, {})
        assert active.status_code == 200 and active.json()["version"]
    back = post(client, "/operator/policies/rollback", bob)
    assert (back.status_code, back.json()["document"]) == (201, OPERATOR)
    versions = client.get("/operator/policies", headers=ada).json()["items"]
    assert [(one["number"], one["active"]) for one in versions] == [(1, False), (2, False), (3, True)]
    assert [one.sha256 for one in inventory.policies(None)] == [one["sha256"] for one in versions]
    told = [event.action for event in events if event.target == "operator"]
    assert told == 2 * ["policy.submitted", "policy.approved", "policy.activated"] + ["policy.activated"]


def test_a_draft_of_the_operators_is_checked_compared_and_tried_on_every_tenant(client, people, acme):
    ada = people["ada"]
    checked = post(client, "/operator/policies/check", ada, {"document": "policy: x\nversion: 0\n"}).json()
    assert not checked["ok"] and any("line 2" in problem for problem in checked["problems"])
    acme.activate_policy(None, OPERATOR)
    changed = post(client, "/operator/policies/diff", ada, {"document": GERMAN}).json()
    assert "residency.process_in" in {one["rule"] for one in changed}
    found = post(client, "/operator/policies/simulate", ada, {"document": GERMAN}).json()
    assert [one["tenant"] for one in found["tenants"]] == ["acme"]
    assert found["differences"] == changed
    refused = post(client, "/operator/policy-proposals", ada, {"document": GERMAN})
    assert refused.status_code == 422 and "tenant 'acme' under the operator's policy" in refused.json()["detail"]


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-00:01"])
def test_a_time_that_there_is_in_no_utc_is_refused_and_nothing_fails(client, people, acme, since):
    refused = post(client, "/tenants/acme/policies/simulate", people["ada"], {"document": GERMAN, "since": since})
    assert refused.status_code == 422 and "UTC" in refused.json()["errors"]["body.since"]


@pytest.mark.parametrize("at", ["9999-12-31", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_test_of_a_policy_at_the_end_of_the_calendar_is_a_problem_and_no_failure(client, people, acme, at):
    hours = GERMAN + "hours: {days: [mon], from: '07:00', until: '19:00', zone: Asia/Tokyo}\n"
    document = hours + f"tests: [{{name: t, given: {{at: {at!r}}}, expect: allow}}]\n"
    checked = post(client, "/tenants/acme/policies/check", people["ada"], {"document": document})
    assert checked.status_code == 200 and any("year" in problem for problem in checked.json()["problems"])


def test_the_operators_policy_bounds_a_tenants_and_is_none_of_its_peoples_business(client, people, acme, login):
    acme.activate_policy(None, OPERATOR)
    admin = login("acme", "tenant-admin")
    assert client.get("/operator/policies", headers=admin).status_code == 403
    loosening = post(client, "/tenants/acme/policies/check", admin, {"document": LOOSE}).json()
    assert not loosening["ok"] and "residency.process_in" in loosening["problems"][0]


def test_a_check_runs_the_tests_that_a_document_carries(client, people):
    tests = (
        "tests:\n"
        "  - {name: US is refused, given: {compute_country: US}, expect: deny, rule: residency.process_in}\n"
        "  - {name: FR is refused, given: {compute_country: FR}, expect: deny}\n"
    )
    said = post(client, "/tenants/acme/policies/check", people["ada"], {"document": DOCUMENT + tests}).json()
    assert [(one["name"], one["passed"]) for one in said["tests"]] == [
        ("US is refused", True),
        ("FR is refused", False),
    ]
    assert "residency.process_in" in said["tests"][0]["reasons"][0]
    assert not said["ok"] and said["problems"][0].startswith("FAIL  FR is refused")


def test_a_server_is_registered_shown_repriced_and_revoked(client, operator, events):
    made = post(client, "/tenants/acme/backends", operator, {**PINNED, "eur_per_million": "0.40"})
    assert made.status_code == 201, made.text
    assert (made.json()["kind"], made.json()["cost"], made.json()["trust"]["pin"]) == ("openai", 400_000, "2" * 64)
    shown = client.get("/tenants/acme/backends/acme-tgi", headers=operator)
    assert shown.json() == made.json() and shown.headers["etag"] == made.headers["etag"]
    kept = post(client, "/tenants/acme/backends", operator, PINNED).json()
    assert kept["cost"] == 400_000
    stale = client.post(
        "/tenants/acme/backends/acme-tgi/revoke", headers={**operator, "if-match": '"other"'}, json=None
    )
    assert stale.status_code == 412
    assert post(client, "/tenants/acme/backends/acme-tgi/revoke", operator).json()["revoked_at"]
    assert [e.action for e in events][-3:] == ["backend.registered", "backend.registered", "backend.revoked"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pin": None}, "private CA or a pinned certificate"),
        ({"region": "eu-nowhere"}, "there is no region 'eu-nowhere'"),
        ({"url": "http://127.0.0.1:8000"}, "https"),
        ({"url": "https://user:secret@10.0.0.9"}, "no URL of a server"),
        ({"url": "https://10.0.0.9:8000/?to=x"}, "no URL of a server"),
        ({"url": "https://"}, "no URL of a server"),
        ({"url": "https://10.0.0.9:99999"}, "no URL of a server"),
        ({"ca": "no certificate"}, "ca holds no certificate"),
        ({"plain": True, "priority": True}, "does not take priority"),
        ({"key": "theirs"}, "no file acme/theirs"),
        ({"key": "../signer"}, "the request does not match the OpenAPI document"),
        ({"models": []}, "the request does not match the OpenAPI document"),
        ({"key_file": "/etc/shadow"}, "the request does not match the OpenAPI document"),
        ({"kind": "domicile"}, "the request does not match the OpenAPI document"),
    ],
)
def test_what_is_no_server_of_a_tenants_is_refused(client, operator, change, said):
    answer = post(client, "/tenants/acme/backends", operator, {**PINNED, **change})
    assert answer.status_code == 422 and said in answer.json()["detail"]


def test_a_key_for_a_server_is_named_in_a_folder_of_the_tenants_and_read_from_nowhere_else(client, operator, tmp_path):
    folder = tmp_path / "backends" / "acme"
    folder.mkdir(parents=True)
    (folder / "theirs").write_text("sk-theirs")
    (folder / "theirs").chmod(0o644)
    assert "run chmod 600 on it" in post(client, "/tenants/acme/backends", operator, {**PINNED, "key": "theirs"}).text
    (folder / "theirs").chmod(0o600)
    made = post(client, "/tenants/acme/backends", operator, {**PINNED, "key": "theirs"})
    assert made.json()["trust"]["key_file"] == str(folder / "theirs") and "sk-theirs" not in made.text


def test_who_administers_a_tenant_cannot_say_where_its_prompts_go(client, acme, login):
    refused = post(client, "/tenants/acme/backends", login("acme", "tenant-admin"), PINNED)
    assert refused.status_code == 403


def test_places_are_listed_shown_and_judged_by_the_policy_in_force_or_a_draft(client, people, login):
    ada, own = people["ada"], login("acme", "developer")
    listed = client.get("/regions", headers=own).json()
    assert {"eu-fr-par", "us-east"} <= {one["region"] for one in listed["regions"]}
    assert client.get("/regions", params={"on": "1999-01-01"}, headers=own).json()["regions"] == []
    shown = client.get("/regions/us-east", headers=own).json()["facts"]
    assert (shown["compute_country"], bool(shown["source"])) == ("US", True)
    assert client.get("/regions/eu-nowhere", headers=own).status_code == 404
    judged = post(client, "/tenants/acme/regions/check", ada, {"regions": ["eu-fr-par", "us-east"]}).json()
    assert [(one["region"], one["allowed"]) for one in judged["verdicts"]] == [("eu-fr-par", True), ("us-east", False)]
    assert "residency.process_in" in json.dumps(judged)
    draft = {"document": GERMAN, "regions": ["eu-fr-par"]}
    assert not post(client, "/tenants/acme/regions/check", ada, draft).json()["verdicts"][0]["allowed"]
    unknown = post(client, "/tenants/acme/regions/check", ada, {"regions": ["eu-nowhere"]})
    assert unknown.status_code == 422 and "there is no region" in unknown.json()["detail"]


def test_what_is_approved_still_fails_where_a_tenants_policy_has_changed_meanwhile(client, people, acme):
    """An invalid new version never displaces the active one, the operator's neither."""
    ada, bob = people["ada"], people["bob"]
    acme.activate_policy("acme", "policy: acme\nversion: 2\nresidency: {process_in: [DE], store_in: [DE]}\n")
    number = post(client, "/operator/policy-proposals", ada, {"document": GERMAN}).json()["number"]
    assert post(client, f"/operator/policy-proposals/{number}/approve", bob).status_code == 200
    acme.activate_policy("acme", DOCUMENT)
    late = post(client, f"/operator/policy-proposals/{number}/activate", ada)
    assert late.status_code == 422
    with pytest.raises(NotReady):
        acme.roll_back_policy(None)
