"""Impact assessment sheets and notices: facts of configuration and record, and the controller's part marked as such."""

import json
from html.parser import HTMLParser

import pytest

from audit.events.leaf import Leaf
from audit.events.stamp import Stamp
from audit.incidents.pack_inputs import Activity, Backend, Evidence, Measure, Operator, Party, Safeguard, Store, Terms
from audit.registers.language import ENGLISH, GERMAN, LANGUAGES, Language
from audit.registers.pack_tables import Flows, Tables
from audit.registers.privacy import TO_ASSESS, dpia, notice, privacy_files
from tests.audit.conftest import accepted

ID = "01a21faa-0c27-76a6-b43d-f0713b4b3c3e"
STAMP = Stamp(event_id=ID, ts="2026-03-01T09:30:00.000Z", gateway_node="gw-1", boot_id=ID)
HASH = "a" * 64
OPERATOR = Operator(id="o", entity="O SAS", head_office="FR", ultimate_parent="P Inc", parent_country="US")


UNOWNED = Operator(id="n", entity="Nobody SAS", head_office="FR", ultimate_parent="", parent_country="")
IN_US = Operator(id="u", entity="Solo Inc", head_office="US", ultimate_parent="Solo Inc", parent_country="US")


def flows(**call: object) -> dict[str, Flows]:
    tables = Tables()
    tables.take(0, Leaf(STAMP, accepted(activity_id="support", **call)))
    return tables.activities


def known(**changed: object) -> Evidence:
    terms = Terms(policy_hash=HASH, metadata_days=365, content_days=0, redacts_prompts={"iban": "mask"})
    activity = Activity(id="support", purpose="<b>support</b>", legal_basis="contract", policy_hash=HASH)
    base = Evidence(controller=Party(name="ACME GmbH"), activities=(activity,), terms=(terms,))
    return base.model_copy(update=changed)


def with_terms(**changed: object) -> Evidence:
    return known(terms=(known().terms[0].model_copy(update=changed),))


def facts(evidence: Evidence, seen: dict[str, Flows] | None = None) -> str:
    return " | ".join(dpia(seen or {}, evidence)[0]["c_facts_that_raise_risk"])


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (known(operators=(OPERATOR,)), "operator O SAS (FR) is controlled from US"),
        (known(operators=(UNOWNED,)), "the catalogue does not know who controls operator Nobody SAS, or from where"),
        (with_terms(redacts_prompts={}), "prompts are not redacted"),
        (with_terms(content_days=30), "kept for 30 days"),
        (known(activities=(Activity(id="support", risk_class="high", policy_hash=HASH),)), "high-risk"),
        (known(operators=(IN_US,), eea=("DE", "FR")), "operator Solo Inc and its parent are in US, outside the EEA"),
        (known(stores=(Store(name="the record", country="US", in_eea=False),)), "the record is kept in US, outside"),
        (with_terms(unredacted_to="process_in FR"), "may be sent unredacted to process_in FR"),
        (
            known(activities=(Activity(id="support", special_categories=("health",), policy_hash=HASH),)),
            "special categories are registered: health",
        ),
    ],
)
def test_a_fact_that_raises_risk_follows_its_configuration(evidence: Evidence, expected: str) -> None:
    assert expected in facts(evidence)
    assert expected not in facts(known())


def test_transfers_and_data_found_come_from_the_records() -> None:
    assert "third countries" in facts(known(), flows(transfer_basis="scc:1"))
    assert "third countries" not in facts(known(), flows(transfer_basis="intra_eea"))
    assert "personal data was found in prompts: email, iban" in facts(known(), flows())


def test_what_the_controller_has_to_judge_is_marked_so() -> None:
    measure = Measure(article="GDPR 32(1)", applies_to="activity support", says="x", because="y")
    (sheet,) = dpia({}, known(measures=(measure,)))
    assert (
        sheet["b_necessity_and_proportionality"] == sheet["residual_risk"] == sheet["c_risks_to_persons"] == TO_ASSESS
    )
    assert sheet["d_measures"] == ["activity support: x (y)"]


