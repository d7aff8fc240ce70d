"""Signatures of models (OpenSSF Model Signing 1.0): a Sigstore bundle over the digest of each file, verified offline.

A bundle (``model.sig``) contains a DSSE envelope with an in-toto statement, whose predicate lists the files. It is
signed by a key, which the bundle names by a hint, or by the key of a certificate, whose chain is in the bundle.
Identities of Sigstore's public instance are not supported, because they need its transparency log. A certificate is
verified at the beginning of its validity, as `model-signing` does, because the time of signing is not proven.

Sources: https://github.com/sigstore/model-transparency (model-signing 1.1), DSSE 1.0, in-toto Statement v1.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from backend.wire import is_of_checkpoint
from regions.evidence.certificate_chains import chain_of, fingerprint, public_key_of, read_der
from regions.evidence.errors import EvidenceRefused

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
IN_TOTO = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://model_signing/signature/v1.0"
MAX_FILES = 20_000
_HASHES: Mapping[int, type[hashes.SHA256] | type[hashes.SHA384] | type[hashes.SHA512]] = {
    256: hashes.SHA256,
    384: hashes.SHA384,
    521: hashes.SHA512,
}


@dataclass(frozen=True, slots=True)
class SignedModel:
    """A verified signature. `files`: signed SHA-256 by name. `keys`: fingerprints of the signing key and of each
    authority above it."""

    files: Mapping[str, str]
    keys: tuple[str, ...]


def verified(bundle: str, signer_key: str | None) -> SignedModel:
    """Verify a bundle and return its content. Raises EvidenceRefused.

    signer_key: PEM of the public key, for a bundle without certificates. The policy decides whether the key is trusted.
    """
    try:
        return _verified(json.loads(bundle), signer_key)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as error:
        raise EvidenceRefused(
            "model.sig is no signature of a model; sign it with model-signing 1.0 or newer"
        ) from error


def check_files(signed: SignedModel, files: Mapping[str, str]) -> None:
    """Compare the files that a backend loaded with the signed ones. files: SHA-256 by name.

    Raises EvidenceRefused, which names the first file that is unsigned, different or missing.
    """
    if len(files) == 1 and set(signed.files) == {"."}:  # a signature of a single file has no file name
        files = {".": next(iter(files.values()))}
    for name, digest in sorted(files.items()):
        wanted = signed.files.get(name)
        if wanted is None:
            raise EvidenceRefused(f"{name} was not signed; sign the model with it, or remove it")
        if wanted != digest:
            raise EvidenceRefused(f"{name} is not the file that was signed; put that one back")
    is_folder = not all(name.endswith(".gguf") for name in files)
    for name in sorted(signed.files):
        if is_folder and name not in files and is_of_checkpoint(name):
            raise EvidenceRefused(f"{name} was signed and is missing; put it back")
    if not files:
        raise EvidenceRefused("the backend names no files; let it read the folder of --model")


def _verified(bundle: Any, signer_key: str | None) -> SignedModel:
    if bundle["mediaType"] != BUNDLE:
        raise EvidenceRefused("model.sig is a bundle of another version; sign with model-signing 1.0 or newer")
    material, envelope = bundle["verificationMaterial"], bundle["dsseEnvelope"]
    (signature,) = envelope["signatures"]
    payload = _decoded(envelope["payload"])
    if envelope["payloadType"] != IN_TOTO:
        raise EvidenceRefused("model.sig signs something else than a statement; sign it with model-signing")
    if "x509CertificateChain" in material:
        key, keys = _key_of_chain(material["x509CertificateChain"])
    elif "publicKey" in material:
        key, keys = _key_of_file(material["publicKey"].get("hint"), signer_key)
    else:
        raise EvidenceRefused(
            "model.sig is signed by an identity of Sigstore, which cannot be verified offline"
            "; sign it with a key or a certificate"
        )
    kind = _HASHES.get(key.curve.key_size)
    if kind is None:
        raise EvidenceRefused(f"model.sig is by a key on {key.curve.name}; use P-256, P-384 or P-521")
    try:
        key.verify(_decoded(signature["sig"]), _pre_authenticated(payload), ec.ECDSA(kind()))
    except InvalidSignature as error:
        raise EvidenceRefused("the signature in model.sig does not hold; sign the model again") from error
    return SignedModel(_files(json.loads(payload)), keys)


def _pre_authenticated(payload: bytes) -> bytes:
    """Return the pre-authentication encoding (DSSE 1.0, PAE)."""
    return b"DSSEv1 %d %s %d %s" % (len(IN_TOTO), IN_TOTO.encode(), len(payload), payload)


def _files(statement: Any) -> dict[str, str]:
    if statement["_type"] != STATEMENT or statement["predicateType"] != PREDICATE:
        raise EvidenceRefused("model.sig signs another kind of statement; sign it with model-signing 1.0 or newer")
    predicate = statement["predicate"]
    method = predicate["serialization"]
    if (method["method"], method["hash_type"]) != ("files", "sha256"):
        raise EvidenceRefused(
            "model.sig lists no SHA-256 of whole files; sign with model-signing's defaults, without shards"
        )
    resources = predicate["resources"]
    if len(resources) > MAX_FILES:
        raise EvidenceRefused(f"model.sig lists more than {MAX_FILES} files; sign the model's own folder")
    files: dict[str, str] = {}
    together = sha256()
    for each in resources:
        digest, name = bytes.fromhex(each["digest"]), each["name"]
        if each["algorithm"] != "sha256" or len(digest) != 32 or not isinstance(name, str) or name in files:
            raise EvidenceRefused("model.sig lists a file twice or without SHA-256; sign the model again")
        together.update(digest)
        files[name] = digest.hex()
    (subject,) = statement["subject"]
    if subject["digest"]["sha256"] != together.hexdigest():
        raise EvidenceRefused("model.sig contradicts itself: its files are not its subject; sign the model again")
    return files


def _key_of_file(hint: str | None, signer_key: str | None) -> tuple[ec.EllipticCurvePublicKey, tuple[str, ...]]:
    if signer_key is None:
        raise EvidenceRefused("model.sig names a key that is missing; put its PEM next to it, as model.pub")
    try:
        key = load_pem_public_key(signer_key.encode())
    except ValueError as error:
        raise EvidenceRefused("model.pub holds no public key in PEM; put the signer's there") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise EvidenceRefused("model.pub holds no key on an elliptic curve; put the signer's there")
    canonical = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    if hint and hint != sha256(canonical).hexdigest():
        raise EvidenceRefused("model.pub is not the key that model.sig names; put that one there")
    return key, (fingerprint(key),)


def _key_of_chain(said: Any) -> tuple[ec.EllipticCurvePublicKey, tuple[str, ...]]:
    leaf, *others = (read_der(_decoded(each["rawBytes"])) for each in said["certificates"])
    if not _may_sign(leaf):
        raise EvidenceRefused("the certificate in model.sig is not for signatures; sign with one that is")
    key = public_key_of(leaf)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise EvidenceRefused("the certificate in model.sig has no key on an elliptic curve; sign with one that has")
    chain = chain_of(leaf, others, leaf.not_valid_before_utc)
    return key, tuple(fingerprint(public_key_of(each)) for each in chain)


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        if certificate.extensions.get_extension_for_class(x509.KeyUsage).value.digital_signature:
            return True
    except x509.ExtensionNotFound:
        pass
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return ExtendedKeyUsageOID.CODE_SIGNING in usage


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise EvidenceRefused("model.sig is not whole: a part is no base64; sign the model again") from error
