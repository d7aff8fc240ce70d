"""What one cell tells another holds only as it was signed, between the two it names; and only a peer gets it."""

import json
from datetime import UTC, datetime

import pytest

from audit.keys.signer import FileSigner
from audit.tree.note import sign_note
from gateway.records.bundle import Bundle, BundledKey, BundledTenant, BundleError, open_bundle, sign_bundle
from gateway.records.bundle_request import PullRefused, ask, asker, check_question, key_name

KEY = BundledKey(
    id="k" * 8,
    tenant="acme",
    project="main",
    label="",
    digest="00" * 32,
    pepper=1,
    last_four="abcd",
    scopes={},
    expires_at=datetime(2027, 1, 1, tzinfo=UTC),
    replaced_by=None,
    revoked_at=None,
)
BUNDLE = Bundle(
    home="eu-fr",
    peer="eu-de",
    epoch=7,
    keys=(KEY,),
    tenants=(BundledTenant(id="acme", display_name="Acme", revoked_at=None),),
)


@pytest.fixture
def signers(tmp_path):
    return {
        cell: FileSigner.open(tmp_path / f"{cell}.key", name=key_name(cell)) for cell in ("eu-fr", "eu-de", "eu-at")
    }


@pytest.fixture
def signed(signers):
    return sign_bundle(BUNDLE, key_name("eu-fr"), signers["eu-fr"])


def opened(data, signers, *, key="eu-fr", home="eu-fr", peer="eu-de"):
    return open_bundle(data, signers[key].verifier_key, home=home, peer=peer)


def test_a_bundle_is_read_as_it_was_signed(signed, signers):
    assert opened(signed, signers) == BUNDLE


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(epoch=8),
        lambda c: c["keys"][0].update(revoked_at=None, digest="11" * 32),
        lambda c: c["keys"].clear(),
        lambda c: c["tenants"].append({"id": "globex", "display_name": "G", "revoked_at": None}),
    ],
)
def test_a_changed_bundle_is_refused(signed, signers, change):
    outer = json.loads(signed)
    change(outer["content"])
    with pytest.raises(BundleError, match="not what was signed"):
        opened(json.dumps(outer).encode(), signers)


def test_a_bundle_for_another_cell_or_of_another_is_refused(signed, signers):
    with pytest.raises(BundleError, match="not of 'eu-fr' for 'eu-at'"):
        opened(signed, signers, peer="eu-at")
    with pytest.raises(BundleError, match="not of 'eu-at'"):
        opened(signed, signers, home="eu-at")


def test_a_bundle_under_another_key_is_refused_also_if_that_is_a_cell_s(signers):
    forged = sign_bundle(BUNDLE, key_name("eu-at"), signers["eu-at"])
    with pytest.raises(BundleError, match="signature"):
        opened(forged, signers)
    with pytest.raises(BundleError, match="not of cell 'eu-fr'"):
        opened(forged, signers, key="eu-at")


def test_a_note_that_the_same_key_signed_for_something_else_is_no_bundle(signed, signers):
    outer = json.loads(signed)
    outer["note"] = sign_note("domicile.eu-fr/audit\n1\nAAAA\n", key_name("eu-fr"), signers["eu-fr"])
    with pytest.raises(BundleError, match="not what was signed"):
        opened(json.dumps(outer).encode(), signers)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"note": 1, "content": {}}', b'{"content": {"home": "x"}}', b"\xff"]
)
def test_what_is_no_bundle_is_said_so(signers, data):
    with pytest.raises(BundleError, match="not a bundle"):
        opened(data, signers)


def test_an_unknown_field_is_refused_rather_than_overlooked(signers):
    outer = {"note": "x", "content": {**BUNDLE.model_dump(mode="json"), "people": []}}
    with pytest.raises(BundleError, match="people"):
        opened(json.dumps(outer).encode(), signers)


NOW = 1_800_000_000.0


def question(signers, by="eu-de", of="eu-fr", at=NOW):
    return ask(by, of, at, signers[by])


def check(text, signers, *, key="eu-de", peer="eu-de", home="eu-fr", now=NOW):
    check_question(text, signers[key].verifier_key, peer=peer, home=home, now=now)


def test_a_peer_s_question_is_its_own_for_a_minute(signers):
    text = question(signers)
    assert asker(text) == "eu-de"
    for now in (NOW - 60, NOW, NOW + 60):
        check(text, signers, now=now)
    for now in (NOW - 61, NOW + 61):
        with pytest.raises(PullRefused, match="clocks"):
            check(text, signers, now=now)


def test_a_question_to_another_cell_by_another_or_changed_is_refused(signers):
    with pytest.raises(PullRefused, match="another"):
        check(question(signers, of="eu-at"), signers)
    with pytest.raises(PullRefused, match="signature"):
        check(question(signers, by="eu-at"), signers)
    with pytest.raises(PullRefused, match="another"):
        check(question(signers, by="eu-at"), signers, key="eu-at")
    with pytest.raises(PullRefused, match="signature"):
        check(question(signers).replace("eu-fr", "eu-at", 1), signers)
    with pytest.raises(PullRefused, match="not a question"):
        asker("domicile.eu-de/audit\n1\n2\n3\n")


def test_a_bundle_nested_beyond_measure_is_refused_in_words(signers):
    deep = b'{"note": "x", "content": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    with pytest.raises(BundleError, match="not a bundle"):
        open_bundle(deep, signers["eu-fr"].verifier_key, home="eu-fr", peer="eu-de")
