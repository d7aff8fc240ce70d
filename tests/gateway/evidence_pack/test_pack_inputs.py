"""From a gateway that served calls to a pack that proves itself and is filled from its registers."""

import csv
import io
import json
import subprocess
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest

from audit.errors import AuditError
from gateway.evidence_pack.pack_inputs import gather
from gateway.installation.installation import Installation
from regions.identity.identity import BackendIdentity
from regions.identity.trust import Trust
from tests.fakes.lab import chat, lab


async def test_the_registers_of_the_gateway_fill_an_evidence_pack(tmp_path):
    async with lab(tmp_path) as made:
        assert (await made.post(chat("hi"))).status == 200
    known = gather(tmp_path / "data", "acme")
    assert [backend.compute_country for backend in known.backends] == ["FR"]
    assert {operator.id for operator in known.operators} == {backend.operator for backend in known.backends}
    assert all(policy.text and policy.activated_by for policy in known.policies)
    assert known.policies and known.activities and known.controller.name


def test_without_an_installation_or_a_tenant_there_is_nothing_to_say(tmp_path):
    assert gather(tmp_path / "none", "acme").activities == ()
    assert not (tmp_path / "none").exists()


async def test_a_tenant_of_the_log_alone_has_empty_registers(tmp_path):
    async with lab(tmp_path):
        pass
    assert gather(tmp_path / "data", "_system").policies == ()
    (tmp_path / "data" / "catalogue.yaml").write_text("nonsense")
    with pytest.raises(AuditError, match="registers cannot be read"):
        gather(tmp_path / "data", "acme")


