"""What a person is given: Article 15(1) and (2) in full, by name, in English and German."""

import json
import re
from typing import Any, get_args

import pytest

from audit.events.event import RoutingDecision
from audit.events.private_value import Field, Private
from audit.incidents.incident import open_incident
from audit.incidents.pack_inputs import Activity, Evidence, Party, Safeguard, Store
from audit.privacy.article_15 import article_15
from audit.privacy.rights import answer
from audit.private.certificate import open_certificate
from audit.private.erasure import erase
from audit.registers.dsar import access_page, dsar_files, readable
from audit.registers.language import ENGLISH, GERMAN, LANGUAGES
from audit.registers.pack_tables import Transfer
from audit.registers.ropa import safeguards_of
from gateway.configuration.sinks import RECORD, SPANS
from policy.facts import AttestedBasis
from policy.purpose import SPECIAL_CATEGORIES
from policy.redact.detectors.detectors import DETECTORS
from policy.redact.labels import PERSON
from tests.audit.conftest import Home, accepted, completed

ALICE = "alice@example.com"
KNOWN = Evidence(
    controller=Party(name="ACME GmbH", contact="privacy@acme.example", dpo="dpo@acme.example", country="DE"),
    activities=(
        Activity(
            id="support",
            purpose="customer support",
            legal_basis="contract",
            data_classes=("contact",),
            source="the person, through the support form",
        ),
    ),
    safeguards=(
        Safeguard(operator="Example SAS", country="US", basis="scc", reference="7"),
        Safeguard(operator="Other Inc", country="US", basis="scc", reference="of another"),
    ),
)


async def package_of(home: Home, evidence: Evidence, **call: Any) -> dict[str, Any]:
    fields = {"activity_id": "support", "retention_class": "metadata_365d"} | call
    async with home.context() as context:
        await context.record(
            accepted("a", **fields),
            Private({"input": "<b>my words</b>"}, ALICE, retention_class="content_30d", expires=99),
        )
        await context.record(
            completed("a"), Private({"output": "yours"}, ALICE, retention_class="content_30d", expires=99)
        )
        return await answer(context, "acme", ALICE, evidence=evidence)


async def test_every_letter_of_article_15_is_answered_from_registers_and_records(home: Home) -> None:
    package = await package_of(home, KNOWN, transfer_basis="intra_eea+scc:7", ai_system_id="triage")
    about = package["article_15"]
    assert about["controller"]["name"] == package["controller"] == "ACME GmbH"
    assert about["a_purposes"] == [{"activity": "support", "purpose": "customer support", "legal_basis": "contract"}]
    assert about["b_categories"] == ["contact", "email", "iban"]
    assert [one["operator_entity"] for one in about["c_recipients"]] == ["Example SAS"]
    assert about["d_periods"] == [{"kind": "content", "days": 30}, {"kind": "metadata", "days": 365}]
    assert about["e_rights"] and about["f_complaint"]
    assert about["g_source"] == ["the person, through the support form"]
    assert about["h_automated_decisions"] == {"ai_systems": ["triage"]}
    assert about["2_transfers"] == [{"computed_in": "FR", "stored_in": "FR", "tool": "scc:7"}]
    assert [one["reference"] for one in about["2_safeguards"]] == ["7"]
    assert about["missing"] == []
    assert package["purposes"] == ["customer support"]
    assert package["retention"] == ["content_30d", "metadata_365d"]


async def test_a_route_within_the_eea_is_no_transfer_and_needs_no_safeguard(home: Home) -> None:
    package = await package_of(home, KNOWN)
    assert package["article_15"]["2_transfers"] == []
    page = access_page(package, ENGLISH)
    assert ENGLISH.no_transfer in page and "Safeguard" not in page


async def test_what_the_registers_lack_is_named_in_the_package_and_on_the_page(home: Home) -> None:
    package = await package_of(home, Evidence())
    assert package["article_15"]["missing"] == [
        "controller.name",
        "controller.contact",
        "controller.dpo",
        "activity support: purpose",
        "activity support: source",
    ]
    assert "Kontakt des Verantwortlichen" in access_page(package, GERMAN)
    assert "Verarbeitungstätigkeit support: Herkunft der Daten" in access_page(package, GERMAN)
    assert GERMAN.unknown in access_page(package, GERMAN)