class Balanced(HTMLParser):
    """Counts elements that are open."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["dpia.html", "privacy_notice_en.html", "privacy_notice_de.html"])
def test_pages_are_well_formed_and_escape_what_registers_say(name: str) -> None:
    page = privacy_files(flows(), known(), "acme")[name]
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "&lt;b&gt;support&lt;/b&gt;" in page and "<b>" not in page and "<script" not in page


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=list(LANGUAGES))
def test_a_notice_names_controller_purpose_basis_periods_and_rights(language: object) -> None:
    page = notice(flows(retention_class="metadata_90d"), with_terms(content_days=7), language, "acme")  # type: ignore[arg-type]
    assert "ACME GmbH" in page and "90" in page and "7" in page and "Example SAS (FR)" in page
    assert all(right in page for right in language.rights_text)  # type: ignore[attr-defined]
    assert language.basis("contract") in page  # type: ignore[attr-defined]
    assert "15(1)(a)" not in page and "Art. 15 Abs. 1 Buchst. a" not in page


def test_the_notice_of_article_50_stands_where_the_policy_sends_it() -> None:
    assert ENGLISH.ai_notice not in notice({}, known(), ENGLISH, "acme")
    assert ENGLISH.ai_notice in notice({}, with_terms(notices=("art50",)), ENGLISH, "acme")


def test_a_transfer_stands_in_the_notice_with_its_safeguard() -> None:
    evidence = known(safeguards=(Safeguard(operator="Example SAS", country="US", basis="scc", reference="C-7"),))
    told = notice(
        flows(inference_country="US", storage_country="US", transfer_basis="scc:C-7"), evidence, GERMAN, "acme"
    )
    assert "verarbeitet in US, gespeichert in US, auf der Grundlage von " + GERMAN.tool("scc:C-7") in told
    assert f"Garantie: Example SAS, {GERMAN.tool('scc')}: C-7" in told and GERMAN.no_transfer not in told
    assert GERMAN.no_transfer in notice(flows(), evidence, GERMAN, "acme")


def test_without_registers_the_files_are_there_and_say_what_is_not_known() -> None:
    files = privacy_files({}, Evidence(), "acme")
    assert set(files) == {"dpia.json", "dpia.html", "privacy_notice_en.html", "privacy_notice_de.html"}
    assert json.loads(files["dpia.json"]) == []
    assert "acme" in files["privacy_notice_de.html"] and GERMAN.unknown in files["privacy_notice_de.html"]


def test_an_operator_whose_backends_are_all_revoked_raises_no_risk_and_receives_nothing() -> None:
    gone = Backend(id="b", region="r", operator="o", revoked_at="2026-02-01T00:00:00Z")
    evidence = known(operators=(OPERATOR,), backends=(gone,))
    assert "O SAS" not in facts(evidence) and "O SAS" not in notice({}, evidence, ENGLISH, "acme")
    again = known(operators=(OPERATOR,), backends=(gone, gone.model_copy(update={"id": "c", "revoked_at": ""})))
    assert "O SAS" in facts(again) and "O SAS" in notice({}, again, ENGLISH, "acme")


def with_basis(basis: str) -> Evidence:
    return known(activities=(Activity(id="support", legal_basis=basis, policy_hash=HASH),))


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
@pytest.mark.parametrize(
    ("basis", "withdrawal", "portability", "interests"),
    [
        ("consent", True, True, False),
        ("contract", False, True, False),
        ("legitimate_interests", False, False, True),
        ("legal_obligation", False, False, False),
    ],
)
def test_rights_in_a_notice_follow_the_legal_basis(
    basis: str, withdrawal: bool, portability: bool, interests: bool, language: Language
) -> None:
    page = notice(flows(), with_basis(basis), language, "acme")
    assert (language.withdrawal in page, language.portability in page) == (withdrawal, portability)
    assert (language.interests_unknown in page) is interests


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_notice_tells_what_the_policy_allows_and_not_where_calls_stayed_that_never_were(language: Language) -> None:
    page = notice({}, with_terms(transfer_bases=("intra_eea",)), language, "acme")
    assert language.no_call in page and language.no_transfer not in page
    page = notice(flows(), with_terms(transfer_bases=("adequacy", "intra_eea", "scc")), language, "acme")
    assert (
        language.transfer_allowed.format(f"{language.tool('adequacy')}, {language.tool('scc')}") in page
        and language.no_transfer not in page
    )
    page = notice(flows(transfer_basis="scc:1"), with_terms(transfer_bases=("adequacy", "scc")), language, "acme")
    assert language.transfer_allowed.format(language.tool("adequacy")) in page


def test_a_safeguard_that_no_transfer_rests_on_is_not_in_the_notice() -> None:
    evidence = known(safeguards=(Safeguard(operator="Example SAS", country="US", basis="scc", reference="C-7"),))
    assert "C-7" not in notice(flows(transfer_basis="scc:C-8"), evidence, ENGLISH, "acme")


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
def test_a_notice_tells_how_long_addresses_of_refused_callers_are_kept(language: Language) -> None:
    assert language.addresses.format(30) in notice({}, known(address_days=30), language, "acme")
    assert language.addresses.partition("{")[0] not in notice({}, known(address_days=0), language, "acme")


def test_what_no_record_shows_is_none_and_what_no_register_says_is_not_registered() -> None:
    page = privacy_files({}, known(), "acme")["dpia.html"]
    assert "data kinds seen: none" in page and "recipients: none" in page
    assert "ai system id: not registered" in page
