"""The registers in a pack: what the operator's registers say, what the records say, and what neither does."""

import csv
import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from audit.errors import AuditError
from audit.events.event import AdminChanged, BackendConnected, ModelChanged, SystemSelftest
from audit.events.incident import Oversight
from audit.events.leaf import Leaf
from audit.events.ocsf import ocsf
from audit.events.stamp import Stamp
from audit.incidents.pack_inputs import (
    Activity,
    Backend,
    Evidence,
    Measure,
    Operator,
    Party,
    Policy,
    Subprocessor,
    evidence_of,
    evidence_sources,
)
from audit.law.duties import load_duties
from audit.registers.pack_tables import BOM, Tables
from audit.registers.registers import control_mapping, controls, last_selftests, registers
from tests.audit.conftest import Home, accepted
from tests.audit.events.test_event import EVENT_CLASSES
from tests.audit.published_ocsf import VALIDATORS, problems

ROOT = Path(__file__).parents[3]
ID = "01a21faa-0c27-76a6-b43d-f0713b4b3c3e"
STAMP = Stamp(event_id=ID, ts="2026-03-01T09:30:00.000Z", gateway_node="gw-1", boot_id=ID)
OPERATOR = Operator(
    id="example", entity="Example SAS", head_office="FR", ultimate_parent="Example SAS", parent_country="FR", lei="L1"
)
KNOWN = Evidence(
    controller=Party(name="ACME GmbH", contact="privacy@acme.example", dpo="dpo@acme.example"),
    processor=Party(name="Domicile SE"),
    activities=(
        Activity(id="support", purpose="customer support", legal_basis="contract", data_classes=("contact",)),
        Activity(id="unused", purpose="never called"),
    ),
    operators=(OPERATOR,),
    subprocessors=(Subprocessor(operator="example", name="=Cool Housing", country="DE"),),
    backends=(
        Backend(id="acme-1", region="eu-fr-par", compute_country="FR", storage_country="FR", operator="example"),
        Backend(id="acme-9", region="gone", operator="nobody"),
    ),
    policies=(
        Policy(number=1, sha256="a" * 64, text="a\nb\n", activated_by="person:1", activated_at="2026-01", active=False),
        Policy(number=2, sha256="b" * 64, text="a\nc\n", activated_by="person:2", activated_at="2026-02", active=True),
    ),
    measures=(
        Measure(article="GDPR 32(1)(a)", applies_to="backend acme-1", says="mutual TLS", because="kind domicile"),
        Measure(
            article="GDPR 25(1)",
            applies_to="activity unused",
            says="prompts are not redacted",
            because="policy",
            in_place=False,
        ),
    ),
)


def made(evidence: Evidence, *events: object) -> dict[str, str]:
    tables = Tables()
    for seq, event in enumerate(events):
        tables.take(seq, Leaf(STAMP, event))  # type: ignore[arg-type]
    return registers(tables, evidence)


def rows(text: str) -> list[dict[str, str]]:
    assert text.startswith(BOM)
    return list(csv.DictReader(io.StringIO(text.removeprefix(BOM))))


def test_both_views_of_the_record_of_processing_join_registers_and_records() -> None:
    files = made(KNOWN, accepted(activity_id="support"), accepted(activity_id="shadow"))
    by_name = {row["activity"]: row for row in rows(files["ropa_controller.csv"])}
    assert set(by_name) == {"support", "unused", "shadow"}
    support = by_name["support"]
    assert (support["purpose"], support["legal_basis"], support["dpo"]) == (
        "customer support",
        "contract",
        "dpo@acme.example",
    )
    assert (support["data_kinds_seen"], support["recipients"], support["calls"]) == (
        "email; iban",
        "Example SAS (FR)",
        "1",
    )
    assert (by_name["unused"]["calls"], by_name["shadow"]["purpose"]) == ("0", "")
    assert "not redacted" not in support["measures_not_in_place"]
    assert by_name["unused"]["measures_not_in_place"] == "activity unused: prompts are not redacted (policy)"
    processor = json.loads(files["ropa_processor.json"])
    assert {one["processor"] for one in processor} == {"Domicile SE"}
    assert processor[0]["security_measures"] == ["backend acme-1: mutual TLS (kind domicile)"]
    assert [one["activity"] for one in json.loads(files["ropa_controller.json"])] == ["shadow", "support", "unused"]


def test_a_cell_that_a_spreadsheet_would_run_is_made_text() -> None:
    assert rows(made(KNOWN)["subprocessors.csv"])[0]["name"] == "'=Cool Housing"


def test_the_history_of_policies_has_texts_intervals_and_what_changed() -> None:
    first, second = json.loads(made(KNOWN)["policy_history.json"])
    assert (first["in_force_until"], second["in_force_until"]) == ("2026-02", "")
    assert second["diff"] == ["- b", "+ c"]
    assert second["activated_by"] == "person:2"


