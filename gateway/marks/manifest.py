"""Manifests of answers (C2PA 2.4): signed statements that a model generated a text, with the model and the request.

A manifest is external to its text and bound to it by a hash of all its UTF-8 bytes. It is created and verified with the
library of the Content Authenticity Initiative (``c2pa-python``, extra ``c2pa``). Its digital source type is IPTC's for
generated media. The assertion RECORD contains the request id, by which the tenant finds the recorded call.
"""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from gateway.database.errors import ControlError
from gateway.marks.manifest_key import ManifestKey
from gateway.version import build

FORMAT: Final = "text/plain"
SOURCE: Final = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
RECORD: Final = "eu.domicile.record"


class ManifestError(ControlError):
    """A manifest cannot be created or read."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification.

    Attributes:
        verdict: ``trusted`` (intact, matches the text, signed under one of the given roots), ``untrusted`` (intact and
            matches the text, but signed by another certificate) or ``invalid``.
        problems: status codes of C2PA 2.4, 15.2.
        generated: whether the manifest states that a model generated the text.
        model, request_id, signer: as stated in the manifest.
    """

    verdict: str
    problems: tuple[str, ...]
    generated: bool
    model: str | None
    request_id: str | None
    signer: str | None


class ManifestSigner:
    """Signer of manifests, thread-safe. Raises ManifestError if the extra is not installed."""

    def __init__(self, key: ManifestKey) -> None:
        self._c2pa = _library()
        self._key = key

    def signed(self, text: str, model: str, request_id: str) -> bytes:
        """Return the manifest store of a text. It takes milliseconds, mostly without the GIL. Raises ManifestError."""
        made = {
            "claim_generator_info": [{"name": "Domicile", "version": build().partition(" ")[2]}],
            "title": "answer",
            "format": FORMAT,
            "assertions": [
                {
                    "label": "c2pa.actions.v2",
                    "data": {
                        "actions": [
                            {"action": "c2pa.created", "digitalSourceType": SOURCE, "softwareAgent": {"name": model}}
                        ]
                    },
                },
                {"label": RECORD, "data": {"request_id": request_id}},
            ],
        }
        c2pa = self._c2pa
        try:
            with (
                c2pa.Signer.from_callback(self._key.sign, c2pa.C2paSigningAlg.ED25519, self._key.chain, None) as signer,
                c2pa.Builder(json.dumps(made)) as builder,
            ):
                builder.set_no_embed()
                store: bytes = builder.sign(signer, FORMAT, io.BytesIO(text.encode()), io.BytesIO())
        except c2pa.C2paError as error:
            raise ManifestError(f"a manifest could not be made: {type(error).__name__}; report it") from error
        return bytes(store)


def verified(text: bytes, store: bytes, roots: str) -> Verified:
    """Verify a manifest store against a text. roots: PEM certificates to trust.

    Raises ManifestError if the extra is not installed.
    """
    c2pa = _library()
    settings = {"verify": {"verify_trust": True, "remote_manifest_fetch": False}, "trust": {"trust_anchors": roots}}
    try:
        context = c2pa.Context(settings=c2pa.Settings.from_dict(settings))
        with c2pa.Reader(FORMAT, io.BytesIO(text), manifest_data=store, context=context) as reader:
            said: dict[str, Any] = json.loads(reader.json())
    except c2pa.C2paError as error:
        return Verified("invalid", (f"not readable: {type(error).__name__.strip('_')}",), False, None, None, None)
    return _judged(said)


def _judged(said: dict[str, Any]) -> Verified:
    results = said.get("validation_results", {}).get("activeManifest", {})
    passed = {one.get("code") for one in results.get("success", ())}
    failed = {str(one.get("code")) for one in results.get("failure", ())}
    if not passed >= {"assertion.dataHash.match", "claimSignature.validated"}:
        failed.add("assertion.dataHash.mismatch" if "claimSignature.validated" in passed else "claimSignature.mismatch")
    verdict = "trusted" if "signingCredential.trusted" in passed else "untrusted"
    manifest = said.get("manifests", {}).get(said.get("active_manifest"), {})
    assertions = {one.get("label"): one.get("data", {}) for one in manifest.get("assertions", ())}
    generated, model = _created(assertions.get("c2pa.actions.v2", {}).get("actions", ()))
    request_id = assertions.get(RECORD, {}).get("request_id")
    return Verified(
        verdict="invalid" if failed - {"signingCredential.untrusted"} else verdict,
        problems=tuple(sorted(failed)),
        generated=generated,
        model=model,
        request_id=request_id if isinstance(request_id, str) else None,
        signer=manifest.get("signature_info", {}).get("common_name"),
    )


def _created(actions: Iterable[Any]) -> tuple[bool, str | None]:
    """Return whether the text was created by a model, and the model."""
    for one in actions:
        if isinstance(one, dict) and one.get("action") == "c2pa.created":
            agent = one.get("softwareAgent")
            return one.get("digitalSourceType") == SOURCE, agent.get("name") if isinstance(agent, dict) else None
    return False, None


def _library() -> Any:
    try:
        import c2pa  # native code, loaded only where a policy or a command asks for manifests
    except ImportError as error:
        raise ManifestError("manifests need c2pa-python; install the extra: pip install 'domicile[c2pa]'") from error
    return c2pa
