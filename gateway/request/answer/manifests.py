"""Signed manifests of answers (C2PA), if the policy requires them (``transparency.marking: [manifest]``).

A whole answer has them in its member ``c2pa``, a stream of OpenAI's API in its last chunk. An answer without a manifest
gives the reason: ``no_text``, ``too_long`` or ``format`` (streams of other APIs have no field for it).
"""

import asyncio
import logging
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic_core import to_json

from audit.errors import AuditError
from audit.log.answer_prints import MAX_CHARACTERS
from gateway.content.said_text import SaidText
from gateway.database.errors import StoreError
from gateway.errors import BackendUnavailable, InternalError
from gateway.marks.manifest import ManifestSigner
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.stages import Accepted, Routed

logger = logging.getLogger("domicile.gateway")
MEMBER: Final = "c2pa"
DEMANDED: Final = "demanded"
FORMAT: Final = "format"
SIGNED: Final = "signed"


def is_demanded(routed: Routed) -> bool:
    return "manifest" in routed.redacted.allowed.marking and routed.request.call.endpoint.writes


class AnswerManifests:
    """Manifests of answers. `open_signer` is called once, in a thread, when a policy first requires a manifest; None if
    there is no signer, as in tests."""

    def __init__(self, open_signer: Callable[[], ManifestSigner] | None = None) -> None:
        self._open = open_signer
        self._signer: ManifestSigner | None = None

    async def require(self, routed: Routed) -> None:
        """Raise BackendUnavailable, before anything is sent, if a manifest is required and cannot be created."""
        if not is_demanded(routed) or self._signer is not None:
            return
        try:
            self._signer = None if self._open is None else await asyncio.to_thread(self._open)
        except (AuditError, StoreError, OSError, ValueError) as error:
            logger.error("no manifest can be signed: %s; check secrets/manifests and the extra c2pa", error)
        if self._signer is None:
            raise BackendUnavailable("The manifest that the policy demands cannot be signed; ask the operator")

    async def of(self, accepted: Accepted, said: SaidText | None, received: ReceivedAnswer) -> list[dict[str, Any]]:
        """Return the manifests of an answer, one for each choice with text, and note the outcome in `received`."""
        routed, signer = accepted.routed, self._signer
        if not is_demanded(routed) or said is None or signer is None:
            return []
        if accepted.request.call.stream and received.events is not None:
            received.manifest = FORMAT
            return []
        answers = {index: text for index, text in said.answers().items() if text}
        if said.characters >= MAX_CHARACTERS:
            received.manifest = "too_long"
            return []
        if not answers:
            received.manifest = "no_text"
            return []
        call = accepted.request.call
        made = await asyncio.to_thread(_signed, signer, answers, call.model, accepted.request.request_id)
        received.manifest = SIGNED
        return made


def with_manifests(raw: bytes, manifests: list[dict[str, Any]]) -> bytes:
    """Return a whole answer with its manifests. raw: the answer, a JSON object."""
    if not manifests:
        return raw
    return b'%s,"%s":%s}' % (raw.rstrip()[:-1], MEMBER.encode(), to_json(manifests))


def confirm(routed: Routed, received: ReceivedAnswer) -> None:
    """Raise InternalError if a manifest is required and no outcome was noted: no answer may end without one."""
    if is_demanded(routed) and received.manifest is None:
        raise InternalError("The answer has no manifest, which policy demands; report it")


def announced(routed: Routed) -> str | None:
    """Return the header value for the start of a stream, or None if no manifest is required."""
    if not is_demanded(routed):
        return None
    return DEMANDED if routed.redacted.translation is None else FORMAT


def _signed(signer: ManifestSigner, answers: Mapping[int, str], model: str, request_id: str) -> list[dict[str, Any]]:
    return [
        {"choice": index, "format": "application/c2pa", "manifest": _written(signer.signed(text, model, request_id))}
        for index, text in sorted(answers.items())
    ]


def _written(store: bytes) -> str:
    return b64encode(store).decode()