def test_a_policy_names_the_records_that_activated_it_and_an_unknown_activation_is_told() -> None:
    def activated(digest: str) -> AdminChanged:
        detail = {"sha256": digest}
        return AdminChanged(
            type="admin.policy.activated", tenant="acme", actor="cli", target="acme", epoch=1, detail=detail
        )

    told = json.loads(made(KNOWN, activated("b" * 64), activated("c" * 64))["policy_history.json"])
    assert [one.get("records") for one in told] == [[], [0], None]
    assert told[2]["detail"]["sha256"] == "c" * 64


def test_without_registers_every_file_is_there_and_says_that_there_is_nothing() -> None:
    files = made(Evidence())
    assert json.loads(files["incidents.json"])["statement"] == "0 incidents are on record in this period."
    assert "No request of an authority is on record." in files["authority_requests.csv"]
    assert json.loads(files["backends.json"])["backends"] == []
    assert [row["name"] for row in rows(files["subprocessors.csv"])] == ["No sub-processor is in the registers."]


def test_residency_is_told_from_the_recorded_routes() -> None:
    told = json.loads(made(KNOWN, accepted(), accepted())["residency_evidence.json"])
    assert (told["routes"][0]["inference_country"], told["routes"][0]["calls"]) == ("FR", 2)
    assert told["backends_seen"] == ["acme-1"]


def test_who_answered_each_connection_is_residency_evidence() -> None:
    fields = {"tenant": "acme", "backend_id": "acme-1", "region": "eu-fr-par", "kind": "domicile"}
    fields |= {
        "address": "192.0.2.1:9000",
        "peer_sha256": "a" * 64,
        "peer_uri": "spiffe://eu-1/acme",
        "tls_version": "TLSv1.3",
    }
    same = BackendConnected.model_validate(fields)
    other = BackendConnected.model_validate(fields | {"peer_sha256": "b" * 64})
    told = json.loads(made(KNOWN, same, same, other)["residency_evidence.json"])["connections"]
    assert [(one["peer_sha256"][0], one["connections"]) for one in told] == [("a", 2), ("b", 1)]
    assert told[0]["first"] <= told[0]["last"]


def test_an_ai_system_is_told_with_its_stop_and_its_changes() -> None:
    act = {"tenant": "acme", "actor": "cli", "reason": "bias", "ai_system_id": "cv"}
    stopped = Oversight.model_validate(act | {"type": "oversight.stopped", "epoch": 3})
    resumed = Oversight.model_validate(act | {"type": "oversight.resumed", "epoch": 4})
    part = Oversight.model_validate(act | {"type": "oversight.resumed", "project": "web"})
    change = {"tenant": "acme", "actor": "cli", "model": "small", "what": "weights"}
    calls = accepted(ai_system_id="cv", risk_class="high"), accepted(ai_system_id="cv"), accepted()
    events = (*calls, stopped, part, ModelChanged.model_validate(change | {"ai_system_id": "cv"}))
    told = json.loads(made(KNOWN, *events, ModelChanged.model_validate(change))["ai_systems.json"])
    (system,) = told["systems"]
    assert (system["calls"], system["risk_classes"], system["models"]) == (2, ["high"], ["smol"])
    assert system["oversight_and_changes"][0]["type"] == "oversight.stopped"
    assert len(system["oversight_and_changes"]) == 3 and len(told["of_no_system_or_of_all"]) == 1
    assert system["stopped_since"] == system["oversight_and_changes"][0]["ts"]
    again = json.loads(made(KNOWN, *events, resumed)["ai_systems.json"])
    assert again["systems"][0]["stopped_since"] is None
    assert json.loads(made(KNOWN, accepted())["ai_systems.json"])["systems"] == []


async def test_how_the_self_tests_ended_stands_beside_their_controls(home: Home) -> None:
    async with await home.open() as log:
        await log.append(SystemSelftest(check="restore", passed=True))
        await log.append(SystemSelftest(check="restore", passed=False))
        await log.append(SystemSelftest())
    with closing(home.reader()) as reader:
        tested = last_selftests(reader)
    assert list(tested) == ["restore"] and tested["restore"].startswith("FAILED 20")
    told = {row["test"]: row["last self-test"] for row in rows(control_mapping(tested))}
    assert told["tests/audit/verification/test_selftest.py"] in ("", tested["restore"])
    assert tested["restore"] in {row["last self-test"] for row in rows(control_mapping(tested))}


MAPPED = [row for row in rows(control_mapping({})) if row["framework"]]


@pytest.mark.parametrize("row", MAPPED, ids=lambda row: f"{row['framework']} {row['control']} {row['feature'][:20]}")
def test_every_control_names_its_edition_its_date_and_a_test_that_exists(row: dict[str, str]) -> None:
    assert all(value for name, value in row.items() if name not in ("last self-test", "test")), row
    assert row["feature"].startswith("none") is (not row["test"])
    assert not row["test"] or (ROOT / row["test"]).is_file()


