"""Records of processing: each entry follows its register, policy or record, and changes with it."""

import pytest

from audit.events.event import RoutingDecision
from audit.events.leaf import Leaf
from audit.events.stamp import Stamp
from audit.incidents.pack_inputs import Activity, Evidence, Measure, Party, Store, Terms
from audit.registers.gaps import gaps
from audit.registers.pack_tables import Flows, Tables
from audit.registers.ropa import ropa_controller, ropa_processor
from tests.audit.conftest import accepted, completed

ID = "01a21faa-0c27-76a6-b43d-f0713b4b3c3e"
STAMP = Stamp(event_id=ID, ts="2026-03-01T09:30:00.000Z", gateway_node="gw-1", boot_id=ID)
HASH, OTHER = "a" * 64, "b" * 64


def flows(*events: object) -> dict[str, Flows]:
    tables = Tables()
    for seq, event in enumerate(events):
        tables.take(seq, Leaf(STAMP, event))  # type: ignore[arg-type]
    return tables.activities


def entry(evidence: Evidence, *events: object) -> dict[str, object]:
    return next(one for one in ropa_controller(flows(*events), evidence) if one["activity"] == "support")


def with_terms(days: int, *, risk: str = "minimal", metadata: int = 365) -> Evidence:
    terms = Terms(policy_hash=HASH, metadata_days=metadata, content_days=days)
    return Evidence(activities=(Activity(id="support", risk_class=risk, policy_hash=HASH),), terms=(terms,))


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        ("intra_eea", ["none"]),
        ("adequacy:2000/518/EC", ["computed in FR, stored in FR: adequacy:2000/518/EC"]),
        ("intra_eea+scc:2026-7", ["computed in FR, stored in FR: scc:2026-7"]),
    ],
)
def test_a_route_within_the_eea_is_no_transfer(basis: str, expected: list[str]) -> None:
    call = accepted(activity_id="support", inference_country="FR", storage_country="FR", transfer_basis=basis)
    assert entry(Evidence(), call)["third_countries_and_basis"] == expected
    assert ropa_processor(flows(call), Evidence())[0]["third_countries_and_basis"] == expected


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (0, "prompts and answers (content): not kept"),
        (30, "prompts, answers and identifiers of persons (content): 30 days, encrypted"),
        (31, "prompts, answers and identifiers of persons (content): 31 days, encrypted"),
    ],
)
def test_the_time_limit_of_content_stands_beside_that_of_metadata(days: int, expected: str) -> None:
    call = accepted(activity_id="support", retention_class="metadata_184d", policy_hash=HASH)
    limits = entry(with_terms(days), call)["erasure_time_limits"]
    assert limits == ["records of calls (metadata, no personal value): 184 days", expected]


def test_each_policy_that_decided_a_call_gives_its_own_limit() -> None:
    evidence = with_terms(0)
    older = Terms(policy_hash=OTHER, metadata_days=90, content_days=7)
    evidence = evidence.model_copy(update={"terms": (*evidence.terms, older)})
    calls = [
        accepted(activity_id="support", retention_class="metadata_365d", policy_hash=HASH),
        accepted(activity_id="support", retention_class="metadata_90d", policy_hash=OTHER),
    ]
    assert entry(evidence, *calls)["erasure_time_limits"] == [
        "records of calls (metadata, no personal value): 90 days",
        "records of calls (metadata, no personal value): 365 days",
        "prompts and answers (content): not kept",
        "prompts, answers and identifiers of persons (content): 7 days, encrypted",
    ]


def test_without_calls_the_policy_in_force_and_the_floor_of_high_risk_give_the_limit() -> None:
    assert entry(with_terms(0, metadata=30))["erasure_time_limits"][0].endswith(": 30 days")  # type: ignore[index]
    assert entry(with_terms(0, metadata=30, risk="high"))["erasure_time_limits"][0].endswith(": 184 days")  # type: ignore[index]


def test_without_terms_no_limit_is_stated_and_the_gap_is_named() -> None:
    evidence = Evidence(activities=(Activity(id="support", policy_hash=HASH),))
    assert entry(evidence)["erasure_time_limits"] == []
    assert "activity support: erasure_time_limits" in {gap.field for gap in gaps({}, evidence, "acme")}


def test_a_measure_of_another_activity_is_not_among_this_ones() -> None:
    def measure(applies_to: str) -> Measure:
        return Measure(article="GDPR 32(1)", applies_to=applies_to, says="x", because="y")

    evidence = Evidence(measures=tuple(map(measure, ("backend a", "activity support", "activity support2"))))
    assert entry(evidence, accepted(activity_id="support"))["security_measures"] == [
        "backend a: x (y)",
        "activity support: x (y)",
    ]


