"""The commitment of a recorded answer, for a challenge: by which model was it given?

The commitment is kept apart from content, under a retention of its own, so a call whose content was not kept can be
challenged by the texts that its client has. Whoever reads it is recorded before, and what came of it afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic_core import from_json, to_json

from audit.events.leaf import decode_leaf
from audit.events.privacy import AnswerChallenged
from audit.privacy.rights import read
from audit.private.audit_context import AuditContext
from backend.wire import Challenged, ChallengeRequest
from gateway.apis.endpoints import upstream_of
from gateway.comparisons.recorded_call import NotComparable, fields_of, prepared_last, records_of, require_kept
from regions.fleet.fleet import Backend

FIELD = "activations"
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
COMPLETIONS: Literal["/v1/completions"] = "/v1/completions"


class NotChallengeable(NotComparable):
    """The answer commits to nothing that these texts can be compared with."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A recorded answer and what it commits to. seq: of its outcome. backend_id: who gave it. path: that it was asked
    at there. at: milliseconds since the epoch. commitments: by choice. sent: the body that the backend got, where it is
    kept. redacted: prompt or answer are not what the backend got and wrote."""

    tenant: str
    project: str
    seq: int
    request_id: str
    backend_id: str
    path: Literal["/v1/chat/completions", "/v1/completions"]
    model: str
    at: int
    commitments: Sequence[str]
    weights_sha256: str | None
    sent: str | None
    redacted: bool

    def request(self, prompt: str | None, text: str, choice: int) -> ChallengeRequest:
        """Return the challenge. prompt: what the client sent, a JSON body or the text of one message; None: as kept.

        Raises NotChallengeable if the prompt is neither given nor kept, or the answer has no such choice.
        """
        if prompt is None and self.sent is None:
            raise NotChallengeable(
                f"the prompt of {self.request_id} was not kept; give what was sent with --prompt, as a JSON body or as "
                "the text of its one message"
            )
        if choice >= len(self.commitments):
            raise NotChallengeable(
                f"the answer has {len(self.commitments)} choices; give --choice a number from 0 to "
                f"{len(self.commitments) - 1}"
            )
        body = self.sent if prompt is None else self._body(prompt)
        return ChallengeRequest(
            path=self.path, body=body or "", at=self.at, text=text, choice=choice, commitment=self.commitments[choice]
        )

    def _body(self, prompt: str) -> str:
        try:
            body: Any = from_json(prompt)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            said = {"messages": [{"role": "user", "content": prompt}]} if self.path == CHAT else {"prompt": prompt}
            body = said
        return to_json({"model": self.model, **body}).decode()


class ChallengeReport(Challenged):
    """What comes of a challenge. recorded_weights_sha256: of the weights that the record names, `same_weights` whether
    they are those that computed; None where it names none. redacted: see `Committed`. backend, region: that computed;
    None: this host. gave_answer: the backend is the one that gave the answer, whose word proves less."""

    request_id: str
    recorded_weights_sha256: str | None
    same_weights: bool | None
    redacted: bool
    backend: str | None = None
    region: str | None = None
    gave_answer: bool | None = None

    @classmethod
    def of(cls, kept: Committed, found: Challenged, backend: Backend | None = None) -> "ChallengeReport":
        return cls(
            **found.model_dump(),
            request_id=kept.request_id,
            recorded_weights_sha256=kept.weights_sha256,
            same_weights=None if kept.weights_sha256 is None else kept.weights_sha256 == found.weights_sha256,
            redacted=kept.redacted,
            backend=backend.id if backend else None,
            region=backend.region if backend else None,
            gave_answer=backend.id == kept.backend_id if backend else None,
        )


async def committed(context: AuditContext, tenant: str, request_id: str, *, actor: str, reason: str) -> Committed:
    """Return what a recorded answer commits to; that it is read goes on record first.

    Raises NotChallengeable where it commits to nothing or was given with an adapter, NotComparable where there is no
    whole answer or the commitment is gone, and RestrictedError where its person's data may not be used.
    """
    intent_seq, intent, seq, outcome = await context.in_thread(lambda: records_of(context, tenant, request_id))
    asked_seq, asking = await context.in_thread(lambda: prepared_last(context, tenant, request_id, intent_seq, intent))
    if FIELD not in (outcome.commits or {}):
        raise NotChallengeable(
            f"the answer of {request_id} does not commit to activations, since its policy did not ask for it; set "
            "`models: {commitments: activations}` in the policy, and challenge a later call"
        )
    if asking.adapter_sha256 is not None:
        raise NotChallengeable(
            f"the answer of {request_id} was given with an adapter, which a challenge does not load; challenge a call "
            "without one"
        )
    await require_kept(context, seq, outcome, FIELD, "challenge a later call")
    (found,) = await read(context, tenant, seq, actor=actor, reason=reason, only={FIELD})
    sent: str | None = None
    if "input" in (asking.commits or {}):
        shown = await read(context, tenant, asked_seq, actor=actor, reason=reason, only={"input"})
        sent = str(shown[0].value)
    path = upstream_of(intent.endpoint)
    if path not in (CHAT, COMPLETIONS):
        raise NotChallengeable(f"{path} gives no texts; challenge a call of {CHAT} or {COMPLETIONS}")
    return Committed(
        tenant=tenant,
        project=intent.project,
        seq=seq,
        request_id=request_id,
        backend_id=outcome.backend_id or intent.backend_id,
        path=CHAT if path == CHAT else COMPLETIONS,
        model=outcome.model_served or intent.model_requested,
        at=await context.in_thread(lambda: _when(context, tenant, intent_seq)),
        commitments=[str(one) for one in found.value],
        weights_sha256=outcome.weights_sha256,
        sent=sent,
        redacted=asking.redaction is not None or outcome.redaction is not None,
    )


def _when(context: AuditContext, tenant: str, seq: int) -> int:
    with context.reading() as reader:
        stored = next(iter(reader.leaves(tenant, seq)))
    return round(datetime.fromisoformat(decode_leaf(stored.payload).stamp.ts).timestamp() * 1000)


async def record_challenge(
    context: AuditContext,
    kept: Committed,
    choice: int,
    found: Challenged,
    *,
    actor: str,
    reason: str,
    backend: Backend | None = None,
) -> None:
    """backend: that computed it; None: this host."""
    await context.record(
        AnswerChallenged(
            **fields_of(kept, backend, actor),
            choice=choice,
            verdict=found.verdict,
            tokens=found.tokens,
            compared=found.compared,
            weights_sha256=found.weights_sha256,
            reason=reason,
        )
    )