def test_every_line_of_the_controls_answers_a_duty_of_the_table() -> None:
    known = {duty.id for duty in load_duties().duties}
    assert {line["duty"] for line in controls()} <= known
    assert len({tuple(line.values()) for line in controls()}) == len(controls())


def test_the_mapping_covers_the_frameworks_and_says_as_of_when() -> None:
    assert {row["framework"] for row in MAPPED} >= {"C5", "ISO 27001", "ISO 42001", "AI Act", "DORA", "NIS2", "GDPR"}
    assert "As of 2026-11-29" in control_mapping({})


def test_evidence_comes_from_a_file_or_from_whoever_offers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "evidence.json"
    path.write_text(KNOWN.model_dump_json())
    assert Evidence.load(path) == KNOWN
    path.write_text('{"surprise": 1}')
    with pytest.raises(AuditError, match="evidence"):
        Evidence.load(path)
    monkeypatch.setattr("audit.incidents.pack_inputs.evidence_sources", [])
    assert evidence_of(tmp_path, "acme") == Evidence()
    monkeypatch.setattr("audit.incidents.pack_inputs.evidence_sources", [lambda data, tenant: KNOWN])
    assert evidence_of(tmp_path, "acme") == KNOWN
    assert evidence_sources is not None


# --- OCSF ------------------------------------------------------------------------------------------------------------


FIELDS: list[dict[str, Any]] = [
    {},
    {"key_id": "k1", "project": "support", "endpoint": "/v1/chat/completions", "request_id": "req-1", "reason": "x"},
    {"actor": "cli", "target": "acme-1", "gateway_node": "gw-1"},
    {"inference_country": "FR", "backend_id": "acme-1", "gateway_node": "gw-1", "status": 200},
]


def types() -> list[str]:
    from typing import get_args

    return [kind for cls in EVENT_CLASSES for kind in get_args(cls.model_fields["type"].annotation)]


@pytest.mark.parametrize("kind", types())
def test_every_event_has_its_class_in_ocsf(kind: str) -> None:
    event = {"type": kind, "ts": "2026-03-01T09:30:00.123Z", "event_id": ID, "tenant": "acme", "status": 200}
    event |= {"inference_country": "FR", "backend_id": "acme-1", "key_id": "k1"}
    mapped = ocsf(7, event)
    assert mapped["type_uid"] == mapped["class_uid"] * 100 + mapped["activity_id"]
    assert mapped["category_uid"] == mapped["class_uid"] // 1000
    assert mapped["time"] == 1_772_357_400_123
    assert mapped["unmapped"] == {"seq": 7, **event}
    assert (mapped["metadata"]["uid"], mapped["metadata"]["sequence"]) == (ID, 7)


@pytest.mark.parametrize("kind", types())
@pytest.mark.parametrize("more", FIELDS, ids=["bare", "of a key", "of an actor", "routed"])
def test_every_event_is_valid_by_the_published_schema_of_ocsf(kind: str, more: dict[str, Any]) -> None:
    event = {"type": kind, "ts": "2026-03-01T09:30:00.000Z", "event_id": ID, "tenant": "acme", **more}
    mapped = ocsf(7, event)
    assert problems(mapped) == []


@pytest.mark.parametrize("lost", ["actor", "src_endpoint", "api", "metadata", "time"])
def test_the_published_schema_refuses_an_api_activity_that_lacks_what_it_requires(lost: str) -> None:
    mapped = ocsf(7, {"type": "inference.accepted", "ts": "2026-03-01T09:30:00.000Z", "event_id": ID, "tenant": "acme"})
    del mapped[lost]
    assert not VALIDATORS[6003].is_valid(mapped)


def test_the_published_schema_refuses_a_field_that_the_class_does_not_have() -> None:
    mapped = ocsf(7, {"type": "system.start", "ts": "2026-03-01T09:30:00.000Z", "event_id": ID, "tenant": "_system"})
    assert not VALIDATORS[6002].is_valid(mapped | {"actor": {"app_name": "x"}})


@pytest.mark.parametrize(
    ("kind", "class_uid", "activity", "status"),
    [
        ("inference.accepted", 6003, 1, 1),
        ("inference.denied", 6003, 1, 2),
        ("content.accessed", 6003, 2, 1),
        ("auth.failed", 3002, 1, 2),
        ("admin.key.created", 3004, 1, 1),
        ("admin.key.revoked", 3004, 4, 1),
        ("system.start", 6002, 3, 1),
        ("checkpoint.timestamp_failed", 6002, 99, 2),
    ],
)
def test_what_happened_is_told_in_the_words_of_ocsf(kind: str, class_uid: int, activity: int, status: int) -> None:
    mapped = ocsf(0, {"type": kind, "ts": "2026-03-01T09:30:00.000Z", "event_id": ID, "tenant": "acme"})
    assert (mapped["class_uid"], mapped["activity_id"], mapped["status_id"]) == (class_uid, activity, status)
