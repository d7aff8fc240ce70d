"""Signed provenance: what was built, of which commit; anything else is refused."""

import base64
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

SCRIPT = Path(__file__).parents[2] / "deploy" / "provenance.py"


def pem(private) -> tuple[bytes, bytes]:
    return (
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


@pytest.fixture
def release(tmp_path):
    for name, content in {"a.whl": b"a", "b.tar.gz": b"b"}.items():
        (tmp_path / name).write_bytes(content)
    private, public = pem(Ed25519PrivateKey.generate())
    (tmp_path / "release.pem").write_bytes(private)
    (tmp_path / "release.pub").write_bytes(public)
    done = run(
        "sign",
        "--key",
        tmp_path / "release.pem",
        "--builder",
        "urn:test",
        "--out",
        tmp_path / "p.json",
        tmp_path / "a.whl",
        tmp_path / "b.tar.gz",
    )
    assert done.returncode == 0, done.stderr
    return tmp_path


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, check=False)


def verified(folder, *names, key="release.pub"):
    files = [folder / name for name in names]
    return run("verify", "--key", folder / key, "--in", folder / "p.json", *files)


def test_what_was_signed_is_verified_with_its_commit(release):
    done = verified(release, "a.whl", "b.tar.gz")
    assert done.returncode == 0, done.stderr
    envelope = json.loads((release / "p.json").read_text())
    stated = json.loads(base64.b64decode(envelope["payload"]))
    commit = stated["predicate"]["buildDefinition"]["externalParameters"]["commit"]
    assert commit in done.stdout and len(commit) == 40
    materials = stated["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert [each["uri"] for each in materials][:2] == [f"git:{commit}", "file:deploy/requirements/backend.txt"]


def test_a_file_that_differs_by_one_byte_is_refused(release):
    (release / "a.whl").write_bytes(b"A")
    done = verified(release, "a.whl")
    assert (done.returncode, done.stderr) == (1, "error: a.whl is not the file that was signed; do not install it\n")


def test_a_file_that_was_not_built_is_refused_also_with_the_bytes_of_one_that_was(release):
    (release / "c.whl").write_bytes(b"a")
    assert "c.whl is not the file that was signed" in verified(release, "c.whl").stderr


@pytest.mark.parametrize("change", ["payload", "payloadType", "sig"])
def test_a_changed_envelope_is_refused(release, change):
    envelope = json.loads((release / "p.json").read_text())
    if change == "payload":
        stated = json.loads(base64.b64decode(envelope["payload"]))
        stated["subject"][0]["digest"]["sha256"] = "0" * 64
        envelope["payload"] = base64.b64encode(json.dumps(stated).encode()).decode()
    elif change == "payloadType":
        envelope["payloadType"] = "text/plain"
    else:
        envelope["signatures"][0]["sig"] = base64.b64encode(b"x" * 64).decode()
    (release / "p.json").write_text(json.dumps(envelope))
    done = verified(release, "a.whl")
    assert done.returncode == 1
    assert "the signature does not hold" in done.stderr


def test_another_key_is_refused(release):
    (release / "other.pub").write_bytes(pem(Ed25519PrivateKey.generate())[1])
    assert "the signature does not hold" in verified(release, "a.whl", key="other.pub").stderr


def test_a_key_of_another_kind_is_refused_for_both(release):
    private, public = pem(ec.generate_private_key(ec.SECP256R1()))
    (release / "ec.pem").write_bytes(private)
    (release / "ec.pub").write_bytes(public)
    assert "the key is not Ed25519" in verified(release, "a.whl", key="ec.pub").stderr
    signing = run(
        "sign", "--key", release / "ec.pem", "--builder", "urn:test", "--out", release / "q.json", release / "a.whl"
    )
    assert "the key is not Ed25519" in signing.stderr and not (release / "q.json").exists()


def test_something_else_that_was_signed_with_the_key_is_no_provenance(release):
    module = runpy.run_path(str(SCRIPT))
    other = module["sign"]({"_type": "x", "predicateType": "y"}, (release / "release.pem").read_bytes())
    (release / "p.json").write_text(other)
    assert "is no provenance" in verified(release, "a.whl").stderr
