"""Manifests of texts: made and verified by the published library, under this installation's root and under others'."""

import io
import json

import c2pa
import pytest

from gateway.marks.manifest import RECORD, ManifestSigner, verified
from gateway.marks.manifest_key import ManifestKey
from gateway.marks.text_wrapper import MAGIC, WrapperError, manifest_in
from regions.identity.encrypted_file import PLAIN

TEXT = "Grüße aus dem Hafen. 灯台 🚢\n"


def key(folder, name="a"):
    return ManifestKey.open(folder / name / "manifests", folder / name / "manifests.pem", PLAIN, "eu-1")


@pytest.fixture
def mine(tmp_path):
    return key(tmp_path)


def test_the_published_library_finds_it_valid_of_the_text_and_trusted(mine):
    store = ManifestSigner(mine).signed(TEXT, "small", "req-1")
    settings = {"verify": {"verify_trust": True}, "trust": {"trust_anchors": mine.root}}
    context = c2pa.Context(settings=c2pa.Settings.from_dict(settings))
    reader = c2pa.Reader("text/plain", io.BytesIO(TEXT.encode()), manifest_data=store, context=context)
    assert reader.get_validation_state() == "Trusted"
    said = json.loads(reader.json())
    (manifest,) = said["manifests"].values()
    assert {one["label"] for one in manifest["assertions"]} == {"c2pa.actions.v2", RECORD}
    assert said["validation_results"]["activeManifest"]["failure"] == []


def test_what_it_says_is_told(mine):
    found = verified(TEXT.encode(), ManifestSigner(mine).signed(TEXT, "small", "req-1"), mine.root)
    assert (found.verdict, found.problems, found.generated) == ("trusted", (), True)
    assert (found.model, found.request_id, found.signer) == ("small", "req-1", "eu-1 manifests")


@pytest.mark.parametrize("text", [TEXT[:-1], TEXT + " ", TEXT.replace("ü", "u\u0308"), ""])
def test_of_another_text_it_is_invalid(mine, text):
    found = verified(text.encode(), ManifestSigner(mine).signed(TEXT, "small", "req-1"), mine.root)
    assert (found.verdict, "assertion.dataHash.mismatch" in found.problems) == ("invalid", True)


def test_another_installations_is_intact_and_not_trusted(mine, tmp_path):
    other = key(tmp_path, "b")
    store = ManifestSigner(other).signed(TEXT, "small", "req-1")
    assert verified(TEXT.encode(), store, mine.root).verdict == "untrusted"
    assert verified(TEXT.encode(), store, mine.root + other.root).verdict == "trusted"


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.replace(b"small", b"large"),
        lambda store: store.replace(b"req-1", b"req-2"),
        lambda store: store.replace(b"trainedAlgorithmicMedia", b"humanEditsXXXXXXXXXXXXX"),
        lambda store: store[:500],
        lambda store: store[:-1],
        lambda store: b"",
        lambda store: b"{}",
        lambda store: bytes(5_000),
    ],
)
def test_one_that_was_changed_is_invalid_and_no_error(mine, change):
    store = ManifestSigner(mine).signed(TEXT, "small", "req-1")
    assert verified(TEXT.encode(), change(store), mine.root).verdict == "invalid"


def test_one_that_another_program_made_is_read(mine):
    """The library with a definition that is not ours: verified, and told not to be generated."""
    signer = c2pa.Signer.from_callback(mine.sign, c2pa.C2paSigningAlg.ED25519, mine.chain, None)
    definition = {
        "claim_generator_info": [{"name": "other"}],
        "assertions": [
            {
                "label": "c2pa.actions.v2",
                "data": {
                    "actions": [
                        {
                            "action": "c2pa.created",
                            "digitalSourceType": "http://cv.iptc.org/newscodes/digitalsourcetype/digitalCreation",
                        }
                    ]
                },
            }
        ],
    }
    builder = c2pa.Builder(json.dumps(definition))
    builder.set_no_embed()
    store = builder.sign(signer, "text/plain", io.BytesIO(TEXT.encode()), io.BytesIO())
    found = verified(TEXT.encode(), bytes(store), mine.root)
    assert (found.verdict, found.generated, found.model, found.request_id) == ("trusted", False, None, None)


def test_key_and_certificates_are_made_once_and_made_again_alike(tmp_path, mine):
    assert key(tmp_path).chain == mine.chain
    (tmp_path / "a" / "manifests.pem").write_text("nothing")
    again = key(tmp_path)
    store = ManifestSigner(mine).signed(TEXT, "small", "req-1")
    assert again.sign(b"x") == mine.sign(b"x"), "Ed25519 of the same key"
    assert verified(TEXT.encode(), store, again.root).verdict == "trusted", "the same root key and name"
    assert key(tmp_path, "b").root != mine.root


# --- inside of a text ------------------------------------------------------------------------------------------------


def wrapped(payload, version=1, size=None):
    raw = MAGIC + bytes([version]) + (len(payload) if size is None else size).to_bytes(4, "big") + payload
    return "\ufeff" + "".join(chr(0xFE00 + one) if one < 16 else chr(0xE0100 + one - 16) for one in raw)


def test_the_specifications_bytes_are_read():
    payload = bytes(range(256))
    assert manifest_in("Hello" + wrapped(payload)) == payload
    assert manifest_in("Hello" + wrapped(payload) + " and more") == payload
    magic = "\U000e0133\U000e0122\U000e0140\U000e0131\U000e0144\U000e0148\U000e0144\ufe00"
    head = "\ufeff" + magic + "\ufe01\ufe00\ufe00\ufe00\ufe01"
    assert manifest_in("Hello" + head + "\ufe07") == b"\x07", "C2PATXT, version 1, one byte"


@pytest.mark.parametrize("text", ["", "Hello", "\ufeffHello", "a heart \u2764\ufe0f", "\ufeff\ufe0f\ufe0f"])
def test_a_text_without_one_has_none(text):
    assert manifest_in(text) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (wrapped(b"x", version=2), "corruptedWrapper"),
        (wrapped(b"x", size=9), "corruptedWrapper"),
        (wrapped(b""), "corruptedWrapper"),
        (wrapped(b"x") + "a" + wrapped(b"x"), "multipleWrappers"),
    ],
)
def test_a_broken_one_is_named_by_its_code(text, code):
    with pytest.raises(WrapperError, match=code):
        manifest_in(text)
