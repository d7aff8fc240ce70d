"""What a draft would change, from what is on record; the life of a policy from a shell."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.database.errors import Invalid, NotFound
from gateway.installation.installation import Installation
from gateway.policies.study import Draft
from policy.errors import LooseningError, PolicyDocumentError
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat, lab, open_control

GERMANY = "policy: germany\nversion: 2\nresidency: {process_in: [DE], store_in: [DE]}\n"
US = (
    "policy: us\nversion: 1\nresidency: {process_in: EEA+adequate, store_in: EEA+adequate, "
    "transfer_basis: [intra_eea, adequacy]}\n"
)


@pytest.fixture
def installed(tmp_path):
    data = tmp_path / "data"
    control = open_control(data)
    control.create_tenant("acme")
    control.activate_policy("acme", POLICY)
    control.create_project("acme", "main", purpose="customer support", legal_basis="contract", risk_class="limited")
    for region, name in (("eu-fr-par", "acme-1"), ("us-east", "acme-us")):
        control.register_backend(
            BackendIdentity("eu-1", "acme", region, name), url="http://127.0.0.1:1", models=["small"]
        )
    return control, Installation.open(data), data


@pytest.fixture
def room(installed):
    _, installation, _ = installed
    database = installation.database()
    yield installation.policy_study(database)
    database.close()


def run(data, *arguments, **env):
    return CliRunner().invoke(app, ["policy", *map(str, arguments), "--data", str(data)], env=env)


async def test_recorded_calls_are_replayed_against_a_draft(tmp_path):
    places = {"acme/eu-fr-par/acme-1": FakeBackend(), "acme/us-east/acme-us": FakeBackend()}
    async with lab(tmp_path, backends=places) as made:
        for n in range(3):
            assert (await made.post(chat(f"question {n}"))).status == 200
    installation = Installation.open(tmp_path / "data")
    database = installation.database()
    room = installation.policy_study(database)
    (found,) = room.simulate(Draft(GERMANY, "acme"))
    assert (found.tenant, found.impact.calls, found.impact.refused) == ("acme", 3, 3)
    (group,) = found.impact.groups
    assert (group.project, group.rule) == ("main", "residency.process_in")
    (later,) = room.simulate(Draft(GERMANY, "acme"), datetime.now(UTC) + timedelta(hours=1))
    assert later.impact.calls == 0
    assert [one.impact.calls for one in room.simulate(room.without_dpf(None))] == [3]
    database.close()
    shown = run(tmp_path / "data", "simulate", "acme", "--no-dpf-accepted")
    assert shown.output == "acme: 3 recorded calls, 3 stay as they are\n"


def test_a_decision_is_explained_with_the_lines_of_the_documents(room):
    explained = room.explain("acme", "main", "small")
    assert explained.decision.backends == ("acme-1",)
    assert [source.name for source in explained.sources] == ["acme"]
    assert not room.explain("acme", "main", "small", Draft(GERMANY, "acme")).decision.allowed
    with pytest.raises(NotFound):
        room.explain("acme", "nope", "small")


def test_a_draft_is_checked_with_what_is_above_it(room):
    assert room.check(Draft(GERMANY, "acme")) == ([], ())
    assert room.check(Draft("policy: p\nversion: 1\nresidency: {process_in: [US]}\n", "acme", "main"))[0] == [
        "residency.process_in: US reaches beyond the tenant's EEA: US (line 3)"
        "; tighten residency.process_in, or leave it out"
    ]
    assert room.check(Draft("policy: p\nversion: x\n", "acme"))[0][0].startswith("line 2: version")
    failing = GERMANY + "tests: [{name: FR is fine, given: {compute_country: FR}, expect: allow}]\n"
    assert room.check(Draft(failing, "acme"))[0][0].startswith("FAIL  FR is fine")


def test_a_draft_that_cannot_be_compiled_is_not_simulated(room):
    with pytest.raises(PolicyDocumentError):
        room.differences(Draft("policy: p\nversion: x\n", "acme"))
    with pytest.raises(LooseningError):
        room.differences(Draft("policy: p\nversion: 1\nresidency: {process_in: [US]}\n", "acme", "main"))
    with pytest.raises(NotFound):
        room.without_dpf("nope")


def test_without_a_policy_there_is_nothing_to_compare_with(installed, room):
    control, _, _ = installed
    control.create_tenant("globex")
    with pytest.raises(Invalid, match="no active policy"):
        room.without_dpf("globex")
    with pytest.raises(Invalid, match="no active policy"):
        room.differences(Draft("policy: p\nversion: 1\n", "globex", "p"))


def test_two_people_bring_a_policy_into_force_from_a_shell(installed, tmp_path):
    control, _, data = installed
    tokens = []
    for name in ("Ada", "Bob"):
        person = control.create_person("acme", name, ["dpo"])
        tokens.append(
            control.create_token("acme", person.id, expires_at=datetime.now(UTC) + timedelta(days=1))[1].token
        )
    file = tmp_path / "germany.yaml"
    file.write_text(GERMANY)
    ada, bob = ({"DOMICILE_TOKEN": token} for token in tokens)
    nobody = run(data, "submit", "acme", file)
    assert nobody.exit_code == 1 and "no access token is given" in nobody.stderr
    assert "proposal 1 of acme waits for a second person" in run(data, "submit", "acme", file, **ada).output
    own = run(data, "approve", "acme", 1, **ada)
    assert own.exit_code == 1 and "a second person approves it" in own.stderr
    early = run(data, "activate", "acme", "--proposal", 1, **ada)
    assert early.exit_code == 1 and "not approved yet" in early.stderr
    assert run(data, "approve", "acme", 1, **bob).exit_code == 0
    assert "residency.process_in: EEA -> DE" in run(data, "diff", "acme", file).output
    assert "version 2 is in force" in run(data, "activate", "acme", "--proposal", 1, **ada).output
    refused = run(data, "explain", "acme", "main", "--model", "small")
    assert refused.exit_code == 1 and "--> acme:3" in refused.output
    history = json.loads(run(data, "history", "acme", "--json").output)
    assert [one["active"] for one in history["versions"]] == [False, True]
    assert history["proposals"][0]["state"] == "active"
    assert "version 3 is in force" in run(data, "rollback", "acme", **bob).output
    assert "no rule changes" not in run(data, "diff", "acme", file).output


def test_an_invalid_document_never_displaces_the_one_in_force(installed, tmp_path):
    _, _, data = installed
    file = tmp_path / "bad.yaml"
    for text in (GERMANY.replace("[DE]", "[UK]", 1), "a: &a [*a]\n", "x" * (1 << 20), GERMANY + "policy: twice\n", ""):
        file.write_text(text)
        refused = run(data, "activate", "acme", file)
        assert refused.exit_code == 1 and refused.stderr.startswith("error: the policy of tenant 'acme'")
    assert json.loads(run(data, "history", "acme", "--json").output)["versions"][0]["active"]


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(("activate", "acme"), 2), (("simulate", "acme"), 2), (("simulate", "acme", "--dpf-accepted"), 2),
     (("diff", "acme", "/none"), 1), (("activate", "acme", "/none"), 1),
     (("explain", "acme", "nope", "--model", "m"), 1), (("history", "nope"), 1),
     (("approve", "acme", "1", "--token", "dom_admin_x"), 1)],
)  # fmt: skip
def test_what_cannot_be_done_is_a_sentence(installed, arguments, status):
    refused = run(installed[2], *arguments)
    assert refused.exit_code == status
    assert refused.stderr.startswith("error: ") and "Traceback" not in refused.output


def test_the_operators_policy_is_for_the_staff(installed, tmp_path):
    control, _, data = installed
    person = control.create_person("acme", "Ada", ["tenant-admin"])
    token = control.create_token("acme", person.id, expires_at=datetime.now(UTC) + timedelta(days=1))[1].token
    file = tmp_path / "ceiling.yaml"
    file.write_text("policy: ceiling\nversion: 1\nresidency: {dpf_accepted: false}\n")
    refused = run(data, "submit", "operator", file, DOMICILE_TOKEN=token)
    assert refused.exit_code == 1 and "do not reach the installation" in refused.stderr
    assert run(data, "activate", "operator", file).exit_code == 0
    explained = json.loads(run(data, "explain", "acme", "main", "--model", "small", "--json").output)
    assert explained["policy"]["id"] == "ceiling+test-default"