async def test_the_command_exports_a_pack_with_the_registers_in_it(tmp_path):
    async with lab(tmp_path) as made:
        await made.post(chat("hi"))
    pack, data = tmp_path / "pack.zip", tmp_path / "data"
    words = ["audit", "export", "acme", "--data", data, "--output", pack]
    done = subprocess.run([sys.executable, "-m", "gateway", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(pack) as archive:
        ropa = list(csv.DictReader(io.StringIO(archive.read("ropa_controller.csv").decode("utf-8-sig"))))
        policies = json.loads(archive.read("policy_history.json"))
    assert ropa[0]["legal_basis"]
    assert "residency" in policies[0]["text"]


REGISTERED = """
subprocessor_registers:
  - id: {operator}
    version: "1"
    announced: 2025-11-15
    objection_until: 2025-12-15
    subprocessors: [{{name: First Support LLC, country: US, does: incident support}}]
    valid_from: 2026-01-01
    valid_to: 2026-06-30
    source: example
  - id: {operator}
    version: "2"
    subprocessors: [{{name: Second Support SE, country: FR}}]
    valid_from: 2026-07-01
    source: example
"""


async def test_the_registers_of_sub_processors_are_in_the_pack_with_each_version(tmp_path):
    async with lab(tmp_path):
        pass
    data = tmp_path / "data"
    operator = gather(data, "acme").operators[0].id
    text = files("regions.catalogue").joinpath("catalogue.yaml").read_text()
    kept = text[: text.index("# Lists of sub-processors")] + text[text.index("# Certificates and") :]
    (data / "catalogue.yaml").write_text(kept + REGISTERED.format(operator=operator))
    found = [(one.name, one.register_version, one.valid_from) for one in gather(data, "acme").subprocessors]
    assert found == [("First Support LLC", "1", "2026-01-01"), ("Second Support SE", "2", "2026-07-01")]
    (data / "catalogue.yaml").write_text(kept)
    assert gather(data, "acme").subprocessors == ()
    unread = kept.replace(f"  - id: {operator}\n", f"  - id: {operator}\n    subprocessors: unknown\n", 1)
    (data / "catalogue.yaml").write_text(unread)
    assert [one.name for one in gather(data, "acme").subprocessors] == ["unknown (the list was not read)"]
    (data / "catalogue.yaml").write_text(unread + REGISTERED.format(operator=operator))
    assert [one.register_version for one in gather(data, "acme").subprocessors] == ["1", "2"], "a register says more"


async def test_names_and_contacts_come_from_the_file_of_registers_beside_the_database(tmp_path):
    async with lab(tmp_path):
        pass
    data = tmp_path / "data"
    project = gather(data, "acme").activities[0].id
    before = gather(data, "acme")
    assert before.controller.contact == before.processor.name == ""
    details = {"subject_categories": ["customers"], "source": "the person"}
    told = {"controller": {"contact": "privacy@acme.example"}, "activities": {project: details}}
    (data / "registers.json").write_text(json.dumps({"processor": {"name": "P"}, "tenants": {"acme": told}}))
    after = gather(data, "acme")
    assert (after.processor.name, after.controller.contact) == ("P", "privacy@acme.example")
    assert after.controller.name == before.controller.name != ""
    assert after.activities[0].subject_categories == ("customers",)


async def test_the_terms_of_a_policy_follow_its_text_and_every_activity_has_those_in_force(tmp_path):
    async with lab(tmp_path):
        pass
    known = gather(tmp_path / "data", "acme")
    terms = {one.policy_hash: one for one in known.terms}
    assert {one.policy_hash for one in known.activities} <= set(terms)
    assert {one.policy_hash for one in known.rulings} == set(terms)


async def test_an_export_names_the_fields_that_no_register_fills_and_where_to_set_them(tmp_path):
    async with lab(tmp_path) as made:
        await made.post(chat("hi"))
    pack, data = tmp_path / "pack.zip", tmp_path / "data"
    words = ["audit", "export", "acme", "--data", data, "--output", pack]
    done = subprocess.run([sys.executable, "-m", "gateway", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "processor.name (GDPR 30(2)(a)): set it in registers.json: processor.name" in done.stdout
    with zipfile.ZipFile(pack) as archive:
        assert "registers.json: processor.name" in archive.read("README.html").decode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"tenants": {"acne": {}}}, "names tenant acne, which does not exist; there are acme"),
        ({"tenants": {"acme": {"activities": {"sup": {}}}}}, "names project sup"),
        ({"processor": {"lei": "529900T8BM49AURSDO56"}}, "no legal entity identifier"),
        ({"tenants": {"acme": {"contract": {"start": "2026-02-01", "end": "2026-01-01"}}}}, "ends before it starts"),
        ({"tenants": {"acme": {"contract": {"type_of_service": "eba_TA:S20"}}}}, "type_of_service"),
    ],
)
async def test_registers_with_a_wrong_name_or_value_stop_the_export_and_say_what_is_wrong(tmp_path, content, says):
    async with lab(tmp_path):
        pass
    (tmp_path / "data" / "registers.json").write_text(json.dumps(content))
    with pytest.raises(AuditError, match=says):
        gather(tmp_path / "data", "acme")


OF_OTHERS = {"url": "https://10.0.0.9:8000", "models": ["m"], "kind": "openai"}
UNREDACTED = (
    "policy: x\nversion: 2\nresidency: {process_in: EEA, store_in: EEA}\nretention: {content: 'encrypted, 9d'}\n"
)


async def test_each_change_of_a_configuration_changes_what_the_pack_states(tmp_path):
    async with lab(tmp_path) as made:
        data = tmp_path / "data"

        def said(in_place):
            return {(one.applies_to, one.says) for one in gather(data, "acme").measures if one.in_place is in_place}

        before = said(True)
        assert ("activity main", "no prompt or answer is kept") in before
        assert any(name == "activity main" and "in answers these are treated" in says for name, says in before)
        made.control.activate_policy("acme", UNREDACTED)
        after = said(True)
        assert ("activity main", "no prompt or answer is kept") not in after
        assert any("kept for 9 days" in says for _, says in after)
        assert {("activity main", f"{what} are not redacted") for what in ("prompts", "answers")} <= said(False)

        for name, tenancy in (("shared", None), ("alone", "declared")):
            identity = BackendIdentity(Installation.open(data).cell, "acme", "eu-fr-par", name)
            trust = Trust(pin="a" * 64)
            made.control.register_backend(identity, trust=trust, single_tenant=tenancy, **OF_OTHERS)
        assert ("backend shared", "it may serve other tenants too") in said(False)
        assert not [says for name, says in said(True) if name == "backend shared" and "mutual TLS" in says]
        assert [says for name, says in said(True) if name == "backend alone" and "nothing attests it" in says]
        identities = {one.id: one.identity for one in gather(data, "acme").backends}
        assert identities["shared"] == identities["alone"] == ""
        made.control.revoke_backend("acme", "shared")
        assert not [name for name, _ in said(True) | said(False) if name == "backend shared"]


