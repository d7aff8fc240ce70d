"""Each statement on a safeguard follows from one configuration, and changes with it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from audit.incidents.pack_inputs import Activity, Measure, Store, Terms
from gateway.evidence_pack.safeguards import Keys, certified_identity, measures
from gateway.records.control import BackendRecord
from regions.identity.trust import Trust

HASH = "a" * 64
PIN = "b" * 64
URI = "spiffe://t1.domicile/tenant/acme/region/eu-fr-par/backend/acme-1"
NO_TERMS: dict[str, Terms] = {}


def backend(**changed: Any) -> BackendRecord:
    known: dict[str, Any] = {
        "cell": "t1",
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
        "id": "acme-1",
        "tenant": "acme",
        "region": "eu-fr-par",
        "url": "https://10.0.0.1:8443",
        "uri": URI,
        "models": ("m",),
        "kind": "domicile",
        "single_tenant": "attested",
        "revoked_at": None,
    }
    return BackendRecord.model_validate(known | changed)


def without_signing_key(found: Iterable[Measure]) -> list[Measure]:
    """Without the statement on the key that signs the record, which is there in any case."""
    return [one for one in found if one.applies_to != "the record"]


def of_backend(one: BackendRecord, launched: dict[str, str] | None = None) -> list[Measure]:
    return without_signing_key(measures([one], launched or {}, (), NO_TERMS, Keys("file")))


def of_activity(terms: Terms | None, master: str = "file") -> list[Measure]:
    known = {HASH: terms} if terms else {}
    return without_signing_key(measures([], {}, (Activity(id="support", policy_hash=HASH),), known, Keys(master)))


def terms(**changed: Any) -> Terms:
    return Terms.model_validate({"policy_hash": HASH, "metadata_days": 365, "content_days": 0} | changed)


def said(found: list[Measure], *, in_place: bool) -> str:
    return " | ".join(one.says for one in found if one.in_place is in_place)


@pytest.mark.parametrize(
    ("changed", "in_place", "absent"),
    [
        ({}, ["mutual TLS 1.3", "as its certificate attests"], []),
        ({"kind": "openai", "single_tenant": None, "trust": Trust(pin=PIN)}, [PIN], ["may serve other tenants"]),
        ({"kind": "openai", "single_tenant": None, "trust": None}, [], ["no certificate or CA", "may serve other"]),
        ({"kind": "openai", "single_tenant": "declared", "trust": Trust(pin=PIN)}, ["nothing attests it"], []),
        (
            {"url": "http://127.0.0.1:8000", "single_tenant": "declared"},
            ["as its registration declares"],
            ["without TLS"],
        ),
    ],
)
def test_what_is_said_of_a_backend_follows_its_registration(
    changed: dict[str, Any], in_place: list[str], absent: list[str]
) -> None:
    found = of_backend(backend(**changed))
    for words in in_place:
        assert words in said(found, in_place=True)
    for words in absent:
        assert words in said(found, in_place=False)
    claims_identity = "mutual TLS" in said(found, in_place=True)
    assert claims_identity is bool(certified_identity(backend(**changed)))


def test_only_a_backend_whose_certificate_carries_an_identity_has_one() -> None:
    assert certified_identity(backend()) == URI
    assert certified_identity(backend(kind="openai", single_tenant=None)) == ""
    assert certified_identity(backend(url="http://127.0.0.1:8000")) == ""


def test_a_revoked_backend_has_no_safeguards() -> None:
    assert of_backend(backend(revoked_at=datetime(2026, 2, 1, tzinfo=UTC))) == []


def test_a_network_policy_is_stated_of_pods_alone() -> None:
    pod = of_backend(backend(url="https://acme-1.domicile.svc:8443"), {"acme-1": "chat"})
    local = of_backend(backend(url="https://127.0.0.1:8443"), {"acme-1": "chat"})
    by_hand = of_backend(backend(url="https://acme-1.domicile.svc:8443"))
    assert "NetworkPolicy" in said(pod, in_place=True) and "deployment chat" in pod[-1].because
    assert "without a separate network policy" in said(local, in_place=False)
    assert "NetworkPolicy" not in said(local, in_place=True) + said(by_hand, in_place=True)


@pytest.mark.parametrize(
    ("changed", "in_place", "absent"),
    [
        ({}, ["no prompt or answer is kept"], ["prompts are not redacted", "answers are not redacted"]),
        ({"redacts_prompts": {"iban": "mask"}}, ["in prompts these are treated: iban mask"], ["answers are not"]),
        ({"redacts_answers": {"iban": "mask"}}, ["in answers these are treated: iban mask"], ["prompts are not"]),
        ({"content_days": 30}, ["kept for 30 days, encrypted"], ["master key is a file"]),
        ({"process_in": "EEA", "store_in": "FR"}, ["processed in EEA and stored in FR only"], []),
    ],
)
def test_what_is_said_of_an_activity_follows_its_policy(
    changed: dict[str, Any], in_place: list[str], absent: list[str]
) -> None:
    found = of_activity(terms(**changed))
    for words in in_place:
        assert words in said(found, in_place=True)
    for words in absent:
        assert words in said(found, in_place=False)


def test_where_the_master_key_is_matters_once_content_is_kept() -> None:
    assert "in Vault" in said(of_activity(terms(content_days=1), "vault"), in_place=True)
    assert "Vault" not in said(of_activity(terms(), "vault"), in_place=True)


def test_an_activity_without_a_policy_has_its_calls_refused_and_nothing_else_is_stated() -> None:
    assert [one.says for one in of_activity(None)] == ["no policy decides its calls, so every call is refused"]


def test_every_statement_names_its_cause() -> None:
    found = [*of_backend(backend(), {"acme-1": "chat"}), *of_activity(terms(content_days=3))]
    assert all(one.because and one.article.startswith("GDPR") for one in found)


@pytest.mark.parametrize(
    ("store", "in_place", "words"),
    [
        (
            Store(name="the record", country="FR", setting="sinks.record", in_eea=True),
            True,
            "kept in FR, inside the EEA",
        ),
        (Store(name="the record", country="US", setting="sinks.record", in_eea=False), False, "in US, outside the EEA"),
        (Store(name="spans", country="CH", setting="sinks.telemetry", in_eea=False), False, "in CH, outside the EEA"),
        (Store(name="the record", setting="sinks.record"), False, "is not configured"),
    ],
)
def test_the_country_of_each_store_is_stated_as_configured(store: Store, in_place: bool, words: str) -> None:
    (found,) = (
        one
        for one in measures([], {}, (), NO_TERMS, Keys("file"), [store])
        if one.applies_to == store.name and "signs" not in one.says
    )
    assert (found.in_place, found.because.split(" ")[0]) == (in_place, store.setting)
    assert words in found.says


@pytest.mark.parametrize("signing", ["file", "vault"])
def test_where_the_key_that_signs_the_record_is_kept_is_stated(signing: str) -> None:
    found = list(measures([], {}, (), NO_TERMS, Keys("vault", signing)))
    assert ("in Vault" in said(found, in_place=True)) is (signing == "vault")
    assert ("a file on the gateway's host" in said(found, in_place=False)) is (signing == "file")


def test_a_policy_that_lets_prompts_go_unredacted_when_redaction_fails_states_where_to() -> None:
    strict = terms(redacts_prompts={"iban": "mask"})
    open_to_some = terms(redacts_prompts={"iban": "mask"}, unredacted_to="process_in FR, store_in FR")
    assert "as it is to process_in FR, store_in FR" in said(of_activity(open_to_some), in_place=False)
    assert "as it is" not in said(of_activity(strict), in_place=False)
