"""Signed provenance of what a release brings: an in-toto statement with SLSA's predicate, in a DSSE envelope.

    python deploy/provenance.py sign --key release.pem --builder URI --out dist/provenance.json dist/*
    python deploy/provenance.py verify --key release.pub --in dist/provenance.json dist/domicile-0.1.0-py3-none-any.whl

`sign` states the digest of each file, the commit that it was built from and the locks that it installs. `verify` ends
with 1 where the signature does not fit, or a file is not one that was signed. The key is Ed25519 in PEM, private for
`sign` and public for `verify` (`openssl genpkey -algorithm ed25519`). Needs securesystemslib.

https://slsa.dev/spec/v1.0/provenance, https://github.com/in-toto/attestation, https://github.com/secure-systems-lab/dsse
"""

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

TREE = Path(__file__).parents[1]
PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD = "urn:domicile:build:make-dist-and-images:v1"


class ProvenanceError(Exception):
    """Says what is wrong and what to do."""


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def statement(files: list[Path], commit: str, builder: str) -> dict[str, Any]:
    locks = sorted((TREE / "deploy" / "requirements").glob("*.txt"))
    materials = [{"uri": f"git:{commit}", "digest": {"gitCommit": commit}}]
    materials += [{"uri": f"file:{lock.relative_to(TREE)}", "digest": {"sha256": digest_of(lock)}} for lock in locks]
    definition = {
        "buildType": BUILD,
        "externalParameters": {"commit": commit},
        "resolvedDependencies": materials,
    }
    return {
        "_type": STATEMENT,
        "subject": [{"name": path.name, "digest": {"sha256": digest_of(path)}} for path in sorted(files)],
        "predicateType": PREDICATE,
        "predicate": {"buildDefinition": definition, "runDetails": {"builder": {"id": builder}}},
    }


def sign(made: dict[str, Any], key: bytes) -> str:
    private = load_pem_private_key(key, None)
    if not isinstance(private, Ed25519PrivateKey):
        raise ProvenanceError("the key is not Ed25519; make one with: openssl genpkey -algorithm ed25519")
    envelope = Envelope(json.dumps(made, sort_keys=True).encode(), PAYLOAD, {})
    envelope.sign(CryptoSigner(private))
    return json.dumps(envelope.to_dict(), indent=1) + "\n"


def verify(signed: str, key: bytes, files: list[Path]) -> dict[str, Any]:
    """What was stated. Raises ProvenanceError where it was not signed with `key`, or is not about each of `files`."""
    public = load_pem_public_key(key)
    if not isinstance(public, Ed25519PublicKey):
        raise ProvenanceError("the key is not Ed25519; use the one that the release names")
    try:
        envelope = Envelope.from_dict(json.loads(signed))
        envelope.verify([SSlibKey.from_crypto(public)], 1)
        stated = json.loads(envelope.payload)
    except (VerificationError, ValueError, KeyError) as error:
        raise ProvenanceError(f"the signature does not hold: {error}; get the file from the release again") from None
    if (envelope.payload_type, stated["_type"], stated["predicateType"]) != (PAYLOAD, STATEMENT, PREDICATE):
        raise ProvenanceError("what was signed is no provenance; get the file from the release again")
    known = {subject["name"]: subject["digest"]["sha256"] for subject in stated["subject"]}
    for path in files:
        if known.get(path.name) != digest_of(path):
            raise ProvenanceError(f"{path.name} is not the file that was signed; do not install it")
    return stated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    signing, verifying = verbs.add_parser("sign"), verbs.add_parser("verify")
    for one in (signing, verifying):
        one.add_argument("--key", type=Path, required=True)
        one.add_argument("files", type=Path, nargs="+")
    signing.add_argument("--builder", required=True, help="URI of who builds: a workflow, or a person's machine")
    signing.add_argument("--out", type=Path, required=True)
    verifying.add_argument("--in", dest="signed", type=Path, required=True)
    options = parser.parse_args()
    try:
        if options.verb == "sign":
            commit = subprocess.run(
                ["git", "rev-parse", "HEAD"],  # noqa: S607  # of the machine that builds
                cwd=TREE,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            made = statement(options.files, commit, options.builder)
            options.out.write_text(sign(made, options.key.read_bytes()), encoding="utf-8")
            print(f"signed {len(made['subject'])} files of commit {commit}: {options.out}")
        else:
            stated = verify(options.signed.read_text(encoding="utf-8"), options.key.read_bytes(), options.files)
            parameters = stated["predicate"]["buildDefinition"]["externalParameters"]
            print(f"{len(options.files)} files are those signed, built from commit {parameters['commit']}")
    except (ProvenanceError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