UNINSPECTED = """policy: x
version: 3
residency: {process_in: EEA, store_in: EEA, transfer_basis: [intra_eea, adequacy, scc]}
redaction:
  input: {iban: mask}
  on_failure: sovereign
  sovereign: {process_in: [FR], store_in: [FR], operator: {head_office: [FR], ultimate_parent: [FR]}}
"""


async def test_places_stores_keys_and_failed_redaction_are_stated_as_configured(tmp_path, monkeypatch):
    async with lab(tmp_path) as made:
        made.control.create_project(
            "acme", "clinic", purpose="care", legal_basis="consent", risk_class="high", data_classes=("health", "hr")
        )
        data = tmp_path / "data"
        before = gather(data, "acme")
        assert [(one.name, one.country) for one in before.stores] == [("the record", "")]
        assert before.address_days == 30 and "FR" in before.eea and "US" not in before.eea
        assert {one.id: one.special_categories for one in before.activities} == {"main": (), "clinic": ("health",)}
        made.control.activate_policy("acme", UNINSPECTED)
        monkeypatch.setenv("DOMICILE__SINKS__RECORD", "US")
        monkeypatch.setenv("DOMICILE__SINKS__TELEMETRY", "FR")
        monkeypatch.setenv("DOMICILE__TELEMETRY__OTLP_ENDPOINT", "https://collector.example:4318")
        monkeypatch.setenv("DOMICILE__AUDIT__ADDRESS_DAYS", "7")
        after = gather(data, "acme")
    assert {one.name: (one.country, one.in_eea) for one in after.stores} == {
        "the record": ("US", False),
        "spans": ("FR", True),
    }
    assert after.address_days == 7
    failed = [one for one in after.measures if "whose redaction fails" in one.says]
    assert failed and not failed[0].in_place and "process_in FR" in failed[0].says
    assert not [one for one in before.measures if "whose redaction fails" in one.says]
    assert after.terms[-1].transfer_bases == ("adequacy", "intra_eea", "scc")


SOLD = """    valid_from: 2026-01-01
    valid_to: {yesterday}
    source: example
  - id: eu-fr-par
    name: Paris
    compute_country: FR
    storage_country: NL
    operator: domicile-de
    valid_from: {today}
    source: example
  - id: eu-de-fra
"""


async def test_a_backend_is_stated_in_the_place_that_the_catalogue_gives_it_now(tmp_path):
    async with lab(tmp_path) as made:
        identity = BackendIdentity(Installation.open(made.data).cell, "acme", "eu-fr-par", "gone")
        made.control.register_backend(identity, trust=Trust(pin="a" * 64), **OF_OTHERS)
        made.control.revoke_backend("acme", "gone")
    data, today = tmp_path / "data", datetime.now(UTC).date()
    text = files("regions.catalogue").joinpath("catalogue.yaml").read_text()
    start = text.index("    valid_from", text.index("  - id: eu-fr-par"))
    end = text.index("  - id: eu-de-fra\n") + len("  - id: eu-de-fra\n")
    sold = SOLD.format(yesterday=today - timedelta(days=1), today=today)
    (data / "catalogue.yaml").write_text(text[:start] + sold + text[end:])
    known = {one.id: (one.storage_country, one.operator) for one in gather(data, "acme").backends}
    assert known["acme-1"] == ("NL", "domicile-de")
    assert {one.id for one in gather(data, "acme").operators_in_use} == {"domicile-de"}