async def test_the_page_tells_the_same_in_each_language_and_shows_text_as_text(home: Home) -> None:
    package = await package_of(home, KNOWN)
    files = {name.rpartition("/")[2]: text for name, text in dsar_files(package).items()}
    assert set(files) == {"package.json", "package_en.html", "package_de.html"}
    assert json.loads(files["package.json"]) == package
    for code, language in LANGUAGES.items():
        page = files[f"package_{code}.html"]
        assert f'<html lang="{code}">' in page
        for told in ("ACME GmbH", "customer support", "dpo@acme.example", "Example SAS", "30", "365"):
            assert told in page, told
        assert "&lt;b&gt;my words&lt;/b&gt;" in page and "<b>my" not in page
        assert all(right in page for right in language.rights_text) and language.complaint in page
        assert page.count("<h2>") == 9
    assert "Was über Sie gespeichert ist" in files["package_de.html"]


async def test_a_page_in_german_holds_no_word_of_the_program_in_english(home: Home) -> None:
    """A person with two projects, an incident, a hold, an erasure, transfers and empty registers. What the controller
    registered in its own words, and what the person wrote, stays as it is."""
    evidence = KNOWN.model_copy(
        update={
            "controller": Party(name="Müller & Söhne AG", country="DE"),
            "activities": (
                Activity(id="support", purpose="Kundendienst", legal_basis="legitimate_interests",
                         data_classes=("health", "Kundennummer")),
                Activity(id="hiring"),
            ),
            "stores": (Store(name="the record", country="US", setting="sinks.record", in_eea=False),
                       Store(name="spans", country="US", setting="sinks.telemetry", in_eea=False)),
        }
    )  # fmt: skip
    async with home.context() as context:
        for request, activity in (("a", "support"), ("b", "hiring")):
            call = accepted(
                request,
                activity_id=activity,
                transfer_basis="adequacy+scc:7",
                ai_system_id="triage",
                retention_class="metadata_365d",
            )
            said = json.dumps({"messages": [{"role": role, "content": "Guten Tag"} for role in ENGLISH.speakers]})
            kept = {"input": said, "input_original": {"bytes": 86, "sha256": "0" * 64}}
            await context.record(call, Private(kept, ALICE, retention_class="content_30d", expires=99))
            answered = Private({"output": "Grüß Gott"}, ALICE, retention_class="content_30d", expires=99)
            await context.record(completed(request), answered)
        await context.record(accepted("c"), Private({"input": "x"}, "bob@example.com"))
        await erase(context, "acme", subject="bob@example.com")
        await open_incident(context, "acme", laws=["gdpr"], severity="high_risk")
        package = await answer(context, "acme", ALICE, evidence=evidence)
    pages = {code: access_page(package, language) for code, language in LANGUAGES.items()}
    words = {
        code: set(re.findall(r"[^\W\d_]{3,}", re.sub(r"<style>.*?</style>|<[^>]+>", " ", page)))
        for code, page in pages.items()
    }
    names = {"Müller", "Söhne", "Kundendienst", "Kundennummer", "Guten", "Tag", "Grüß", "Gott", "Example", "SAS"}
    names |= {
        "amp",
        "was",
        "support",
        "hiring",
        "triage",
        "alice",
        "example",
        "com",
        "SHA",
        "IBAN",
        "UTC",
        "Mail",
        "Version",
    }
    assert words["de"] & words["en"] <= names
    assert {letter: re.findall(rf"Buchst\. {letter} DSGVO\)</h2>", pages["de"]) != [] for letter in "abcdegh"} == (
        dict.fromkeys("abcdegh", True)
    )
    assert "Art. 15 Abs. 1 Buchst. f" in pages["de"] and "Art. 15 Abs. 2" in pages["de"]


def test_every_kind_tool_and_special_category_has_a_word_in_each_language() -> None:
    labels = {one.label for one in DETECTORS} | {PERSON}
    for language in LANGUAGES.values():
        assert set(language.kinds) == labels | set(SPECIAL_CATEGORIES)
        assert set(language.tools) == set(get_args(AttestedBasis))
        assert set(language.places) == {RECORD, SPANS}
        assert set(language.fields) == set(get_args(Field))
        assert set(language.contents) == {"file_line", "file_result", "response"}
    assert GERMAN.tool("scc:7") == "Standarddatenschutzklauseln (Art. 46 Abs. 2 Buchst. c DSGVO) (7)"
    assert GERMAN.kind("Kundennummer") == "Kundennummer"


