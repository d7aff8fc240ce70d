"""What a person is given: Article 15(1) and (2) in full, by name, in English and German."""

import json
import re
from typing import Any

import pytest

from audit.events.private_value import Private
from audit.incidents.evidence import Activity, Evidence, Party, Safeguard
from audit.privacy.article_15 import article_15
from audit.privacy.rights import answer
from audit.registers.dsar import access_page, dsar_files, readable
from audit.registers.language import ENGLISH, GERMAN, LANGUAGES
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
        Safeguard(operator="Example SAS", country="US", basis="scc", reference="clauses 2026-7"),
        Safeguard(operator="Other Inc", country="US", basis="scc", reference="of another"),
    ),
)


async def package_of(home: Home, evidence: Evidence, **call: Any) -> dict[str, Any]:
    fields = {"activity_id": "support", "retention_class": "metadata_365d"} | call
    async with home.custody() as custody:
        await custody.record(
            accepted("a", **fields),
            Private({"input": "<b>my words</b>"}, ALICE, retention_class="content_30d", expires=99),
        )
        await custody.record(
            completed("a"), Private({"output": "yours"}, ALICE, retention_class="content_30d", expires=99)
        )
        return await answer(custody, "acme", ALICE, evidence=evidence)


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
    assert [one["reference"] for one in about["2_safeguards"]] == ["clauses 2026-7"]
    assert about["missing"] == []
    assert package["purposes"] == ["customer support"]
    assert package["retention"] == ["content_30d", "metadata_365d"]


async def test_a_route_within_the_eea_is_no_transfer_and_needs_no_safeguard(home: Home) -> None:
    package = await package_of(home, KNOWN)
    assert package["article_15"]["2_transfers"] == []
    page = access_page(package, ENGLISH)
    assert ENGLISH.no_transfer in page and "clauses 2026-7" not in page


async def test_what_the_registers_lack_is_named_in_the_package_and_on_the_page(home: Home) -> None:
    package = await package_of(home, Evidence())
    assert package["article_15"]["missing"] == [
        "controller.name",
        "controller.contact",
        "controller.dpo",
        "activity support: purpose",
        "activity support: source",
    ]
    assert "controller.contact" in access_page(package, GERMAN)
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