def test_the_categories_of_processing_are_purposes_where_they_are_registered() -> None:
    evidence = Evidence(activities=(Activity(id="support", purpose="customer support"),))
    told = [one["categories_of_processing"] for one in ropa_processor(flows(accepted(activity_id="x")), evidence)]
    assert told == ["inference for customer support", "inference for x"]


def test_every_field_of_article_30_that_is_empty_is_named_with_where_to_set_it() -> None:
    found = {gap.field: gap for gap in gaps(flows(accepted(activity_id="shadow")), with_terms(0), "acme")}
    assert {"controller.contact", "controller.dpo", "processor.name", "processor.dpo"} <= set(found)
    assert "activity support: subject_categories" in found and "activity shadow: the whole entry" in found
    assert all(gap.fix and gap.article for gap in found.values())


@pytest.mark.parametrize("role", ["controller", "processor"])
def test_a_field_that_is_filled_in_is_not_named_any_more(role: str) -> None:
    party = Party(name="X", address="Y", contact="z@x.example", dpo="none")
    named = {gap.field for gap in gaps({}, Evidence(**{role: party}), "acme")}
    assert not {name for name in named if name.startswith(f"{role}.")}


def moved(request_id: str, **changed: object) -> RoutingDecision:
    fields = accepted(request_id).model_dump(include=set(RoutingDecision.model_fields) - {"type", "decision"})
    return RoutingDecision.model_validate(fields | {"reason": "backend_unavailable", "fallback_index": 1} | changed)


def test_a_backend_that_a_call_moved_on_to_is_a_recipient_and_may_be_a_transfer() -> None:
    calls = [
        accepted("r1", activity_id="support"),
        moved("r1", operator_entity="Second Inc", operator_hq="US", inference_country="US", transfer_basis="scc:9"),
        completed("r1"),
        moved("r1", operator_entity="After the outcome", operator_hq="US"),
        accepted("r2", activity_id="other"),
    ]
    one = entry(Evidence(), *calls)
    assert one["recipients"] == ["Example SAS (FR)", "Second Inc (US)"]
    assert one["third_countries_and_basis"] == ["computed in US, stored in FR: scc:9"]
    other = next(each for each in ropa_controller(flows(*calls), Evidence()) if each["activity"] == "other")
    assert other["third_countries_and_basis"] == ["none"]


def test_a_call_that_began_before_the_period_and_moves_on_in_it_counts_for_its_activity() -> None:
    tables = Tables()
    tables.take_earlier({"type": "inference.accepted", "request_id": "r1", "activity_id": "support"})
    tables.take_earlier({"type": "inference.accepted", "request_id": "r2", "activity_id": "support"})
    tables.take_earlier({"type": "inference.completed", "request_id": "r2"})
    for seq, event in enumerate((moved("r1", operator_entity="Second Inc"), moved("r2", operator_entity="No call"))):
        tables.take(seq, Leaf(STAMP, event))
    (one,) = ropa_controller(tables.activities, Evidence())
    assert one["recipients"] == ["Second Inc (FR)"]


@pytest.mark.parametrize(
    ("stores", "expected"),
    [
        ((), ["none"]),
        ((Store(name="the record", country="FR", setting="sinks.record", in_eea=True),), ["none"]),
        ((Store(name="the record", setting="sinks.record"),), ["none"]),
        (
            (Store(name="the record", country="US", setting="sinks.record", in_eea=False),),
            ["the record is kept in US (sinks.record)"],
        ),
    ],
)
def test_a_store_outside_the_eea_is_a_transfer(stores: tuple[Store, ...], expected: list[str]) -> None:
    evidence = Evidence(stores=stores)
    call = accepted(activity_id="support")
    assert entry(evidence, call)["third_countries_and_basis"] == expected
    assert ropa_processor(flows(call), evidence)[0]["third_countries_and_basis"] == expected


@pytest.mark.parametrize(("days", "stated"), [(None, False), (0, False), (30, True), (31, True)])
def test_the_time_limit_of_addresses_of_refused_callers_is_stated_where_they_are_kept(
    days: int | None, stated: bool
) -> None:
    limits = entry(with_terms(0).model_copy(update={"address_days": days}))["erasure_time_limits"]
    assert (f"network addresses of callers whose requests were refused: {days} days, encrypted" in limits) is stated