def test_languages_say_all_that_the_others_say() -> None:
    for name in ENGLISH.__dataclass_fields__:
        texts = [getattr(one, name) for one in LANGUAGES.values()]
        assert all(texts), name
        if isinstance(texts[0], str):
            assert len({len(re.findall(r"\{\}", text)) for text in texts}) == 1, name
        if isinstance(texts[0], dict):
            assert texts[0].keys() == texts[1].keys(), name
    for code in ("consent", "contract", "legal_obligation", "vital_interests", "public_task", "legitimate_interests"):
        assert GERMAN.basis(code) != code


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], "user: hi\nassistant: yes"),
        ({"messages": [{"role": "user", "content": "hi"}], "model": "m"}, "user: hi"),
        ('{"messages":[{"role":"user","content":"hi"}],"cache_salt":"x"}', "user: hi"),
        ([{"content": "yes", "finish_reason": "stop", "index": 0}], "yes"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]}],
            "user: hi\nyou",
        ),
        ("{not json", "{not json"),
        ("[1]", "[\n 1\n]"),
        ({"a": 1}, '{\n "a": 1\n}'),
        ([], "[]"),
    ],
)
def test_values_are_shown_as_people_read_them(value: Any, expected: str) -> None:
    assert readable(value) == expected


def test_without_a_record_of_a_call_nothing_is_invented() -> None:
    about = article_15([], [], [], Evidence())
    assert about["a_purposes"] == about["b_categories"] == about["d_periods"] == about["2_transfers"] == []


MOVED = {
    "tenant": "acme",
    "backend_id": "acme-us",
    "region": "us-east",
    "inference_country": "US",
    "storage_country": "US",
    "operator_entity": "Second Inc",
    "operator_hq": "US",
    "ultimate_parent": "Second Inc",
    "ultimate_parent_country": "US",
    "transfer_basis": "scc:9",
    "fallback_index": 1,
    "reason": "backend_unavailable",
}


async def test_a_later_backend_of_a_call_is_a_recipient_though_no_value_is_under_its_record(home: Home) -> None:
    async with home.context() as context:
        kept = Private({"input": "mine"}, ALICE, retention_class="content_30d", expires=99)
        await context.record(accepted("a", activity_id="support"), kept)
        await context.record(accepted("b", activity_id="support"))  # of somebody else, at the same time
        await context.record(RoutingDecision.model_validate(MOVED | {"request_id": "b", "backend_id": "not-hers"}))
        await context.record(RoutingDecision.model_validate(MOVED | {"request_id": "a"}))
        await context.record(completed("a"))
        await context.record(completed("b"))
        package = await answer(context, "acme", ALICE, evidence=KNOWN)
        note = await erase(context, "acme", subject=ALICE)
        erased = open_certificate(note, context.origin("acme"), context.signer.public_key)
    about = package["article_15"]
    assert [one["backend_id"] for one in about["c_recipients"]] == ["acme-1", "acme-us"]
    assert about["2_transfers"] == [{"computed_in": "US", "stored_in": "US", "tool": "scc:9"}]
    assert ENGLISH.no_transfer not in access_page(package, ENGLISH)
    assert [one.backend_id for one in erased.recipients] == ["acme-1", "acme-us"]


@pytest.mark.parametrize("language", LANGUAGES.values(), ids=LANGUAGES)
async def test_a_record_kept_outside_the_eea_is_told_to_the_person(home: Home, language: Any) -> None:
    store = Store(name="the record", country="US", setting="sinks.record", in_eea=False)
    package = await package_of(home, KNOWN.model_copy(update={"stores": (store,)}))
    page = access_page(package, language)
    assert (
        language.stored_outside.format(language.place("the record"), "US") in page and language.no_transfer not in page
    )


def test_where_no_call_was_sent_the_page_does_not_state_where_calls_stayed() -> None:
    package = {"tenant": "acme", "records": [], "article_15": article_15([], [], [], Evidence())}
    page = access_page(package, ENGLISH)
    assert ENGLISH.no_call in page and ENGLISH.no_transfer not in page


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ("scc:7", ["7"]),
        ("scc:8", []),
        ("bcr:7", []),
        ("adequacy:2023/1795", ["DPF list"]),
        ("adequacy:2000/518/EC", ["DPF list"]),
    ],
)
def test_a_transfer_has_the_safeguards_that_it_rests_on_and_no_other(tool: str, expected: list[str]) -> None:
    known = (
        *KNOWN.safeguards,
        Safeguard(operator="Example SAS", country="US", basis="adequacy", reference="DPF list"),
        Safeguard(operator="Example SAS", country="CA", basis="adequacy", reference="CA list"),
    )
    found = safeguards_of([Transfer("US", "FR", tool)], KNOWN.model_copy(update={"safeguards": known}))
    assert [one.reference for one in found] == expected
