"""What model-signing signed is accepted, and nothing else: bundles of its release 1.1.1, and each way to spoil one."""

import base64
import json
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from regions.evidence.certificate_chains import fingerprint
from regions.evidence.errors import EvidenceRefused
from regions.evidence.model_signature import check_files, verified

VECTORS = Path(__file__).parent / "vectors" / "model_signing"
LOADED = {
    path.name: sha256(path.read_bytes()).hexdigest()
    for path in (VECTORS / "model").iterdir()
    if path.name != "README.md"
}


def read(name: str) -> str:
    return (VECTORS / name).read_text()


def key_of(name: str) -> str:
    return fingerprint(load_pem_public_key(read(name).encode()))


def certified(name: str) -> str:
    return fingerprint(load_pem_x509_certificate(read(name).encode()).public_key())


def changed(bundle: str, **places: object) -> str:
    """`bundle` with other members, by their paths with two underscores for each step."""
    said = json.loads(bundle)
    for path, value in places.items():
        *way, last = path.split("__")
        place = said
        for step in way:
            place = place[step]
        place[last] = value
    return json.dumps(said)


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_signature_by_a_key_holds_for_the_files_it_is_of(name: str) -> None:
    signed = verified(read(f"{name}.sig"), read(f"{name}.pub"))
    check_files(signed, LOADED)
    assert signed.keys == (key_of(f"{name}.pub"),)


def test_a_signature_by_a_certificate_names_it_and_the_authorities_above() -> None:
    signed = verified(read("cert.sig"), None)
    check_files(signed, LOADED)
    assert signed.keys == (certified("leaf.pem"), certified("root.pem"))


def test_a_signature_of_one_file_is_of_a_model_that_is_one_file() -> None:
    signed = verified(read("file.sig"), read("one.pub"))
    name = "model-00001-of-00002.safetensors"
    check_files(signed, {"anything.gguf": LOADED[name]})
    with pytest.raises(EvidenceRefused, match="not the file that was signed"):
        check_files(signed, {"anything.gguf": LOADED["config.json"]})


def test_the_key_has_to_be_the_one_that_signed() -> None:
    with pytest.raises(EvidenceRefused, match=r"not the key that model\.sig names"):
        verified(read("one.sig"), read("two.pub"))
    without_hint = changed(read("one.sig"), verificationMaterial={"publicKey": {}})
    assert verified(without_hint, read("one.pub")).keys == (key_of("one.pub"),)
    with pytest.raises(EvidenceRefused, match="does not hold"):
        verified(without_hint, read("two.pub"))


@pytest.mark.parametrize("key", [None, "", "no key", read("leaf.pem")])
def test_a_key_that_is_none_is_refused(key: str | None) -> None:
    with pytest.raises(EvidenceRefused, match=r"model\.pub"):
        verified(read("one.sig"), key)


@pytest.mark.parametrize("name", sorted(LOADED))
def test_one_flipped_byte_of_a_file_is_named(name: str) -> None:
    digest = LOADED[name]
    flipped = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    with pytest.raises(EvidenceRefused, match=f"{name} is not the file that was signed"):
        check_files(verified(read("one.sig"), read("one.pub")), LOADED | {name: flipped})


@pytest.mark.parametrize("name", sorted(LOADED))
def test_a_missing_file_is_named(name: str) -> None:
    with pytest.raises(EvidenceRefused, match=f"{name} was signed and is missing"):
        check_files(verified(read("one.sig"), read("one.pub")), {n: d for n, d in LOADED.items() if n != name})


def test_a_file_that_was_not_signed_is_named_and_no_files_are_none() -> None:
    signed = verified(read("one.sig"), read("one.pub"))
    with pytest.raises(EvidenceRefused, match=r"extra\.safetensors was not signed"):
        check_files(signed, LOADED | {"extra.safetensors": "0" * 64})
    with pytest.raises(EvidenceRefused):
        check_files(signed, {})


def payload_of(bundle: str) -> dict[str, object]:
    said: dict[str, object] = json.loads(base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]))
    return said


def test_a_changed_statement_breaks_the_signature() -> None:
    statement = payload_of(read("one.sig"))
    statement["predicate"]["resources"][1]["digest"] = "0" * 64  # type: ignore[index]
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    for bundle, key in (("one.sig", "one.pub"), ("two.sig", "two.pub"), ("cert.sig", None)):
        spoiled = changed(read(bundle), dsseEnvelope__payload=payload)
        with pytest.raises(EvidenceRefused, match="does not hold"):
            verified(spoiled, key and read(key))


def test_a_signature_of_another_model_or_key_does_not_fit_the_statement() -> None:
    other = json.loads(read("file.sig"))["dsseEnvelope"]["signatures"]
    with pytest.raises(EvidenceRefused, match="does not hold"):
        verified(changed(read("one.sig"), dsseEnvelope__signatures=other), read("one.pub"))


def test_a_certificate_from_elsewhere_ends_at_itself_and_another_root_does_not_count() -> None:
    said = json.loads(read("cert.sig"))
    certificates = said["verificationMaterial"]["x509CertificateChain"]["certificates"]
    alone = changed(read("cert.sig"), verificationMaterial__x509CertificateChain={"certificates": certificates[:1]})
    assert verified(alone, None).keys == (certified("leaf.pem"),), "no policy names a leaf that it does not know"
    swapped = changed(read("cert.sig"), verificationMaterial__x509CertificateChain={"certificates": certificates[::-1]})
    with pytest.raises(EvidenceRefused):
        verified(swapped, None)


SIGNATURES = json.loads(read("one.sig"))["dsseEnvelope"]["signatures"]


@pytest.mark.parametrize(
    "bundle",
    [
        "", "{}", "[]", "5", "null", "\u20ac", '{"mediaType": 5}',
        changed(read("one.sig"), mediaType="application/vnd.dev.sigstore.bundle.v0.2+json"),
        changed(read("one.sig"), dsseEnvelope__payloadType="text/plain"),
        changed(read("one.sig"), dsseEnvelope__payload="not base64!"),
        changed(read("one.sig"), dsseEnvelope__signatures=[]),
        changed(read("one.sig"), dsseEnvelope__signatures=SIGNATURES * 2),
        changed(read("one.sig"), verificationMaterial={}),
        changed(read("one.sig"), verificationMaterial={"certificate": {"rawBytes": ""}}),
        changed(read("cert.sig"), verificationMaterial__x509CertificateChain={"certificates": [{"rawBytes": "AAAA"}]}),
    ],
    ids=range(15),
)  # fmt: skip
def test_what_is_no_bundle_or_one_of_another_kind_is_refused(bundle: str) -> None:
    with pytest.raises(EvidenceRefused, match=";"):
        verified(bundle, read("one.pub"))
